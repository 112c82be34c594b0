"""The plan of a pass once more, slow and obvious: what `plan` is compared with.

The same random numbers, drawn in the same order, and no arrays otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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


def reference_batches(
    samples: Sequence[int],
    owner: Sequence[int],
    node: Sequence[int],
    *,
    seed: int,
    group: int,
    number: int,
    batch: int,
) -> dict[int, list[list[int]]]:
    """The batches of every rank for one group in pass `number`, as `order.batch` deals them.

    samples: the group's samples in the order of their owners' turns. owner: the rank of each. node: of each rank.
    """
    ranks = sorted(range(len(node)), key=lambda rank: (node[rank], rank))
    order = _random(seed, number, group, 2, 0).permutation(len(samples)).tolist()
    served: dict[int, list[list[int]]] = {rank: [] for rank in ranks}
    for begin in range(0, len(samples), batch):
        places = range(begin, min(begin + batch, len(samples)))
        rooms = {rank: sum(place % len(ranks) == turn for place in places) for turn, rank in enumerate(ranks)}
        part = {rank: [order[place] for place in places if owner[order[place]] == rank] for rank in ranks}
        kept = {rank: part[rank][: rooms[rank]] for rank in ranks}
        over = {rank: part[rank][rooms[rank] :] for rank in ranks}
        for k in [*range(max(node) + 1), None]:  # within each node, then anywhere
            there = [rank for rank in ranks if k is None or node[rank] == k]
            for giver in there:
                for rank in there:
                    count = min(rooms[rank] - len(kept[rank]), len(over[giver]))
                    kept[rank] += over[giver][:count]
                    over[giver] = over[giver][count:]
        for rank in ranks:
            served[rank].append([samples[i] for i in kept[rank]])
    for rank in ranks:
        keys = iter(_random(seed, number, group, 3, rank).random(sum(map(len, served[rank]))).tolist())
        served[rank] = [_by_keys(part, keys) for part in served[rank]]
    return served


def _by_keys(part: list[int], keys: Iterator[float]) -> list[int]:
    drawn = [next(keys) for _ in part]
    return [sample for _, sample in sorted(zip(drawn, part, strict=True))]


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
