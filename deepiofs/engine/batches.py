"""What one worker thread reads from the source, unit by unit, and what becomes of one that hangs.

**Threading.** `Batch.read` runs in a worker thread, everything else in the trio thread. They share two deques, whose
`popleft` and `append` are atomic, and a float. **Invariants.** A unit is in `_units` until the thread begins it or
`take_back` does; never both.
"""

from __future__ import annotations

import collections
import math
import os
import time
from collections.abc import Iterator, Sequence

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.engine.filling import Filling, Outcome
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Units

# A unit that takes longer hangs: its thread is left alone, and another has its turn. At most so many are left alone;
# beyond that the whole source is ill, and more threads would only pile up in it.
HANGS_AFTER_S = 10.0
MOST_LEFT_ALONE = 32
_LOOK_AGAIN_S = 1.0


def file_name(manifest: Manifest, units: Units, unit: int) -> str:
    """The file that a unit is of, for log lines."""
    return os.fsdecode(manifest.path(units.place_in_file(unit)[0]))


class Batch:
    """Some units under way."""

    def __init__(self, units: Sequence[int], turn_s: float = math.inf) -> None:
        """turn_s: seconds after which the thread begins no further unit; who gave it the batch takes them back."""
        self._units = collections.deque(units)
        self.outcomes: collections.deque[Outcome] = collections.deque()
        self.reading = units[0]
        self.over = trio.Event()
        self.hangs = False
        self._begun = time.monotonic()
        self._turn_s = turn_s

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
        ends = time.monotonic() + self._turn_s
        for unit in self._pop_all():
            self.reading, self._begun = unit, time.monotonic()
            yield unit
            if time.monotonic() > ends:
                return

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
