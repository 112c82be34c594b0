"""From the source into staging: units that no memory holds, or whose home does not answer.

What a reader waits for comes first; of what is fetched ahead neighbours in the source are read together, up to
8 MiB. Each unit is read once, straight into its place. A thread that hangs in the source keeps the unit that it is
reading and nothing else.

**Threading.** Everything runs in the trio thread but `Batch.read`. **Invariants.** A place belongs to its read until
`done` is set, whoever has lost interest meanwhile; a read is in `_urgent` or `_ahead` until a batch has it.
"""

from __future__ import annotations

import collections
import functools
import logging
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


class SourceRead:
    """A unit under way to its place. `good` says whether the source gave it."""

    __slots__ = ("at", "done", "good", "taken", "unit", "when_done")

    def __init__(self, unit: int, at: int) -> None:
        self.unit, self.at = unit, at
        self.taken = False
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

    def _queue(self, read: SourceRead, urgent: bool) -> None:
        read.taken = False
        if urgent:
            self._urgent.append(read)
        else:
            self._ahead[read.unit] = read
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
            unit, first = self._ahead.popitem(last=False)
            reads, size = [first], int(self._units.size[unit])
            while size < _BATCH_BYTES and (neighbour := self._ahead.pop(unit + len(reads), None)):
                reads.append(neighbour)
                size += int(self._units.size[neighbour.unit])
        else:
            return []
        for read in reads:
            read.taken = True
        return reads

    async def _serve(self, reads: list[SourceRead], nursery: trio.Nursery) -> None:
        """Return when the slot is free: all is read, or the thread hangs and is left alone."""
        batch = Batch([read.unit for read in reads])
        under_way = {read.unit: read for read in reads}
        nursery.start_soon(self._read, batch, under_way)
        if await batch.over_in_time():
            return
        log.warning("%s: the source has not answered for %g s", self._name(batch.reading), HANGS_AFTER_S)
        self._left_alone.notice(batch)
        for unit in batch.take_back():
            self._return(under_way.pop(unit))
        self._settle(batch, under_way)
        await self._left_alone.add(batch)

    def _return(self, read: SourceRead) -> None:
        """A read that was taken and not begun. It has waited for long: it comes before all that is ahead."""
        if read.when_done:
            read.finish(good=False)  # nobody wants it any more
        else:
            self._queue(read, urgent=True)

    async def _read(self, batch: Batch, under_way: dict[int, SourceRead]) -> None:
        """The batch's thread, from its start to its end, however long it hangs."""
        # The places are the batch's own: a unit that was given up may be read again, to another place, meanwhile.
        places = {unit: read.at for unit, read in under_way.items()}
        filling = Filling(self._units, self._manifest, self._source, self._staging, places)
        await trio.to_thread.run_sync(batch.read, filling, limiter=self._limiter, abandon_on_cancel=True)
        self._settle(batch, under_way)
        self._left_alone.end(batch)

    def _settle(self, batch: Batch, under_way: dict[int, SourceRead]) -> None:
        while batch.outcomes:
            unit, error = batch.outcomes.popleft()
            if error is not None:
                # The mount asks the source itself then, and its reader gets the errno.
                log.info("not staged: %s: %s", self._name(unit), error)
            under_way.pop(unit).finish(error is None)
