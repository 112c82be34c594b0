"""Global batches composed as in a full shuffle, dealt to the homes of their samples first.

What SGD sees of an order is which samples meet in a batch, not which rank decoded which of them. So one uniform
permutation of the group is cut into batches, and inside each batch the samples go to their own homes as far as these
have room, then to ranks of the same node, which costs no traffic either, then to whoever has room. What crosses nodes
is only the overhang of each batch, about M sqrt(B/M (1 - 1/M)) 0.4 / B of it (M nodes, batches of B).

Places of the permutation go round the ranks: a rank's room in a batch is the number of places there that are its.
So rooms differ by one at most, in each batch and over all of them, and any rank knows any other's without a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint32]

# Batches are dealt so many samples, or (batch, rank) pairs, at a time: it bounds the memory beside the permutation.
_CHUNK = 1 << 22


def rooms(turn: int, n_ranks: int, places: Ints) -> Ints:
    """How many of the first `places` places of a permutation are a rank's; int64, as `places`."""
    return (places - turn + n_ranks - 1) // n_ranks


def batch_edges(n_samples: int, batch: int) -> Ints:
    """Where batches begin, and the end of the last, which may be short; int64 (n_batches + 1,)."""
    return np.append(np.arange(0, n_samples, batch, dtype=np.int64), n_samples)


def local_edges(turn: int, n_ranks: int, n_samples: int, batch: int) -> Ints:
    """Where the batches begin in the queue of the rank with this turn, and its end; int64 (n_batches + 1,)."""
    return rooms(turn, n_ranks, batch_edges(n_samples, batch))


def deal_batches(permuted: Ids, home: npt.NDArray[Any], node: Ints, turn: int, batch: int) -> Ids:
    """The samples that one rank serves, batch by batch, in no particular order within a batch; uint32.

    permuted: uint32 (n,), the samples in their order over all batches. home: (n,), the turn of the rank that holds
    each. node: int64 (n_ranks,), the node of each turn, ascending: ranks of a node are neighbours.
    """
    n_ranks = len(node)
    step = max(_CHUNK // max(batch, n_ranks), 1) * batch
    parts = []
    for begin in range(0, len(permuted), step):
        part = slice(begin, begin + step)
        parts.append(_deal_some(permuted[part], home[part], node, turn, batch, begin))
    return np.concatenate(parts) if parts else permuted[:0]


def _deal_some(permuted: Ids, home: npt.NDArray[Any], node: Ints, turn: int, batch: int, begin: int) -> Ids:
    """Some whole batches, the first of which begins at this place of the permutation."""
    n_ranks = len(node)
    number = np.arange(len(permuted)) // batch
    # In the order of (batch, turn), samples by their home and places by whose they are.
    cell = number * n_ranks + home
    by_home = np.argsort(cell, kind="stable")
    samples, from_cell = permuted[by_home], cell[by_home]
    to_cell = number * n_ranks + (np.arange(len(permuted)) + begin) % n_ranks
    to_cell.sort(kind="stable")
    found = []
    of_rank = np.arange(n_ranks)
    # Who may take what: its own rank, one of its node, anyone.
    for among in (of_rank, node, np.zeros(n_ranks, np.int64)):
        cells = [c // n_ranks * n_ranks + among[c % n_ranks] for c in (from_cell, to_cell)]
        goes, filled = _matched(*cells)
        mine = (to_cell[filled] % n_ranks) == turn
        found.append((to_cell[filled][mine] // n_ranks, samples[goes][mine]))
        samples, from_cell, to_cell = samples[~goes], from_cell[~goes], to_cell[~filled]
    numbers = np.concatenate([number for number, _ in found])
    return np.concatenate([sample for _, sample in found])[np.argsort(numbers, kind="stable")]


def _matched(samples: Ints, places: Ints) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which samples stay in their cell, and which places of it they fill, in order: as many as there are of both.

    The cell of each, ascending.
    """
    n_cells = max(int(samples[-1]), int(places[-1])) + 1 if len(samples) else 0
    of_samples, of_places = (np.bincount(cells, minlength=n_cells) for cells in (samples, places))
    both = np.minimum(of_samples, of_places)
    return _index_in_cell(samples, of_samples) < both[samples], _index_in_cell(places, of_places) < both[places]


def _index_in_cell(cells: Ints, counts: Ints) -> Ints:
    """0, 1, ... within each run of equal cells."""
    return np.arange(len(cells)) - (np.cumsum(counts) - counts)[cells]
