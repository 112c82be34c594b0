"""A container for a parser that goes from header to header: small reads where it skips, large where it does not.

**Threading.** One thread.
"""

from __future__ import annotations

from deepiofs.dataset.sources.containers import ContainerFile, OpenContainer

# What a read behind a skip takes; records of up to twice this are read through instead.
_LEAST_BYTES = 16 << 10
# Also the longest header: a lying length must not be allocated.
_MOST_BYTES = 1 << 20


class Skimmer(ContainerFile):
    """A container's file that holds one window of it."""

    def __init__(self, container: OpenContainer, size: int) -> None:
        super().__init__(container, size)
        self._window = memoryview(bytearray(_MOST_BYTES))
        self._begin = self._end = 0
        self._step = _LEAST_BYTES

    def read(self, size: int = -1, /) -> bytes:
        """ValueError for more than any header takes; short at the end."""
        data = bytes(self.look(self._at, size))
        self._at += len(data)
        return data

    def look(self, at: int, size: int) -> memoryview:
        """Bytes from a place on, until the next call."""
        if not 0 <= size <= _MOST_BYTES:
            raise ValueError(f"a header of {size} bytes")
        if at < self._begin or at + size > self._end:
            self._fill(at, size)
        return self._window[at - self._begin : min(at + size, self._end) - self._begin]

    def _fill(self, at: int, size: int) -> None:
        near = self._begin <= at <= self._end + self._step
        self._step = min(2 * self._step, _MOST_BYTES) if near else _LEAST_BYTES
        buffer = self._window[: max(size, min(self._step, self._size - at))]
        n = self._container.read_into([buffer], at)
        self._begin, self._end = at, at + n
