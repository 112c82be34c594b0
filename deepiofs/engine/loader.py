"""Loading this rank's own units from the source: each once, in the source's order, what is asked for first.

Worker threads read, digest and fill the store (no copy in user space, `engine.filling`); they touch no MPI. A thread
that hangs in the source keeps the unit that it is reading and nothing else: its slot and the rest of its batch go on
without it.

**Threading.** Everything runs in the trio thread but `Batch.read`. **Invariants.** A unit is marked in `_taken` while
one batch has it, or `_urgent`, or a pause before it is tried again; `_waiting` has only units that are not finished.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source, retry
from deepiofs.engine.batches import HANGS_AFTER_S, MOST_LEFT_ALONE, Batch, LeftAlone, file_name
from deepiofs.engine.filling import Filling, Places
from deepiofs.errors import DeepiofsError
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Units
from deepiofs.memory.store import EMPTY, LOADED, Store

log = logging.getLogger(__name__)

# Parallel file systems answer many requests at once; behind the GIL more threads than this gain nothing.
WORKERS = 8
_BATCH_BYTES = 8 << 20
_BATCH_UNITS = 64
# Of records, which are read many at once: more, to fill requests of some MiB with small ones.
_BATCH_RECORDS = 4096
# Of records, with one that somebody waits for: those behind it, which cost less than a request of their own later.
_BESIDE_BYTES = 2 << 20


@dataclasses.dataclass(frozen=True)
class Own:
    """unit: int64 (n,), the units of this rank in the source's order. at: by unit, where each goes in the store."""

    unit: npt.NDArray[np.int64]
    at: Places


