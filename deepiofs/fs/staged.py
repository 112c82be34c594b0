"""What lies in staging, as the mount knows it, and what of it goes first when room is needed.

Claimed units stay: they were fetched ahead for a draw that is still to come. Of the others those that were read to
their end go first, then those not used for longest.

**Threading.** The trio thread. **Invariants.** A unit is in `_order` exactly while it has a place and no claim; what is
in `unread` is in `_order`.
"""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a unit lies: byte of staging, bytes with its header, and whether it came from the source itself."""

    at: int
    span: int
    from_source: bool


class Staged:
    """Units by number."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._claims: collections.Counter[int] = collections.Counter()
        self._order: collections.OrderedDict[int, None] = collections.OrderedDict()
        self.unread: set[int] = set()  # drawn, and not read to their end since
        self.unclaimed_bytes = 0

    def __contains__(self, unit: int) -> bool:
        return unit in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def unclaimed_units(self) -> int:
        """How many units may go."""
        return len(self._order)

    def add(self, unit: int, place: Place) -> None:
        """A unit has arrived."""
        self._places[unit] = place
        if not self._claims[unit]:
            self._free(unit)

    def find(self, unit: int) -> Place | None:
        """Where a unit is; it counts as used now."""
        place = self._places.get(unit)
        if unit in self._order:
            self._order.move_to_end(unit)
        return place

    def spend(self, unit: int) -> None:
        """A unit was read to its end: it is the next to go."""
        if unit in self._order:
            self._order.move_to_end(unit, last=False)
            self.unread.discard(unit)

    def claim(self, unit: int) -> None:
        """Keep a unit, or one that is to come, until `let_go`; claims are counted."""
        self._claims[unit] += 1
        if unit in self._order:
            del self._order[unit]
            self.unread.discard(unit)
            self.unclaimed_bytes -= self._places[unit].span

    def let_go(self, unit: int, to_be_read: bool = False) -> None:
        """End a claim. to_be_read: as its draw has come."""
        self._claims[unit] -= 1
        if not self._claims[unit]:
            del self._claims[unit]
            if unit in self._places:
                self._free(unit)
                if to_be_read:
                    self.unread.add(unit)

    def unclaimed(self) -> list[int]:
        """Units that may go, the first to go first."""
        return list(self._order)

    def is_unclaimed(self, unit: int) -> bool:
        """Whether a unit is here and may go."""
        return unit in self._order

    def remove(self, unit: int) -> None:
        """An unclaimed unit goes."""
        del self._order[unit]
        self.unread.discard(unit)
        self.unclaimed_bytes -= self._places.pop(unit).span

    def check_invariants(self) -> None:
        assert self._order.keys() == self._places.keys() - self._claims.keys()
        assert self.unclaimed_bytes == sum(self._places[unit].span for unit in self._order)
        assert all(count > 0 for count in self._claims.values())
        assert self.unread <= self._order.keys()

    def _free(self, unit: int) -> None:
        self._order[unit] = None
        self.unclaimed_bytes += self._places[unit].span
