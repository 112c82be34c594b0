"""From the source into staging: units that no memory holds, or whose home does not answer.

What a reader waits for comes first; of what is fetched ahead neighbours in the source are read together, up to
8 MiB. Each unit is read once, straight into its place.

**Threading.** Everything but `_read_batch` runs in the trio thread. A place belongs to its read until `done` is set,
whoever has lost interest meanwhile.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Callable

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source, SourceFile
from deepiofs.errors import DeepiofsError, SourceError
from deepiofs.memory.placement import Units

log = logging.getLogger(__name__)

_WORKERS = 16
_BATCH_BYTES = 8 << 20


class SourceRead:
    """A unit under way: `good` says whether the source gave it."""

    __slots__ = ("done", "good", "into", "taken", "unit", "when_done")

    def __init__(self, unit: int, into: memoryview) -> None:
        self.unit, self.into = unit, into
        self.taken = False
        self.good = False
        self.done = trio.Event()
        self.when_done: Callable[[], None] | None = None

    def finish(self) -> None:
        """The place is the asker's again."""
        self.done.set()
        if self.when_done:
            self.when_done()


class Stager:
    """Reads of the source, each into a place of the caller's."""

    def __init__(self, units: Units, manifest: Manifest, source: Source) -> None:
        self._units, self._manifest, self._source = units, manifest, source
        self._urgent: collections.deque[SourceRead] = collections.deque()
        self._ahead: collections.OrderedDict[int, SourceRead] = collections.OrderedDict()
        self._more = trio.Event()
        self._limiter = trio.CapacityLimiter(_WORKERS)

    async def run(self) -> None:
        """Read what is asked for, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(_WORKERS):
                nursery.start_soon(self._work)

    def start(self, unit: int, into: memoryview, urgent: bool) -> SourceRead:
        """Have a unit read; its bytes go into `into`."""
        read = SourceRead(unit, into)
        if urgent:
            self._urgent.append(read)
        else:
            self._ahead[unit] = read
        self._more.set()
        self._more = trio.Event()
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
            self._ahead.pop(read.unit, None)
            if read in self._urgent:
                self._urgent.remove(read)
            when_done()

    async def _work(self) -> None:
        while True:
            more = self._more
            if batch := self._next_batch():
                await trio.to_thread.run_sync(self._read_batch, batch, abandon_on_cancel=True, limiter=self._limiter)
                for read in batch:
                    read.finish()
            else:
                await more.wait()

    def _next_batch(self) -> list[SourceRead]:
        if self._urgent:
            batch = [self._urgent.popleft()]
        elif self._ahead:
            unit, first = self._ahead.popitem(last=False)
            batch, size = [first], len(first.into)
            while size < _BATCH_BYTES and (neighbour := self._ahead.pop(unit + len(batch), None)):
                batch.append(neighbour)
                size += len(neighbour.into)
        else:
            return []
        for read in batch:
            read.taken = True
        return batch

    def _read_batch(self, batch: list[SourceRead]) -> None:
        """In a worker; extents of one file that come together share its descriptor."""
        file: SourceFile | None = None
        opened = -1
        for read in batch:
            row, begin = self._units.place_in_file(read.unit)
            try:
                if row != opened:
                    if file:
                        file.close()
                    file, opened = None, -1
                    file, opened = self._source.open(self._manifest, row), row
                assert file is not None
                if file.read_into(read.into, begin) != len(read.into):
                    raise SourceError("shorter than it was when it was indexed")
                read.good = True
            except (OSError, DeepiofsError) as error:
                # The mount asks the source itself then, and its reader gets the errno.
                log.info("not staged: %s: %s", os.fsdecode(self._manifest.path(row)), error)
        if file:
            file.close()
