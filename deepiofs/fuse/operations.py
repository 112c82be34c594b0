"""What the kernel asks for seldom, by pyfuse3's handlers; all else is answered by `express`. A protocol adapter only.

**Threading.** pyfuse3 runs each request as a task of one trio loop. Only FUSEError may leave a handler: anything
else would end the session, and with it the mount.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

import pyfuse3
from pyfuse3 import FileHandleT, InodeT, RequestContext, XAttrNameT

from deepiofs.errors import DeepiofsError
from deepiofs.fs.filesystem import FileSystem, FsError

log = logging.getLogger(__name__)

_NAME_MAX = 255
P = ParamSpec("P")
T = TypeVar("T")


def _guarded(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Answer with FsError's errno, and with EIO and a traceback in the log where the program itself is wrong."""

    @functools.wraps(handler)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(*args, **kwargs)
        except FsError as error:
            raise pyfuse3.FUSEError(error.errno) from None
        except DeepiofsError as error:
            log.warning("%s: %s", handler.__name__, error)
            raise pyfuse3.FUSEError(error.errno) from None
        except Exception:
            log.exception("%s failed", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return guarded


async def _refused(*args: Any) -> Any:
    """A request that would change something."""
    raise pyfuse3.FUSEError(errno.EROFS)


class Operations(pyfuse3.Operations):
    """pyfuse3's handlers."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, filesystem: FileSystem, demand_permissions: bool = False) -> None:
        """demand_permissions: have the kernel check modes whether it was mounted with `default_permissions` or not.

        FUSE_POSIX_ACL implies that (fuse_init_reply of the kernel); that there are no lists, `getxattr` says.
        """
        super().__init__()
        self.enable_acl = demand_permissions
        self.filesystem = filesystem

    async def flush(self, fh: FileHandleT) -> None:
        # Answered once with ENOSYS, it is not sent again: a request less for each close.
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @_guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        statistics = self.filesystem.statistics
        data.f_bsize = data.f_frsize = statistics.block_bytes
        data.f_blocks, data.f_files = statistics.blocks, statistics.files
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_namemax = _NAME_MAX
        return data

    @_guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        return await self.filesystem.getxattr(inode, name)

    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return ()

    _refuse: Any = _refused
    mknod = mkdir = unlink = rmdir = symlink = rename = link = create = _refuse
    setxattr = removexattr = _refuse
