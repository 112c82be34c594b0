"""Which samples this node's memory holds, and which units of the others it lacks.

**Threading.** The trio thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from deepiofs.fs.enginelink import EngineLink
from deepiofs.memory.board import Counter

# Where a sample is to lie; 0 is not known yet.
_NEAR, _FAR = 1, 2


class Nearby:
    """Samples by number; each is looked up once."""

    def __init__(self, link: EngineLink, rows_of: Callable[[int], Sequence[int]], n_samples: int) -> None:
        """rows_of: the rows of a sample."""
        self._link, self._rows_of = link, rows_of
        self._lies = bytearray(n_samples)

    def has(self, sample: int) -> bool:
        """Whether a sample is in memory as a whole; once all ranks have loaded, what could not be loaded counts."""
        lies = self._lies[sample] or self._find(sample)
        if lies == _FAR:
            return False
        return bool(self._link.board[Counter.STATE_WARM]) or not any(True for _ in self.lacking(sample))

    @property
    def has_all(self) -> bool:
        """Whether nothing is lacking, nor ever will be."""
        return self._link.all_near and bool(self._link.board[Counter.STATE_WARM])

    def lacking(self, sample: int) -> Iterator[tuple[int, int]]:
        """(unit, bytes) of a sample that is not in memory now."""
        link = self._link
        warm = bool(link.board[Counter.STATE_WARM])
        for unit, length in self._units(sample):
            if not (warm and link.is_near(unit)) and link.in_node(unit, length) is None:
                yield unit, length

    def _find(self, sample: int) -> int:
        units = (unit for unit, _ in self._units(sample))
        lies = self._lies[sample] = _NEAR if all(map(self._link.is_near, units)) else _FAR
        return lies

    def _units(self, sample: int) -> Iterator[tuple[int, int]]:
        for row in self._rows_of(sample):
            yield from self._link.units(row)
