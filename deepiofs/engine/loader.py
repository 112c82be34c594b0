"""Loading this rank's own units from the source: each once, in the source's order, what is asked for first.

Worker threads read straight into the store (no copy in user space) and digest; they touch no MPI.

**Threading.** Everything but `_read_batch` runs in the trio thread. **Invariants.** A unit is taken by one batch,
once; `_waiting` has only units that are not finished.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source, SourceFile
from deepiofs.errors import DeepiofsError
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Units
from deepiofs.memory.store import EMPTY, LOADED, Store

log = logging.getLogger(__name__)

# Parallel file systems answer many requests at once; behind the GIL more threads than this gain nothing.
WORKERS = 8
_BATCH_BYTES = 8 << 20
_BATCH_UNITS = 64


@dataclasses.dataclass(frozen=True)
class Own:
    """The units of this rank: numbers ascending, and where each goes in the store; int lists of one length."""

    unit: list[int]
    at: list[int]


class Loader:
    """Fills a store."""

    def __init__(self, own: Own, units: Units, manifest: Manifest, source: Source, store: Store, board: Board) -> None:
        self._units, self._manifest, self._source = units, manifest, source
        self._store, self._board = store, board
        self._place = dict(zip(own.unit, own.at, strict=True))
        self._order = iter(own.unit)
        self._in_order = False
        self._taken: set[int] = set()
        self._urgent: collections.deque[int] = collections.deque()
        self._waiting: dict[int, trio.Event] = {}
        self._more = trio.Event()
        self._unfinished = len(own.unit)
        self.finished = trio.Event()
        if not own.unit:
            self.finished.set()
        board.add(Counter.OWN_UNITS, len(own.unit))
        board.add(Counter.OWN_BYTES, int(units.size[own.unit].sum()))

    async def run(self) -> None:
        """Load what is asked for, and all once `load_all` was called, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work)

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
            if unit not in self._taken:
                self._taken.add(unit)
                self._urgent.append(unit)
                self._call_workers()
            await event.wait()
        return self._store.state(at) == LOADED

    async def _work(self) -> None:
        while True:
            more = self._more
            if batch := self._next_batch():
                await self._load(batch)
            else:
                await more.wait()

    def _call_workers(self) -> None:
        self._more.set()
        self._more = trio.Event()

    def _next_batch(self) -> list[int]:
        if self._urgent:
            return [self._urgent.popleft()]
        batch: list[int] = []
        size = 0
        for unit in self._order if self._in_order else ():
            if unit in self._taken:
                continue
            self._taken.add(unit)
            batch.append(unit)
            size += int(self._units.size[unit])
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_UNITS:
                break
        return batch

    async def _load(self, batch: list[int]) -> None:
        await trio.to_thread.run_sync(self._read_batch, batch, abandon_on_cancel=True)
        for unit in batch:
            self._count(unit)
            event = self._waiting.pop(unit, None)
            if event is not None:
                event.set()
        self._unfinished -= len(batch)
        if not self._unfinished:
            self.finished.set()

    def _count(self, unit: int) -> None:
        if self._store.state(self._place[unit]) != LOADED:
            self._board.add(Counter.BROKEN_UNITS)
            return
        size = int(self._units.size[unit])
        self._board.add(Counter.LOADED_UNITS)
        self._board.add(Counter.LOADED_BYTES, size)
        self._board.add(Counter.SOURCE_BYTES, size)

    def _read_batch(self, batch: list[int]) -> None:
        """Read and publish; extents of one file that come together share its descriptor."""
        file: SourceFile | None = None
        opened = -1
        for unit in batch:
            row, begin = self._units.place_in_file(unit)
            at, size = self._place[unit], int(self._units.size[unit])
            try:
                if row != opened:
                    if file:
                        file.close()
                    file, opened = None, -1
                    file, opened = self._source.open(self._manifest, row), row
                assert file is not None
                if file.read_into(self._store.data(at, size), begin) != size:
                    raise OSError("shorter than it was when it was indexed")
                self._store.publish(at, size)
            except (OSError, DeepiofsError) as error:
                log.warning("not loaded: %s: %s", os.fsdecode(self._manifest.path(row)), error)
                self._store.give_up(at)
        if file:
            file.close()
