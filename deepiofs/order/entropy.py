"""Ordering entropy: how much of a full shuffle's randomness an order has, and what exchange a bound asks for.

N samples, M nodes, n = N/M each. By the chain rule the entropy of an order is the sum over draws of log2(choices).

    full shuffle                     H = log2(N!)
    each node its own samples        H = M log2(n!)
    a sample leaves with chance q    H = M log2(n!) + N (h(q) + q log2(M - 1)), at most log2(N!)

`relative` to the full shuffle is DESIGN's E. DeepIO's randomization level (MASCOTS 2018, section IV) is reported
beside it; it is no bound.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_LN2 = math.log(2)
_SUMMED = 1_000_000
_STIELTJES_1 = -0.0728158454836767
_DEVIATIONS = 12
_STEPS = 60  # halvings of the interval: q to the last bit of a float


def log2_factorial(n: float) -> float:
    """log2(n!), for real n by the gamma function."""
    return math.lgamma(n + 1) / _LN2


def binary_entropy(q: float) -> float:
    """Bits of a coin that falls one way with probability q."""
    return 0.0 if q in (0.0, 1.0) else -q * math.log2(q) - (1 - q) * math.log2(1 - q)


def ordering_entropy(n_samples: int, n_nodes: int, q: float) -> float:
    """E of an order where each sample leaves its home node with probability q, to one of the others at random."""
    full = log2_factorial(n_samples)
    if full == 0 or n_nodes == 1:
        return 1.0
    # The gamma function dips below 1 between 0! and 1!: fewer samples than nodes have no order of their own.
    local = max(n_nodes * log2_factorial(n_samples / n_nodes), 0.0)
    return min(local + n_samples * _exchange_bits(n_nodes, q), full) / full


def full_exchange(n_nodes: int) -> float:
    """The q of a full shuffle: a sample stays at home by chance only."""
    return (n_nodes - 1) / n_nodes


def least_exchange(n_samples: int, n_nodes: int, bound: float) -> float:
    """The least q with E >= bound; for a bound of 1 a full shuffle's, and never more."""
    low, high = 0.0, full_exchange(n_nodes)
    if bound >= 1:
        return high
    if ordering_entropy(n_samples, n_nodes, 0.0) >= bound:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if ordering_entropy(n_samples, n_nodes, middle) >= bound:
            high = middle
        else:
            low = middle
    return high


def randomization_level(n_samples: int, block: int) -> float:
    """DeepIO's RL = h(N/m) / h(N) of a shuffle of blocks of m samples, with h(n) = sum over k <= n of log2(k)/k."""
    return _deepio_sum(n_samples // block) / _deepio_sum(n_samples)


def hybrid_level(n_samples: int, n_nodes: int) -> float:
    """DeepIO's RL where each of M nodes shuffles its own, M h(N/M) / h(N): it exceeds 1, and so is no bound."""
    return n_nodes * _deepio_sum(n_samples // n_nodes) / _deepio_sum(n_samples) if n_samples > 1 else 1.0


def stolen_share(group_size: float, n_groups: float, n_ranks: int) -> float:
    """Expected share of draws that a rank takes from another's queue.

    For a random sampler over G equal groups of n: a rank's demand for a group is hypergeometric with mean n/C, its
    queue has n/C, and what exceeds it is stolen. By the normal approximation that is sigma / sqrt(2 pi).
    """
    mean = group_size / n_ranks
    spread = math.sqrt(mean * (1 - 1 / n_ranks) * (1 - 1 / n_groups))
    return spread / math.sqrt(2 * math.pi) / mean if mean else 0.0


def batch_entropy(n_samples: int, n_nodes: int, q: float, batch: int) -> float:
    """Entropy of which samples meet in which global batch, relative to a full shuffle's.

    Batches are sets: the order within one does not count. Each node gives batch/M samples to every batch.
    """
    full = _partition_bits(n_samples, batch)
    if full <= 0 or n_nodes == 1:
        return 1.0
    local = n_nodes * _partition_bits(n_samples / n_nodes, batch / n_nodes)
    return min(max(local, 0.0) + n_samples * _exchange_bits(n_nodes, q), full) / full


def batched_ordering_entropy(n_samples: int, n_nodes: int, batch: int) -> float:
    """E of an order where batches are a full shuffle's, and each node's part of a batch is in random order.

    A lower bound: that a batch's overhang may go to this node or that is not counted.
    """
    full = log2_factorial(n_samples)
    if full == 0:
        return 1.0
    batch = min(batch, n_samples)
    within = max(n_nodes * log2_factorial(batch / n_nodes), 0.0)
    return min(max(_partition_bits(n_samples, batch), 0.0) + n_samples / batch * within, full) / full


def batch_overhang(n_samples: int, n_nodes: int, batch: int) -> float:
    """Expected share of samples that leave their node where global batches are dealt to the homes first.

    N samples, M nodes that hold N/M each and have room for B/M of every batch of B. How many of a batch are a node's
    is hypergeometric; what exceeds its room leaves. Exact, but for what lies beyond 12 standard deviations; by the
    normal approximation it is M sqrt(B/M (1 - 1/M)) 0.4 / B.
    """
    batch = min(batch, n_samples)
    if n_nodes == 1 or batch == 0:
        return 0.0
    mean, held = batch / n_nodes, n_samples / n_nodes
    spread = math.sqrt(max(mean * (1 - 1 / n_nodes) * (n_samples - batch) / max(n_samples - 1, 1), 0.0))
    low = max(math.floor(mean - _DEVIATIONS * spread - 1), 0)
    k = np.arange(low, math.ceil(mean + _DEVIATIONS * spread) + 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Ratios of neighbouring chances; what cannot be has none.
        up = (held - k) * (batch - k) / ((k + 1) * np.maximum(n_samples - held - batch + k + 1, 0.5))
        logs = np.concatenate(([0.0], np.cumsum(np.log(np.maximum(up, 0.0)))))[:-1]
    chance = np.exp(logs - logs.max())
    chance /= chance.sum()
    # Rooms are whole: some batches give a node the lower of two, some the higher.
    room, share = math.floor(mean), mean - math.floor(mean)
    above = [float((chance * np.maximum(k - r, 0)).sum()) for r in (room, room + 1)]
    return n_nodes * ((1 - share) * above[0] + share * above[1]) / batch


def neighbour_entropy(order: npt.NDArray[np.int64]) -> float:
    """Bits of the distribution of differences between neighbours, modulo the number of samples.

    order: int64 (n,), a permutation of 0..n-1. As in the simulator of MosaicML streaming (shuffle quality).
    """
    steps = np.diff(order) % len(order)
    shares = np.unique(steps, return_counts=True)[1] / max(len(steps), 1)
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _exchange_bits(n_nodes: int, q: float) -> float:
    """Bits per sample of whether it leaves, and where to."""
    return binary_entropy(q) + (q * math.log2(n_nodes - 1) if n_nodes > 1 else 0.0)


def _partition_bits(n_samples: float, batch: float) -> float:
    """Bits of a partition into a sequence of batches."""
    return log2_factorial(n_samples) - n_samples / batch * log2_factorial(batch)


def _deepio_sum(n: int) -> float:
    if n > _SUMMED:
        # Euler-Maclaurin: ln(n)^2/2 + the first Stieltjes constant + ln(n)/2n; the next term is below 1e-12 here.
        return (math.log(n) ** 2 / 2 + _STIELTJES_1 + math.log(n) / (2 * n)) / _LN2
    k = np.arange(1, n + 1)
    return float((np.log2(k) / k).sum())
