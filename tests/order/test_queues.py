"""The queues of one rank, and of several that take from each other: each sample once per pass."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
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

from deepiofs.order.queues import Answer, Draw, GroupQueues, Reply, victim_order

_GROUP = 3
_EMPTY = Answer(Reply.EMPTY)
_SETTINGS = settings(deadline=None, max_examples=100, stateful_step_count=50, database=None)


def _queues(*passes: list[int], rank: int = 0, n_ranks: int = 3) -> GroupQueues:
    """A rank whose queue in pass p is passes[p]; empty after those."""
    return GroupQueues(_GROUP, rank, n_ranks, lambda number: _ids(passes[number] if number < len(passes) else []))


def _ids(samples: list[int]) -> npt.NDArray[np.uint32]:
    return np.array(samples, np.uint32)


def _taken(queues: GroupQueues) -> list[tuple[int, int]]:
    """(pass, sample) of all draws until there are none."""
    draws = []
    while draw := queues.take():
        assert draw.group == _GROUP
        draws.append((draw.number, draw.sample))
    return draws


# --- One rank --------------------------------------------------------------------------------------------------------


def test_the_owner_takes_from_the_front() -> None:
    queues = _queues([5, 6, 7])
    assert _taken(queues) == [(0, 5), (0, 6), (0, 7)]
    assert queues.take() is None


def test_another_takes_from_the_back_until_it_is_empty() -> None:
    queues = _queues([5, 6, 7])
    assert queues.take() == Draw(_GROUP, 0, 5)
    assert [queues.asked(0) for _ in range(3)] == [Answer(Reply.SAMPLE, 7), Answer(Reply.SAMPLE, 6), _EMPTY]
    assert queues.take() is None


def test_what_is_given_back_is_the_next_again() -> None:
    queues = _queues([5, 6, 7])
    draw = queues.take()
    assert draw is not None
    queues.give_back(draw)
    assert _taken(queues) == [(0, 5), (0, 6), (0, 7)]


def test_what_is_given_back_last_comes_first() -> None:
    queues = _queues([5, 6, 7, 8])
    first, second = queues.take(), queues.take()
    assert first is not None
    assert second is not None
    queues.give_back(second)
    queues.give_back(first)
    assert _taken(queues) == [(0, 5), (0, 6), (0, 7), (0, 8)]


def test_others_get_what_was_given_back_last_of_all() -> None:
    queues = _queues([5, 6])
    first, second = queues.take(), queues.take()
    assert first is not None
    assert second is not None
    queues.give_back(second)
    queues.give_back(first)
    assert [queues.asked(0).value for _ in range(2)] == [6, 5]
    assert queues.asked(0) == _EMPTY


def test_remaining_counts_all_entries_of_the_current_pass() -> None:
    queues = _queues([5, 6, 7], [8])
    assert queues.remaining == 3
    draw = queues.take()
    queues.asked(0)
    assert queues.remaining == 1
    assert draw is not None
    queues.give_back(draw)
    queues.answered(1, 0, Answer(Reply.SAMPLE, 9))
    assert queues.remaining == 3


def test_what_another_gave_is_drawn_next() -> None:
    queues = _queues([5])
    queues.answered(1, 0, Answer(Reply.SAMPLE, 9))
    assert _taken(queues) == [(0, 9), (0, 5)]


def test_a_rank_is_asked_until_it_is_empty() -> None:
    queues = _queues([])
    assert queues.victims([2, 0, 1]) == [2, 1]
    queues.answered(2, 0, Answer(Reply.SAMPLE, 9))
    assert queues.victims([2, 0, 1]) == [2, 1]
    queues.answered(2, 0, _EMPTY)
    assert queues.victims([2, 0, 1]) == [1]
    queues.give_up(1)
    assert queues.victims([2, 0, 1]) == []


def test_in_the_next_pass_all_are_asked_again() -> None:
    queues = _queues([])
    queues.answered(2, 0, _EMPTY)
    queues.advance()
    assert queues.current == 1
    assert queues.victims([2, 1]) == [2, 1]


def test_a_late_answer_of_the_last_pass_says_nothing_of_this_one() -> None:
    queues = _queues([], [])
    queues.advance()
    queues.answered(2, 0, _EMPTY)
    assert queues.victims([2, 1]) == [2, 1]


def test_a_late_sample_is_served_in_its_own_pass_before_this_ones() -> None:
    queues = _queues([], [5, 6])
    queues.advance()
    assert queues.take() == Draw(_GROUP, 1, 5)
    queues.answered(2, 0, Answer(Reply.SAMPLE, 9))
    assert _taken(queues) == [(0, 9), (1, 6)]


def test_a_late_sample_can_be_taken_by_one_who_is_behind() -> None:
    queues = _queues([], [5])
    queues.advance()
    queues.answered(2, 0, Answer(Reply.SAMPLE, 9))
    assert [queues.asked(0), queues.asked(0).reply] == [Answer(Reply.SAMPLE, 9), Reply.AHEAD]


def test_one_who_is_ahead_takes_of_the_queue_to_come() -> None:
    queues = _queues([5], [6, 7])
    assert queues.asked(1) == Answer(Reply.SAMPLE, 7)
    assert _taken(queues) == [(0, 5)]
    queues.advance()
    assert _taken(queues) == [(1, 6)]


def test_one_who_is_behind_is_told_so_and_given_nothing_of_this_pass() -> None:
    queues = _queues([], [5])
    queues.advance()
    assert queues.asked(0).reply is Reply.AHEAD
    assert _taken(queues) == [(1, 5)]


def test_one_who_was_told_that_another_is_ahead_does_not_ask_it_again_in_this_pass() -> None:
    ahead, behind = _queues([], n_ranks=2), _queues([], rank=1, n_ranks=2)
    ahead.advance()
    behind.answered(0, 0, ahead.asked(0))
    assert behind.victims([0]) == []


def test_who_was_given_up_for_late_serves_all_its_passes_itself() -> None:
    """One who could not ask it in time went on without its entries: nobody else has them."""
    ahead = _queues([1], [2], [3], n_ranks=2)
    behind = _queues([4], [5], [6], rank=1, n_ranks=2)
    for number in range(2):
        assert _taken(ahead) == [(number, number + 1)]
        ahead.give_up(1)
        ahead.advance()
    drawn = _taken(behind)
    behind.answered(0, 0, ahead.asked(0))
    behind.advance()
    drawn += _taken(behind)
    assert drawn == [(0, 4), (1, 5)]


# --- The first that is ready -----------------------------------------------------------------------------------------


def test_the_first_of_the_window_that_is_ready_is_taken_and_the_skipped_stay_in_order() -> None:
    queues = _queues([5, 6, 7, 8, 9])
    assert queues.take(3, lambda sample: sample == 7) == Draw(_GROUP, 0, 7)
    assert queues.upcoming(5) == [5, 6, 8, 9]
    assert queues.take(3, lambda sample: sample > 5) == Draw(_GROUP, 0, 6)
    assert _taken(queues) == [(0, 5), (0, 8), (0, 9)]


def test_if_none_of_the_window_is_ready_none_is_taken_though_one_behind_it_is() -> None:
    queues = _queues([5, 6, 7, 8])
    assert queues.take(3, lambda sample: sample == 8) is None
    assert queues.remaining == 4
    assert queues.take(4, lambda sample: sample == 8) == Draw(_GROUP, 0, 8)


def test_others_are_given_from_the_back_also_of_what_was_looked_at() -> None:
    queues = _queues([5, 6, 7])
    assert queues.upcoming(3) == [5, 6, 7]
    assert [queues.asked(0).value for _ in range(2)] == [7, 6]
    assert queues.upcoming(3) == [5]


def test_what_came_back_to_an_earlier_pass_is_not_waited_for() -> None:
    queues = _queues([], [5])
    queues.advance()
    queues.answered(2, 0, Answer(Reply.SAMPLE, 9))
    assert queues.take(3, lambda sample: False) == Draw(_GROUP, 0, 9)
    assert queues.take(3, lambda sample: False) is None


def test_what_is_to_come_is_of_the_current_pass_only() -> None:
    queues = _queues([5, 6], [7, 8])
    assert queues.upcoming(4) == [5, 6]
    queues.begin(1)
    assert queues.upcoming(4) == [7, 8]


class _OneQueue(RuleBasedStateMachine):
    """A pass of one rank beside a list, the next sample first; others take from it and give to it."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Draw] = []
        self.gone: list[int] = []

    @initialize(size=st.integers(0, 12))
    def start(self, size: int) -> None:
        self.model = list(range(size))
        self.new = iter(range(size, 1000))
        self.queues = _queues(list(range(size)))

    @rule(window=st.integers(1, 6), ready=st.sets(st.integers(0, 20)))
    def take(self, window: int, ready: set[int]) -> None:
        expected = next((sample for sample in self.model[:window] if sample in ready), None)
        draw = self.queues.take(window, lambda sample: sample in ready)
        assert (draw and draw.sample) == expected
        if draw is not None:
            self.model.remove(draw.sample)
            self.out.append(draw)

    @rule(count=st.integers(0, 15))
    def look_ahead(self, count: int) -> None:
        upcoming = self.queues.upcoming(count)
        assert upcoming == self.model[: len(upcoming)]
        assert len(upcoming) >= min(count, len(self.model))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        draw = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.queues.give_back(draw)
        self.model.insert(0, draw.sample)

    @rule()
    def another_asks(self) -> None:
        answer = self.queues.asked(0)
        if answer.reply is Reply.SAMPLE:
            self.gone.append(answer.value)
            assert answer.value == self.model.pop()
        else:
            assert (answer, self.model) == (_EMPTY, [])

    @rule()
    def another_gives(self) -> None:
        sample = next(self.new)
        self.queues.answered(1, 0, Answer(Reply.SAMPLE, sample))
        self.model.insert(0, sample)

    @precondition(lambda self: self.gone)
    @rule()
    def another_gives_back_what_it_had(self) -> None:
        sample = self.gone.pop()
        self.queues.answered(1, 0, Answer(Reply.SAMPLE, sample))
        self.model.insert(0, sample)

    @invariant()
    def counts_what_is_here(self) -> None:
        if hasattr(self, "queues"):
            assert self.queues.remaining == len(self.model)

    def teardown(self) -> None:
        assert [sample for _, sample in _taken(self.queues)] == self.model


