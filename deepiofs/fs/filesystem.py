"""The file system: what each request of a reader means. It knows the kernel's requests, but not FUSE.

**Threading.** The trio thread. A method that may wait is async, one that does not is not. Nothing here awaits
between looking at a handle and using it, except `read`, `release` and `getxattr`, which hold their own file.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

import trio
import xxhash

from deepiofs.dataset.manifest import CONTROL_NAME
from deepiofs.errors import DeepiofsError
from deepiofs.fs.coming import Coming
from deepiofs.fs.control import ControlTree
from deepiofs.fs.counts import Counts
from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.fetch import Reader
from deepiofs.fs.openfile import OpenFile
from deepiofs.fs.orderlog import OrderLog
from deepiofs.fs.shuffle import Bound, Shuffle
from deepiofs.fs.streams.reading import OpenStream
from deepiofs.fs.streams.tree import Streams
from deepiofs.fs.tree import CONTROL_BASE, CONTROL_NODE, ROOT_NODE, STREAM_BASE, Attributes, Tree

log = logging.getLogger(__name__)

_PREFIX = b"user.deepiofs."
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
_XATTR_READ_BYTES = 1 << 20
_NAME_MAX = 255


class FsError(Exception):
    """A request's answer is this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


class Opened(NamedTuple):
    """A handle, and what the kernel must know of it."""

    handle: int
    keep_cache: bool = True  # the pages that it has of this node are of these bytes
    direct_io: bool = False  # it must ask for each read, whatever the size is
    size_is_news: bool = False  # the size that it knows of this node is not of these bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """What statfs(2) says: everything is used, nothing is free."""

    blocks: int
    block_bytes: int
    files: int


