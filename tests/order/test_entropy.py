"""How random an order is, and what exchange a bound asks for: the figures of the design, and their properties."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deepiofs.order import entropy
from deepiofs.order.entropy import (
    batch_entropy,
    binary_entropy,
    full_exchange,
    hybrid_level,
    least_exchange,
    log2_factorial,
    neighbour_entropy,
    ordering_entropy,
    randomization_level,
    stolen_share,
)

_IMAGENET = 1_281_167
_SAMPLES = st.one_of(st.integers(1, 40), st.integers(1, 100_000))
_NODES = st.integers(1, 600)
_BOUNDS = st.floats(0, 1)


def _slow_neighbour_entropy(order: list[int]) -> float:
    counts: dict[int, int] = {}
    for i in range(len(order) - 1):
        step = (order[i + 1] - order[i]) % len(order)
        counts[step] = counts.get(step, 0) + 1
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())


def _summed(n: int) -> float:
    k = np.arange(1, n + 1)
    return math.fsum(np.log2(k) / k)


def _sampled_steals(size: int, n_groups: int, n_ranks: int, epochs: int) -> npt.NDArray[np.float64]:
    """Share of the draws of each epoch that exceed the rank's own queue, under a random sampler without replacement."""
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(n_groups), size)
    rank = np.repeat(np.arange(n_ranks), len(labels) // n_ranks)
    shares = np.empty(epochs)
    for epoch in range(epochs):
        asked_for = np.bincount(random.permutation(labels) * n_ranks + rank, minlength=n_groups * n_ranks)
        shares[epoch] = np.maximum(asked_for - size / n_ranks, 0).sum() / len(labels)
    return shares


# --- Ordering entropy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_nodes", "expected"),
    [(2, 0.947), (4, 0.894), (8, 0.841), (16, 0.788), (64, 0.682), (512, 0.523), (4096, 0.364)],
)
def test_imagenet_shuffled_by_each_node_alone(n_nodes: int, expected: float) -> None:
    assert ordering_entropy(_IMAGENET, n_nodes, 0.0) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("n_nodes", "bound", "expected"), [(8, 0.9, 0.166), (8, 0.95, 0.389), (8, 1.0, 0.875), (16, 0.9, 0.312),
                                       (512, 0.9, 0.691)],
)  # fmt: skip
def test_exchange_that_a_bound_asks_of_imagenet(n_nodes: int, bound: float, expected: float) -> None:
    assert least_exchange(_IMAGENET, n_nodes, bound) == pytest.approx(expected, abs=5e-4)


def test_one_class_of_imagenet_over_eight_nodes() -> None:
    assert ordering_entropy(1300, 8, 0.0) == pytest.approx(0.666, abs=5e-4)
    assert least_exchange(1300, 8, 0.9) == pytest.approx(0.397, abs=5e-4)


def test_two_samples_on_two_nodes_are_one_bit() -> None:
    assert ordering_entropy(2, 2, 0.0) == 0
    assert ordering_entropy(2, 2, 0.5) == 1


@pytest.mark.parametrize("n_samples", [0, 1])
def test_an_order_without_choice_is_as_random_as_can_be(n_samples: int) -> None:
    assert ordering_entropy(n_samples, 8, 0.0) == 1


def test_one_node_shuffles_fully() -> None:
    assert ordering_entropy(1000, 1, 0.0) == 1
    assert least_exchange(1000, 1, 1.0) == 0


def test_log2_factorial_is_that_of_the_product() -> None:
    numbers = (0, 1, 5, 20)
    assert [log2_factorial(n) for n in numbers] == pytest.approx([math.log2(math.factorial(n)) for n in numbers])


def test_a_fair_coin_is_one_bit_and_a_certain_one_none() -> None:
    assert [binary_entropy(q) for q in (0.0, 0.5, 1.0)] == [0, 1, 0]
    assert binary_entropy(0.11) == pytest.approx(0.5, abs=1e-3)


@given(_SAMPLES, _NODES)
def test_full_exchange_is_a_full_shuffle(n_samples: int, n_nodes: int) -> None:
    assert ordering_entropy(n_samples, n_nodes, full_exchange(n_nodes)) == pytest.approx(1, abs=1e-9)


@given(_SAMPLES, _NODES, st.floats(0, 1))
def test_entropy_is_a_share_of_a_full_shuffles(n_samples: int, n_nodes: int, part: float) -> None:
    assert 0 <= ordering_entropy(n_samples, n_nodes, part * full_exchange(n_nodes)) <= 1


@given(_SAMPLES, _NODES, st.floats(0, 1), st.floats(0, 1))
def test_entropy_does_not_fall_with_the_exchange(n_samples: int, n_nodes: int, one: float, other: float) -> None:
    low, high = (part * full_exchange(n_nodes) for part in sorted((one, other)))
    assert ordering_entropy(n_samples, n_nodes, low) <= ordering_entropy(n_samples, n_nodes, high) + 1e-12


@given(st.integers(1, 10_000), st.integers(1, 64), st.integers(2, 8))
def test_entropy_of_nodes_apart_falls_with_their_number(per_node: int, n_nodes: int, factor: int) -> None:
    n_samples = per_node * n_nodes * factor
    assert ordering_entropy(n_samples, n_nodes * factor, 0.0) <= ordering_entropy(n_samples, n_nodes, 0.0) + 1e-12


# --- The least exchange ----------------------------------------------------------------------------------------------


@given(_SAMPLES, _NODES, _BOUNDS)
def test_the_exchange_meets_the_bound_and_is_at_most_a_full_shuffles(n: int, n_nodes: int, bound: float) -> None:
    q = least_exchange(n, n_nodes, bound)
    assert 0 <= q <= full_exchange(n_nodes)
    assert ordering_entropy(n, n_nodes, q) >= bound - 1e-12


