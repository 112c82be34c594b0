"""Which peers are not asked for now: those that were late or failed. Pure, the clock is given.

A suspect is left alone for a while, then probed by one get; if that fails too it is left alone twice as long.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_S = 5.0
_LONGEST_S = 60.0


class Suspects:
    """Per rank: until when it is not asked, and for how long the last time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[int, float] = {}
        self._pause: dict[int, float] = {}
        self._probed: set[int] = set()

    def __len__(self) -> int:
        return len(self._pause)

    def may_ask(self, rank: int) -> bool:
        """Whether to ask now; when a suspect's time is over this is True once, and the asker is the probe."""
        if rank not in self._until:
            return True
        if self._clock() < self._until[rank]:
            return False
        self._until[rank] = self._clock() + self._pause[rank]
        self._probed.add(rank)
        return True

    def failed(self, rank: int) -> None:
        """It was late, or MPI says it is gone. What was asked before it became suspect says nothing more."""
        if rank in self._until and rank not in self._probed:
            return
        self._probed.discard(rank)
        self._pause[rank] = min(self._pause.get(rank, _FIRST_S / 2) * 2, _LONGEST_S)
        self._until[rank] = self._clock() + self._pause[rank]

    def answered(self, rank: int) -> None:
        """It is there again."""
        self._until.pop(rank, None)
        self._pause.pop(rank, None)
        self._probed.discard(rank)
