"""The express lane at a device double: a kernel that sends requests and gets replies, over a pair of sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import trio
import trio.testing

import deepiofs
from deepiofs.fs.control import ControlTree
from deepiofs.fs.filesystem import FileSystem, Statistics
from deepiofs.fs.nearby import Nearby
from deepiofs.fs.prefetch import Prefetcher
from deepiofs.fs.roster import Roster
from deepiofs.fs.shuffle import Shuffle
from deepiofs.fs.streams.ahead import Ahead
from deepiofs.fs.streams.formats import formats_of
from deepiofs.fs.streams.tree import Streams
from deepiofs.fs.tree import Tree
from deepiofs.fuse import protocol
from deepiofs.fuse.express import Express
from deepiofs.fuse.protocol import Opcode
from deepiofs.memory.board import Counter
from deepiofs.options import Settings
from deepiofs.order.plan import Membership, Plan
from tests.unit.jobs import Mounted

_ROOM = 1 << 20
_PROGRAM = str(Path(deepiofs.__file__).parent)
_THREAD = 7
# These look at the double's tasks, and at the clock, too.
_WAITING = ("/idling.py", "/spinning.py")


class Lane:
    """A mount's lane over files by path; all of them in memory unless `home` says otherwise."""

    def __init__(
        self, files: Mapping[bytes, bytes], home: Callable[[int], int] = lambda unit: 0, *, shuffled: bool = False
    ) -> None:
        self.mounted = Mounted(files, home)
        link, reader = self.mounted.link, self.mounted.reader
        shuffle = self._shuffle(len(files)) if shuffled else None
        tree = Tree(link.manifest, Settings(), shuffle.covers if shuffle else lambda row: False)
        ahead = Ahead(link, 1 << 20, 64)

        def no_orders() -> Any:
            raise AssertionError("no stream was asked for")

        streams = Streams(tree, True, formats_of(tree), no_orders, reader, ahead, current=lambda: 0)
        control = ControlTree((), 0o755)
        self.filesystem = FileSystem(
            tree, control, reader, self.mounted.counts, Statistics(0, 4096, 0), streams, shuffle
        )
        self.kernel, self.device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.setblocking(False)
        self.device.setblocking(False)
        self.express = Express(self.device.fileno(), self.filesystem)
        self._unique = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """With the lane at work."""
        async with self.mounted.running() as nursery:
            nursery.start_soon(self.express.run)
            yield nursery
            nursery.cancel_scope.cancel()
        self.express.close()
        self.kernel.close()
        self.device.close()

    def send(self, opcode: int, node: int, body: bytes, thread: int = _THREAD) -> int:
        """A request of the kernel; its number."""
        self._unique += 2
        length = protocol.IN_HEADER.size + len(body)
        header = protocol.IN_HEADER.pack(length, opcode, self._unique, node, 0, 0, thread, 0, 0)
        self.kernel.send(header + body)
        return self._unique

    async def reply(self) -> tuple[int, int, bytes]:
        """(unique, errno, body) of the next reply."""
        await trio.lowlevel.wait_readable(self.kernel)
        packet = self.kernel.recv(_ROOM)
        length, number, unique = protocol.OUT_HEADER.unpack_from(packet)
        assert length == len(packet)
        return unique, -number, packet[protocol.OUT_HEADER.size :]

    async def ask(self, opcode: int, node: int, body: bytes = b"", thread: int = _THREAD) -> bytes:
        """What a request is answered with; OSError with the errno."""
        sent = self.send(opcode, node, body, thread)
        unique, number, answer = await self.reply()
        assert unique == sent
        if number:
            raise OSError(number, os.strerror(number))
        return answer

    async def node(self, path: bytes, thread: int = _THREAD) -> int:
        """LOOKUP of a path, name by name."""
        node = 1
        for name in path.split(b"/"):
            node = struct.unpack_from("=Q", await self.ask(Opcode.LOOKUP, node, name + b"\0", thread))[0]
        return node

    async def open(self, node: int, flags: int = os.O_RDONLY, thread: int = _THREAD) -> int:
        """OPEN; the handle."""
        body = struct.pack("=II", flags, 0)
        handle: int = protocol.OPENED.unpack(await self.ask(Opcode.OPEN, node, body, thread))[0]
        return handle

    async def read(self, handle: int, at: int = 0, size: int = _ROOM) -> bytes:
        """READ."""
        return await self.ask(Opcode.READ, 0, read_body(handle, at, size))

    async def release(self, handle: int) -> None:
        """RELEASE."""
        await self.ask(Opcode.RELEASE, 0, struct.pack("=QIIQ", handle, 0, 0, 0))

    def _shuffle(self, n_files: int) -> Shuffle:
        """All files one group of samples of one file each, all of this rank."""
        link = self.mounted.link
        manifest = link.manifest
        rows = np.flatnonzero(manifest.is_regular).astype(np.uint32)
        of_row = np.full(manifest.n_rows, -1, np.int32)
        of_row[rows] = np.arange(n_files)
        group = np.zeros(n_files, np.int32)
        roster = Roster(of_row, np.arange(n_files + 1), rows, group)
        plan = Plan(Membership(group, np.zeros(n_files, np.int32), np.zeros(1, np.int32)), 0, 0.9)
        link.board[Counter.STATE_WARM] = 1
        nearby = Nearby(link, lambda sample: rows[sample : sample + 1].tolist(), n_files)
        ahead = Prefetcher(link.requests, nearby, count=64, staging_bytes=1 << 20, timeout_s=5.0)

        async def ask(rank: int, group: int, number: int) -> None:
            raise AssertionError("there is nobody to ask")

        return Shuffle(link.manifest, roster, plan, ahead, rank=0, n_ranks=1, seed=0, ask=ask)


def read_body(handle: int, at: int, size: int) -> bytes:
    """The body of READ, and of READDIRPLUS."""
    return struct.pack("=QQIIQII", handle, at, size, 0, 0, 0, 0)


@contextlib.contextmanager
def counted_bytecodes() -> Iterator[list[int]]:
    """How many bytecodes of this program Python runs inside, in the list's only place. The same each time."""
    count = [0]

    def in_frame(frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            count[0] += 1
        return in_frame

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_PROGRAM) or file.endswith(_WAITING):
            return None
        frame.f_trace_opcodes = True
        return in_frame

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)
