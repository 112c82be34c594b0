"""The plan of a pass: equal to the slow version beside it, a partition, and as random as the bound says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

# scipy.stats has the same with names that say more, and takes a second to import.
from scipy.special import chdtrc  # type: ignore[import-untyped]

from deepiofs.order.entropy import least_exchange, ordering_entropy
from deepiofs.order.plan import Membership, Plan
from deepiofs.order.reference import reference_queues

_P = 1e-3


@st.composite
def _memberships(draw: st.DrawFn) -> Membership:
    """Up to four nodes of up to three ranks, in any order of ranks; up to five groups, some of them empty."""
    n_nodes = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, n_nodes - 1), max_size=6))
    node = draw(st.permutations([*range(n_nodes), *extra]))
    samples = draw(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, len(node) - 1)), max_size=60))
    group, owner = np.array(samples, np.int32).reshape(-1, 2).T
    return Membership(group.copy(), owner.copy(), np.array(node, np.int32))


_SEEDS = st.integers(0, 2**64)
_PASSES = st.integers(0, 2**31)
_BOUNDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


def _even(n_samples: int, n_ranks: int, ranks_per_node: int = 1) -> Membership:
    """One group, dealt round the ranks."""
    samples = np.arange(n_samples)
    node = np.arange(n_ranks) // ranks_per_node
    return Membership(
        np.zeros(n_samples, np.int32), (samples % n_ranks).astype(np.int32), node.astype(np.int32)
    )  # fmt: skip


def _queues(plan: Plan, n_ranks: int, number: int, group: int = 0) -> list[list[int]]:
    return [plan.queue(rank, group, number).tolist() for rank in range(n_ranks)]


def _members(membership: Membership, group: int, ranks: Iterable[int]) -> list[int]:
    chosen = (membership.group == group) & np.isin(membership.owner, list(ranks))
    return np.flatnonzero(chosen).tolist()


def _places(plan: Plan, n_samples: int, ranks: list[int], passes: int) -> npt.NDArray[np.int64]:
    """How often each sample (row) was at each place (column) of the ranks' queues, one behind the other."""
    counts = np.zeros((n_samples, n_samples), np.int64)
    for number in range(passes):
        counts[np.concatenate([plan.queue(rank, 0, number) for rank in ranks]), np.arange(n_samples)] += 1
    return counts


def _p_of_uniform_permutations(counts: npt.NDArray[np.int64]) -> float:
    """The chance of counts as uneven as these, if each pass was a uniform permutation.

    The sum of permutation matrices has (n-1)^2 free entries, each of variance passes / (n-1) when rotated into them:
    so sum((O - E)^2 / E) (n-1) / n is chi-square of (n-1)^2 degrees of freedom, not of n^2.
    """
    n = len(counts)
    expected = counts[0].sum() / n
    statistic = ((counts - expected) ** 2).sum() / expected * (n - 1) / n
    return float(chdtrc((n - 1) ** 2, statistic))


def _nodes_served(plan: Plan, n_samples: int, n_nodes: int, passes: int) -> npt.NDArray[np.int64]:
    """The node that serves each sample in each pass, one rank per node; (passes, n_samples)."""
    node = np.empty((passes, n_samples), np.int64)
    for number in range(passes):
        for rank in range(n_nodes):
            node[number, plan.queue(rank, 0, number)] = rank
    return node


# --- The same as the slow version ------------------------------------------------------------------------------------


@given(_memberships(), _SEEDS, _PASSES, _BOUNDS)
def test_queues_are_those_of_the_slow_version(m: Membership, seed: int, number: int, bound: float) -> None:
    plan = Plan(m, seed, bound)
    for group in range(m.n_groups):
        samples = np.flatnonzero(m.group == group).tolist()
        expected = reference_queues(
            samples, m.owner[samples].tolist(), m.node.tolist(), seed=seed, group=group, number=number, bound=bound
        )
        assert dict(enumerate(_queues(plan, len(m.node), number, group))) == expected


@given(_memberships(), _SEEDS, _PASSES, _BOUNDS)
def test_queues_of_all_ranks_hold_each_sample_of_the_group_once(
    m: Membership, seed: int, number: int, bound: float
) -> None:
    plan = Plan(m, seed, bound)
    for group in range(m.n_groups):
        queues = _queues(plan, len(m.node), number, group)
        assert sorted(itertools.chain.from_iterable(queues)) == np.flatnonzero(m.group == group).tolist()


@given(_memberships(), _SEEDS, _PASSES, _BOUNDS)
def test_a_rank_serves_as_many_samples_as_it_owns(m: Membership, seed: int, number: int, bound: float) -> None:
    plan = Plan(m, seed, bound)
    for group in range(m.n_groups):
        for rank, queue in enumerate(_queues(plan, len(m.node), number, group)):
            assert len(queue) == len(_members(m, group, [rank]))


