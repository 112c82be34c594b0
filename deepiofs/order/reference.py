"""The plan of a pass once more, slow and obvious: what `plan` is compared with.

The same random numbers, drawn in the same order, and no arrays otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from deepiofs.order.entropy import least_exchange


def reference_queues(
    samples: Sequence[int],
    owner: Sequence[int],
    node: Sequence[int],
    *,
    seed: int,
    group: int,
    number: int,
    bound: float,
) -> dict[int, list[int]]:
    """The queue of every rank for one group in pass `number`.

    samples: the group's samples, ascending. owner: the rank of each. node: the node of each rank.
    """
    n_nodes = max(node) + 1
    ranks = sorted(range(len(node)), key=lambda rank: (node[rank], rank))
    own = {rank: [s for s, o in zip(samples, owner, strict=True) if o == rank] for rank in ranks}
    slots = [[s for rank in ranks if node[rank] == k for s in own[rank]] for k in range(n_nodes)]
    q = least_exchange(len(samples), n_nodes, bound)
    if q > 0:
        _exchange(slots, min(q / ((n_nodes - 1) / n_nodes), 1.0), _random(seed, number, group, 0, 0))
    queues = {}
    for k in range(n_nodes):
        shuffled = _random(seed, number, group, 1, k).permutation(np.array(slots[k], np.uint32)).tolist()
        for rank in ranks:
            if node[rank] == k:
                queues[rank], shuffled = shuffled[: len(own[rank])], shuffled[len(own[rank]) :]
    return queues


def _exchange(slots: list[list[int]], share: float, random: np.random.Generator) -> None:
    chances = random.random(len(slots)).tolist()
    counts = [math.floor(len(part) * share + chance) for part, chance in zip(slots, chances, strict=True)]
    keys = random.random(sum(map(len, slots))).tolist()
    given_up: list[tuple[int, int]] = []
    for k, part in enumerate(slots):
        mine = sorted(range(len(part)), key=lambda i: keys[i])
        keys = keys[len(part) :]
        given_up += [(k, i) for i in mine[: counts[k]]]
    pool = random.permutation(np.array([slots[k][i] for k, i in given_up], np.uint32)).tolist()
    for (k, i), sample in zip(given_up, pool, strict=True):
        slots[k][i] = sample


def _random(seed: int, number: int, group: int, purpose: int, node: int) -> np.random.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(number, group, purpose, node))
    return np.random.Generator(np.random.Philox(sequence))
