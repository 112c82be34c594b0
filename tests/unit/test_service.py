"""The engine's service over a real wire, of one rank: words that come together, and words that nobody expects."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest
import trio
import trio.testing

from deepiofs.engine.peers import NoPeers
from deepiofs.engine.service import Service
from deepiofs.engine.startup import Rank
from deepiofs.engine.world import SoloWorld
from deepiofs.memory import wire
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.budget import Budget
from deepiofs.memory.placement import NOWHERE, Replicas
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import HEADER_BYTES
from deepiofs.memory.wire import Channel, Fetch, Hurry, Leave, Message, Missed, Ready, Release
from deepiofs.options import Settings
from tests.doubles import Gate, in_trio
from tests.unit.jobs import Dataset

_FILES = {b"%02d" % i: bytes([i + 1]) * 1000 for i in range(40)}
_STAGING_BYTES = 1 << 20
_SHORT_S = 0.2
# The engine reads so many things of the source at once.
_WORKERS = 16
_NONE = np.zeros(0, np.int64)


class _Engine:
    """A service and the mount's end of its wire; nothing is resident."""

    def __init__(self, timeout_s: float) -> None:
        self.dataset = Dataset(_FILES)
        self.board = Board.create()
        self.staging = Segment.create("staging", _STAGING_BYTES)
        self.ends = wire.pair()
        self.mount = Channel(self.ends[0])
        rank = Rank(
            self.dataset.manifest, self.dataset.units, self.dataset.placement([NOWHERE] * len(_FILES)),
            Replicas(_NONE, _NONE, _NONE), {0: self.dataset.new_store()}, {"staging": self.staging}, self.board,
            self.dataset.source, Budget(0, _STAGING_BYTES),
        )  # fmt: skip
        settings = Settings(timeout=timeout_s, linger=1.0)
        self.service = Service(Channel(self.ends[1]), SoloWorld(), rank, NoPeers(), settings)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Until the mount leaves, at the end of the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            await self.mount.send(Leave())
        for end in self.ends:
            end.close()

    def say(self, *words: Message) -> None:
        """Put words on the wire, all before the engine takes the first."""
        for word in words:
            self.ends[0].send(wire.encode(word))

    async def hear(self) -> Message:
        received = await self.mount.receive()
        assert received is not None
        return received[0]

    def staged(self, answer: Message) -> bytes:
        assert isinstance(answer, Ready)
        return bytes(self.staging.view[answer.at + HEADER_BYTES :][: self.dataset.size(answer.unit)])

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """What it reads of the source hangs while inside."""
        with Gate() as gate:
            for unit in range(_WORKERS):
                self.dataset.source.read_gates[b"%02d" % unit] = gate
            self.say(*(Fetch(unit, 1) for unit in range(_WORKERS)))
            with trio.fail_after(10):
                while len(self.dataset.source.reads) < _WORKERS:
                    await trio.sleep(0.001)
            yield


@pytest.mark.parametrize("urgent", [0, 1])
def test_a_fetch_is_answered_and_a_release_gives_the_place_back(urgent: int) -> None:
    @in_trio
    async def main() -> None:
        engine = _Engine(timeout_s=5)
        async with engine.running():
            engine.say(Fetch(3, urgent))
            answer = await engine.hear()
            assert engine.staged(answer) == _FILES[b"03"]
            assert answer == Ready(3, 0, 1)
            engine.say(Release(3))
            await trio.testing.wait_all_tasks_blocked()
            assert engine.board[Counter.STAGED_BYTES] == 0

    main()


@in_trio
async def test_a_hurry_that_lies_on_the_wire_behind_its_fetch_is_heard() -> None:
    engine = _Engine(timeout_s=_SHORT_S)
    async with engine.running(), engine.busy():
        engine.say(Fetch(30, 0), Hurry(30))
        missed = {await engine.hear() for _ in range(_WORKERS + 1)}
        assert missed == {Missed(unit) for unit in (*range(_WORKERS), 30)}


@in_trio
async def test_words_about_what_is_not_under_way_are_nothing() -> None:
    engine = _Engine(timeout_s=5)
    async with engine.running():
        engine.say(Hurry(3), Release(3), Fetch(3, 0), Hurry(3), Hurry(3))
        assert engine.staged(await engine.hear()) == _FILES[b"03"]
        engine.say(Hurry(3), Release(3), Release(3))
        await trio.testing.wait_all_tasks_blocked()
        assert engine.board[Counter.STAGED_BYTES] == 0
