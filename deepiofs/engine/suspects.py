"""Which peers are not asked for now: those that were late or failed. Pure.

A suspect is left alone until it answers: what it was asked before, or a probe, which nobody waits for. Probes come
after a while, then after twice as long each time that one fails.
"""

from __future__ import annotations

_FIRST_S = 5.0
_LONGEST_S = 60.0


class Suspects:
    """Ranks, and for how long each is left alone before the next probe."""

    def __init__(self) -> None:
        self._pause: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._pause)

    def __contains__(self, rank: int) -> bool:
        return rank in self._pause

    def failed(self, rank: int) -> bool:
        """It was late, or MPI says that it is gone. Whether that is news."""
        if rank in self._pause:
            return False
        self._pause[rank] = _FIRST_S
        return True

    def next_pause(self, rank: int) -> float:
        """Seconds to leave a suspect alone now."""
        pause = self._pause[rank]
        self._pause[rank] = min(2 * pause, _LONGEST_S)
        return pause

    def answered(self, rank: int) -> None:
        """It is there again."""
        self._pause.pop(rank, None)
