"""Placement: which rank holds which unit, and where in its store. Pure; the same on every rank without a message.

A unit is a file of up to 4 MiB, or a 4 MiB extent of a larger one, so that one huge file is spread over all
memories. The resident set is static: in one pass every sample is used once, so no policy gives more hits than any
fixed set of that size, and fixed addresses make every peer's get one-sided.

Dealing: samples have owners, and their files up to 4 MiB lie with the owner. Within a group (or a directory, where
nothing is shuffled) samples go round the ranks from large to small, back and forth, so that counts differ by at most
one and bytes nearly agree; where one group's deal ended the next begins. Extents of larger files are dealt likewise.
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

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of a dataset.

    first: int64 (n_rows + 1,), the first unit of each row; rows that share a content share its units through
    `Manifest.content`, and have none of their own. row: uint32 (n,), whose bytes. size: int32 (n,), bytes.
    """

    first: Ints
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
    leaders = samples.rows[samples.first[:-1]]
    # A directory's number is negative here, so that it is no group's.
    together = np.where(group == ALONE, -1 - manifest.parents[leaders].astype(np.int64), group)
    files = np.flatnonzero(samples.of_row != ALONE)
    size = np.bincount(samples.of_row[files], manifest.sizes[files], len(samples)).astype(np.int64)
    return deal(together, size, n_ranks).astype(np.int32)


def place(
    manifest: Manifest, units: Units, samples: Samples, owner: npt.NDArray[np.int32], capacities: npt.ArrayLike
) -> Placement:
    """Where each unit lies.

    owner: int32 (n_samples,), from `deal_samples`. capacities: bytes per rank, (n_ranks,). What does not fit in its
    rank's store is placed NOWHERE.
    """
    room = np.asarray(capacities, np.int64)
    dealt = owner[samples.of_row[units.row]].astype(np.int64)
    extents = np.flatnonzero(manifest.sizes[units.row] > EXTENT_BYTES)
    dealt[extents] = deal(np.zeros(len(extents), np.int64), units.size[extents].astype(np.int64), len(room))
    spans = span(units.size.astype(np.int64))
    order = np.argsort(dealt, kind="stable")
    ends = np.cumsum(spans[order])
    before = np.concatenate(([0], np.cumsum(np.bincount(dealt, spans, len(room)))))[:-1].astype(np.int64)
    at = np.empty(len(dealt), np.int64)
    at[order] = ends - spans[order] - before[dealt[order]] + UNITS_AT
    fits = at + spans <= room[dealt]
    home = np.where(fits, dealt, NOWHERE).astype(np.int32)
    used = np.full(len(room), UNITS_AT)
    np.maximum.at(used, dealt[fits], (at + spans)[fits])
    return Placement(home, np.where(fits, at, 0), used)


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