def test_a_queue_is_a_list_from_which_the_first_ready_one_is_taken() -> None:
    run_state_machine_as_test(_OneQueue, settings=_SETTINGS)


# --- A pass begun by command -----------------------------------------------------------------------------------------


def test_a_pass_begun_by_command_gives_the_rest_of_the_last_one_up() -> None:
    queues = _queues([5, 6], [7], [8])
    queues.take()
    queues.begin(2)
    assert queues.current == 2
    assert _taken(queues) == [(2, 8)]
    assert queues.asked(0) == Answer(Reply.AHEAD, 2)


def test_what_was_taken_from_a_pass_before_it_began_by_command_stays_taken() -> None:
    queues = _queues([5], [6, 7])
    assert queues.asked(1) == Answer(Reply.SAMPLE, 7)
    queues.begin(1)
    assert _taken(queues) == [(1, 6)]


def test_what_is_out_when_a_pass_begins_by_command_comes_back_to_its_own() -> None:
    queues = _queues([5], [6])
    draw = queues.take()
    queues.begin(1)
    assert draw is not None
    queues.give_back(draw)
    assert _taken(queues) == [(0, 5), (1, 6)]


def test_what_came_late_is_not_lost_where_the_new_pass_has_nothing() -> None:
    queues = _queues([], [], n_ranks=2)
    queues.advance()
    queues.answered(1, 0, Answer(Reply.SAMPLE, 9))
    assert queues.take() == Draw(_GROUP, 0, 9)


