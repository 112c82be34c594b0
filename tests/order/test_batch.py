"""Batches: those of a full shuffle, evenly dealt, and nearly all of it at home."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.order import batch as batch_module
from deepiofs.order.entropy import batch_overhang
from deepiofs.order.members import without
from deepiofs.order.parts import even_size, part_places
from deepiofs.order.plan import Membership, Plan
from deepiofs.order.reference import reference_batches

_SEEDS = st.integers(0, 2**64)
_PASSES = st.integers(0, 2**31 - 1)


@st.composite
def _memberships(draw: st.DrawFn) -> Membership:
    """One group over up to four nodes of up to three ranks, dealt in any way."""
    n_nodes = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, n_nodes - 1), max_size=6))
    node = draw(st.permutations([*range(n_nodes), *extra]))
    owner = draw(st.lists(st.integers(0, len(node) - 1), max_size=60))
    return Membership(np.zeros(len(owner), np.int32), np.array(owner, np.int32), np.array(node, np.int32))


def _even(n_samples: int, n_nodes: int, ranks_per_node: int = 1) -> Membership:
    n_ranks = n_nodes * ranks_per_node
    node = (np.arange(n_ranks) // ranks_per_node).astype(np.int32)
    return Membership(np.zeros(n_samples, np.int32), (np.arange(n_samples) % n_ranks).astype(np.int32), node)


def _local_batches(plan: Plan, rank: int, number: int) -> list[list[int]]:
    queue, edges = plan.queue(rank, 0, number).tolist(), plan.batch_edges(rank, 0)
    assert edges is not None
    return [queue[a:b] for a, b in itertools.pairwise(edges.tolist())]


def _by_turn(m: Membership) -> list[int]:
    """Samples in the order of their owners' turns."""
    ranks = sorted(range(len(m.node)), key=lambda rank: (m.node[rank], rank))
    return [sample for rank in ranks for sample in np.flatnonzero(m.owner == rank).tolist()]


@given(_memberships(), _SEEDS, _PASSES, st.integers(1, 70))
def test_batches_are_those_of_the_slow_version(m: Membership, seed: int, number: int, batch: int) -> None:
    if not len(m.group):
        return
    plan = Plan(m, seed, 0.9, batch)
    samples = _by_turn(m)
    expected = reference_batches(
        samples, m.owner[samples].tolist(), m.node.tolist(), seed=seed, group=0, number=number, batch=plan.batch_of(0)
    )
    for rank in range(len(m.node)):
        assert _local_batches(plan, rank, number) == expected[rank]
        assert plan.queue_size(rank, 0) == sum(map(len, expected[rank]))


@given(_memberships(), _SEEDS, _PASSES, st.integers(1, 70))
def test_each_batch_holds_what_the_permutation_says_and_loads_are_equal(
    m: Membership, seed: int, number: int, batch: int
) -> None:
    if not len(m.group):
        return
    plan = Plan(m, seed, 0.9, batch)
    sequence = np.random.SeedSequence(seed, spawn_key=(number, 0, 2, 0))
    order = np.random.Generator(np.random.Philox(sequence)).permutation(len(m.group))
    permuted = np.array(_by_turn(m))[order].tolist()
    ranks = [_local_batches(plan, rank, number) for rank in range(len(m.node))]
    for i, parts in enumerate(zip(*ranks, strict=True)):
        assert sorted(itertools.chain(*parts)) == sorted(permuted[i * batch : (i + 1) * batch])
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    loads = [sum(map(len, parts)) for parts in ranks]
    assert max(loads) - min(loads) <= 1


def _moved(m: Membership, plan: Plan, number: int) -> float:
    """The share of samples that another node than their own serves."""
    away = [m.node[m.owner[plan.queue(rank, 0, number)]] != m.node[rank] for rank in range(len(m.node))]
    return float(np.concatenate(away).mean())


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "batch"), [(4, 1, 256), (8, 1, 64), (3, 2, 50), (2, 4, 128), (16, 1, 8)]
)
def test_the_overhang_is_within_3_standard_deviations_of_the_formula(
    nodes: int, ranks_per_node: int, batch: int
) -> None:
    m = _even(24_000, nodes, ranks_per_node)
    plan = Plan(m, 11, 0.9, batch)
    moved = np.array([_moved(m, plan, number) for number in range(12)])
    error = moved.std(ddof=1) / np.sqrt(len(moved))
    assert abs(moved.mean() - batch_overhang(24_000, nodes, batch)) < 3 * error
    assert plan.exchange_fraction() == batch_overhang(24_000, nodes, batch)


@pytest.mark.parametrize(("nodes", "percent"), [(8, 1.2), (64, 3.5), (512, 9.9)])
def test_the_check_values_of_the_overhang(nodes: int, percent: float) -> None:
    assert round(100 * batch_overhang(1_281_167, nodes, 8192), 1) == percent


