"""Calls between mounts over TCP: an answer, or why there is none."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from deepiofs.engine.addresses import host_addresses
from deepiofs.fs.door import Door, Kind, Report, Silence, Word, open_door, reachable_at
from tests.doubles import in_trio

_SECRET = b"of this job"
_LOCAL = ["127.0.0.1"]
_WORD = Word(Kind.LOST, 1, {3: 5}, (3, 4), 7)
_REPORT = Report(0, {4: 6}, 12, True)


@pytest.fixture(name="listening")
def _listening() -> Iterator[socket.socket]:
    with open_door() as listening:
        yield listening


def _caller(port: int, secret: bytes = _SECRET) -> Door:
    """Rank 1, which calls rank 0 at this port and has none of its own."""
    return Door(socket.socket(), 1, [(_LOCAL, port), (_LOCAL, 0)], secret)


@contextlib.asynccontextmanager
async def _serving(listening: socket.socket, heard: list[Word]) -> AsyncIterator[int]:
    """Rank 0; the port at which it answers."""

    async def listen(word: Word) -> Report:
        heard.append(word)
        return _REPORT

    port = listening.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Door(listening, 0, [(_LOCAL, port), (_LOCAL, 0)], _SECRET).serve, listen)
        yield port
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_call_brings_what_was_said_there_and_back(listening: socket.socket) -> None:
    heard: list[Word] = []
    async with _serving(listening, heard) as port:
        assert await _caller(port).call(0, _WORD, 5) == _REPORT
    assert heard == [_WORD]


@in_trio
async def test_many_calls_at_once_are_answered(listening: socket.socket) -> None:
    heard: list[Word] = []
    async with _serving(listening, heard) as port, trio.open_nursery() as nursery:
        caller = _caller(port)
        for _ in range(50):
            nursery.start_soon(caller.call, 0, _WORD, 5)
    assert heard == [_WORD] * 50


@in_trio
async def test_a_process_that_is_stuck_takes_the_call_and_is_known_to_live(listening: socket.socket) -> None:
    assert await _caller(listening.getsockname()[1]).call(0, _WORD, 0.2) is Silence.ALIVE


@in_trio
async def test_a_process_that_is_gone_refuses() -> None:
    with open_door() as listening:
        port = listening.getsockname()[1]
    assert await _caller(port).call(0, _WORD, 5) is Silence.GONE


@in_trio
async def test_a_mount_that_serves_no_more_refuses(listening: socket.socket) -> None:
    async with _serving(listening, []) as port:
        pass
    assert await _caller(port).call(0, _WORD, 5) is Silence.GONE


@in_trio
async def test_a_caller_of_another_job_is_not_listened_to(listening: socket.socket) -> None:
    heard: list[Word] = []
    async with _serving(listening, heard) as port:
        assert await _caller(port, b"of another").call(0, _WORD, 5) is Silence.AWAY
        assert await _caller(port).call(0, _WORD, 5) == _REPORT
    assert heard == [_WORD]


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\n", b"x" * (1 << 21)])
@in_trio
async def test_noise_does_not_hinder_others(listening: socket.socket, noise: bytes) -> None:
    async with _serving(listening, []) as port:
        stranger = await trio.open_tcp_stream("127.0.0.1", port)
        with contextlib.suppress(trio.BrokenResourceError):
            await stranger.send_all(noise)
        await stranger.aclose()
        assert await _caller(port).call(0, _WORD, 5) == _REPORT


@in_trio
async def test_who_hangs_up_is_no_mount_of_this_job() -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        assert await _caller(listeners[0].socket.getsockname()[1]).call(0, _WORD, 5) is Silence.AWAY
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("theirs", "mine", "found"),
    [
        (["10.0.0.1"], ["10.0.0.2"], ["10.0.0.1"]),
        # A bridge that every host has under one address leads to this host's own.
        (["10.0.0.1", "172.17.0.1"], ["10.0.0.2", "172.17.0.1"], ["10.0.0.1"]),
        (["10.0.0.1", "172.17.0.1"], ["172.17.0.1", "10.0.0.1"], ["10.0.0.1", "172.17.0.1"]),
        ([], [], ["127.0.0.1"]),
        ([], ["10.0.0.2"], []),
    ],
)
def test_where_a_host_is_called(theirs: list[str], mine: list[str], found: list[str]) -> None:
    assert reachable_at(theirs, mine) == found


def test_addresses_of_this_host_are_its_own_and_not_the_loopbacks() -> None:
    for address in host_addresses():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as end:
            end.bind((address, 0))
        assert not address.startswith("127.")
