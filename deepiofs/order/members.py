"""Who takes part in a pass, and whose samples those of the others become.

A loss is a fact: this rank is out, from this pass on. All mounts come to know the same facts (`fs.rollcall`); what
follows from them for a pass is computed here, by each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deepiofs.order.plan import Membership

Ints = npt.NDArray[np.int64]


class Losses:
    """Which ranks are out, and from which pass on. Facts are added only; of two for one rank the earlier pass holds.

    So the order in which a mount hears of them does not matter, nor how often.
    """

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._since

    def __bool__(self) -> bool:
        return bool(self._since)

    @property
    def since(self) -> dict[int, int]:
        """The first pass without it, by rank."""
        return dict(sorted(self._since.items()))

    def learn(self, facts: Mapping[int, int]) -> int | None:
        """Add facts; the first pass whose members changed by them, None if all was known."""
        changed = {rank: number for rank, number in facts.items() if number < self._since.get(rank, number + 1)}
        self._since |= changed
        return min(changed.values(), default=None)

    def out_in(self, number: int) -> frozenset[int]:
        """The ranks that take no part in a pass."""
        return frozenset(rank for rank, since in self._since.items() if number >= since)


def without(membership: Membership, out: frozenset[int]) -> Membership:
    """The membership of a pass in which some ranks own nothing: their samples are dealt to the others.

    In each group whoever owns least gets the next, among equals who got least before: counts differ by at most one if
    they did so before. Nodes without members are no nodes. ValueError if nobody is left.
    """
    is_out = np.isin(np.arange(len(membership.node)), sorted(out))
    members = np.flatnonzero(~is_out)
    if not len(members):
        raise ValueError("a pass needs a rank that takes part")
    owner = membership.owner.copy()
    orphans = np.flatnonzero(is_out[owner] & (membership.group >= 0))
    orphans = orphans[np.argsort(membership.group[orphans], kind="stable")]
    owner[orphans] = members[_heirs(membership, orphans, members)]
    nodes = np.unique(membership.node[members])
    # A rank that is out on a node that is gone may count to any: it has no share there.
    node = np.where(np.isin(membership.node, nodes), np.searchsorted(nodes, membership.node), 0)
    return Membership(membership.group, owner, node.astype(np.int32), membership.out | out)


def _heirs(membership: Membership, orphans: Ints, members: Ints) -> Ints:
    """Which of the members, by its place among them, gets each orphan; orphans are sorted by group. int64 (n,)."""
    place = np.full(len(membership.node), -1)
    place[members] = np.arange(len(members))
    groups, counts = np.unique(membership.group[orphans], return_counts=True)
    kept = (membership.group >= 0) & (place[membership.owner] >= 0)
    keys = membership.group[kept].astype(np.int64) * len(members) + place[membership.owner[kept]]
    owned = np.bincount(keys, minlength=membership.n_groups * len(members)).reshape(-1, len(members))
    total = np.zeros(len(members), np.int64)
    heirs = [np.empty(0, np.int64)]
    for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
        given = _filled_up(owned[group], count, total)
        total += given
        heirs.append(np.repeat(np.arange(len(members)), given))
    return np.concatenate(heirs)


def _filled_up(owned: Ints, count: int, total: Ints) -> Ints:
    """How many of `count` each gets, so that all come to the same level as far as possible. int64 (n_members,)."""
    by_size = np.sort(owned)
    ends = np.cumsum(by_size)
    # What it takes to bring the first k up to the size of the k-th.
    needed = np.arange(1, len(owned) + 1) * by_size - ends
    lowest = int(np.searchsorted(needed, count, side="right"))
    level = (count + int(ends[lowest - 1])) // lowest
    given = np.maximum(level - owned, 0)
    rest = count - int(given.sum())
    at_level = np.flatnonzero(owned <= level)
    given[at_level[np.argsort(total[at_level], kind="stable")[:rest]]] += 1
    return given
