"""The express lane: what readers ask for all the time is answered straight at the device.

pyfuse3 mounts, agrees with the kernel on its terms, and answers what is rare. Its loop costs more than the handlers:
a lock, a pass of trio's scheduler, a container, a context and an object of attributes for each request. So the device
is read here. What `requests` knows is answered at once; all else goes on to pyfuse3 as it is, through a pair of
sockets that stands where libfuse believes the device to be, and its answer comes back the same way.

A request that has to wait does so in the task that read it, and another task is started that reads on. So a request
costs a task only if it waits.

**Threading.** The trio thread. **Invariants.** One task reads the device at a time. Between a handler's reply and the
system call that copies it nothing is awaited.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import types
from collections.abc import Callable, Generator
from typing import Any

import trio

from deepiofs.errors import DeepiofsError
from deepiofs.fs.coming import Coming
from deepiofs.fs.filesystem import FileSystem, FsError
from deepiofs.fuse import protocol
from deepiofs.fuse.hearing import Hearing
from deepiofs.fuse.protocol import Opcode
from deepiofs.fuse.requests import Answering, Handler, Reply, Requests

log = logging.getLogger(__name__)

# So many requests are answered in a row before other tasks have their turn.
_IN_A_ROW = 16
_BODY_AT = protocol.IN_HEADER.size
_OUT_BYTES = protocol.OUT_HEADER.size
_pack = protocol.OUT_HEADER.pack
# FORGET wants no answer: nodes are rows, and stay. INTERRUPT may go without: every wait is bounded.
_UNANSWERED = {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT}
# No answer of pyfuse3 is longer: those that carry bytes of files, or names in directories, are not its.
_ANSWER_BYTES = 1 << 17
# What is done with what was opened, as in libfuse: who may open is asked when it is opened.
_OF_HANDLES = {Opcode.READ, Opcode.WRITE, Opcode.RELEASE, Opcode.READDIRPLUS, Opcode.RELEASEDIR}
# Who asked was killed; or all is unmounted.
_GONE = {errno.ENOENT, errno.ENODEV}


class Express:
    """The lane of one session."""

    def __init__(self, device: int, filesystem: FileSystem, only: frozenset[int] | None = None) -> None:
        """device: a descriptor of /dev/fuse that does not block.

        only: the users who may ask, for `allow_root`, which the kernel does not know; None if it says who may.
        """
        self._device, self._only = device, only
        self._here, self.there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._here.setblocking(False)
        self._packet = memoryview(bytearray(protocol.most_bytes()))
        self._counts = filesystem.counts
        self._idling = Hearing(device, filesystem.words)
        self._filesystem = filesystem
        self._readers: trio.Nursery | None = None
        self._handlers = Requests(filesystem, self._write).handlers()

    def close(self) -> None:
        """Let the sockets go."""
        self._idling.close()
        self.there.close()
        self._here.close()

    async def run(self) -> None:
        """Serve until the file system is unmounted."""
        await self._idling.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry_answers)
                async with trio.open_nursery() as readers:
                    self._readers = readers
                    await self._serve(readers)
                nursery.cancel_scope.cancel()
        finally:
            self._readers = None
            self._idling.end()

    async def _serve(self, readers: trio.Nursery) -> None:
        """Read requests and answer them, until the end of the session, or of the first that has to wait."""
        idling, packet, device, unpack = self._idling, self._packet, self._device, protocol.IN_HEADER.unpack_from
        buffers, counts, only = [packet], self._counts, self._only
        left = _IN_A_ROW
        while True:
            try:
                n = os.readv(device, buffers)
            except BlockingIOError:
                await idling.wait()
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno == errno.ENOENT:  # its process was killed while it was read
                    continue
                raise
            _, opcode, unique, node, user, _, thread, _, _ = unpack(packet)
            counts.requests += 1
            handler = self._handlers.get(opcode)
            if handler is None:
                if opcode not in _UNANSWERED:
                    await self._pass_on(n)
                continue
            if only is not None and user not in only and opcode not in _OF_HANDLES:
                self._write(_pack(_OUT_BYTES, -errno.EACCES, unique))
                continue
            answering = handler(node, thread, packet[_BODY_AT:n])
            try:
                trap = answering.send(None)
            except StopIteration as done:
                self._reply(unique, done.value)
            except Exception as error:
                self._refuse(unique, handler, error)
            else:
                readers.start_soon(self._serve, readers)
                await self._answer_later(unique, handler, answering, trap)
                return
            left -= 1
            if not left:
                left = _IN_A_ROW
                await idling.give_way()

    async def _answer_later(self, unique: int, handler: Handler, answering: Answering, trap: Any) -> None:
        try:
            reply = await _finish(answering, trap)
        except Exception as error:
            self._refuse(unique, handler, error)
        else:
            self._reply(unique, reply)

    def _reply(self, unique: int, reply: Reply) -> None:
        if isinstance(reply, Coming):
            reply.then = functools.partial(self._arrived, unique, reply)
            return
        self._write(_pack(_OUT_BYTES + len(reply), 0, unique), reply)

    def _arrived(self, unique: int, coming: Coming, data: bytes | memoryview | None) -> None:
        """What a read waited for is here, or will not come. If the session is over, the device is closed."""
        if self._readers is None:
            return
        if data is not None:
            self._reply(unique, data)
        else:
            self._readers.start_soon(self._answer_otherwise, unique, coming)

    async def _answer_otherwise(self, unique: int, coming: Coming) -> None:
        try:
            reply = await self._filesystem.read_otherwise(coming)
        except Exception as error:
            self._refuse(unique, self._handlers[Opcode.READ], error)
        else:
            self._reply(unique, reply)

    def _refuse(self, unique: int, handler: Handler, error: Exception) -> None:
        """Answer with FsError's errno, and with EIO and a traceback in the log where the program itself is wrong."""
        number = errno.EIO
        if isinstance(error, FsError):
            number = error.errno
        elif isinstance(error, DeepiofsError):
            log.warning("%s: %s", handler.__name__, error)
            number = error.errno
        else:
            log.error("%s failed", handler.__name__, exc_info=error)
        self._write(_pack(_OUT_BYTES, -number, unique))

    def _write(self, *parts: bytes | memoryview) -> None:
        try:
            os.writev(self._device, parts)
        except OSError as error:
            if error.errno not in _GONE:
                log.error("the kernel did not take an answer: %s", error)

    async def _pass_on(self, n: int) -> None:
        """A request for pyfuse3."""
        request = bytes(self._packet[:n])
        while True:
            try:
                self._here.send(request)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._here)

    async def _carry_answers(self) -> None:
        """From pyfuse3 to the kernel."""
        while True:
            await trio.lowlevel.wait_readable(self._here)
            self._write(self._here.recv(_ANSWER_BYTES))


@types.coroutine
def _finish(answering: Answering, trap: Any) -> Generator[Any, Any, Reply]:
    """Go on in this task with a coroutine that was begun here by hand, and said `trap` to trio: that it waits."""
    while True:
        try:
            value = yield trap
        except BaseException as error:
            step: Callable[[], Any] = functools.partial(answering.throw, error)
        else:
            step = functools.partial(answering.send, value)
        try:
            trap = step()
        except StopIteration as done:
            reply: Reply = done.value
            return reply
