"""A mount's door: a TCP port at which the mounts of one job call each other, whatever became of their engines.

Whether a silent rank is dead must be told from whether its engine, MPI, or the process is stuck. The kernel takes
calls for a process as long as it lives, also if it is stopped, and refuses them when it is gone. And a mount whose
engine is lost can still be told who else is.

A call is one line to and one line fro, each sealed (HMAC-SHA-256) with the job's secret: what else connects to the
port is hung up on.

**Threading.** The trio thread.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import hashlib
import hmac
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import trio

log = logging.getLogger(__name__)

_MAX_LINE = 1 << 20
_PART = 1 << 16
_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"
# A call that was cut off is made again once: the process may have ended just then, and the next one is refused.
_TRIES = 2
# For how long a caller may take to say what it wants.
_PATIENCE_S = 10.0
# A wait that took so much longer than it should says that this process was stopped.
_HASTE_S = 1.0
# That say of the other host that it cannot be reached; of others this one is to blame (EMFILE, ENOBUFS ...).
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


class Silence(enum.Enum):
    """Why a call brought no answer."""

    ALIVE = "its host took the call, and no answer came; or this host could not call"
    GONE = "its host refused the call: the process is gone"
    AWAY = "its host did not answer, or another answered in its place"


class Kind(enum.IntEnum):
    """What a call is about."""

    HELLO = 0  # nothing more than what every call tells
    LOST = 1  # these ranks seem to be lost: find out
    COUNT = 2  # how far are you; begin no further pass until this ballot is over
    OVER = 3  # this ballot is over


@dataclasses.dataclass(frozen=True)
class Word:
    """A call. since: who is out from which pass on, as the caller knows it."""

    kind: Kind
    sender: int
    since: Mapping[int, int]
    ranks: tuple[int, ...] = ()
    ballot: int = 0


@dataclasses.dataclass(frozen=True)
class Report:
    """An answer. begun: the latest pass begun in any group; engine: whether it has one; since: as in `Word`."""

    sender: int
    since: Mapping[int, int]
    begun: int
    engine: bool


Address: TypeAlias = "tuple[Sequence[str], int]"
Listener: TypeAlias = "Callable[[Word], Awaitable[Report]]"


def open_door() -> socket.socket:
    """A listening socket on all interfaces; the kernel takes calls from now on."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)


def reachable_at(theirs: Sequence[str], mine: Sequence[str]) -> list[str]:
    """At which addresses to call a host. An address that both have is this host's own, if they are not one host."""
    if set(theirs) == set(mine):
        return list(theirs) or [_LOOPBACK]
    return [address for address in theirs if address not in mine]


class Door:
    """This rank's door, and the way to those of the others."""

    def __init__(self, listening: socket.socket, rank: int, doors: Sequence[Address], secret: bytes) -> None:
        """doors: addresses and port of each rank."""
        self._listening, self._doors, self._secret = listening, doors, secret
        self._rank = rank

    async def serve(self, listen: Listener) -> None:
        """Answer calls until cancelled; then the port is closed."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listening))

        async def answer(stream: trio.SocketStream) -> None:
            try:
                await self._answer(stream, listen)
            except (trio.BrokenResourceError, trio.ClosedResourceError, ValueError, KeyError, TypeError) as error:
                log.debug("a call was given up: %r", error)

        async with listener:
            await trio.serve_listeners(answer, [listener])

    async def call(self, rank: int, word: Word, timeout_s: float, wait_s: float | None = None) -> Report | Silence:
        """What a rank answers. timeout_s: to reach it; wait_s: for its answer, if that may take longer."""
        for _ in range(_TRIES):
            begun = trio.current_time()
            found: trio.SocketStream | Silence = Silence.AWAY
            with trio.move_on_after(timeout_s):
                found = await self._reach(rank)
            if isinstance(found, Silence):
                # Who was stopped itself in the meantime has not waited for anybody.
                stopped = trio.current_time() > begun + timeout_s + _HASTE_S
                return Silence.ALIVE if stopped and found is Silence.AWAY else found
            async with found:
                with trio.move_on_after(wait_s or timeout_s) as limit:
                    try:
                        await found.send_all(self._sealed(dataclasses.asdict(word)))
                        return _report(self._opened(await _line(found)))
                    except (trio.BrokenResourceError, ValueError, KeyError, TypeError) as error:
                        log.debug("rank %d hung up: %r", rank, error)
                if limit.cancelled_caught:
                    return Silence.ALIVE
        return Silence.AWAY

    async def _answer(self, stream: trio.SocketStream, listen: Listener) -> None:
        async with stream:
            with trio.move_on_after(_PATIENCE_S) as limit:
                word = _word(self._opened(await _line(stream)))
                limit.deadline = float("inf")
                await stream.send_all(self._sealed(dataclasses.asdict(await listen(word))))

    async def _reach(self, rank: int) -> trio.SocketStream | Silence:
        """A connection by whichever of its addresses is first; GONE if one refused and none took it."""
        addresses, port = self._doors[rank]
        streams: list[trio.SocketStream] = []
        found = Silence.AWAY
        async with trio.open_nursery() as nursery:

            async def attempt(address: str) -> None:
                nonlocal found
                try:
                    streams.append(await _connected(address, port))
                    nursery.cancel_scope.cancel()
                except ConnectionRefusedError:
                    found = Silence.GONE
                except OSError as error:
                    log.debug("rank %d at %s: %s", rank, address, error)
                    if error.errno not in _UNREACHABLE and found is Silence.AWAY:
                        found = Silence.ALIVE

            for address in reachable_at(addresses, self._doors[self._rank][0]):
                nursery.start_soon(attempt, address)
        for stream in streams[1:]:
            await stream.aclose()
        return streams[0] if streams else found

    def _sealed(self, content: dict[str, Any]) -> bytes:
        body = json.dumps(content).encode()
        return self._seal(body) + b" " + body + b"\n"

    def _opened(self, line: bytes) -> dict[str, Any]:
        """What was sealed; ValueError for anything else."""
        seal, _, body = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(seal, self._seal(body)):
            raise ValueError("not of this job")
        content: dict[str, Any] = json.loads(body)
        return content

    def _seal(self, body: bytes) -> bytes:
        return hmac.new(self._secret, body, hashlib.sha256).hexdigest().encode()


async def _connected(address: str, port: int) -> trio.SocketStream:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await end.connect((address, port))
    except BaseException:
        end.close()
        raise
    return trio.SocketStream(end)


async def _line(stream: trio.SocketStream) -> bytes:
    """A line; ValueError if none comes."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = await stream.receive_some(_PART)
        line += part
        if not part or len(line) > _MAX_LINE:
            raise ValueError("no line")
    return bytes(line)


def _word(content: dict[str, Any]) -> Word:
    ranks = tuple(int(rank) for rank in content["ranks"])
    return Word(Kind(content["kind"]), int(content["sender"]), _facts(content), ranks, int(content["ballot"]))


def _report(content: dict[str, Any]) -> Report:
    return Report(int(content["sender"]), _facts(content), int(content["begun"]), bool(content["engine"]))


def _facts(content: dict[str, Any]) -> dict[int, int]:
    return {int(rank): int(number) for rank, number in content["since"].items()}
