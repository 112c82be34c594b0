"""One open file: what is read through one handle, and how it is read.

**Threading.** The trio thread.
"""

from __future__ import annotations

from deepiofs.fs.sourcereads import SourceHandle
from deepiofs.memory.placement import EXTENT_BYTES

# The kernel's own read-ahead may come a little out of order.
_DISORDER_BYTES = 1 << 20
# After so many bytes in order the reader is believed to go on.
_RUN_BYTES = 512 << 10


class OpenFile:
    """One open file: what is read through one handle."""

    __slots__ = ("_source", "ahead", "asked_ahead", "checked", "content", "first", "run", "size", "to_come", "whole")

    def __init__(self, content: int, first: int, size: int, whole: bool = False) -> None:
        self.content = content  # the row whose bytes these are
        self.first = first  # its first unit
        self.size = size
        self.checked: set[int] = set()  # units whose digest was compared through this handle
        self._source: SourceHandle | None = None
        self.to_come = 0  # where the next read begins, if it goes on
        self.run = _RUN_BYTES  # bytes that were read in order; who begins at the beginning is believed at once
        self.whole = whole  # it will be read to its end, even if it is small
        self.asked_ahead = 0  # extents, from the first on, that were asked for ahead or read
        self.ahead: set[int] = set()  # units that were asked for ahead through this handle, and not read yet

    @property
    def source(self) -> SourceHandle:
        """What the source is read through: made when it is first needed, as most files never need it."""
        if self._source is None:
            self._source = SourceHandle(self.content)
        return self._source

    def mark_closed(self) -> bool:
        """Nobody reads any more. Whether there is something of the source to close."""
        if self._source is None:
            return False
        self._source.mark_closed()
        return self._source.is_open

    @property
    def units(self) -> int:
        """How many extents it has."""
        return -(-self.size // EXTENT_BYTES)

    def follow(self, at: int, size: int) -> None:
        """A read comes."""
        if abs(at - self.to_come) > _DISORDER_BYTES:
            self.run, self.to_come = 0, at
        self.run += size
        self.to_come = max(self.to_come, at + size)

    @property
    def reads_on(self) -> bool:
        """Whether it is read in order."""
        return self.run >= _RUN_BYTES
