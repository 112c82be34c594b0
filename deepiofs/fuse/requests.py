"""What readers ask for all the time: from a request's body to the file system's methods, and back to a reply's body.

A protocol adapter only. **Threading.** The trio thread. A handler takes what it needs out of the body before it awaits
anything: the buffer is the next request's by then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from deepiofs.fs.coming import Coming
from deepiofs.fs.filesystem import FileSystem, FsError
from deepiofs.fs.tree import CONTROL_BASE
from deepiofs.fuse import protocol
from deepiofs.fuse.protocol import Opcode

Reply: TypeAlias = "bytes | memoryview | Coming"
Answering: TypeAlias = "Coroutine[Any, Any, Reply]"
Handler: TypeAlias = "Callable[[int, int, memoryview], Answering]"

_NOTHING = b""


class Requests:
    """Handlers: (node, thread, body of the request) to the body of the reply; FsError for an errno."""

    def __init__(self, filesystem: FileSystem, notify: Callable[[bytes], None]) -> None:
        """notify: tell the kernel something that it has not asked for."""
        self._fs, self._notify = filesystem, notify

    def handlers(self) -> Mapping[int, Handler]:
        """By opcode."""
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.SETATTR: self._setattr,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.RELEASEDIR: self._releasedir,
        }

    async def _lookup(self, node: int, thread: int, body: memoryview) -> Reply:
        return protocol.entry(await self._fs.lookup(node, bytes(body[:-1]), thread))

    async def _getattr(self, node: int, thread: int, body: memoryview) -> Reply:
        return protocol.described(await self._fs.attributes(node, thread))

    async def _setattr(self, node: int, thread: int, body: memoryview) -> Reply:
        # `echo 3 > epoch` cuts the file first; everything else that is set here is a change.
        (wanted,) = protocol.SETATTR_IN.unpack_from(body)
        only_size = not wanted & (protocol.SET_MODE | protocol.SET_UID | protocol.SET_GID)
        if not (wanted & protocol.SET_SIZE and only_size and self._fs.may_truncate(node)):
            raise FsError(errno.EROFS)
        return await self._getattr(node, thread, body)

    async def _open(self, node: int, thread: int, body: memoryview) -> Reply:
        opened = await self._fs.open(node, protocol.OPEN_IN.unpack_from(body)[0], thread)
        if opened.size_is_news:
            self._notify(protocol.outdated(node))
        flags = protocol.KEEP_CACHE if opened.keep_cache else 0
        if opened.direct_io:
            flags |= protocol.DIRECT_IO
        return protocol.OPENED.pack(opened.handle, flags, 0)

    async def _read(self, node: int, thread: int, body: memoryview) -> Reply:
        handle, at, size = protocol.READ_IN.unpack_from(body)
        # A view of the store goes to the kernel without a copy in user space.
        soon = self._fs.read_soon(handle, at, size)
        return await self._fs.read(handle, at, size) if soon is None else soon

    async def _write(self, node: int, thread: int, body: memoryview) -> Reply:
        data = bytes(body[protocol.WRITE_IN.size :])
        return protocol.WRITTEN.pack(self._fs.write(node, data), 0)

    async def _release(self, node: int, thread: int, body: memoryview) -> Reply:
        await self._fs.release(*protocol.RELEASE_IN.unpack_from(body))
        return _NOTHING

    async def _opendir(self, node: int, thread: int, body: memoryview) -> Reply:
        await self._fs.listing(node, 1)
        # The dataset's names never change: the kernel may keep a listing, and is asked for it once.
        flags = protocol.KEEP_CACHE | protocol.CACHE_DIRECTORY if node < CONTROL_BASE else 0
        return protocol.OPENED.pack(node, flags, 0)

    async def _readdirplus(self, node: int, thread: int, body: memoryview) -> Reply:
        directory, after, room = protocol.READ_IN.unpack_from(body)
        entries = []
        for name, attributes, position in self._fs.list_directory(directory, after):
            one = protocol.listed(name, attributes, position)
            room -= len(one)
            if room < 0:
                break
            entries.append(one)
        return b"".join(entries)

    async def _releasedir(self, node: int, thread: int, body: memoryview) -> Reply:
        await self._fs.listing(protocol.RELEASE_IN.unpack_from(body)[0], -1)
        return _NOTHING
