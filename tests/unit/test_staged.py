"""What lies in staging and what of it goes first, against a model that is a list."""

from __future__ import annotations

import collections

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepiofs.fs.staged import Place, Staged

_UNITS = st.integers(0, 7)


class StagedMachine(RuleBasedStateMachine):
    """`order` is what may go, the first to go first."""

    def __init__(self) -> None:
        super().__init__()
        self.staged = Staged()
        self.places: dict[int, Place] = {}
        self.claims: collections.Counter[int] = collections.Counter()
        self.order: list[int] = []

    @rule(unit=_UNITS, span=st.integers(1, 100), from_source=st.booleans())
    def add(self, unit: int, span: int, from_source: bool) -> None:
        if unit in self.places:
            return
        self.places[unit] = Place(1000 * unit, span, from_source)
        self.staged.add(unit, self.places[unit])
        if not self.claims[unit]:
            self.order.append(unit)

    @rule(unit=_UNITS)
    def find(self, unit: int) -> None:
        assert self.staged.find(unit) == self.places.get(unit)
        if unit in self.order:
            self.order.remove(unit)
            self.order.append(unit)

    @rule(unit=_UNITS)
    def spend(self, unit: int) -> None:
        self.staged.spend(unit)
        if unit in self.order:
            self.order.remove(unit)
            self.order.insert(0, unit)

    @rule(unit=_UNITS)
    def claim(self, unit: int) -> None:
        self.staged.claim(unit)
        self.claims[unit] += 1
        if unit in self.order:
            self.order.remove(unit)

    @precondition(lambda self: self.claims.total())
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.claims.elements())))
        self.staged.let_go(unit)
        self.claims[unit] -= 1
        if unit in self.places and not self.claims[unit]:
            self.order.append(unit)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(self.order))
        self.staged.remove(unit)
        self.order.remove(unit)
        del self.places[unit]

    @invariant()
    def is_as_the_model(self) -> None:
        self.staged.check_invariants()
        assert self.staged.unclaimed() == self.order
        assert [unit for unit in range(8) if self.staged.is_unclaimed(unit)] == sorted(self.order)
        assert [unit for unit in range(8) if unit in self.staged] == sorted(self.places)
        assert len(self.staged) == len(self.places)
        assert self.staged.unclaimed_bytes == sum(self.places[unit].span for unit in self.order)


TestStaged = StagedMachine.TestCase
TestStaged.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_claim_may_come_before_its_unit() -> None:
    staged = Staged()
    staged.claim(3)
    staged.add(3, Place(0, 16, False))
    assert staged.unclaimed() == []
    assert staged.unclaimed_bytes == 0
    staged.let_go(3)
    assert staged.unclaimed() == [3]


def test_what_is_claimed_cannot_go() -> None:
    staged = Staged()
    staged.add(3, Place(0, 16, False))
    staged.claim(3)
    with pytest.raises(KeyError):
        staged.remove(3)


def test_what_was_read_to_its_end_goes_before_what_was_used_longest_ago() -> None:
    staged = Staged()
    for unit in range(4):
        staged.add(unit, Place(16 * unit, 16, False))
    staged.find(0)
    staged.spend(2)
    assert staged.unclaimed() == [2, 1, 3, 0]
