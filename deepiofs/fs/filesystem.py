"""The file system: what each request of a reader means. It knows the kernel's requests, but not FUSE.

**Threading.** The trio thread. A method that may wait is async, one that does not is not. Nothing here awaits
between looking at a handle and using it, except `read`, `release` and `getxattr`, which hold their own handle.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
import os
import stat
from collections.abc import Iterator

import trio
import xxhash

from deepiofs.errors import DeepiofsError
from deepiofs.fs.control import ControlTree
from deepiofs.fs.counts import Counts
from deepiofs.fs.fetch import OpenFile, Reader
from deepiofs.fs.tree import CONTROL_BASE, CONTROL_NAME, CONTROL_NODE, ROOT_NODE, Attributes, Tree

log = logging.getLogger(__name__)

_PREFIX = b"user.deepiofs."
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
_XATTR_READ_BYTES = 1 << 20


class FsError(Exception):
    """A request's answer is this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A handle, and whether the kernel may keep pages of this node, and must ask for each read."""

    handle: int
    keep_cache: bool
    direct_io: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """What statfs(2) says: everything is used, nothing is free."""

    blocks: int
    block_bytes: int
    files: int


class FileSystem:
    """A read-only view of a dataset, its exact twin below `.deepiofs/exact`, and the control files."""

    def __init__(
        self, tree: Tree, control: ControlTree, reader: Reader, counts: Counts, statistics: Statistics
    ) -> None:
        self._tree, self._control, self._reader = tree, control, reader
        self._counts, self.statistics = counts, statistics
        self._handles: dict[int, OpenFile | bytes] = {}
        self._numbers = itertools.count(1)

    @property
    def open_handles(self) -> int:
        """How many handles are open."""
        return len(self._handles)

    def lookup(self, directory: int, name: bytes) -> Attributes:
        """The node of a name; FsError(ENOENT)."""
        if directory == ROOT_NODE and name == CONTROL_NAME:
            return self.attributes(CONTROL_NODE)
        node = self._control.child(name) if directory == CONTROL_NODE else self._tree.child(directory, name)
        if node is None:
            raise FsError(errno.ENOENT)
        return self.attributes(node)

    def attributes(self, node: int) -> Attributes:
        """What stat(2) says."""
        return self._control.attributes(node) if node >= CONTROL_BASE else self._tree.attributes(node)

    def list_directory(self, node: int, after: int) -> Iterator[tuple[bytes, Attributes, int]]:
        """(name, attributes, position) of the entries behind a position."""
        entries = self._control.children(after) if node == CONTROL_NODE else self._tree.children(node, after)
        for name, child, position in entries:
            yield name, self.attributes(child), position

    def open(self, node: int, flags: int) -> Opened:
        """A handle for reading; FsError(EROFS) for anything else."""
        if flags & _CHANGING:
            raise FsError(errno.EROFS)
        handle = next(self._numbers)
        if node >= CONTROL_BASE:
            self._handles[handle] = self._control.text(node)
            return Opened(handle, keep_cache=False, direct_io=True)
        self._counts.opens += 1
        self._handles[handle] = self._reader.open(self._tree.row(node))
        return Opened(handle, keep_cache=True, direct_io=False)

    async def read(self, handle: int, at: int, size: int) -> memoryview | bytes:
        """Bytes of an open file, short only at its end; FsError with the cause."""
        file = self._handles[handle]
        if isinstance(file, bytes):
            return file[at : at + size]
        try:
            data, origin = await self._reader.read(file, at, size)
        except (OSError, DeepiofsError) as error:
            raise self._failure(file, error) from None
        self._counts.served_from(origin, len(data))
        return data

    async def release(self, handle: int) -> None:
        """The last descriptor of a handle is closed."""
        file = self._handles.pop(handle)
        if isinstance(file, OpenFile) and file.opened:
            await self._reader.close(file)

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """`user.deepiofs.sample`, `.origin`, `.xxh3`; FsError(ENODATA) for all others.

        They are not listed, so that `cp -a` does not carry them away.
        """
        if node >= CONTROL_BASE or not name.startswith(_PREFIX) or self._is_directory(node):
            raise FsError(errno.ENODATA)
        row = self._tree.row(node)
        match name.removeprefix(_PREFIX):
            case b"sample":
                return self._tree.manifest.path(row)
            case b"origin":
                return self._reader.origin(self._reader.open(row)).name.lower().encode()
            case b"xxh3":
                return (await self._digest(row)).encode()
        raise FsError(errno.ENODATA)

    def _is_directory(self, node: int) -> bool:
        return stat.S_ISDIR(self._tree.manifest.mode_of[self._tree.row(node)])

    async def _digest(self, row: int) -> str:
        """xxh3_64 of the whole file as a reader gets it, 16 hexadecimal digits."""
        file = self._reader.open(row)
        digest = xxhash.xxh3_64()
        try:
            for at in range(0, file.size, _XATTR_READ_BYTES):
                digest.update((await self._reader.read(file, at, _XATTR_READ_BYTES))[0])
                await trio.lowlevel.checkpoint()
        except (OSError, DeepiofsError) as error:
            raise self._failure(file, error) from None
        finally:
            await self._reader.close(file)
        return digest.hexdigest()

    def _failure(self, file: OpenFile, error: OSError | DeepiofsError) -> FsError:
        number = error.errno or errno.EIO
        self._counts.failed(number)
        log.warning("%s: %s", self._reader.name(file), error)
        return FsError(number)
