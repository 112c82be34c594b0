"""The staging arena, against a model that knows every byte."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from deepiofs.memory.arena import Arena


class ArenaMachine(RuleBasedStateMachine):
    places = Bundle[int]("places")

    @initialize(size=st.integers(1, 64))
    def begin(self, size: int) -> None:
        self.arena = Arena(size)
        self.owner: list[int | None] = [None] * size

    @rule(target=places, size=st.integers(1, 20))
    def take(self, size: int) -> int | MultipleResults[int]:
        place = self.arena.take(size)
        if place is None:
            assert not self._has_room(size), "refused although there is room"
            return multiple()
        assert self.owner[place : place + size] == [None] * size
        self.owner[place : place + size] = [place] * size
        assert self.arena.size_of(place) == size
        return place

    @rule(place=consumes(places))
    def give_back(self, place: int) -> None:
        self.arena.give_back(place)
        self.owner = [None if owner == place else owner for owner in self.owner]

    @precondition(lambda self: all(owner is None for owner in self.owner))
    @rule(target=places)
    def take_all_of_an_empty_arena(self) -> int | MultipleResults[int]:
        return self.take(len(self.owner))

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "arena"):
            self.arena.check_invariants()
            assert self.arena.used == sum(owner is not None for owner in self.owner)

    def _has_room(self, size: int) -> bool:
        return any(self.owner[at : at + size] == [None] * size for at in range(len(self.owner) - size + 1))


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_arena_of_nothing_lends_nothing() -> None:
    arena = Arena(0)
    assert arena.take(1) is None
    arena.check_invariants()


def test_a_place_is_given_back_once() -> None:
    arena = Arena(10)
    place = arena.take(4)
    assert place == 0
    arena.give_back(place)
    with pytest.raises(KeyError):
        arena.give_back(place)


def test_what_lay_between_two_holes_joins_them() -> None:
    arena = Arena(30)
    first, middle, last = arena.take(10), arena.take(10), arena.take(10)
    assert (first, middle, last) == (0, 10, 20)
    arena.give_back(0)
    arena.give_back(20)
    assert arena.take(11) is None
    arena.give_back(10)
    assert arena.take(30) == 0