@given(_SAMPLES, _NODES, _BOUNDS)
def test_no_smaller_exchange_meets_the_bound(n_samples: int, n_nodes: int, bound: float) -> None:
    assume(bound < 1)
    q = least_exchange(n_samples, n_nodes, bound)
    assert q < 1e-6 or ordering_entropy(n_samples, n_nodes, q - 1e-6) < bound


@given(_SAMPLES, _NODES, _BOUNDS, _BOUNDS)
def test_the_exchange_does_not_fall_with_the_bound(n_samples: int, n_nodes: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert least_exchange(n_samples, n_nodes, low) <= least_exchange(n_samples, n_nodes, high)


@given(_SAMPLES, _NODES)
def test_a_bound_of_zero_asks_for_no_exchange(n_samples: int, n_nodes: int) -> None:
    assert least_exchange(n_samples, n_nodes, 0.0) == 0


@given(_SAMPLES, _NODES)
def test_a_bound_of_one_asks_for_a_full_shuffles_exchange(n_samples: int, n_nodes: int) -> None:
    assert least_exchange(n_samples, n_nodes, 1.0) == full_exchange(n_nodes) == (n_nodes - 1) / n_nodes


# --- DeepIO's randomization level ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "percent"), [(1, 100), (4, 72.12), (16, 48.78), (256, 15.79)])
def test_randomization_level_of_blocks(block: int, percent: float) -> None:
    assert 100 * randomization_level(10_000, block) == pytest.approx(percent, abs=5e-3)


def test_the_level_of_nodes_apart_exceeds_one_and_so_is_no_bound() -> None:
    assert hybrid_level(10_000, 1) == 1
    assert hybrid_level(10_000, 8) == pytest.approx(8 * _summed(1250) / _summed(10_000))
    assert hybrid_level(10_000, 8) > 1
    assert hybrid_level(_IMAGENET, 64) > 1


@pytest.mark.parametrize("n", [1, 2, 1000, 999_999, 1_000_000, 1_000_001, 1_000_002, 1_100_000])
def test_the_sum_of_large_sets_agrees_with_its_terms(n: int) -> None:
    assert entropy._deepio_sum(n) == pytest.approx(_summed(n), abs=1e-9)


# --- What a random sampler takes from others -------------------------------------------------------------------------


@pytest.mark.parametrize(("n_ranks", "percent"), [(8, 2.9), (64, 8.8)])
def test_stolen_share_of_imagenet(n_ranks: int, percent: float) -> None:
    assert 100 * stolen_share(1300, 1000, n_ranks) == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(("size", "n_groups", "n_ranks"), [(160, 50, 4), (320, 25, 16), (512, 40, 8)])
def test_a_random_sampler_steals_that_share(size: int, n_groups: int, n_ranks: int) -> None:
    shares = _sampled_steals(size, n_groups, n_ranks, epochs=50)
    assert shares.mean() == pytest.approx(stolen_share(size, n_groups, n_ranks), rel=0.02)


def test_nothing_is_stolen_where_no_choice_is() -> None:
    assert stolen_share(1300, 1, 8) == stolen_share(1300, 1000, 1) == stolen_share(0, 10, 8) == 0


# --- Batches and neighbours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_samples", "n_nodes", "batch"), [(_IMAGENET, 8, 256), (1300, 8, 16), (6400, 64, 64)])
def test_batches_of_nodes_apart_are_less_random_than_a_full_shuffles(n_samples: int, n_nodes: int, batch: int) -> None:
    apart = batch_entropy(n_samples, n_nodes, 0.0, batch)
    little = batch_entropy(n_samples, n_nodes, 0.001, batch)
    assert 0 <= apart < little < 1
    assert batch_entropy(n_samples, n_nodes, full_exchange(n_nodes), batch) == 1


def test_batches_of_one_node_are_a_full_shuffles() -> None:
    assert batch_entropy(1000, 1, 0.0, 10) == 1


def test_two_batches_of_two_samples_of_two_nodes() -> None:
    # Six partitions of four samples; four of them have one sample of each node in each batch.
    assert batch_entropy(4, 2, 0.0, 2) == pytest.approx(math.log2(4) / math.log2(6))


def test_one_batch_of_all_samples_has_no_choice() -> None:
    assert batch_entropy(100, 4, 0.0, 100) == 1


@given(_SAMPLES, _NODES, st.floats(0, 1), st.integers(1, 10_000))
def test_batch_entropy_is_a_share(n_samples: int, n_nodes: int, part: float, batch: int) -> None:
    assert 0 <= batch_entropy(n_samples, n_nodes, part * full_exchange(n_nodes), batch) <= 1


@given(st.integers(1, 200).flatmap(lambda n: st.permutations(range(n))))
def test_neighbour_entropy_agrees_with_counting_in_a_loop(order: list[int]) -> None:
    assert neighbour_entropy(np.array(order, np.int64)) == pytest.approx(_slow_neighbour_entropy(order), abs=1e-12)


@pytest.mark.parametrize(
    ("order", "bits"),
    [([0], 0), ([0, 1], 0), ([0, 1, 2, 3], 0), ([3, 2, 1, 0], 0), ([2, 3, 0, 1], 0), ([0, 2, 1], 0),
     ([0, 1, 3, 2], 1.585), ([0, 2, 1, 3, 4], 1.5)],
)  # fmt: skip
def test_neighbour_entropy_of_small_orders(order: list[int], bits: float) -> None:
    assert neighbour_entropy(np.array(order, np.int64)) == pytest.approx(bits, abs=1e-3)