class Loader:
    """Fills a store."""

    def __init__(self, own: Own, units: Units, manifest: Manifest, source: Source, store: Store, board: Board) -> None:
        self._units, self._manifest = units, manifest
        self._store, self._board = store, board
        self._place = own.at
        self._filling = Filling(units, manifest, source, store, self._place, fresh=True)
        self._limiter = trio.CapacityLimiter(WORKERS + MOST_LEFT_ALONE)
        self._name = functools.partial(file_name, manifest, units)
        self._left_alone = LeftAlone(board)
        self._order = map(int, own.unit)
        self._returned: collections.deque[int] = collections.deque()  # before what is left of `_order`
        self._in_order = False
        self._packed = manifest.is_packed
        self._batch_units = _BATCH_RECORDS if self._packed else _BATCH_UNITS
        self._own = own.unit
        self._source_at = manifest.columns["source_at"].data
        self._tries: collections.Counter[int] = collections.Counter()
        self._taken = bytearray(len(units.size))
        self._urgent: collections.deque[int] = collections.deque()
        self._waiting: dict[int, trio.Event] = {}
        self._more = trio.Event()
        self._unfinished = len(own.unit)
        self.finished = trio.Event()
        if not len(own.unit):
            self.finished.set()
        board.add(Counter.OWN_UNITS, len(own.unit))
        board.add(Counter.OWN_BYTES, int(units.size[own.unit].sum()))

    async def run(self) -> None:
        """Load what is asked for, and all once `load_all` was called, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, nursery)

    async def load_all(self) -> None:
        """Return when every own unit is loaded or given up."""
        self._in_order = True
        self._call_workers()
        await self.finished.wait()

    async def need(self, unit: int) -> bool:
        """Have an own unit loaded now, before all others; False if the source would not give it.

        The load goes on if the caller is cancelled.
        """
        at = self._place[unit]
        if self._store.state(at) == EMPTY:
            if unit not in self._waiting:
                self._waiting[unit] = trio.Event()
            event = self._waiting[unit]
            if not self._taken[unit]:
                self._taken[unit] = True
                self._urgent.append(unit)
                self._call_workers()
            await event.wait()
        return self._store.state(at) == LOADED

    async def _work(self, nursery: trio.Nursery) -> None:
        while True:
            more = self._more
            if units := self._next_batch():
                await self._load(Batch(units), nursery)
            else:
                await more.wait()

    def _call_workers(self) -> None:
        self._more.set()
        self._more = trio.Event()

    def _next_batch(self) -> list[int]:
        if self._urgent:
            urgent = self._urgent.popleft()
            return [urgent, *self._beside(urgent)] if self._packed and self._in_order else [urgent]
        batch: list[int] = []
        size = 0
        while self._in_order and size < _BATCH_BYTES and len(batch) < self._batch_units:
            unit = self._returned.popleft() if self._returned else next(self._order, None)
            if unit is None:
                break
            if not self._taken[unit]:
                self._taken[unit] = True
                batch.append(unit)
                size += int(self._units.size[unit])
        return batch

    def _beside(self, unit: int) -> list[int]:
        """Units that lie behind one in the source and are not taken; they are now."""
        beside: list[int] = []
        size = int(self._units.size[unit])
        at = self._position(unit) + 1
        while at < len(self._own) and size < _BESIDE_BYTES and len(beside) < self._batch_units:
            other = int(self._own[at])
            if self._taken[other]:
                break
            size += int(self._units.size[other])
            self._taken[other] = True
            beside.append(other)
            at += 1
        return beside

    def _position(self, unit: int) -> int:
        """Where an own unit is in the source's order."""
        return bisect.bisect_left(self._own, self._place_in_source(unit), key=self._place_in_source)

    def _place_in_source(self, unit: int) -> tuple[int, int]:
        """Extents of one record have one place, and are in the order of their numbers."""
        return self._source_at[self._units.row[unit]], int(unit)

    async def _load(self, batch: Batch, nursery: trio.Nursery) -> None:
        """Return when the slot is free: the batch is read, or its thread hangs and is left alone."""
        nursery.start_soon(self._read, batch, nursery)
        if await batch.over_in_time():
            return
        log.warning("%s: the source has not answered for %g s", self._name(batch.reading), HANGS_AFTER_S)
        self._left_alone.notice(batch)
        self._return(batch.take_back())
        self._settle(batch, nursery)
        await self._left_alone.add(batch)

    async def _read(self, batch: Batch, nursery: trio.Nursery) -> None:
        """The batch's thread, from its start to its end, however long it hangs."""
        await trio.to_thread.run_sync(batch.read, self._filling, limiter=self._limiter, abandon_on_cancel=True)
        self._settle(batch, nursery)
        self._left_alone.end(batch)

    def _settle(self, batch: Batch, nursery: trio.Nursery) -> None:
        """Take note of what was read, and of what was not."""
        loaded: list[int] = []
        again: dict[float, list[int]] = {}
        while batch.outcomes:
            unit, error = batch.outcomes.popleft()
            if error is None:
                loaded.append(unit)
            elif not retry.may_pass(error) or self._tries[unit] >= len(retry.PAUSES_S):
                self._give_up(unit, error)
            else:
                again.setdefault(retry.PAUSES_S[self._tries[unit]], []).append(unit)
                self._tries[unit] += 1
        self._count(loaded)
        for unit in loaded:
            self._finish(unit)
        for pause_s, units in again.items():
            nursery.start_soon(self._try_again, units, pause_s)

    async def _try_again(self, units: list[int], pause_s: float) -> None:
        await trio.sleep(pause_s)
        self._return(units)

    def _return(self, units: Iterable[int]) -> None:
        """Units that were taken and not finished are to be taken again."""
        for unit in units:
            if unit in self._waiting:
                self._urgent.append(unit)
            else:
                self._taken[unit] = False
                self._returned.append(unit)
        self._call_workers()

    def _give_up(self, unit: int, error: OSError | DeepiofsError) -> None:
        log.warning("not loaded: %s: %s", self._name(unit), error)
        self._store.give_up(self._place[unit])
        self._board.add(Counter.BROKEN_UNITS)
        self._finish(unit)

    def _finish(self, unit: int) -> None:
        """A unit is loaded, or given up; wake who waits for it."""
        self._tries.pop(unit, None)
        event = self._waiting.pop(unit, None)
        if event is not None:
            event.set()
        self._unfinished -= 1
        if not self._unfinished:
            self.finished.set()

    def _count(self, loaded: list[int]) -> None:
        size = int(self._units.size[loaded].sum())
        self._board.add(Counter.LOADED_UNITS, len(loaded))
        self._board.add(Counter.LOADED_BYTES, size)
        self._board.add(Counter.SOURCE_BYTES, size)