def test_one_who_began_by_command_draws_the_others_after_it() -> None:
    ahead, behind = _queues([1, 2], [3], rank=0, n_ranks=2), _queues([4, 5], [6], rank=1, n_ranks=2)
    ahead.begin(1)
    assert _taken(behind) == [(0, 4), (0, 5)]
    behind.answered(0, 0, ahead.asked(0))
    assert behind.victims([0]) == []
    behind.advance()
    assert _taken(ahead) + _taken(behind) == [(1, 3), (1, 6)]


def test_one_who_is_behind_moves_on_to_a_pass_that_another_began_by_command() -> None:
    ahead, behind = _queues([], [], [], [1], n_ranks=2), _queues([4], [], [], [5], rank=1, n_ranks=2)
    ahead.begin(3)
    assert _taken(behind) == [(0, 4)]
    behind.answered(0, 0, ahead.asked(0))
    behind.advance()
    assert _taken(behind) == [(3, 5)]


def test_a_pass_begun_again_is_whole_and_the_ones_after_it_too() -> None:
    queues = _queues([5, 6], [7, 8], [9])
    for number in range(3):
        queues.begin(number)
        _taken(queues)
    queues.begin(0)
    assert _taken(queues) == [(0, 5), (0, 6)]
    queues.advance()
    assert _taken(queues) == [(1, 7), (1, 8)]
    queues.advance()
    assert _taken(queues) == [(2, 9)]


