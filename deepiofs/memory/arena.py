"""The staging arena: places for units that were got from peers and are not resident. First fit, neighbours merge.

**Threading.** The engine's trio thread only. **Invariants.** Free ranges are sorted, disjoint, and never touch.
"""

from __future__ import annotations

import bisect


class Arena:
    """A range of bytes that is lent in pieces."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)] if size else []
        self._lent: dict[int, int] = {}
        self.used = 0  # bytes lent

    def take(self, size: int) -> int | None:
        """The place of `size` bytes, or None while there is no room."""
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[i : i + 1] = [(start + size, end)] if end - start > size else []
                self._lent[start] = size
                self.used += size
                return start
        return None

    def size_of(self, start: int) -> int:
        """Bytes of a place that is lent."""
        return self._lent[start]

    def give_back(self, start: int) -> None:
        """Return a place that `take` gave."""
        size = self._lent.pop(start)
        self.used -= size
        end = start + size
        i = bisect.bisect_left(self._free, (start, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end))

    def check_invariants(self) -> None:
        ranges = sorted(self._free + [(start, start + size) for start, size in self._lent.items()])
        ends = [0, *(end for _, end in ranges)]
        assert [start for start, _ in ranges] == ends[:-1], "ranges overlap or have gaps"
        assert ends[-1] == self.size
        assert self.used == sum(self._lent.values())
        assert all(a[1] < b[0] for a, b in zip(self._free, self._free[1:], strict=False)), "free neighbours not merged"
