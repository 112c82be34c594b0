"""Placement: which rank holds which unit, and where in its store. Pure; the same on every rank without a message.

A unit is a file of up to 4 MiB, or a 4 MiB extent of a larger one, so that one huge file is spread over all
memories. The resident set is static: in one pass every sample is used once, so no policy gives more hits than any
fixed set of that size, and fixed addresses make every peer's get one-sided. Where not all fits, each group keeps the
same share of its samples, chosen as if by chance. A sample's files up to 4 MiB are held together or not at all, the
extents of larger files one by one.

Dealing: samples have owners, and their files up to 4 MiB lie with the owner. Within a group (or a directory, where
nothing is shuffled) samples go round the ranks from large to small, back and forth, so that counts differ by at most
one and bytes nearly agree; where one group's deal ended the next begins. Extents of larger files are dealt likewise.
Records are dealt in runs instead, in the order of their containers, so that each rank reads its part in large pieces.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import ALONE, Samples
from deepiofs.memory.store import UNITS_AT, span

EXTENT_BYTES = 4 << 20
NOWHERE = -1
# Multiplied by it, modulo 2^32, consecutive numbers come in an order as if by chance (Knuth, TAOCP 3, 6.4).
_ODD = np.uint64(0x9E3779B1)
_LOW = np.uint64((1 << 32) - 1)
_GOLDEN = 0.6180339887498949

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of a dataset.

    first: integers (n_rows + 1,), the first unit of each row; rows that share a content share its units through
    `Manifest.content`, and have none of their own. row: uint32 (n,), whose bytes. size: int32 (n,), bytes.
    """

    first: npt.NDArray[np.integer[Any]]
    row: npt.NDArray[np.uint32]
    size: npt.NDArray[np.int32]

    @classmethod
    def of(cls, manifest: Manifest) -> Units:
        counts = np.zeros(manifest.n_rows, np.int64)
        rows = manifest.content_rows()
        counts[rows] = -(-manifest.sizes[rows] // EXTENT_BYTES)
        first = np.concatenate(([0], np.cumsum(counts)))
        row = np.repeat(np.arange(manifest.n_rows), counts)
        index = np.arange(first[-1]) - first[row]
        size = np.minimum(manifest.sizes[row] - index * EXTENT_BYTES, EXTENT_BYTES)
        return cls(first, row.astype(np.uint32), size.astype(np.int32))

    def in_source_order(self, manifest: Manifest, units: Ints) -> Ints:
        """The same units as they lie in the source, int64 (n,); given ascending."""
        if not manifest.is_packed:
            return units
        at = manifest.columns["source_at"][self.row[units]]
        return units[np.argsort(at, kind="stable")]

    def place_in_file(self, unit: int) -> tuple[int, int]:
        """The row and the byte of its file where a unit begins."""
        row = int(self.row[unit])
        return row, (unit - int(self.first[row])) * EXTENT_BYTES


@dataclasses.dataclass(frozen=True)
class Placement:
    """home: int32 (n_units,), rank or NOWHERE; at: int64 (n_units,), byte of its store; store_bytes: (n_ranks,)."""

    home: npt.NDArray[np.int32]
    at: Ints
    store_bytes: Ints


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The further copies that one node keeps: unit, holder (world rank), at. Each int64 (n,), units ascending."""

    unit: Ints
    holder: Ints
    at: Ints


def deal_samples(
    manifest: Manifest, samples: Samples, group: npt.NDArray[np.int32], n_ranks: int
) -> npt.NDArray[np.int32]:
    """The owner of each sample, int32 (n_samples,). group: as from `group_samples`."""
    together = _together(manifest, samples, group)
    if manifest.is_packed:
        leaders = samples.rows[samples.first[:-1]]
        return deal_in_order(together, manifest.columns["source_at"][leaders], n_ranks).astype(np.int32)
    files = np.flatnonzero(samples.of_row != ALONE)
    size = np.bincount(samples.of_row[files], manifest.sizes[files], len(samples)).astype(np.int64)
    return deal(together, size, n_ranks).astype(np.int32)


def place(
    manifest: Manifest,
    units: Units,
    samples: Samples,
    group: npt.NDArray[np.int32],
    owner: npt.NDArray[np.int32],
    capacities: npt.ArrayLike,
) -> Placement:
    """Where each unit lies.

    owner: int32 (n_samples,), from `deal_samples`. capacities: bytes per rank, (n_ranks,). What does not fit in its
    rank's store is placed NOWHERE.
    """
    room = np.asarray(capacities, np.int64)
    sample = samples.of_row[units.row].astype(np.int64)
    dealt = owner[sample].astype(np.int64)
    extents = np.flatnonzero(manifest.sizes[units.row] > EXTENT_BYTES)
    dealt[extents] = deal(np.zeros(len(extents), np.int64), units.size[extents].astype(np.int64), len(room))
    spans = span(units.size.astype(np.int64))
    resident = np.ones(len(dealt), bool)
    if (np.bincount(dealt, spans, len(room)) + UNITS_AT > room).any():
        part = sample.copy()
        part[extents] = len(samples) + extents
        resident = _resident(_together(manifest, samples, group)[sample], part, dealt, spans, room)
    kept = np.where(resident, spans, 0)
    order = np.argsort(dealt, kind="stable")
    ends = np.cumsum(kept[order])
    of_rank = np.bincount(dealt, kept, len(room)).astype(np.int64)
    before = np.cumsum(of_rank) - of_rank
    at = np.empty(len(dealt), np.int64)
    at[order] = ends - kept[order] - before[dealt[order]] + UNITS_AT
    return Placement(np.where(resident, dealt, NOWHERE).astype(np.int32), np.where(resident, at, 0), of_rank + UNITS_AT)


def _together(manifest: Manifest, samples: Samples, group: npt.NDArray[np.int32]) -> Ints:
    """What is dealt together: the group of each sample, or its directory where it is not shuffled; int64."""
    leaders = samples.rows[samples.first[:-1]]
    # A directory's number is negative here, so that it is no group's.
    return np.where(group == ALONE, -1 - manifest.parents[leaders].astype(np.int64), group)


def _resident(together: Ints, part: Ints, dealt: Ints, spans: Ints, room: Ints) -> npt.NDArray[np.bool_]:
    """Which units are kept where not all fit, bool (n_units,): as many parts as fit, evenly over what is together.

    part: int64 (n_units,), a number for each sample's small files, and for each extent. Parts are put in an order in
    which each group is spread evenly, and those at its front stay.
    """
    _, first, of_unit = np.unique(part, return_index=True, return_inverse=True)
    rank, size = dealt[first], np.bincount(of_unit, spans).astype(np.int64)
    place = _spread(together[first], rank, part[first])
    too_large = size + UNITS_AT > room[rank]
    size[too_large] = 0
    order = np.argsort(rank + place, kind="stable")
    ends = np.cumsum(size[order])
    of_rank = np.bincount(rank, size, len(room)).astype(np.int64)
    before = np.cumsum(of_rank) - of_rank
    kept = np.empty(len(order), bool)
    kept[order] = ends - before[rank[order]] + UNITS_AT <= room[rank[order]]
    kept[too_large] = False
    kept_units: npt.NDArray[np.bool_] = kept[of_unit]
    return kept_units


def _spread(together: Ints, rank: Ints, part: Ints) -> npt.NDArray[np.float64]:
    """A place in 0..1 for each part such that those of a group on a rank lie evenly, in an order as if by chance."""
    order = _as_if_by_chance(together, rank, part)
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(rank[order]) != 0) | (np.diff(together[order]) != 0)
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(order)))
    # Groups begin at places of their own, or the first of all of them would come before the second of any.
    offset = np.arange(len(counts)) * _GOLDEN % 1
    index = np.arange(len(order)) - np.repeat(starts, counts)
    place = np.empty(len(order))
    place[order] = (index + np.repeat(offset, counts)) / np.repeat(counts, counts)
    return place


def _as_if_by_chance(together: Ints, rank: Ints, part: Ints) -> Ints:
    """The order by rank, then by what is together, then by the part's scrambled number; int64, indices."""
    scrambled = part.astype(np.uint64) * _ODD & _LOW
    low, high = int(together.min(initial=0)), int(together.max(initial=0))
    if int(rank.max(initial=0)) * (high - low + 1) + high - low <= _LOW and int(part.max(initial=0)) <= _LOW:
        # In one word, which is sorted in a third of the time. No two are equal, so any algorithm gives the same.
        segment = (rank * (high - low + 1) + (together - low)).astype(np.uint64)
        return np.argsort(segment << np.uint64(32) | scrambled)
    return np.lexsort((scrambled, together, rank))


def deal(group: Ints, size: Ints, n_ranks: int) -> Ints:
    """The rank of each unit: per group counts differ by at most one; int64 (n_units,)."""
    order = np.lexsort((np.arange(len(group)), -size, group))
    counts = np.unique(group[order], return_counts=True)[1]
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    position = np.arange(len(group)) - np.repeat(starts, counts)
    turn, slot = np.divmod(position, n_ranks)
    back = turn % 2 == 1
    slot = np.where(back, n_ranks - 1 - slot, slot)
    dealt = np.empty(len(group), np.int64)
    dealt[order] = (slot + np.repeat(_shifts(counts, n_ranks), counts)) % n_ranks
    return dealt


def deal_in_order(group: Ints, source_at: Ints, n_ranks: int) -> Ints:
    """The rank of each sample such that a rank's lie together in the source, int64 (n,).

    Each group is cut, in the source's order, into one part for each rank; counts differ by at most one, in each group
    and over all: what is left when a group is divided goes to the ranks after those of the group before.
    """
    order = np.lexsort((source_at, group))
    counts = np.unique(group[order], return_counts=True)[1]
    each, rest = np.divmod(counts, n_ranks)
    turned = (np.arange(n_ranks) - (np.cumsum(rest) - rest)[:, None]) % n_ranks
    parts = each[:, None] + (turned < rest[:, None])
    dealt = np.empty(len(group), np.int64)
    dealt[order] = np.repeat(np.tile(np.arange(n_ranks), len(counts)), parts.reshape(-1))
    return dealt


def _shifts(counts: Ints, n_ranks: int) -> Ints:
    """By how much each group's deal is turned.

    Its last, partial round follows that of the group before, so that counts agree over all groups too; and each turns
    by one more, as the first place gets the largest of every group.
    """
    turns, rest = np.divmod(counts, n_ranks)
    follow = np.concatenate(([0], np.cumsum(rest)))[:-1]
    whole = np.where(rest == 0, np.arange(len(counts)), 0)
    return (np.where(turns % 2 == 1, follow + rest, follow) + whole) % n_ranks


def replicate(
    placement: Placement, units: Units, wanted: npt.NDArray[np.bool_], node_ranks: list[int], room: list[int]
) -> Replicas:
    """Place a node's further copies of the wanted units behind its ranks' own; what does not fit is left out.

    wanted: bool (n_units,). node_ranks: the world ranks of the node. room: capacity of each, bytes.
    """
    missing = np.flatnonzero(wanted & ~np.isin(placement.home, [NOWHERE, *node_ranks]))
    turn = np.arange(len(missing)) % len(node_ranks)
    spans = span(units.size[missing].astype(np.int64))
    at = np.zeros(len(missing), np.int64)
    keep = np.zeros(len(missing), bool)
    for i, rank in enumerate(node_ranks):
        mine = turn == i
        ends = placement.store_bytes[rank] + np.cumsum(spans[mine])
        at[mine], keep[mine] = ends - spans[mine], ends <= room[i]
    holder = np.asarray(node_ranks, np.int64)[turn]
    return Replicas(missing[keep], holder[keep], at[keep])


def nearest(placement: Placement, replicas: Replicas) -> tuple[npt.NDArray[Any], Ints]:
    """(home, at) as one node sees them: its own copies come before a peer's."""
    home, at = placement.home.copy(), placement.at.copy()
    home[replicas.unit], at[replicas.unit] = replicas.holder, replicas.at
    return home, at
