"""Lines between two nodes of a job, each sealed with the job's secret (HMAC-SHA-256), as `fs/door` does.

Both ends prove first that they know the secret, over random numbers of both, so that nothing recorded can be played
again; each line is then sealed with a key of that connection, its direction and its number. Whoever else connects is
hung up on and learns nothing.

**Threading.** The trio thread.
"""

from __future__ import annotations

import hmac
import json
import os
from typing import Any

import trio

from deepiofs.cli.job.keys import digest

_MAX_LINE = 1 << 16
_NONCE_BYTES = 32
# For how long the other end may take to prove that it belongs to the job.
_PATIENCE_S = 5.0


class NotOfThisJobError(Exception):
    """The other end does not know the secret, or what came was changed on its way, or the connection ended."""


class Line:
    """One end of a connection, after both have proved themselves. rank: whose connection it is."""

    def __init__(self, stream: trio.abc.Stream, key: bytes, server: bool, rest: bytearray, rank: int) -> None:
        self.rank = rank
        self._stream, self._key, self._rest = stream, key, rest
        self._mine, self._theirs = (b"server", b"client") if server else (b"client", b"server")
        self._sent = self._received = 0
        self._sending = trio.Lock()

    async def send(self, *words: Any) -> None:
        """Say a list of words; NotOfThisJobError if nobody is there to hear it."""
        body = json.dumps(words).encode()
        async with self._sending:
            seal = self._seal(self._mine, self._sent, body)
            self._sent += 1
            try:
                await self._stream.send_all(seal + b" " + body + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise NotOfThisJobError("the connection ended") from None

    async def receive(self) -> list[Any]:
        """The next list of words; NotOfThisJobError at the end."""
        seal, _, body = (await _line(self._stream, self._rest)).partition(b" ")
        if not hmac.compare_digest(seal, self._seal(self._theirs, self._received, body)):
            raise NotOfThisJobError("a line was not sealed with the secret of this job")
        self._received += 1
        words: list[Any] = json.loads(body)
        return words

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def _seal(self, who: bytes, number: int, body: bytes) -> bytes:
        return digest(self._key, who, number.to_bytes(8, "big"), body).hex().encode()


async def greet(stream: trio.abc.Stream, secret: bytes, size: int) -> Line:
    """The server's end; NotOfThisJobError unless the caller is a rank of this job."""
    rest = bytearray()
    mine = os.urandom(_NONCE_BYTES).hex().encode()
    with _patience():
        await _say(stream, mine)
        rank, theirs, proof = _three(await _line(stream, rest))
        context = (mine, theirs, rank)
        if not hmac.compare_digest(proof, _proof(secret, b"client", *context)) or not 0 <= int(rank) < size:
            raise NotOfThisJobError("the caller does not know the secret")
        await _say(stream, _proof(secret, b"server", *context))
        return Line(stream, digest(secret, b"session", *context), True, rest, int(rank))
    raise NotOfThisJobError("the caller said nothing in time")


async def call(stream: trio.abc.Stream, secret: bytes, rank: int) -> Line:
    """The client's end; NotOfThisJobError unless the server is this job's."""
    rest = bytearray()
    mine = os.urandom(_NONCE_BYTES).hex().encode()
    with _patience():
        theirs = await _line(stream, rest)
        context = (theirs, mine, str(rank).encode())
        await _say(stream, b" ".join((context[2], mine, _proof(secret, b"client", *context))))
        if not hmac.compare_digest(await _line(stream, rest), _proof(secret, b"server", *context)):
            raise NotOfThisJobError("the server does not know the secret")
        return Line(stream, digest(secret, b"session", *context), False, rest, rank)
    raise NotOfThisJobError("the server said nothing in time")


def _patience() -> trio.CancelScope:
    return trio.move_on_after(_PATIENCE_S)


def _proof(secret: bytes, who: bytes, *context: bytes) -> bytes:
    return digest(secret, b"proof", who, *context).hex().encode()


def _three(line: bytes) -> tuple[bytes, bytes, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or not words[0].isdigit():
        raise NotOfThisJobError("the caller speaks another protocol")
    return words[0], words[1], words[2]


async def _say(stream: trio.abc.Stream, line: bytes) -> None:
    try:
        await stream.send_all(line + b"\n")
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise NotOfThisJobError("the connection ended") from None


async def _line(stream: trio.abc.Stream, rest: bytearray) -> bytes:
    """The next line; what came after it stays in `rest`."""
    while (end := rest.find(b"\n")) < 0:
        try:
            part = await stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            part = b""
        rest += part
        if not part or len(rest) > _MAX_LINE:
            raise NotOfThisJobError("the connection ended")
    line = bytes(rest[:end])
    del rest[: end + 1]
    return line
