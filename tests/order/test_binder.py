"""Which sample a name stands for: rules S3 to S6 one by one, and in any order of lookups, opens and closes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deepiofs.order.binder import UNKNOWN_THREAD, Binder, Binding
from deepiofs.order.queues import Draw

_A, _B, _C = 100, 101, 102  # names
_GROUP = 0
_UNKNOWN_KEPT = 64


class _World:
    """A binder, and an endless queue of samples 0, 1, 2 ... in front of which it puts what it gives back."""

    def __init__(self, members: dict[int, int] | None = None) -> None:
        self.members = members or {}
        self.given_back: list[int] = []
        self.binder = Binder(self._give_back)
        self.time = 0.0
        self.taken = 0
        self._front: list[Draw] = []

    def look(self, thread: int, name: int, member: int = 0) -> int:
        """The sample that a lookup reports."""
        binding = self.binder.look(thread, name, member, self.time)
        if binding is None:
            binding = self.binder.reserve(thread, name, self._take(), self.members.get(name, 1), self.time)
        self.binder.check_invariants()
        return binding.draw.sample

    def open(self, thread: int, name: int, member: int = 0) -> tuple[Binding, bool]:
        """A lookup and an open: the binding, and whether this drew."""
        self.look(thread, name, member)
        opened = self.binder.open(thread, name, member)
        self.binder.check_invariants()
        assert opened is not None
        return opened[:2]

    def close(self, binding: Binding) -> None:
        self.binder.close(binding)
        self.binder.check_invariants()

    def use(self, thread: int, name: int, member: int = 0) -> tuple[int, bool]:
        """Look up, open, read, close: the sample, and whether this drew."""
        binding, draws = self.open(thread, name, member)
        self.close(binding)
        return binding.draw.sample, draws

    def _take(self) -> Draw:
        if self._front:
            return self._front.pop()
        self.taken += 1
        return Draw(_GROUP, 0, self.taken - 1)

    def _give_back(self, draw: Draw) -> None:
        self._front.append(draw)
        self.given_back.append(draw.sample)


# --- S3: a name keeps its sample while a handle is open --------------------------------------------------------------


def test_s3_while_a_handle_is_open_another_thread_sees_the_same_sample() -> None:
    world = _World()
    binding, _ = world.open(1, _A)
    assert world.use(2, _A) == (0, False)
    assert world.use(1, _B) == (1, True)
    assert world.use(2, _A) == (0, False)
    world.close(binding)


def test_s3_ends_with_the_last_handle() -> None:
    world = _World()
    first, _ = world.open(1, _A)
    second, _ = world.open(2, _A)
    world.close(first)
    assert world.look(3, _A) == 0
    world.close(second)
    assert world.look(3, _A) == 1


def test_s3_holds_for_a_handle_of_an_unknown_thread() -> None:
    world = _World()
    binding, _ = world.open(UNKNOWN_THREAD, _A)
    assert world.use(UNKNOWN_THREAD, _A) == (0, False)
    world.close(binding)
    assert world.use(UNKNOWN_THREAD, _A) == (1, True)


def test_s3_the_handle_of_a_thread_that_went_on_keeps_the_name() -> None:
    world = _World()
    binding, _ = world.open(1, _A)
    world.use(1, _B)
    world.use(1, _C)
    assert world.look(1, _A) == 0
    world.close(binding)
    assert world.look(1, _A) == 3


# --- S4: a name keeps its sample for the thread that last used it ----------------------------------------------------


def test_s4_open_verify_reopen_sees_one_sample_and_draws_once() -> None:
    world = _World()
    assert world.use(1, _A) == (0, True)
    assert world.use(1, _A) == (0, False)
    assert world.taken == 1


def test_s4_ends_when_the_thread_uses_another_sample() -> None:
    world = _World()
    world.use(1, _A)
    world.use(1, _B)
    assert world.use(1, _A) == (2, True)


def test_s4_does_not_end_with_a_lookup_of_another_name() -> None:
    world = _World()
    world.use(1, _A)
    world.look(1, _B)
    assert world.use(1, _A) == (0, False)


def test_s4_another_thread_draws_anew() -> None:
    world = _World()
    assert [world.use(thread, _A) for thread in (1, 2, 3)] == [(0, True), (1, True), (2, True)]


def test_s4_does_not_hold_for_unknown_threads() -> None:
    world = _World()
    assert [world.use(UNKNOWN_THREAD, _A) for _ in range(3)] == [(0, True), (1, True), (2, True)]


def test_s4_two_threads_that_used_one_sample_both_keep_it() -> None:
    world = _World()
    first, _ = world.open(1, _A)
    second, _ = world.open(2, _A)
    world.close(first)
    world.close(second)
    assert world.use(1, _A) == world.use(2, _A) == (0, False)
    world.use(1, _B)
    assert world.look(2, _A) == 0
    assert world.look(1, _A) != 0


# --- S5: members of a sample -----------------------------------------------------------------------------------------


def test_s5_members_read_in_turn_are_of_one_sample() -> None:
    world = _World({_A: 3})
    assert [world.use(1, _A, member) for member in (2, 0, 1)] == [(0, True), (0, False), (0, False)]


def test_s5_a_member_that_was_not_opened_is_of_the_sample_for_any_thread() -> None:
    world = _World({_A: 2})
    world.use(1, _A, member=0)
    world.use(1, _B)
    assert world.use(2, _A, member=1) == (0, False)


def test_s5_ends_when_every_member_was_opened() -> None:
    world = _World({_A: 2})
    world.use(1, _A, member=0)
    world.use(2, _A, member=1)
    world.use(1, _B)
    world.use(2, _B)
    assert world.use(3, _A, member=1) == (3, True)


def test_s5_a_member_opened_again_by_another_thread_is_a_new_sample() -> None:
    """So who reads only the images of pairs gets a new one each time."""
    world = _World({_A: 2})
    assert [world.use(thread, _A, member=0) for thread in (1, 2)] == [(0, True), (1, True)]


def test_s5_holds_for_unknown_threads() -> None:
    world = _World({_A: 2})
    assert [world.use(UNKNOWN_THREAD, _A, member) for member in (0, 1, 0, 1)] == [
        (0, True), (0, False), (1, True), (1, False)
    ]  # fmt: skip


def test_s5_a_lookup_of_one_member_reserves_for_the_others_too() -> None:
    world = _World({_A: 2})
    assert [world.look(1, _A, member=0), world.look(1, _A, member=1)] == [0, 0]
    assert world.use(1, _A, member=1) == (0, True)


# --- S6: a lookup reserves -------------------------------------------------------------------------------------------


def test_s6_an_open_takes_what_the_lookup_reserved() -> None:
    world = _World()
    assert world.look(1, _A) == 0
    assert world.use(1, _A) == (0, True)


def test_s6_a_scan_of_many_names_reserves_one_sample_at_a_time() -> None:
    world = _World()
    assert {world.look(1, name) for name in range(1000)} == {0}
    assert world.taken == 1
    assert world.binder.reservations(_GROUP) == 1
    assert world.use(1, 999) == (0, True)


def test_s6_a_lookup_of_a_name_in_use_gives_the_reservation_back_too() -> None:
    world = _World()
    binding, _ = world.open(2, _A)
    world.look(1, _B)
    world.look(1, _A)
    assert world.given_back == [1]
    world.close(binding)


def test_s6_two_threads_that_look_share_a_reservation() -> None:
    world = _World()
    assert [world.look(1, _A), world.look(2, _A)] == [0, 0]
    world.look(1, _B)
    assert world.given_back == []
    assert world.use(2, _A) == (0, True)


def test_s6_a_shared_reservation_goes_back_with_the_last_that_looked() -> None:
    world = _World()
    world.look(1, _A)
    world.look(2, _A)
    world.look(1, _B)
    world.look(2, _B)
    assert world.given_back == [0]


def test_s6_each_thread_has_a_reservation_of_its_own() -> None:
    world = _World()
    assert [world.look(1, _A), world.look(2, _B), world.look(3, _C)] == [0, 1, 2]
    assert world.binder.reservations(_GROUP) == 3


def test_s6_a_lookup_by_another_thread_is_what_the_open_takes() -> None:
    """The kernel believes the size that the last lookup of the name told, whoever looked."""
    world = _World()
    world.use(1, _A)
    assert world.look(2, _A) == 1
    opened = world.binder.open(1, _A, 0)
    assert opened is not None
    assert (opened[0].draw.sample, opened[1]) == (1, True)


def test_s6_unknown_threads_keep_a_limited_number_of_reservations() -> None:
    world = _World()
    for name in range(1000):
        world.look(UNKNOWN_THREAD, name)
    assert world.binder.reservations(_GROUP) <= _UNKNOWN_KEPT + 1
    assert world.taken <= _UNKNOWN_KEPT + 1


def test_s6_unknown_threads_lose_the_oldest_reservation_first() -> None:
    world = _World()
    for name in range(_UNKNOWN_KEPT + 1):
        world.look(UNKNOWN_THREAD, name)
    assert world.given_back == [0]
    assert world.binder.open(UNKNOWN_THREAD, 0, 0) is None
    assert world.use(UNKNOWN_THREAD, 1) == (1, True)


def test_s6_a_lookup_by_an_unknown_thread_is_never_the_one_given_back() -> None:
    """What a lookup has just reported is what an open right after it takes."""
    world = _World()
    for name in range(_UNKNOWN_KEPT + 1):
        world.look(5, name)
        world.look(UNKNOWN_THREAD, name)  # shared, so it does not count among the unknown ones' yet
    world.look(5, 1000)
    oldest = world.look(UNKNOWN_THREAD, 0)
    opened = world.binder.open(UNKNOWN_THREAD, 0, 0)
    assert opened is not None
    assert opened[0].draw.sample == oldest


# --- Revoked and forgotten -------------------------------------------------------------------------------------------


def test_a_revoked_reservation_is_no_longer_opened() -> None:
    world = _World()
    world.look(1, _A)
    assert world.binder.revoke(_GROUP, lambda binding: True) == [Draw(_GROUP, 0, 0)]
    assert world.binder.open(1, _A, 0) is None
    assert world.binder.reservations(_GROUP) == 0


def test_only_what_is_stale_and_of_the_group_is_revoked() -> None:
    world = _World()
    world.look(1, _A)
    world.time = 5.0
    world.look(2, _B)
    assert world.binder.revoke(_GROUP + 1, lambda binding: True) == []
    assert world.binder.revoke(_GROUP, lambda binding: binding.since < 5) == [Draw(_GROUP, 0, 0)]
    assert world.use(2, _B) == (1, True)


def test_a_lookup_by_another_thread_makes_a_reservation_fresh() -> None:
    world = _World()
    world.look(1, _A)
    world.time = 5.0
    world.look(2, _A)
    assert world.binder.revoke(_GROUP, lambda binding: binding.since < 5) == []


def test_a_thread_that_only_looks_does_not_keep_its_reservation_fresh() -> None:
    """Or one that polls a name would hold up the end of a pass for ever."""
    world = _World()
    world.look(1, _A)
    world.time = 5.0
    world.look(1, _A)
    assert world.binder.revoke(_GROUP, lambda binding: binding.since < 5) == [Draw(_GROUP, 0, 0)]


def test_what_was_drawn_is_not_revoked() -> None:
    world = _World()
    world.use(1, _A)
    assert world.binder.revoke(_GROUP, lambda binding: True) == []
    assert world.use(1, _A) == (0, False)


def test_forgotten_reservations_are_not_given_back() -> None:
    world = _World()
    world.look(1, _A)
    world.look(2, _B)
    world.binder.forget_reservations()
    world.binder.check_invariants()
    assert world.given_back == []
    assert world.binder.open(1, _A, 0) is None


def test_a_member_opened_before_under_the_binding_is_known() -> None:
    """So that its pages may stay in the kernel's cache."""
    world = _World({_A: 2})
    known = []
    for member in (0, 0, 1):
        world.look(1, _A, member)
        opened = world.binder.open(1, _A, member)
        assert opened is not None
        known.append(opened[2])
        world.close(opened[0])
    assert known == [False, True, False]


