"""Who takes part in a pass: facts about losses, and what the others get of those that are out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.order.members import Losses, without
from deepiofs.order.plan import Membership, Plan

_FACTS = st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=4)


@st.composite
def _losses(draw: st.DrawFn) -> tuple[Membership, frozenset[int]]:
    """Up to four nodes of up to three ranks, groups dealt at random, and some ranks out, at least one not."""
    n_nodes = draw(st.integers(1, 4))
    node = draw(st.permutations([*range(n_nodes), *draw(st.lists(st.integers(0, n_nodes - 1), max_size=6))]))
    samples = draw(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, len(node) - 1)), max_size=80))
    group, owner = np.array(samples, np.int32).reshape(-1, 2).T
    out = draw(st.sets(st.integers(0, len(node) - 1), max_size=len(node) - 1))
    return Membership(group.copy(), owner.copy(), np.array(node, np.int32)), frozenset(out)


def _counts(membership: Membership, group: int, ranks: list[int]) -> list[int]:
    owned = np.bincount(membership.owner[membership.group == group], minlength=len(membership.node))
    return [int(owned[rank]) for rank in ranks]


def _members(membership: Membership, out: frozenset[int]) -> list[int]:
    return [rank for rank in range(len(membership.node)) if rank not in out]


def _dealt(n_samples: int, n_groups: int, node: list[int]) -> Membership:
    """Groups one after the other, dealt round the ranks."""
    samples = np.arange(n_samples)
    return Membership(
        (samples * n_groups // n_samples).astype(np.int32), (samples % len(node)).astype(np.int32),
        np.array(node, np.int32),
    )  # fmt: skip


# --- Samples are dealt anew ------------------------------------------------------------------------------------------


@given(_losses())
def test_who_is_out_owns_nothing_and_the_others_keep_what_they_have(found: tuple[Membership, frozenset[int]]) -> None:
    m, out = found
    left = without(m, out)
    shuffled = m.group >= 0
    kept = shuffled & ~np.isin(m.owner, list(out))
    assert not set(left.owner[shuffled].tolist()) & out
    assert (left.owner[kept] == m.owner[kept]).all()
    assert (left.group == m.group).all()


@given(_losses())
def test_whoever_has_least_of_a_group_gets_the_next(found: tuple[Membership, frozenset[int]]) -> None:
    """As a loop that gives one sample at a time to one of the least would."""
    m, out = found
    members, left = _members(m, out), without(m, out)
    for group in range(m.n_groups):
        expected = _counts(m, group, members)
        for _ in range(int(((m.group == group) & np.isin(m.owner, list(out))).sum())):
            expected[expected.index(min(expected))] += 1
        assert sorted(_counts(left, group, members)) == sorted(expected)


@pytest.mark.parametrize("out", [{0}, {3}, {0, 1}, {1, 4, 5}])
def test_an_even_deal_stays_even_in_each_group_and_over_all(out: set[int]) -> None:
    m = _dealt(977, 20, [0, 0, 1, 1, 2, 2])
    members, left = _members(m, frozenset(out)), without(m, frozenset(out))
    for group in range(20):
        counts = _counts(left, group, members)
        assert max(counts) - min(counts) <= 1
    total = [int((left.owner == rank).sum()) for rank in members]
    before = [int((m.owner == rank).sum()) for rank in members]
    assert max(total) - min(total) <= max(before) - min(before) + 1


@given(_losses(), st.integers(0, 2**32), st.integers(0, 2**31), st.sampled_from([0.0, 0.9, 1.0]))
def test_queues_of_who_is_left_hold_each_sample_once(
    found: tuple[Membership, frozenset[int]], seed: int, number: int, bound: float
) -> None:
    m, out = found
    plan = Plan(m, seed, bound).of(without(m, out))
    for group in range(m.n_groups):
        queues = {rank: plan.queue(rank, group, number).tolist() for rank in range(len(m.node))}
        assert sorted(itertools.chain(*queues.values())) == np.flatnonzero(m.group == group).tolist()
        assert all(queues[rank] == [] for rank in out)


@given(_losses())
def test_nodes_are_those_of_who_is_left(found: tuple[Membership, frozenset[int]]) -> None:
    m, out = found
    members, left = _members(m, out), without(m, out)
    assert left.n_nodes == len({int(m.node[rank]) for rank in members})
    for a, b in itertools.combinations(members, 2):
        assert (left.node[a] == left.node[b]) == (m.node[a] == m.node[b])


def test_without_losses_all_is_as_it_was() -> None:
    m = _dealt(100, 3, [0, 0, 1])
    left = without(m, frozenset())
    assert (left.owner == m.owner).all()
    assert (left.node == m.node).all()


def test_nobody_left_is_no_membership() -> None:
    with pytest.raises(ValueError, match="takes part"):
        without(_dealt(10, 1, [0, 1]), frozenset({0, 1}))


# --- Facts -----------------------------------------------------------------------------------------------------------


@given(st.lists(_FACTS, max_size=6), st.randoms())
def test_the_order_in_which_losses_are_heard_of_does_not_matter(facts: list[dict[int, int]], chance: object) -> None:
    first, second = Losses(), Losses()
    for heard in facts:
        first.learn(heard)
    chance.shuffle(facts)  # type: ignore[attr-defined]
    for heard in [*facts, *facts]:
        second.learn(heard)
    assert first.since == second.since
    for number in range(11):
        assert first.out_in(number) == frozenset(rank for rank, since in first.since.items() if since <= number)


@given(_FACTS, _FACTS)
def test_learning_says_from_which_pass_on_members_changed(known: dict[int, int], told: dict[int, int]) -> None:
    losses = Losses()
    losses.learn(known)
    before = [losses.out_in(number) for number in range(11)]
    first = losses.learn(told)
    changed = [number for number in range(11) if losses.out_in(number) != before[number]]
    assert first == (changed[0] if changed else None)
