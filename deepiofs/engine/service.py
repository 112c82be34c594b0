"""Serving: the mount's requests, loading, replicas, and the end.

**Threading.** One trio thread; see docs/CONCURRENCY.md for its tasks and what they share.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import numpy as np
import trio

from deepiofs.engine.farewell import Farewell
from deepiofs.engine.fetcher import Fetcher
from deepiofs.engine.loader import Loader, Own
from deepiofs.engine.peers import Barrier, Note, NoteKind, Peers
from deepiofs.engine.pump import Pump
from deepiofs.engine.stager import Stager
from deepiofs.engine.startup import Rank
from deepiofs.engine.stealing import StealRelay
from deepiofs.engine.world import World
from deepiofs.errors import EngineLostError
from deepiofs.memory.board import Counter
from deepiofs.memory.store import HEADER_BYTES, Store, split
from deepiofs.memory.wire import Answered, Channel, Fetch, Hurry, Leave, Message, Out, Release, Steal, Suspect
from deepiofs.options import Settings

log = logging.getLogger(__name__)

# How long pages stay mapped in this process after the last traffic. They are shared memory: dropping them from the
# page table costs a minor fault at the next use, and keeps the two processes of a rank from counting them twice.
_UNMAP_EVERY_S = 2.0
_BARRIER_POLL_S = 0.01
_REPLICAS_AT_ONCE = 32


class Service:
    """One rank's engine at work."""

    def __init__(self, channel: Channel, world: World, rank: Rank, peers: Peers, settings: Settings) -> None:
        self._channel, self._world, self._rank = channel, world, rank
        self._peers, self._settings = peers, settings
        self._store = rank.stores[world.rank]
        own = rank.units.in_source_order(rank.manifest, np.flatnonzero(rank.placement.home == world.rank))
        places = Own(own, rank.placement.at.data)
        self._loader = Loader(places, rank.units, rank.manifest, rank.source, self._store, rank.board)
        staging = Store(rank.segments["staging"])
        self._stager = Stager(rank.units, rank.manifest, rank.source, staging, rank.board)
        self._pump = Pump(peers)
        self._serving = trio.CancelScope()
        self._start_soon: Callable[..., None]
        self._relay = StealRelay(peers, self._say)
        self._farewell = Farewell(world.rank, world.size, peers)
        self._fetcher = Fetcher(
            world.rank, rank.units, rank.placement, rank.stores, rank.segments["staging"], rank.budget.staging,
            self._loader, self._stager, peers, rank.board, self._say,
            timeout_s=settings.timeout, verify=settings.verify != "off",
        )  # fmt: skip

    async def run(self) -> bool:
        """Serve until the mount has left and the peers need this memory no more; whether all have left in time."""
        async with trio.open_nursery() as nursery:
            self._peers.on_note = self._on_note
            self._start_soon = nursery.start_soon
            self._fetcher.gets.on_suspect = lambda rank: self._say(Suspect(rank))
            if self._world.size > 1:
                self._pump.take_words(self._channel.fileno(), self._take_words)
                nursery.start_soon(self._pump.run)
            nursery.start_soon(self._unmap_when_idle)
            nursery.start_soon(self._loader.run)
            nursery.start_soon(self._stager.run)
            nursery.start_soon(self._fetcher.gets.run)
            nursery.start_soon(self._warm)
            await self._serve_mount()
            self._relay.mount_is_gone = True
            in_time = await self._linger()
            nursery.cancel_scope.cancel()
        return in_time

    async def _serve_mount(self) -> None:
        with self._serving:
            while received := await self._channel.receive():
                self._hear(received[0])

    def _take_words(self) -> None:
        """A packet from the mount, without a pass of trio's scheduler; that it is gone is for `_serve_mount` to see."""
        with contextlib.suppress(BlockingIOError):
            received = self._channel.receive_nowait()
            while received is not None:
                self._hear(received[0])
                received = self._channel.more_of_packet()

    def _hear(self, word: Message) -> None:
        match word:
            case Fetch(unit, urgent):
                self._pump.wake(urgent=bool(urgent))
                self._fetcher.fetch(unit, bool(urgent), self._start_soon)
            case Release(unit):
                self._fetcher.release(unit)
            case Hurry(unit):
                self._pump.wake(urgent=True)
                self._fetcher.hurry(unit)
            case Steal():
                self._pump.wake(urgent=True)
                self._relay.ask(word)
            case Answered():
                self._relay.answer(word)
            case Out(rank):
                self._farewell.out.add(rank)
            case Leave():
                self._serving.cancel()

    def _on_note(self, rank: int, note: Note) -> None:
        if note.kind is NoteKind.WAKE:
            self._pump.wake(urgent=bool(note.value))
        if note.kind is NoteKind.LEFT:
            self._farewell.heard(rank)
        elif note.kind in (NoteKind.STEAL, NoteKind.STOLEN):
            self._relay.on_note(rank, note)
        else:
            self._fetcher.on_note(rank, note, self._start_soon)

    def _say(self, message: Message) -> None:
        """To the mount; if it is gone nobody waits for the answer."""
        with contextlib.suppress(EngineLostError):
            if not self._channel.send_nowait(message):
                self._start_soon(self._send, message)

    async def _send(self, message: Message) -> None:
        with contextlib.suppress(EngineLostError):
            await self._channel.send(message)

    async def _warm(self) -> None:
        started = time.monotonic()
        if self._settings.warm == "demand":
            await self._loader.finished.wait()
        else:
            await self._loader.load_all()
        await self._load_replicas()
        log.info("rank %d loaded its part in %.3f s", self._world.rank, time.monotonic() - started)
        await _passed(self._peers.enter_warm())
        self._rank.board[Counter.STATE_WARM] = 1

    async def _load_replicas(self) -> None:
        """Copy what this rank keeps for its node from the homes, a few at a time."""
        mine = np.flatnonzero(self._rank.replicas.holder == self._world.rank).tolist()
        board, replicas = self._rank.board, self._rank.replicas
        board.add(Counter.OWN_UNITS, len(mine))
        board.add(Counter.OWN_BYTES, int(self._rank.units.size[replicas.unit[mine]].sum()))
        queue = iter(mine)

        async def work() -> None:
            for i in queue:
                await self._load_replica(int(replicas.unit[i]), int(replicas.at[i]))

        self._pump.wake(urgent=False)
        async with trio.open_nursery() as nursery:
            for _ in range(_REPLICAS_AT_ONCE):
                nursery.start_soon(work)

    async def _load_replica(self, unit: int, at: int) -> None:
        async with self._fetcher.borrowed(unit) as copy:
            if copy is None:
                return  # the node reads this unit from its home, or from the source
            size = len(copy) - HEADER_BYTES
            self._store.data(at, size)[:] = split(copy)[2]
            self._store.publish(at, size)
            self._rank.board.add(Counter.LOADED_UNITS)
            self._rank.board.add(Counter.LOADED_BYTES, size)

    async def _linger(self) -> bool:
        """The mount is gone; the peers may still need this memory."""
        barrier = self._peers.enter_leave()
        self._farewell.leave()
        with trio.move_on_after(self._settings.linger):
            while not (barrier.passed() or self._farewell.complete()):
                await trio.sleep(_BARRIER_POLL_S)
        return barrier.passed()

    async def _unmap_when_idle(self) -> None:
        mapped = 0
        while True:
            await trio.sleep(_UNMAP_EVERY_S)
            used = self._rank.board[Counter.LOADED_BYTES] + self._rank.board[Counter.GETS]
            if used != mapped or self._peers.busy():
                mapped = used
                continue
            for segment in (self._store.segment, self._rank.segments["staging"]):
                segment.unmap_pages()


async def _passed(barrier: Barrier) -> None:
    while not barrier.passed():
        await trio.sleep(_BARRIER_POLL_S)
