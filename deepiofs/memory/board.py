"""Counters that the engine writes and the mount reads: one page of shared memory, which outlives the engine.

**Threading.** Each counter is written from one thread of the engine only (`loaded_bytes` and its like by the trio
thread, when a worker's part is done); an aligned u64 is never read half written.
"""

from __future__ import annotations

import enum

from deepiofs.memory.segments import Segment


class Counter(enum.IntEnum):
    """What the engine counts."""

    STATE_WARM = 0  # 1 when the whole job's resident set is loaded
    OWN_UNITS = 1  # units that this rank is to hold
    OWN_BYTES = 2
    LOADED_UNITS = 3
    LOADED_BYTES = 4
    BROKEN_UNITS = 5  # units that the source would not give
    SOURCE_BYTES = 6  # read from the source by the engine
    STAGED_BYTES = 7  # in staging now, quarantined ones included
    GETS = 8  # one-sided gets completed
    VERIFY_FAILURES = 9  # gets whose digest differed
    PEER_TIMEOUTS = 10
    MPI_ERRORS = 11
    PEERS_SUSPECT = 12  # now
    QUARANTINED_BYTES = 13  # of staging, now: places of gets that were given up and are not over
    SOURCE_HANGS = 14  # reads of the source by the engine that hang now


class Board:
    """The page of counters."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._slots = segment.view.cast("Q")

    @classmethod
    def create(cls) -> Board:
        return cls(Segment.create("board", 1))

    def __getitem__(self, counter: Counter) -> int:
        return self._slots[counter]

    def __setitem__(self, counter: Counter, value: int) -> None:
        self._slots[counter] = value

    def add(self, counter: Counter, amount: int = 1) -> None:
        self._slots[counter] += amount
