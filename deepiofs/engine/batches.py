"""What one worker thread reads from the source into the store, unit by unit, and what it says of that.

**Threading.** `Batch.read` runs in a worker thread, everything else in the trio thread. They share two deques, whose
`popleft` and `append` are atomic, and a float. **Invariants.** A unit is in `_units` until the thread begins it or
`take_back` does; never both.
"""

from __future__ import annotations

import collections
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Packed, Piece, Source, SourceFile
from deepiofs.errors import DeepiofsError
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Units
from deepiofs.memory.store import Store

# A unit that takes longer hangs: its thread is left alone, and another has its turn. At most so many are left alone;
# beyond that the whole source is ill, and more threads would only pile up in it.
HANGS_AFTER_S = 10.0
MOST_LEFT_ALONE = 32
_LOOK_AGAIN_S = 1.0

# A unit, and why it could not be read.
Outcome = tuple[int, OSError | DeepiofsError | None]
# By unit: the byte of the store where it goes.
Places = Mapping[int, int] | Sequence[int] | memoryview


def file_name(manifest: Manifest, units: Units, unit: int) -> str:
    """The file that a unit is of, for log lines."""
    return os.fsdecode(manifest.path(units.place_in_file(unit)[0]))


class Filling:
    """Reads units of a dataset into their places of a store."""

    def __init__(self, units: Units, manifest: Manifest, source: Source, store: Store, place: Places) -> None:
        self._units, self._manifest, self._source = units, manifest, source
        self._store, self._place = store, place
        self._packed = source if isinstance(source, Packed) else None

    def read(self, units: Iterator[int], say: Callable[[Outcome], None]) -> None:
        """Read and publish: all at once what lies in containers, else file by file."""
        if self._packed:
            self._read_together(self._packed, list(units), say)
        else:
            self._read_each(units, say)

    def _read_together(self, source: Packed, units: list[int], say: Callable[[Outcome], None]) -> None:
        pieces = []
        for unit in units:
            row, begin = self._units.place_in_file(unit)
            pieces.append(Piece(row, begin, self._store.data(self._place[unit], int(self._units.size[unit]))))
        for unit, piece, error in zip(units, pieces, source.read_pieces(self._manifest, pieces), strict=True):
            if error is None:
                self._store.publish(self._place[unit], len(piece.buffer))
            say((unit, error))

    def _read_each(self, units: Iterator[int], say: Callable[[Outcome], None]) -> None:
        """Extents of one file that come together share its descriptor."""
        file: SourceFile | None = None
        opened = -1
        for unit in units:
            row, begin = self._units.place_in_file(unit)
            error: OSError | DeepiofsError | None = None
            try:
                if row != opened:
                    if file:
                        file.close()
                    file = None
                    file, opened = self._source.open(self._manifest, row), row
                assert file is not None
                self._fill(file, unit, begin)
            except (OSError, DeepiofsError) as failure:
                error = failure
                opened = -1  # after ESTALE only a new descriptor helps
            say((unit, error))
        if file:
            file.close()

    def _fill(self, file: SourceFile, unit: int, begin: int) -> None:
        at, size = self._place[unit], int(self._units.size[unit])
        if file.read_into(self._store.data(at, size), begin) != size:
            # Its size is still the index's, else the source would have said so: a server that lost its end.
            raise OSError(errno.EIO, "shorter than it was when it was indexed")
        self._store.publish(at, size)


class Batch:
    """Some units under way."""

    def __init__(self, units: Sequence[int]) -> None:
        self._units = collections.deque(units)
        self.outcomes: collections.deque[Outcome] = collections.deque()
        self.reading = units[0]
        self.over = trio.Event()
        self.hangs = False
        self._begun = time.monotonic()

    def read(self, filling: Filling) -> None:
        """In a worker thread."""
        filling.read(self._begin(), self.outcomes.append)

    def take_back(self) -> list[int]:
        """The units that are not begun yet; the thread will not begin them."""
        return list(self._pop_all())

    async def over_in_time(self) -> bool:
        """Whether it was read without a hang."""
        while not self.over.is_set():
            left_s = HANGS_AFTER_S - self.begun_s_ago()
            if left_s <= 0:
                return False
            with trio.move_on_after(left_s):
                await self.over.wait()
        return True

    def begun_s_ago(self) -> float:
        """For how long the present unit has been read."""
        return time.monotonic() - self._begun

    def _begin(self) -> Iterator[int]:
        for unit in self._pop_all():
            self.reading, self._begun = unit, time.monotonic()
            yield unit

    def _pop_all(self) -> Iterator[int]:
        while True:
            try:
                unit = self._units.popleft()
            except IndexError:
                return
            yield unit


class LeftAlone:
    """Batches whose threads hang, and whose slots go on without them. **Invariants.** None in it is over."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._batches: set[Batch] = set()

    def __len__(self) -> int:
        return len(self._batches)

    def notice(self, batch: Batch) -> None:
        """Its thread hangs."""
        batch.hangs = True
        self._board.add(Counter.SOURCE_HANGS)

    async def add(self, batch: Batch) -> None:
        """Leave one alone; while there are too many, its slot waits as long as it hangs."""
        while len(self._batches) >= MOST_LEFT_ALONE and not batch.over.is_set():
            with trio.move_on_after(_LOOK_AGAIN_S):
                await batch.over.wait()
        if not batch.over.is_set():
            self._batches.add(batch)

    def end(self, batch: Batch) -> None:
        """Its thread has come back."""
        self._board.add(Counter.SOURCE_HANGS, -batch.hangs)
        self._batches.discard(batch)
        batch.over.set()
