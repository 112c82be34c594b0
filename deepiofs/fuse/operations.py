"""From the kernel's requests to the file system's methods, and back. A protocol adapter only.

**Threading.** pyfuse3 runs each request as a task of one trio loop. Only FUSEError may leave a handler: anything
else would end the session, and with it the mount.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

import pyfuse3
from pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT, ReaddirToken, RequestContext, XAttrNameT

from deepiofs.errors import DeepiofsError
from deepiofs.fs.filesystem import FileSystem, FsError
from deepiofs.fs.tree import BLOCK_BYTES, Attributes

log = logging.getLogger(__name__)

_STAT_BLOCK = 512
_WRITING = os.O_WRONLY | os.O_RDWR
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
        except pyfuse3.FUSEError:
            raise
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
        self._fs = filesystem
        self._written: dict[int, int] = {}

    @_guarded
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return _entry(await self._fs.lookup(parent_inode, name, ctx.pid))

    @_guarded
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return _entry(await self._fs.attributes(inode, ctx.pid))

    @_guarded
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        await self._fs.listing(inode, 1)
        return FileHandleT(inode)

    @_guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        for name, attributes, position in self._fs.list_directory(fh, start_id):
            if not pyfuse3.readdir_reply(token, FileNameT(name), _entry(attributes), position):
                break

    @_guarded
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> pyfuse3.FileInfo:
        opened = await self._fs.open(inode, flags, ctx.pid)
        if opened.size_is_news:
            pyfuse3.invalidate_inode(inode, attr_only=True)
        if flags & _WRITING:
            self._written[opened.handle] = inode
        return pyfuse3.FileInfo(fh=FileHandleT(opened.handle), keep_cache=opened.keep_cache, direct_io=opened.direct_io)

    @_guarded
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        # Any contiguous buffer will do: a view of the store goes to the kernel without a copy in user space.
        data: Any = await self._fs.read(fh, off, size)
        return data  # type: ignore[no-any-return]

    @_guarded
    async def release(self, fh: FileHandleT) -> None:
        self._written.pop(fh, None)
        await self._fs.release(fh)

    @_guarded
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return self._fs.write(self._written[fh], buf)

    @_guarded
    async def setattr(
        self,
        inode: InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> pyfuse3.EntryAttributes:
        # `echo 3 > epoch` cuts the file first; everything else that setattr stands for is a change.
        only_size = not (fields.update_mode or fields.update_uid or fields.update_gid)
        if not (fields.update_size and only_size and self._fs.may_truncate(inode)):
            raise pyfuse3.FUSEError(errno.EROFS)
        return _entry(await self._fs.attributes(inode, ctx.pid))

    @_guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        await self._fs.listing(fh, -1)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        return

    async def flush(self, fh: FileHandleT) -> None:
        # Answered once with ENOSYS, it is not sent again: a request less for each close.
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @_guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        statistics = self._fs.statistics
        data.f_bsize = data.f_frsize = statistics.block_bytes
        data.f_blocks, data.f_files = statistics.blocks, statistics.files
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_namemax = _NAME_MAX
        return data

    @_guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        return await self._fs.getxattr(inode, name)

    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return ()

    _refuse: Any = _refused
    mknod = mkdir = unlink = rmdir = symlink = rename = link = create = _refuse
    setxattr = removexattr = _refuse


def _entry(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = InodeT(attributes.node)
    entry.st_mode = pyfuse3.ModeT(attributes.mode)
    entry.st_nlink = attributes.nlink
    entry.st_uid, entry.st_gid = attributes.uid, attributes.gid
    entry.st_size = attributes.size
    entry.st_blocks = -(-attributes.size // _STAT_BLOCK)
    entry.st_blksize = BLOCK_BYTES
    entry.st_atime_ns = entry.st_ctime_ns = entry.st_mtime_ns = attributes.mtime_ns
    entry.entry_timeout, entry.attr_timeout = attributes.name_valid_s, attributes.valid_s
    return entry