class FileSystem:
    """A read-only view of a dataset, its exact twin below `.deepiofs/exact`, the streams, and the control files.

    `thread` is the reader's, as the kernel reports it; only shuffled names ask for it.
    """

    def __init__(
        self,
        tree: Tree,
        control: ControlTree,
        reader: Reader,
        counts: Counts,
        statistics: Statistics,
        streams: Streams,
        shuffle: Shuffle | None = None,
        order_log: OrderLog | None = None,
    ) -> None:
        self._tree, self._control, self._reader = tree, control, reader
        self.counts, self.statistics, self.streams = counts, statistics, streams
        self._shuffle, self._order_log = shuffle, order_log
        self._handles: dict[int, OpenFile | OpenStream | bytes] = {}
        self._bound: dict[int, Bound] = {}
        self._stream_listings: dict[int, list[tuple[bytes, Attributes]]] = {}
        self._numbers = itertools.count(1)

    @property
    def words(self) -> EngineLink | None:
        """What the engine says, for who waits for requests to take, too; None if readers never wait for it."""
        return None if self._reader.link.all_near else self._reader.link

    @property
    def open_handles(self) -> int:
        """How many handles are open."""
        return len(self._handles)

    async def lookup(self, directory: int, name: bytes, thread: int) -> Attributes:
        """The node of a name; FsError(ENOENT). A shuffled name reserves a sample for the thread."""
        if directory == ROOT_NODE and name == CONTROL_NAME:
            return self._control.attributes(CONTROL_NODE)
        if len(name) > _NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        node = self._child(directory, name)
        if node is None:
            raise FsError(errno.ENOENT)
        return await self.attributes(node, thread)

    async def attributes(self, node: int, thread: int) -> Attributes:
        """What stat(2) says; of a shuffled name the size of what an open by this thread would read."""
        if node >= STREAM_BASE:
            return await self.streams.attributes(node)
        shuffle = self._shuffle
        if shuffle is not None and (row := self._tree.shuffled_row(node)) is not None:
            return self._tree.shuffled_attributes(node, await shuffle.look(thread, row))
        return self._plain_attributes(node)

    async def listing(self, node: int, change: int) -> None:
        """A directory is opened (1) or closed (-1)."""
        if node >= STREAM_BASE and change > 0:
            self._stream_listings[node] = await self.streams.listing(node)
        if self._shuffle is not None and node < CONTROL_BASE:
            self._shuffle.told.listing(self._tree.row(node), change)

    def list_directory(self, node: int, after: int) -> Iterator[tuple[bytes, Attributes, int]]:
        """(name, attributes, position) of the entries behind a position. Reserves nothing."""
        if node >= STREAM_BASE:
            for position, (name, attributes) in enumerate(self._stream_listings[node][after:], after + 1):
                yield name, attributes, position
            return
        entries = self._control.children(after) if node == CONTROL_NODE else self._tree.children(node, after)
        for name, child, position in entries:
            yield name, self._listed_attributes(child), position

    async def open(self, node: int, flags: int, thread: int) -> Opened:
        """A handle for reading; FsError(EROFS) for anything else, but for control files that may be written."""
        if CONTROL_BASE <= node < STREAM_BASE:
            return self._open_control(node, flags)
        if flags & _CHANGING:
            raise FsError(errno.EROFS)
        self.counts.opens += 1
        if node >= STREAM_BASE:
            return Opened(self._keep(await self.streams.open(node)))
        if self._shuffle is not None and (row := self._tree.shuffled_row(node)) is not None:
            return await self._open_shuffled(self._shuffle, row, thread)
        return Opened(self._keep(self._reader.open(self._tree.row(node))))

    def read_soon(self, handle: int, at: int, size: int) -> memoryview | bytes | Coming | None:
        """The bytes if they are at hand, or those that a peer was asked for; None: `read` them."""
        file = self._handles[handle]
        if type(file) is not OpenFile:
            return None
        found = self._reader.read_soon(file, at, size)
        if not isinstance(found, tuple):
            return found
        data, origin = found
        self.counts.served_from(origin, len(data))
        return data

    async def read_otherwise(self, coming: Coming) -> memoryview | bytes:
        """The bytes of a read that a peer was asked for in vain; FsError with the cause."""
        try:
            data, origin = await self._reader.read_otherwise(coming)
        except (OSError, DeepiofsError) as error:
            raise self._failure(coming.file, error) from None
        self.counts.served_from(origin, len(data))
        return data

    async def read(self, handle: int, at: int, size: int) -> memoryview | bytes:
        """Bytes of an open file, short only at its end; FsError with the cause."""
        file = self._handles[handle]
        if isinstance(file, bytes):
            return file[at : at + size]
        try:
            if isinstance(file, OpenStream):
                data, origin = await file.read(at, size)
            else:
                data, origin = await self._reader.read(file, at, size)
        except (OSError, DeepiofsError) as error:
            raise self._failure(file, error) from None
        self.counts.served_from(origin, len(data))
        return data

    def write(self, node: int, data: bytes) -> int:
        """Write to a control file at once; FsError(EINVAL) if it means nothing."""
        write = self._control.writer(node)
        assert write is not None
        try:
            write(data.decode())
        except ValueError:
            raise FsError(errno.EINVAL) from None
        return len(data)

    def may_truncate(self, node: int) -> bool:
        """Whether cutting a node to a length is no change: control files that may be written have none."""
        return CONTROL_BASE <= node < STREAM_BASE and self._control.writer(node) is not None

    async def release(self, handle: int) -> None:
        """The last descriptor of a handle is closed."""
        file = self._handles.pop(handle)
        bound = self._bound.pop(handle, None)
        if bound is not None and self._shuffle is not None:
            self._shuffle.close(bound)
        if isinstance(file, OpenFile):
            await self._reader.close(file)
        elif isinstance(file, OpenStream):
            await self.streams.close(file)

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """`user.deepiofs.sample`, `.origin`, `.xxh3`; FsError(ENODATA) for all others.

        Of a shuffled name they are those of the sample it is bound to. They are not listed, so that `cp -a` does not
        carry them away.
        """
        if node >= CONTROL_BASE or not name.startswith(_PREFIX) or self._is_directory(node):
            raise FsError(errno.ENODATA)
        row = self._serves(node)
        match name.removeprefix(_PREFIX):
            case b"sample":
                return self._tree.manifest.path(row)
            case b"origin":
                return self._reader.origin(self._reader.open(row)).name.lower().encode()
            case b"xxh3":
                return (await self._digest(row)).encode()
        raise FsError(errno.ENODATA)

    def _child(self, directory: int, name: bytes) -> int | None:
        if directory >= STREAM_BASE:
            return self.streams.child(directory, name)
        return self._control.child(name) if directory == CONTROL_NODE else self._tree.child(directory, name)

    def _plain_attributes(self, node: int) -> Attributes:
        if node >= STREAM_BASE:
            return self.streams.directory(node)
        return self._control.attributes(node) if node >= CONTROL_BASE else self._tree.attributes(node)

    def _listed_attributes(self, node: int) -> Attributes:
        """A listing may reach the kernel while a handle is open: it must tell what the name stands for now."""
        if self._shuffle is not None and (row := self._tree.shuffled_row(node)) is not None:
            return self._tree.shuffled_attributes(node, self._shuffle.peek(row))
        return self._plain_attributes(node)

    def _serves(self, node: int) -> int:
        """The row whose bytes a node stands for now."""
        row = self._tree.row(node)
        shuffled = self._shuffle is not None and self._tree.shuffled_row(node) is not None
        return self._shuffle.peek(row) if self._shuffle is not None and shuffled else row

    def _keep(self, file: OpenFile | OpenStream | bytes) -> int:
        handle = next(self._numbers)
        self._handles[handle] = file
        return handle

    def _open_control(self, node: int, flags: int) -> Opened:
        if flags & _CHANGING and not self._control.writer(node):
            raise FsError(errno.EROFS)
        return Opened(self._keep(self._control.text(node)), keep_cache=False, direct_io=True)

    async def _open_shuffled(self, shuffle: Shuffle, row: int, thread: int) -> Opened:
        bound = await shuffle.open(thread, row)
        file = self._reader.open(bound.row)
        handle = self._keep(file)
        self._bound[handle] = bound
        if bound.draws and self._order_log:
            path = self._tree.manifest.path
            origin = self._reader.origin(file).name.lower()
            self._order_log.drawn(bound.number, bound.position, path(row), path(bound.row), origin)
        return Opened(handle, keep_cache=bound.keep_cache, size_is_news=not bound.announced)

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

    def _failure(self, file: OpenFile | OpenStream, error: OSError | DeepiofsError) -> FsError:
        number = error.errno or errno.EIO
        self.counts.failed(number)
        log.warning("%s: %s", file.name if isinstance(file, OpenStream) else self._reader.name(file), error)
        return FsError(number)