def test_a_batch_of_256_over_4_ranks_moves_about_4_percent() -> None:
    m = _even(51_200, 4)
    plan = Plan(m, 0, 0.9, 256)
    assert 3.7 < 100 * np.mean([_moved(m, plan, number) for number in range(4)]) < 4.7
    assert abs(100 * plan.exchange_fraction() - 4.2) < 0.5


def test_one_batch_of_all_moves_nothing_and_one_node_neither() -> None:
    m = _even(1000, 4)
    assert _moved(m, Plan(m, 0, 0.9, 1000), 0) == 0
    assert batch_overhang(1000, 4, 1000) == batch_overhang(1000, 4, 5000) == 0
    assert batch_overhang(1000, 1, 10) == 0


def test_passes_and_seeds_differ_and_equal_ones_agree() -> None:
    m = _even(500, 3)
    orders = {Plan(m, seed, 0.9, 30).queue(1, 0, number).tobytes() for seed in (1, 2) for number in (0, 1)}
    assert len(orders) == 4
    assert Plan(m, 1, 0.9, 30).queue(1, 0, 0).tobytes() in orders


def test_dealing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(_even(5000, 4, 2), 3, 0.9, 96)
    whole = plan.queue(5, 0, 1).tolist()
    monkeypatch.setattr(batch_module, "_CHUNK", 500)
    assert plan.queue(5, 0, 1).tolist() == whole


def test_which_samples_meet_is_uniform() -> None:
    """Of two samples of one home, the chance to be in one batch is a full shuffle's, (B - 1) / (N - 1)."""
    m = _even(24, 4)
    plan = Plan(m, 7, 0.9, 8)
    met = 0
    for number in range(2000):
        batches = zip(*(_local_batches(plan, rank, number) for rank in range(4)), strict=True)
        met += any({0, 4} <= set(itertools.chain(*parts)) for parts in batches)
    expected = 7 / 23
    assert abs(met / 2000 - expected) < 4 * np.sqrt(expected * (1 - expected) / 2000)


def test_ranks_that_are_out_get_nothing_and_the_others_equal_loads() -> None:
    plan = Plan(_even(1000, 5), 0, 0.9, 50)
    left = plan.of(without(plan.membership, frozenset({1, 4})))
    batches = [_local_batches(left, rank, 2) for rank in range(5)]
    assert [sum(map(len, parts)) for parts in batches] == [334, 0, 333, 333, 0]
    assert sorted(itertools.chain(*itertools.chain(*batches))) == list(range(1000))
    assert [left.queue_size(rank, 0) for rank in range(5)] == [334, 0, 333, 333, 0]


def test_groups_have_their_part_of_each_batch() -> None:
    group = np.repeat(np.array([0, 1], np.int32), [300, 100])
    plan = Plan(Membership(group, (np.arange(400) % 2).astype(np.int32), np.array([0, 1], np.int32)), 0, 0.9, 40)
    assert (plan.batch_of(0), plan.batch_of(1)) == (30, 10)
    assert plan.planned_entropy() == 1
    assert 0 < plan.served_entropy() < 1


# --- Parts -----------------------------------------------------------------------------------------------------------

_EDGES = st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=1, max_size=12))


def _edges(lengths: list[int] | None) -> npt.NDArray[np.int64] | None:
    return None if lengths is None else np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


@given(st.integers(0, 40), _EDGES, st.integers(1, 9))
def test_parts_hold_each_place_once(n: int, lengths: list[int] | None, parts: int) -> None:
    n = n if lengths is None else sum(lengths)
    dealt = [part_places(n, part, parts, _edges(lengths)).tolist() for part in range(parts)]
    assert sorted(itertools.chain(*dealt)) == list(range(n))
    if lengths is None:
        assert dealt == [list(range(n))[part::parts] for part in range(parts)]


@given(st.integers(0, 40), _EDGES, st.integers(1, 9), st.integers(0, 5), st.sampled_from(["drop", "pad"]))
def test_even_parts_are_equal_and_drop_repeats_and_pad_loses_nothing(
    n: int, lengths: list[int] | None, parts: int, other: int, even: str
) -> None:
    n = n if lengths is None else sum(lengths)
    size = even_size(np.array([n, n + other]), parts, even)
    assert size == (n // parts if even == "drop" else -(-(n + other) // parts))
    dealt = [part_places(n, part, parts, _edges(lengths), size).tolist() for part in range(parts)]
    assert {len(part) for part in dealt} == {size if n else 0}
    served = list(itertools.chain(*dealt))
    if even == "drop":
        assert len(set(served)) == len(served)
    elif n:
        assert set(served) == set(range(n))
    # What is repeated in a part is what it began with, unless it had nothing.
    for part in dealt:
        unique = list(dict.fromkeys(part))
        assert part[len(unique) :] == (unique * len(part))[: len(part) - len(unique)]


def test_readers_that_take_turns_see_the_batches_in_their_order() -> None:
    edges = np.array([0, 3, 6, 9, 12, 14])
    first, second = (part_places(14, part, 2, edges).tolist() for part in range(2))
    assert first == [0, 1, 2, 6, 7, 8, 12, 13]
    assert second == [3, 4, 5, 9, 10, 11]