def test_after_a_pass_begun_again_the_next_one_follows() -> None:
    """What others said before of the pass they were in is of no account."""
    queues = _queues([], [], [5], [], n_ranks=2)
    queues.answered(1, 0, Answer(Reply.AHEAD, 5))
    queues.begin(1)
    queues.advance()
    assert queues.current == 2


# --- In which order others are asked ---------------------------------------------------------------------------------


def test_each_rank_asks_all_others_in_an_order_of_its_own() -> None:
    orders = [victim_order(rank, 16, 0, 0, seed=1) for rank in range(16)]
    for rank, order in enumerate(orders):
        assert sorted(order) == [other for other in range(16) if other != rank]
    assert len({order[0] for order in orders}) > 4


def test_the_order_of_victims_is_the_seeds_the_passes_and_the_groups() -> None:
    first = victim_order(0, 16, 0, 0, seed=1)
    assert victim_order(0, 16, 0, 0, seed=1) == first
    assert victim_order(0, 16, 1, 0, seed=1) != first
    assert victim_order(0, 16, 0, 1, seed=1) != first
    assert victim_order(0, 16, 0, 0, seed=2) != first


def test_one_rank_alone_asks_nobody() -> None:
    assert victim_order(0, 1, 0, 0, seed=1) == []


# --- Several ranks, in any order of events ---------------------------------------------------------------------------


@dataclasses.dataclass
class _Question:
    """On its way from a rank to another, and back."""

    asker: int
    victim: int
    number: int
    answer: Answer | None = None
    awaited: bool = True


