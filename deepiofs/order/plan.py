"""The plan of a pass: one queue per (rank, group), of samples in the order in which the rank serves them.

For a group: each node's slots hold its own samples. A random subset of each node's slots, `pooled` of them, gives
its samples up; the given-up samples are permuted uniformly over the slots they left, so sizes stay equal. Then each
node's slots are shuffled and dealt to its ranks.

A pooled sample falls back to its own node with chance 1/M, so for a sample to *leave* with probability q the pooled
share is q M/(M-1).

With a known global batch none of this is needed: see `batch`.

Everything is computed per group when it is first needed, in arrays: no loop over samples.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.order.batch import deal_batches, local_edges
from deepiofs.order.entropy import (
    batch_overhang,
    batched_ordering_entropy,
    full_exchange,
    least_exchange,
    ordering_entropy,
)

Ids = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]


class _Purpose(enum.IntEnum):
    """Random streams of one (seed, pass, group)."""

    POOL = 0
    NODE = 1
    BATCHES = 2
    SHARE = 3


@dataclasses.dataclass(frozen=True)
class Membership:
    """Who holds which samples, and what is interchangeable. The same on every rank.

    group: int32 (n_samples,), negative for samples that are not shuffled. owner: int32 (n_samples,), the rank that a
    sample is dealt to. node: int32 (n_ranks,), the node of each rank. out: ranks that take no part, and own nothing.
    """

    group: npt.NDArray[np.int32]
    owner: npt.NDArray[np.int32]
    node: npt.NDArray[np.int32]
    out: frozenset[int] = frozenset()

    @property
    def n_groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @property
    def n_nodes(self) -> int:
        return int(self.node.max(initial=0)) + 1


class Plan:
    """All passes of a mount.

    **Threading.** Pure after construction; `queue` may be called from any thread.
    """

    def __init__(self, membership: Membership, seed: int, entropy: float, batch: int = 0) -> None:
        """batch: samples of a global batch, of all groups together; 0 if it is not known."""
        self._membership, self._seed = membership, seed
        self.entropy_bound, self.batch = entropy, batch
        self.n_nodes = membership.n_nodes
        self._node = membership.node
        # Ranks of a node are neighbours in the order of (node, rank): slots of a node are one range.
        self._ranks = np.lexsort((np.arange(len(self._node)), self._node))
        self._turn = np.empty(len(self._node), np.int64)
        self._turn[self._ranks] = np.arange(len(self._node))
        takes_part = ~np.isin(self._ranks, sorted(membership.out))
        self._n_members = int(takes_part.sum())
        # The turn of each among those that take part.
        self._member = np.where(takes_part, np.cumsum(takes_part) - 1, -1)
        keys = self._keys(membership)
        # One stable sort of one small key: 100 million samples stay below 4 GB.
        order = np.argsort(keys, kind="stable")[: int((membership.group >= 0).sum())]
        self._samples: Ids = order.astype(np.uint32)
        del order
        keys = keys[self._samples]
        self._first = np.searchsorted(keys, np.arange(membership.n_groups + 1) * len(self._node))
        self._turns = (keys % len(self._node)).astype(np.uint32)

    def _keys(self, membership: Membership) -> npt.NDArray[Any]:
        """What samples are sorted by: group, then the owner's turn; those that are not shuffled come last."""
        small = membership.n_groups * len(self._node) < (1 << 32) - 1
        word: Any = np.uint32 if small else np.uint64
        keys = membership.group.astype(word)
        keys *= word(len(self._node))
        keys += self._turn.astype(word)[membership.owner]
        keys[membership.group < 0] = np.iinfo(word).max
        return keys

    def of(self, membership: Membership) -> Plan:
        """The same passes over others."""
        return Plan(membership, self._seed, self.entropy_bound, self.batch)

    @property
    def membership(self) -> Membership:
        """Over whom."""
        return self._membership

    @property
    def n_groups(self) -> int:
        return len(self._first) - 1

    def group_size(self, group: int) -> int:
        """How many samples a group has."""
        return int(self._first[group + 1] - self._first[group])

    def batch_of(self, group: int) -> int:
        """A group's part of each global batch; 0 without batches."""
        total = max(len(self._samples), 1)
        return max(round(self.batch * self.group_size(group) / total), 1) if self.batch else 0

    def exchange(self, group: int) -> float:
        """The probability q that a sample of the group leaves its home node in a pass."""
        return self._leaving(self.group_size(group), self.batch_of(group))

    def planned_entropy(self) -> float:
        """E as planned, the least over the groups: of the order; with batches, of what meets in a batch, which is 1."""
        return 1.0 if self.batch else self.served_entropy()

    def served_entropy(self) -> float:
        """E of who serves what when, the least over the groups; with batches, a lower bound of it."""
        kinds = {(self.group_size(group), self.batch_of(group)) for group in range(self.n_groups)}
        return min((self._served(size, batch) for size, batch in kinds), default=1.0)

    def exchange_fraction(self) -> float:
        """Expected share of the shuffled samples that leave their node in a pass."""
        kinds = [(self.group_size(group), self.batch_of(group)) for group in range(self.n_groups)]
        q = {kind: self._leaving(*kind) for kind in set(kinds)}
        return sum(kind[0] * q[kind] for kind in kinds) / max(len(self._samples), 1)

    def queue(self, rank: int, group: int, number: int) -> Ids:
        """The samples that a rank serves of a group in pass `number`, in order; uint32."""
        if self.batch:
            return self._batched(rank, group, number)
        slots, nodes = self._exchanged(group, number)
        mine = slots[nodes[self._node[rank]] : nodes[self._node[rank] + 1]]
        mine = self._random(group, number, _Purpose.NODE, int(self._node[rank])).permutation(mine)
        begin, end = self._share(group, rank)
        return mine[begin:end]

    def queue_size(self, rank: int, group: int) -> int:
        """How many samples a rank serves of a group in each pass."""
        if self.batch:
            edges = self.batch_edges(rank, group)
            return int(edges[-1]) if edges is not None else 0
        begin, end = self._share(group, rank)
        return end - begin

    def batch_edges(self, rank: int, group: int) -> Ints | None:
        """Where the batches begin in a rank's queue, and its end; int64 (n_batches + 1,), None without batches."""
        if not self.batch:
            return None
        size, batch, turn = self.group_size(group), self.batch_of(group), int(self._member[self._turn[rank]])
        edges = local_edges(max(turn, 0), self._n_members, size, batch)
        return edges if turn >= 0 else np.zeros_like(edges)

    def _batched(self, rank: int, group: int, number: int) -> Ids:
        """A rank's part of each batch, each part in random order."""
        part = slice(self._first[group], self._first[group + 1])
        order = self._random(group, number, _Purpose.BATCHES).permutation(self.group_size(group)).astype(np.uint32)
        node = self._node[self._ranks[self._member >= 0]].astype(np.int64)
        home = self._member[self._turns[part]][order]
        samples = self._samples[part][order]
        del order
        mine = deal_batches(samples, home, node, int(self._member[self._turn[rank]]), self.batch_of(group))
        edges = self.batch_edges(rank, group)
        assert edges is not None
        keys = self._random(group, number, _Purpose.SHARE, rank).random(len(mine))
        return mine[np.lexsort((keys, np.repeat(np.arange(len(edges) - 1), np.diff(edges))))]

    def _exchanged(self, group: int, number: int) -> tuple[Ids, Ints]:
        """The group's slots after the exchange, by node, and where each node's begin."""
        part = slice(self._first[group], self._first[group + 1])
        slots = self._samples[part]
        nodes = np.searchsorted(self._node[self._ranks][self._turns[part]], np.arange(self.n_nodes + 1))
        q = least_exchange(self.group_size(group), self.n_nodes, self.entropy_bound)
        if q == 0:
            return slots, nodes
        random = self._random(group, number, _Purpose.POOL)
        given_up = _pooled_slots(nodes, min(q / full_exchange(self.n_nodes), 1.0), random)
        exchanged = slots.copy()
        exchanged[given_up] = random.permutation(slots[given_up])
        return exchanged, nodes

    def _share(self, group: int, rank: int) -> tuple[int, int]:
        """The part of its node's slots that a rank serves: as many as it owns."""
        turns = self._turns[self._first[group] : self._first[group + 1]]
        first_of_node = self._turn[self._node == self._node[rank]].min()
        base, begin, end = np.searchsorted(turns, [first_of_node, self._turn[rank], self._turn[rank] + 1])
        return int(begin - base), int(end - base)

    def _leaving(self, size: int, batch: int) -> float:
        if batch:
            return batch_overhang(size, self.n_nodes, batch)
        return least_exchange(size, self.n_nodes, self.entropy_bound)

    def _served(self, size: int, batch: int) -> float:
        if batch:
            return batched_ordering_entropy(size, self.n_nodes, batch)
        return ordering_entropy(size, self.n_nodes, self._leaving(size, 0))

    def _random(self, group: int, number: int, purpose: _Purpose, node: int = 0) -> np.random.Generator:
        # The small numbers are the spawn key: SeedSequence pads its entropy with zeros, where (a, 0) would be (a,).
        sequence = np.random.SeedSequence(self._seed, spawn_key=(number, group, int(purpose), node))
        return np.random.Generator(np.random.Philox(sequence))


def _pooled_slots(nodes: Ints, share: float, random: np.random.Generator) -> Ids:
    """Which slots give their sample up: a random `share` of each node's. uint32, ascending within no order.

    nodes: where each node's slots begin. The count is share times size, rounded up or down by chance, so that its
    mean is exact however small the node's part.
    """
    sizes = np.diff(nodes)
    counts = np.floor(sizes * share + random.random(len(sizes))).astype(np.int64)
    # One sort for all nodes: a slot's key is its node's number and a random fraction.
    keys = random.random(int(nodes[-1]))
    keys += np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
    order = np.argsort(keys).astype(np.uint32)
    del keys
    place = np.arange(len(order), dtype=np.uint32) - np.repeat(nodes[:-1], sizes).astype(np.uint32)
    return order[place < np.repeat(counts, sizes).astype(np.uint32)]