@given(_memberships(), _SEEDS, _PASSES)
def test_without_a_bound_no_sample_leaves_its_node(m: Membership, seed: int, number: int) -> None:
    plan = Plan(m, seed, 0.0)
    for group in range(m.n_groups):
        queues = _queues(plan, len(m.node), number, group)
        assert plan.exchange(group) == 0
        for node in range(m.n_nodes):
            ranks = np.flatnonzero(m.node == node).tolist()
            served = itertools.chain.from_iterable(queues[rank] for rank in ranks)
            assert sorted(served) == _members(m, group, ranks)


@given(_memberships(), _SEEDS, st.lists(_PASSES, min_size=1, max_size=4), _BOUNDS)
def test_a_fresh_plan_says_the_same_whatever_was_asked_before(
    m: Membership, seed: int, numbers: list[int], bound: float
) -> None:
    asked_before = Plan(m, seed, bound)
    for group in range(m.n_groups):
        for number in numbers:
            _queues(asked_before, len(m.node), number, group)
    for group in range(m.n_groups):
        assert _queues(asked_before, len(m.node), 7, group) == _queues(Plan(m, seed, bound), len(m.node), 7, group)


def test_passes_groups_and_seeds_differ() -> None:
    even = _even(800, 4)
    two_groups = Membership(even.group + (np.arange(800) >= 400).astype(np.int32), even.owner, even.node)
    plan = Plan(two_groups, 0, 0.9)
    first = _queues(plan, 4, 0)
    assert _queues(plan, 4, 1) != first
    assert _queues(Plan(two_groups, 1, 0.9), 4, 0) != first
    assert [[sample - 400 for sample in queue] for queue in _queues(plan, 4, 0, group=1)] != first


def test_a_group_without_samples_has_empty_queues() -> None:
    m = Membership(np.array([2, 2], np.int32), np.array([0, 1], np.int32), np.array([0, 1], np.int32))
    plan = Plan(m, 0, 1.0)
    assert (plan.n_groups, plan.group_size(1)) == (3, 0)
    assert _queues(plan, 2, 0, group=1) == [[], []]


def test_nothing_shuffled_is_a_plan_without_groups() -> None:
    plan = Plan(Membership(np.full(5, -1, np.int32), np.zeros(5, np.int32), np.zeros(2, np.int32)), 0, 0.9)
    assert (plan.n_groups, plan.planned_entropy(), plan.exchange_fraction()) == (0, 1, 0)


def test_figures_of_a_plan_are_the_worst_entropy_and_the_mean_exchange() -> None:
    group = np.repeat([0, 1], [100, 300]).astype(np.int32)
    m = Membership(group, (np.arange(400) % 4).astype(np.int32), np.arange(4, dtype=np.int32))
    plan = Plan(m, 0, 0.85)
    q = [least_exchange(100, 4, 0.85), least_exchange(300, 4, 0.85)]
    assert [plan.exchange(0), plan.exchange(1)] == q
    assert plan.planned_entropy() == min(ordering_entropy(100, 4, q[0]), ordering_entropy(300, 4, q[1]))
    assert plan.planned_entropy() == pytest.approx(0.85, abs=1e-9)
    assert plan.exchange_fraction() == pytest.approx((100 * q[0] + 300 * q[1]) / 400)


# --- As random as the bound says -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_ranks", "ranks_per_node"), [(4, 1), (4, 2), (8, 2), (1, 1)])
def test_with_a_bound_of_one_every_place_is_equally_likely(n_ranks: int, ranks_per_node: int) -> None:
    counts = _places(Plan(_even(24, n_ranks, ranks_per_node), 5, 1.0), 24, list(range(n_ranks)), passes=200)
    assert _p_of_uniform_permutations(counts) > _P


def test_the_check_of_uniformity_rejects_nodes_apart() -> None:
    assert _p_of_uniform_permutations(_places(Plan(_even(24, 4), 5, 0.0), 24, [0, 1, 2, 3], passes=200)) < _P


def test_a_queue_is_shuffled_uniformly() -> None:
    m = Membership(np.zeros(40, np.int32), np.repeat([0, 1], 20).astype(np.int32), np.array([0, 1], np.int32))
    assert _p_of_uniform_permutations(_places(Plan(m, 3, 0.0), 20, [0], passes=400)) > _P


def test_the_samples_of_a_node_are_dealt_over_its_ranks_at_random() -> None:
    plan = Plan(_even(40, 2, ranks_per_node=2), 3, 0.0)
    assert _p_of_uniform_permutations(_places(plan, 40, [0, 1], passes=400)) > _P