class _Ranks(RuleBasedStateMachine):
    """Ranks that draw, reserve, give back, and ask each other; questions and answers travel as long as they like.

    A draw is counted when it is used; what is reserved and given back is not.
    """

    can_time_out = False

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[GroupQueues] = []
        self.used: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self.untouched: dict[int, set[int]] = {}
        self.reserved: list[tuple[int, Draw]] = []
        self.questions: list[_Question] = []

    @initialize(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def start(self, sizes: list[int]) -> None:
        self.samples = list(range(sum(sizes)))
        ends = np.cumsum(sizes).tolist()
        self.parts = [self.samples[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self.ranks = [GroupQueues(_GROUP, rank, len(sizes), self._load_of(rank)) for rank in range(len(sizes))]

    @rule(data=st.data())
    def draw(self, data: st.DataObject) -> None:
        self._step(data.draw(st.integers(0, len(self.ranks) - 1)), lambda rank, draw: self._use(draw))

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, len(self.ranks) - 1))
        self._step(rank, lambda rank, draw: self.reserved.append((rank, draw)))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), use=st.booleans())
    def end_reservation(self, data: st.DataObject, use: bool) -> None:
        rank, draw = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        if use:
            self._use(draw)
        else:
            self.ranks[rank].give_back(draw)

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self._deliver(data.draw(st.integers(0, len(self.questions) - 1)))

    @precondition(lambda self: self.can_time_out and any(question.awaited for question in self.questions))
    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        question = data.draw(st.sampled_from([question for question in self.questions if question.awaited]))
        question.awaited = False
        if self.ranks[question.asker].current == question.number:
            self.ranks[question.asker].give_up(question.victim)

    @invariant()
    def no_sample_is_drawn_twice_in_a_pass(self) -> None:
        for drawn in self.used.values():
            assert max(drawn.values(), default=0) <= 1

    def teardown(self) -> None:
        """All readers go on until the passes that anybody has drawn of are over."""
        last = max((queues.current for queues in self.ranks), default=0)
        while self.reserved:
            self.ranks[self.reserved[0][0]].give_back(self.reserved.pop(0)[1])
        while self.questions or any(queues.current <= last for queues in self.ranks):
            while self.questions:
                self._deliver(0)
            for rank, queues in enumerate(self.ranks):
                if queues.current <= last or queues.current > last + 1:
                    self._step(rank, lambda rank, draw: self._use(draw))
        for rank in range(len(self.ranks)):  # what came late
            while (draw := self.ranks[rank].take()) and draw.number <= last:
                self._use(draw)
        for number in range(last + 1):
            assert sorted(self.used[number].elements()) == self.samples

    def _load_of(self, rank: int) -> Callable[[int], npt.NDArray[np.uint32]]:
        def load(number: int) -> npt.NDArray[np.uint32]:
            self.untouched.setdefault(number, set(self.samples))
            return _ids(self.parts[rank][::-1] if number % 2 else self.parts[rank])

        return load

    def _use(self, draw: Draw) -> None:
        self.used[draw.number][draw.sample] += 1

    def _touch(self, number: int, sample: int) -> None:
        self.untouched.setdefault(number, set(self.samples)).discard(sample)

    def _step(self, rank: int, then: Callable[[int, Draw], None]) -> None:
        """What a mount does for a draw, as far as it comes without an answer."""
        queues = self.ranks[rank]
        if draw := queues.take():
            self._touch(draw.number, draw.sample)
            then(rank, draw)
            return
        asked = {q.victim for q in self.questions if q.asker == rank and q.number == queues.current and q.awaited}
        victims = queues.victims(victim_order(rank, len(self.ranks), queues.current, _GROUP, seed=0))
        new = [victim for victim in victims[:3] if victim not in asked]
        self.questions += [_Question(rank, victim, queues.current) for victim in new]
        if not victims:
            self._advance(queues)

    def _advance(self, queues: GroupQueues) -> None:
        before = queues.current
        queues.advance()
        if not self.can_time_out:
            for number in range(before, queues.current):
                left = self.untouched.get(number, set(self.samples))
                assert not left, f"pass {number} is left while {left} lie in their owners' queues"

    def _deliver(self, index: int) -> None:
        question = self.questions[index]
        if question.answer is None:
            question.answer = self.ranks[question.victim].asked(question.number)
            if question.answer.reply is Reply.SAMPLE:
                self._touch(question.number, question.answer.value)
            return
        del self.questions[index]
        self.ranks[question.asker].answered(question.victim, question.number, question.answer)


class _RanksThatTimeOut(_Ranks):
    """The same, and who waits for an answer may stop waiting; the answer comes all the same."""

    can_time_out = True


def test_each_pass_is_every_sample_once_and_nobody_leaves_one_with_entries_in_their_owners_queues() -> None:
    run_state_machine_as_test(_Ranks, settings=_SETTINGS)


def test_each_pass_is_every_sample_once_however_late_answers_come() -> None:
    run_state_machine_as_test(_RanksThatTimeOut, settings=_SETTINGS)


def test_nobody_advances_before_all_have_answered() -> None:
    queues = _queues([], n_ranks=4)
    for other in (1, 2, 3):
        assert queues.victims([1, 2, 3]) != []
        queues.answered(other, 0, _EMPTY)
    assert queues.victims([1, 2, 3]) == []


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_one_rank_draws_everything_when_the_others_never_read(n_ranks: int) -> None:
    ranks = [_queues([10 * r, 10 * r + 1], [10 * r + 2], rank=r, n_ranks=n_ranks) for r in range(n_ranks)]
    drawn = []
    for _ in range(2):
        while True:
            drawn += _taken(ranks[0])
            victims = ranks[0].victims(range(n_ranks))
            if not victims:
                break
            ranks[0].answered(victims[0], ranks[0].current, ranks[victims[0]].asked(ranks[0].current))
        ranks[0].advance()
    assert sorted(drawn) == sorted(
        [(0, 10 * r + i) for r in range(n_ranks) for i in (0, 1)] + [(1, 10 * r + 2) for r in range(n_ranks)]
    )
