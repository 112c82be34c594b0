"""What of the open streams is fetched before it is read: the next members that this node's memory does not hold.

A stream that is read in order says what comes next. Its units are claimed, so that they stay in staging until they are
passed, jumped away from, or the stream is closed. All streams together claim a quarter of staging, in equal parts.

**Threading.** The trio thread. **Invariants.** `claimed_bytes` is the sum over the claims of all streams.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import trio

from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.streams.layout import Layout
from deepiofs.memory.board import Counter
from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.store import span

# The kernel's read-ahead comes a little out of order: so many members back still are the same reader.
_BEHIND = 8
# Units that one stream may have asked for and not read yet.
_MOST_UNITS = 4096


class Lead:
    """One stream that is read: where its reader is, and what is claimed before it."""

    def __init__(self, layout: Layout, far: Sequence[int] | memoryview) -> None:
        """far: members that this node's memory does not hold, ascending."""
        self.layout = layout
        self.far = far
        self.next = 0  # of `far`, the first that was not looked at yet
        self.at = 0  # the member read last
        self.claims: collections.deque[tuple[int, list[int], int]] = collections.deque()
        self.claimed_bytes = 0


class Ahead:
    """The claims of all open streams."""

    def __init__(self, link: EngineLink, staging_bytes: int, count: int) -> None:
        """count: the option `prefetch`; 0: nothing is fetched ahead."""
        self._link = link
        self._room_bytes = staging_bytes // 4 if count else 0
        self._leads: list[Lead] = []
        self._called = trio.Event()
        self.claimed_bytes = 0

    def begin(self, layout: Layout) -> Lead:
        """A stream is opened."""
        lead = Lead(layout, self._far(layout) if self._room_bytes else [])
        self._leads.append(lead)
        return lead

    def end(self, lead: Lead) -> None:
        """It is closed."""
        self._drop(lead, len(lead.layout) + 1)
        self._leads.remove(lead)
        self._called.set()

    def follow(self, lead: Lead, first: int, last: int) -> None:
        """A read reached from one member to another."""
        if not len(lead.far):
            return
        if not lead.at - _BEHIND <= first <= last + 1 <= self._reach(lead):
            self._drop(lead, len(lead.layout) + 1)
            lead.next = bisect.bisect_left(lead.far, first)
        lead.at = last
        self._drop(lead, first - _BEHIND)
        if self._has_room(lead):
            self._called.set()

    async def run(self) -> None:
        """Fetch ahead, until cancelled."""
        while True:
            await self._called.wait()
            self._called = trio.Event()
            for lead in list(self._leads):
                while lead in self._leads and self._has_room(lead):
                    await self._claim_next(lead)

    def give_up_newest(self) -> bool:
        """Staging has no room for what a reader waits for: let the claim go that is needed last."""
        lead = max(self._leads, key=lambda lead: lead.claimed_bytes, default=None)
        if lead is None or not lead.claims:
            return False
        self._release(lead, lead.claims.pop())
        return True

    def peer_share(self, layout: Layout) -> float:
        """Share of a stream's data that other nodes hold; what no memory holds is not among it."""
        content = self._link.manifest.content[layout.rows]
        sizes = self._link.manifest.sizes[content]
        content, sizes = content[sizes > 0], sizes[sizes > 0]
        units = self._link.layout["first"][content]
        abroad = ~self._link.are_near(units) & (self._link.layout["home"][units] != NOWHERE)
        return round(float(sizes[abroad].sum() / max(sizes.sum(), 1)), 6)

    def _far(self, layout: Layout) -> Sequence[int] | memoryview:
        """Members to be looked at: when all ranks have loaded, those that are another node's to hold, or nobody's."""
        if not layout.form.has_data:
            return []
        if not self._link.board[Counter.STATE_WARM]:
            return range(len(layout))
        rows = self._link.manifest.content[layout.rows]
        index = np.flatnonzero(self._link.manifest.sizes[rows] > 0)
        return index[~self._link.are_near(self._link.layout["first"][rows[index]])].data

    def _reach(self, lead: Lead) -> int:
        """Up to which member a reader that goes on may come."""
        ahead = lead.far[lead.next - 1] if lead.next else 0
        return max(ahead, lead.at) + _BEHIND * 16

    def _has_room(self, lead: Lead) -> bool:
        """Whether the next member is near enough to the reader, and fits its share."""
        if lead.next >= len(lead.far):
            return False
        share = self._room_bytes // len(self._leads)
        offset_of = lead.layout.offset_of
        if offset_of[lead.far[lead.next]] - offset_of[min(lead.at + 1, len(lead.layout))] >= share:
            return False
        return not lead.claims or (lead.claimed_bytes < share and len(lead.claims) < _MOST_UNITS)

    async def _claim_next(self, lead: Lead) -> None:
        index = lead.far[lead.next]
        lead.next += 1
        units = dict(self._far_units(lead.layout.row_of[index]))
        if index < lead.at or not units:
            return
        size = sum(map(span, units.values()))
        lead.claims.append((index, list(units), size))
        lead.claimed_bytes += size
        self.claimed_bytes += size
        for unit in units:
            self._link.requests.staged.claim(unit)
        for unit, length in units.items():
            await self._link.requests.fetch_ahead(unit, length, lambda good: None)

    def _far_units(self, row: int) -> Iterator[tuple[int, int]]:
        """(unit, bytes) of a file that this node's memory does not hold now; of a large one only the first."""
        for unit, length in itertools.islice(self._link.units(row), 1):
            if self._link.in_node(unit, length) is None:
                yield unit, length

    def _drop(self, lead: Lead, before: int) -> None:
        """Let the claims of members before this one go."""
        while lead.claims and lead.claims[0][0] < before:
            self._release(lead, lead.claims.popleft())

    def _release(self, lead: Lead, claim: tuple[int, list[int], int]) -> None:
        _, units, size = claim
        lead.claimed_bytes -= size
        self.claimed_bytes -= size
        for unit in units:
            self._link.requests.staged.let_go(unit)
