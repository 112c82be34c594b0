"""From the source into staging: units that no memory holds, or whose home does not answer.

What a reader waits for comes first, alone. Of what is fetched ahead neighbours in the source are read together, up to
8 MiB, and where more waits than there are threads, small files go to a thread by the handful. Each unit is read once,
straight into its place. A thread that hangs in the source keeps the unit that it is reading and nothing else.

**Threading.** Everything runs in the trio thread but `Batch.read`. **Invariants.** A place belongs to its read until
`done` is set, whoever has lost interest meanwhile; a read is in `_urgent` or `_ahead`, or in `_taken` while a
batch has it.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
from collections.abc import Callable

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source
from deepiofs.engine.batches import HANGS_AFTER_S, MOST_LEFT_ALONE, Batch, LeftAlone, file_name
from deepiofs.engine.filling import Filling
from deepiofs.memory.board import Board
from deepiofs.memory.placement import Units
from deepiofs.memory.store import Store

log = logging.getLogger(__name__)

_WORKERS = 16
_BATCH_BYTES = 8 << 20
# A hand-over to a thread costs more than reading a small file (4 KB: 300 us with it, 20 without). So one takes several
# that wait, up to so much, for so long; what it has not begun by then goes back, so nothing waits for a slow source's
# rest.
_HANDED_BYTES = 512 << 10
_TURN_S = 0.005


class SourceRead:
    """A unit under way to its place. `good` says whether the source gave it."""

    __slots__ = ("at", "done", "good", "hurried", "taken", "unit", "when_done")

    def __init__(self, unit: int, at: int) -> None:
        self.unit, self.at = unit, at
        self.taken = False
        self.hurried = False
        self.good = False
        self.done = trio.Event()
        self.when_done: Callable[[], None] | None = None

    def finish(self, good: bool) -> None:
        """The place is the asker's again."""
        self.good = good
        self.done.set()
        if self.when_done:
            self.when_done()


class Stager:
    """Reads of the source, each into a place of the caller's."""

    def __init__(self, units: Units, manifest: Manifest, source: Source, staging: Store, board: Board) -> None:
        self._units, self._manifest, self._source = units, manifest, source
        self._staging = staging
        self._urgent: collections.deque[SourceRead] = collections.deque()
        self._ahead: collections.OrderedDict[int, SourceRead] = collections.OrderedDict()
        self._taken: dict[int, SourceRead] = {}
        self._more = trio.Event()
        self._limiter = trio.CapacityLimiter(_WORKERS + MOST_LEFT_ALONE)
        self._name = functools.partial(file_name, manifest, units)
        self._left_alone = LeftAlone(board)

    async def run(self) -> None:
        """Read what is asked for, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(_WORKERS):
                nursery.start_soon(self._work, nursery)

    def start(self, unit: int, at: int, urgent: bool) -> SourceRead:
        """Have a unit read to its place, header included."""
        read = SourceRead(unit, at)
        self._queue(read, urgent)
        return read

    def hurry(self, unit: int) -> None:
        """A reader waits for it now."""
        if read := self._ahead.pop(unit, None):
            self._urgent.append(read)
        elif read := self._taken.get(unit):
            read.hurried = True

    def abandon(self, read: SourceRead, when_done: Callable[[], None]) -> None:
        """Nobody waits any more; `when_done` is called once the place is free, which may be now."""
        if read.done.is_set():
            when_done()
        elif read.taken:
            read.when_done = when_done
        else:
            if self._ahead.get(read.unit) is read:
                del self._ahead[read.unit]
            else:
                self._urgent.remove(read)
            when_done()

    def _queue(self, read: SourceRead, urgent: bool, first: bool = False) -> None:
        read.taken = False
        if urgent:
            self._urgent.append(read)
        else:
            self._ahead[read.unit] = read
            self._ahead.move_to_end(read.unit, last=not first)
        self._more.set()
        self._more = trio.Event()

    async def _work(self, nursery: trio.Nursery) -> None:
        while True:
            more = self._more
            if reads := self._next():
                await self._serve(reads, nursery)
            else:
                await more.wait()

    def _next(self) -> list[SourceRead]:
        """What one batch takes."""
        if self._urgent:
            reads = [self._urgent.popleft()]
        elif self._ahead:
            reads = self._take_ahead()
        else:
            return []
        for read in reads:
            read.taken = True
            self._taken[read.unit] = read
        return reads

    def _take_ahead(self) -> list[SourceRead]:
        """The first that waits, with its neighbours; where more wait than there are slots, each takes its share."""
        share = len(self._ahead) // _WORKERS
        reads = self._take_run()
        while self._ahead and len(reads) < share and self._bytes(reads) < _HANDED_BYTES:
            reads += self._take_run()
        return reads

    def _take_run(self) -> list[SourceRead]:
        """The first that waits, and what lies behind it in the source and waits, too."""
        unit, first = self._ahead.popitem(last=False)
        reads, size = [first], int(self._units.size[unit])
        while size < _BATCH_BYTES and (neighbour := self._ahead.pop(unit + len(reads), None)):
            reads.append(neighbour)
            size += int(self._units.size[neighbour.unit])
        return reads

    def _bytes(self, reads: list[SourceRead]) -> int:
        return sum(int(self._units.size[read.unit]) for read in reads)

    async def _serve(self, reads: list[SourceRead], nursery: trio.Nursery) -> None:
        """Return when the slot is free: all is read, or the thread hangs and is left alone."""
        is_run = reads[-1].unit - reads[0].unit == len(reads) - 1
        batch = Batch([read.unit for read in reads], math.inf if is_run else _TURN_S)
        under_way = {read.unit: read for read in reads}
        nursery.start_soon(self._read, batch, under_way)
        if await batch.over_in_time():
            return
        log.warning("%s: the source has not answered for %g s", self._name(batch.reading), HANGS_AFTER_S)
        self._left_alone.notice(batch)
        for unit in batch.take_back():
            # It has waited for long: it comes before all that is ahead.
            self._return(under_way.pop(unit), urgent=True)
        self._settle(batch, under_way)
        await self._left_alone.add(batch)

    def _return(self, read: SourceRead, urgent: bool) -> None:
        """A read that was taken and not begun."""
        self._forget(read)
        if read.when_done:
            read.finish(good=False)  # nobody wants it any more
        else:
            self._queue(read, urgent or read.hurried, first=True)

    def _forget(self, read: SourceRead) -> None:
        """No batch has it any more. After it was given up its unit may be another read's."""
        if self._taken.get(read.unit) is read:
            del self._taken[read.unit]

    async def _read(self, batch: Batch, under_way: dict[int, SourceRead]) -> None:
        """The batch's thread, from its start to its end, however long it hangs."""
        # The places are the batch's own: a unit that was given up may be read again, to another place, meanwhile.
        places = {unit: read.at for unit, read in under_way.items()}
        filling = Filling(self._units, self._manifest, self._source, self._staging, places)
        await trio.to_thread.run_sync(batch.read, filling, limiter=self._limiter, abandon_on_cancel=True)
        self._settle(batch, under_way)
        for unit in reversed(batch.take_back()):
            self._return(under_way.pop(unit), urgent=False)
        self._left_alone.end(batch)

    def _settle(self, batch: Batch, under_way: dict[int, SourceRead]) -> None:
        while batch.outcomes:
            unit, error = batch.outcomes.popleft()
            if error is not None:
                # The mount asks the source itself then, and its reader gets the errno.
                log.info("not staged: %s: %s", self._name(unit), error)
            read = under_way.pop(unit)
            self._forget(read)
            read.finish(error is None)
