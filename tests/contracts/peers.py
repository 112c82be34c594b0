"""What every implementation of `engine.peers.Peers` does.

A scenario is an async function of this rank's peers and the rank at the other end, which obeys the test: in one
process that is a few method calls, under MPI a program on the other rank that takes orders over its own
communicator. `SCENARIOS` names them all, so that a program under mpirun can go through the list; pytest does so by
subclassing `PeersContract`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest
import trio

from deepiofs.engine.peers import Barrier, Note, NoteKind, Peers

# After this long what has not come does not come. Nothing waits for it to pass.
_HUNG_S = 20.0
# The other rank's store has at least this many bytes.
STORE_BYTES = 1 << 20


class Other(Protocol):
    """The rank at the other end. Between orders it gives progress to its own peers."""

    rank: int  # of the other
    asker: int  # this rank, as the other sees it

    async def write(self, at: int, data: bytes) -> None:
        """Put bytes into its store; they are there on return."""

    async def tell(self, notes: list[Note]) -> None:
        """Send notes to the asker, in order."""

    async def heard(self, count: int) -> list[tuple[int, Note]]:
        """Wait until it has been told so many notes since the last call; (sender, note) of each."""

    async def enter(self, name: str) -> None:
        """Enter the barrier `warm` or `leave`."""


Scenario = Callable[[Peers, Other], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def _scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


async def poll_until(peers: Peers, condition: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    with trio.fail_after(_HUNG_S):
        while not condition():
            peers.poll()
            await trio.lowlevel.checkpoint()


async def get_bytes(peers: Peers, rank: int, at: int, size: int) -> bytes:
    """The bytes of a get that succeeds."""
    buffer = bytearray(size)
    get = peers.get(rank, at, memoryview(buffer))
    await poll_until(peers, lambda: get.over)
    assert get.error is None
    return bytes(buffer)


@_scenario
async def a_get_brings_the_bytes_of_the_other_store(peers: Peers, other: Other) -> None:
    data = bytes(range(256)) * 100
    await other.write(4096, data)
    assert await get_bytes(peers, other.rank, 4096, len(data)) == data


@_scenario
async def a_get_may_begin_at_any_byte_and_be_of_any_length(peers: Peers, other: Other) -> None:
    data = bytes(range(1, 200))
    await other.write(0, data)
    for at, size in ((0, 1), (1, 1), (7, 13), (198, 1), (0, 199)):
        assert await get_bytes(peers, other.rank, at, size) == data[at : at + size]


@_scenario
async def a_get_reaches_the_end_of_the_store(peers: Peers, other: Other) -> None:
    await other.write(STORE_BYTES - 16, b"the last 16 byte")
    assert await get_bytes(peers, other.rank, STORE_BYTES - 16, 16) == b"the last 16 byte"


@_scenario
async def a_get_leaves_the_bytes_around_its_buffer_alone(peers: Peers, other: Other) -> None:
    await other.write(64, b"x" * 300)
    around = bytearray(b"-" * 320)
    get = peers.get(other.rank, 64, memoryview(around)[10:110])
    await poll_until(peers, lambda: get.over)
    assert around == b"-" * 10 + b"x" * 100 + b"-" * 210


@_scenario
async def a_later_get_sees_what_was_written_since(peers: Peers, other: Other) -> None:
    await other.write(128, b"before")
    assert await get_bytes(peers, other.rank, 128, 6) == b"before"
    await other.write(128, b"behind")
    assert await get_bytes(peers, other.rank, 128, 6) == b"behind"


@_scenario
async def many_gets_in_flight_each_bring_their_own(peers: Peers, other: Other) -> None:
    pieces = [bytes([i]) * (100 + i) for i in range(64)]
    for i, piece in enumerate(pieces):
        await other.write(i * 1024, piece)
    buffers = [bytearray(len(piece)) for piece in pieces]
    gets = [peers.get(other.rank, i * 1024, memoryview(buffer)) for i, buffer in enumerate(buffers)]
    await poll_until(peers, lambda: all(get.over for get in gets))
    assert [bytes(buffer) for buffer in buffers] == pieces
    assert all(get.error is None and get.rank == other.rank for get in gets)


@_scenario
async def a_large_get_arrives_whole(peers: Peers, other: Other) -> None:
    data = bytes(i * i % 251 for i in range(1 << 19))
    await other.write(8192, data)
    assert await get_bytes(peers, other.rank, 8192, len(data)) == data


@_scenario
async def a_get_is_done_by_poll_and_not_before(peers: Peers, other: Other) -> None:
    await other.write(0, b"12345678")
    buffer = bytearray(8)
    get = peers.get(other.rank, 0, memoryview(buffer))
    for _ in range(3):
        await trio.lowlevel.checkpoint()
    assert not get.over
    await poll_until(peers, lambda: get.over)


@_scenario
async def when_done_is_called_once(peers: Peers, other: Other) -> None:
    calls: list[bool] = []
    get = peers.get(other.rank, 0, memoryview(bytearray(8)))
    get.when_done = lambda get: calls.append(get.over)
    await poll_until(peers, lambda: get.over)
    for _ in range(5):
        peers.poll()
    assert calls == [True]


@_scenario
async def peers_are_busy_while_a_get_is_under_way(peers: Peers, other: Other) -> None:
    await poll_until(peers, lambda: not peers.busy())
    get = peers.get(other.rank, 0, memoryview(bytearray(8)))
    assert peers.busy()
    await poll_until(peers, lambda: get.over)
    await poll_until(peers, lambda: not peers.busy())


@_scenario
async def poll_says_whether_something_was_completed(peers: Peers, other: Other) -> None:
    await poll_until(peers, lambda: not peers.poll() and not peers.busy())
    assert peers.poll() is False
    get = peers.get(other.rank, 0, memoryview(bytearray(8)))
    with trio.fail_after(_HUNG_S):
        while not peers.poll():
            assert not get.over
            await trio.lowlevel.checkpoint()
    assert get.over


@_scenario
async def a_note_arrives_as_it_was_sent(peers: Peers, other: Other) -> None:
    places = [field.name for field in dataclasses.fields(Note) if field.name != "kind"]
    for kind in NoteKind:
        note = Note(kind, **{name: i - (1 << 62) * (i % 2) for i, name in enumerate(places)})
        peers.send(other.rank, note)
        await poll_until(peers, lambda: not peers.busy())
        assert await other.heard(1) == [(other.asker, note)]


@_scenario
async def notes_to_one_rank_arrive_in_order_and_none_is_lost(peers: Peers, other: Other) -> None:
    notes = [Note(NoteKind(i % 3), i, i * i) for i in range(100)]
    for note in notes:
        peers.send(other.rank, note)
    await poll_until(peers, lambda: not peers.busy())
    assert await other.heard(len(notes)) == [(other.asker, note) for note in notes]


@_scenario
async def the_handler_is_told_the_sender_and_the_note(peers: Peers, other: Other) -> None:
    notes = [Note(NoteKind.LOADED, i, 1) for i in range(20)]
    heard: list[tuple[int, Note]] = []
    peers.on_note = lambda rank, note: heard.append((rank, note))
    await other.tell(notes)
    await poll_until(peers, lambda: len(heard) == len(notes))
    assert heard == [(other.rank, note) for note in notes]


@_scenario
async def a_handler_may_send_from_within_poll(peers: Peers, other: Other) -> None:
    def reply(rank: int, note: Note) -> None:
        peers.send(rank, Note(NoteKind.LOADED, note.unit, 1))

    peers.on_note = reply
    await other.tell([Note(NoteKind.LOAD, 5)])
    answers: list[tuple[int, Note]] = []

    async def listen() -> None:
        answers.extend(await other.heard(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await poll_until(peers, lambda: bool(answers))
    assert answers == [(other.asker, Note(NoteKind.LOADED, 5, 1))]


@_scenario
async def a_barrier_is_passed_when_both_have_entered(peers: Peers, other: Other) -> None:
    # Last in the list: a barrier can be entered once only.
    leave = peers.enter_leave()
    await _never_passes(peers, leave)
    warm = peers.enter_warm()
    await _never_passes(peers, warm)
    await other.enter("warm")
    await poll_until(peers, warm.passed)
    assert not leave.passed()
    await other.enter("leave")
    await poll_until(peers, leave.passed)
    assert warm.passed()
    assert leave.passed()


async def _never_passes(peers: Peers, barrier: Barrier) -> None:
    for _ in range(20):
        peers.poll()
        assert not barrier.passed()
        await trio.lowlevel.checkpoint()


class PeersContract:
    """Subclass, and say in `run` how a scenario gets its two ranks."""

    def run(self, scenario: Scenario) -> None:
        """Run a scenario between two fresh ranks."""
        raise NotImplementedError

    @pytest.mark.parametrize("name", SCENARIOS)
    def test(self, name: str) -> None:
        self.run(SCENARIOS[name])