def test_peek_reserves_and_changes_nothing() -> None:
    world = _World()
    assert world.binder.peek(_A) is None
    world.look(1, _A)
    found = world.binder.peek(_A)
    assert found is not None
    assert found.draw.sample == 0
    assert world.taken == 1


def test_nothing_is_kept_of_a_sample_that_no_rule_holds() -> None:
    world = _World()
    world.use(UNKNOWN_THREAD, _A)
    assert world.binder.peek(_A) is None


# --- Any order of events ---------------------------------------------------------------------------------------------

_THREADS = st.integers(0, 3)
_NAMES = st.integers(0, 3)
_MEMBERS = 3


@dataclasses.dataclass
class _Handle:
    name: int
    binding: Binding


class _Kernel(RuleBasedStateMachine):
    """Threads that look, open and close as they like; the kernel's belief is the last lookup's word of each name.

    Every draw is in one place: reserved, drawn, given back (to be taken again), or forgotten by command.
    """

    def __init__(self) -> None:
        super().__init__()
        self.binder = Binder(self._give_back)
        self.front: list[Draw] = []
        self.taken = 0
        self.drawn: list[Draw] = []
        self.forgotten: list[Draw] = []
        self.believed: dict[int, int] = {}
        self.last_lookup: tuple[int, int] | None = None
        self.handles: list[_Handle] = []
        self.time = 0.0

    @initialize(members=st.lists(st.integers(1, _MEMBERS), min_size=4, max_size=4))
    def start(self, members: list[int]) -> None:
        self.members = members

    @rule(thread=_THREADS, name=_NAMES, member=st.integers(0, _MEMBERS - 1))
    def look(self, thread: int, name: int, member: int) -> None:
        member %= self.members[name]
        self.time += 1
        held = {handle.binding.draw for handle in self.handles if handle.name == name}
        binding = self.binder.look(thread, name, member, self.time)
        if binding is None:
            assert not held, "S3"
            binding = self.binder.reserve(thread, name, self._take(), self.members[name], self.time)
        assert held <= {binding.draw}, "S3"
        assert self.binder.peek(name) is binding
        self.believed[name] = binding.draw.sample
        self.last_lookup = (name, member)

    @precondition(lambda self: self.last_lookup)
    @rule(thread=_THREADS)
    def open_what_was_just_looked_up(self, thread: int) -> None:
        assert self.last_lookup is not None
        self._open(thread, *self.last_lookup)

    @rule(thread=_THREADS, name=_NAMES, member=st.integers(0, _MEMBERS - 1))
    def open_some_time_after_a_lookup(self, thread: int, name: int, member: int) -> None:
        if self.binder.peek(name) is not None and name in self.believed:
            self._open(thread, name, member % self.members[name])

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.last_lookup = None
        self.binder.close(self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1))).binding)

    @rule(age=st.integers(0, 10))
    def revoke(self, age: int) -> None:
        self.last_lookup = None
        draws = self.binder.revoke(_GROUP, lambda binding: binding.since <= self.time - age)
        self.front += draws

    @rule()
    def forget(self) -> None:
        self.last_lookup = None
        self.forgotten += [binding.draw for binding in self._reserved()]
        self.binder.forget_reservations()

    @invariant()
    def the_binder_is_sound(self) -> None:
        self.binder.check_invariants()

    @invariant()
    def every_draw_is_in_one_place(self) -> None:
        reserved = [binding.draw for binding in self._reserved()]
        assert len(reserved) == self.binder.reservations(_GROUP)
        places = self.front + self.drawn + self.forgotten + reserved
        assert sorted(draw.sample for draw in places) == list(range(self.taken))

    @invariant()
    def a_name_with_a_handle_stands_for_its_sample(self) -> None:
        for handle in self.handles:
            assert self.binder.peek(handle.name) is handle.binding

    def _reserved(self) -> list[Binding]:
        bindings = [self.binder.peek(name) for name in range(4)]
        return [binding for binding in bindings if binding is not None and not binding.drawn]

    def _open(self, thread: int, name: int, member: int) -> None:
        opened = self.binder.open(thread, name, member)
        assert opened is not None
        binding, draws, _ = opened
        assert binding.draw.sample == self.believed[name]
        assert draws == (binding.draw not in self.drawn)
        if draws:
            self.drawn.append(binding.draw)
        self.handles.append(_Handle(name, binding))

    def _take(self) -> Draw:
        if self.front:
            return self.front.pop()
        self.taken += 1
        return Draw(_GROUP, 0, self.taken - 1)

    def _give_back(self, draw: Draw) -> None:
        self.front.append(draw)


def test_no_draw_is_lost_or_doubled_and_an_open_takes_what_the_kernel_believes() -> None:
    run_state_machine_as_test(
        _Kernel, settings=settings(deadline=None, max_examples=100, stateful_step_count=50, database=None)
    )


@pytest.mark.parametrize("n_names", [1, 10])
def test_many_samples_leave_no_more_than_the_threads_last_ones(n_names: int) -> None:
    world = _World()
    for turn in range(1000):
        world.use(1 + turn % 3, turn % n_names)
    kept = sum(world.binder.peek(name) is not None for name in range(n_names))
    assert kept <= 3