@pytest.mark.parametrize("bound", [0.8, 0.9, 0.97, 1.0])
def test_the_share_that_leaves_its_node_is_the_planned_exchange(bound: float) -> None:
    """The passes are independent, so the spread of their shares gives the standard error of the mean."""
    n_nodes, passes = 8, 200
    plan = Plan(_even(640, n_nodes), 11, bound)
    home = np.arange(640) % n_nodes
    shares = (_nodes_served(plan, 640, n_nodes, passes) != home).mean(axis=1)
    error = shares.std(ddof=1) / math.sqrt(passes)
    assert abs(shares.mean() - plan.exchange(0)) < 3 * error
    assert error < 0.005


def test_the_share_is_the_planned_one_where_no_whole_number_of_samples_is() -> None:
    """Of 20 samples a node gives up 2.43: always 2 would be a sixth too few."""
    n_samples, passes = 160, 1000
    plan = Plan(_even(n_samples, 8), 13, 0.65)
    shares = (_nodes_served(plan, n_samples, 8, passes) != np.arange(n_samples) % 8).mean(axis=1)
    assert 8 / 7 * 20 * plan.exchange(0) == pytest.approx(2.43, abs=0.01)
    assert abs(shares.mean() - plan.exchange(0)) < 3 * shares.std(ddof=1) / math.sqrt(passes)


def test_samples_that_leave_go_to_all_other_nodes_alike() -> None:
    n_nodes = 5
    moved = _nodes_served(Plan(_even(500, n_nodes), 17, 0.85), 500, n_nodes, passes=200)
    tables = (moved - np.arange(500)) % n_nodes
    counts = np.bincount(tables.ravel(), minlength=n_nodes)[1:]
    # Samples of one pass share the places, which makes the counts evener than independent ones, never less even.
    statistic = ((counts - counts.mean()) ** 2).sum() / counts.mean()
    assert chdtrc(len(counts) - 1, statistic) > _P


@pytest.mark.parametrize("bound", [0.8, 0.9])
def test_the_entropy_of_many_passes_is_the_planned_one(bound: float) -> None:
    """Two estimates that enclose the entropy of the order, both within 2 % of the plan's.

    An order is an assignment of samples to nodes, and a sequence on each node. The sequences are uniform (tested
    above): M log2(n!) bits, by the chain rule on top of the assignment's. No count of whole assignments is feasible,
    so the assignment's entropy is enclosed:

    - at most the sum over samples of the entropy of *where this sample goes* (subadditivity), estimated from its own
      frequencies over the passes with the Miller-Madow correction, (cells - 1) / (2 passes) nats;
    - at least the mean of log2 of the number of assignments that move as many samples from each node to each other
      as this pass did: pool and permutation are uniform, so given these numbers all such assignments are equally
      likely, and the entropy of the numbers themselves (below 1 % here) is left out. A mean, so without bias.
    """
    n_nodes, per_node, passes = 4, 200, 400
    n_samples = n_nodes * per_node
    plan = Plan(_even(n_samples, n_nodes), 23, bound)
    served = _nodes_served(plan, n_samples, n_nodes, passes)
    sequences = n_nodes * _log2_factorial(per_node)
    upper = sequences + sum(_miller_madow_bits(served[:, sample], n_nodes) for sample in range(n_samples))
    lower = sequences + float(np.mean([_assignment_bits(row, n_nodes) for row in served]))
    full = _log2_factorial(n_samples)
    assert plan.planned_entropy() == pytest.approx(bound, abs=1e-9)
    assert lower / full == pytest.approx(bound, rel=0.02)
    assert upper / full == pytest.approx(bound, rel=0.02)
    assert lower < upper


def _log2_factorial(n: int) -> float:
    return float(np.log2(np.arange(1, n + 1)).sum())


def _miller_madow_bits(seen: npt.NDArray[np.int64], n_cells: int) -> float:
    counts = np.bincount(seen, minlength=n_cells)
    shares = counts[counts > 0] / counts.sum()
    bias_nats = ((counts > 0).sum() - 1) / (2 * counts.sum())
    return float(-(shares * np.log2(shares)).sum() + bias_nats / math.log(2))


def _assignment_bits(served: npt.NDArray[np.int64], n_nodes: int) -> float:
    """log2 of the assignments with the same number of samples from each node to each node."""
    home = np.arange(len(served)) % n_nodes
    table = np.bincount(home * n_nodes + served, minlength=n_nodes**2).reshape(n_nodes, n_nodes)
    return float(sum(_log2_factorial(row.sum()) - sum(map(_log2_factorial, row)) for row in table))
