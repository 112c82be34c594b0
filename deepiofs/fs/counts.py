"""What a mount counts, and where the bytes of a read came from.

**Threading.** The trio thread only.
"""

from __future__ import annotations

import collections
import enum
import errno

_KEPT = 1024


class Origin(enum.IntEnum):
    """Where bytes came from, nearest first."""

    LOCAL = 0
    NODE = 1
    PEER = 2
    SOURCE = 3


class Counts:
    """Counters of one mount, from its start on."""

    def __init__(self) -> None:
        self.requests = 0
        self.opens = 0
        self.reads = 0
        self.bytes_served = 0
        self.served = [0, 0, 0, 0]
        self.served_bytes = [0, 0, 0, 0]
        self.source_bytes = 0
        self.verify_failures = 0
        self.engine_timeouts = 0
        self.errors: collections.Counter[str] = collections.Counter()
        self._fetch_ms: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def served_from(self, origin: Origin, size: int) -> None:
        """A read was answered; of several origins the farthest counts."""
        self.reads += 1
        self.bytes_served += size
        self.served[origin] += 1
        self.served_bytes[origin] += size

    def failed(self, number: int) -> None:
        """A request ended with an errno that is not a plain answer (ENOENT and its like are)."""
        self.errors[errno.errorcode.get(number, str(number))] += 1

    def fetched_in(self, milliseconds: float) -> None:
        self._fetch_ms.append(milliseconds)

    def fetch_quantile(self, share: float) -> float:
        """Milliseconds that this share of the last 1024 fetches took at most; 0 before the first."""
        if not self._fetch_ms:
            return 0.0
        ordered = sorted(self._fetch_ms)
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)


def by_origin(values: list[int]) -> dict[str, int]:
    """Named by origin."""
    return {origin.name.lower(): values[origin] for origin in Origin}
