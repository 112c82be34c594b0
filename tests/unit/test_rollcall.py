"""The roll call of several mounts: who is lost, and from which pass on, is the same for all that are left."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Iterable

import pytest
import trio

from deepiofs.fs.door import Kind, Report, Silence, Word
from deepiofs.fs.rollcall import RollCall
from tests.calls import LocalDoors
from tests.doubles import in_trio_time

_TIMEOUT_S = 1.0
_WITHIN_S = 10 * _TIMEOUT_S
_PASSES = 80


@pytest.fixture(autouse=True)
def _losses_are_expected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class _Job:
    """The roll calls of a job; `begun` is the pass that each has begun last."""

    def __init__(self, n_ranks: int, begun: Iterable[int] = ()) -> None:
        self.doors = LocalDoors()
        self.begun = list(begun) or [0] * n_ranks
        self.calls = [RollCall(rank, n_ranks, self.doors.call_of(rank), _TIMEOUT_S) for rank in range(n_ranks)]
        for rank, rollcall in enumerate(self.calls):
            self.doors.answers[rank] = rollcall.answer
            rollcall.begun = functools.partial(self.begun.__getitem__, rank)

    @contextlib.asynccontextmanager
    async def running(self, *, met: bool = True) -> AsyncIterator[trio.Nursery]:
        """met: all have called rank 0 before, as mounts do when they start."""
        async with trio.open_nursery() as nursery:
            self.doors.nursery = nursery
            if met:
                for rollcall in self.calls:
                    await rollcall.greet()
            yield nursery
            nursery.cancel_scope.cancel()

    def since(self, ranks: Iterable[int]) -> list[dict[int, int]]:
        """Who is out from which pass on, as these ranks know it."""
        return [self.calls[rank].losses.since for rank in ranks]


# --- Who is lost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [0, 1, 3])
@in_trio_time
async def test_a_process_that_is_gone_is_out_from_the_first_pass_that_nobody_has_begun(judge: int) -> None:
    job = _Job(4, [3, 5, 9, 4])
    job.doors.dead.add(2)
    async with job.running():
        await job.calls[judge].judge([2])
        await trio.sleep(_TIMEOUT_S)
        assert job.since([0, 1, 3]) == [{2: 6}] * 3


@in_trio_time
async def test_who_lives_is_not_out_whatever_its_engine_does() -> None:
    job = _Job(3)
    job.calls[1].has_engine = lambda: False
    async with job.running():
        await job.calls[2].judge([1])
        assert job.since(range(3)) == [{}] * 3
        await job.calls[0].judge([1])
        assert job.calls[0].without_engine == {1}


@in_trio_time
async def test_a_process_that_is_stopped_is_not_out() -> None:
    job = _Job(3)
    async with job.running():
        job.doors.stopped.add(1)
        await job.calls[2].judge([1])
        assert job.since(range(3)) == [{}] * 3


@in_trio_time
async def test_nothing_is_decided_while_one_that_lives_has_not_said_how_far_it_is() -> None:
    job = _Job(4)
    async with job.running():
        job.doors.dead.add(3)
        job.doors.stopped.add(1)
        await job.calls[2].judge([3])
        assert job.since([0, 2]) == [{}] * 2
        job.doors.stopped.clear()
        await trio.sleep(2 * _TIMEOUT_S)
        await job.calls[2].judge([3])
        assert job.since([0, 1, 2]) == [{3: 1}] * 3


@in_trio_time
async def test_one_call_suffices_for_all_that_are_lost() -> None:
    job = _Job(5, [2, 2, 2, 2, 2])
    job.doors.dead |= {0, 1, 4}
    async with job.running(met=False):
        for rollcall in job.calls:
            rollcall._met |= set(range(5))
        await job.calls[3].judge([4])
        await trio.sleep(_TIMEOUT_S)
        assert job.since([2, 3]) == [{0: 3, 1: 3, 4: 3}] * 2


@in_trio_time
async def test_the_last_one_left_serves_all() -> None:
    job = _Job(3, [4, 4, 4])
    async with job.running():
        job.doors.dead |= {1, 2}
        await job.calls[0].judge([1, 2])
        assert job.since([0]) == [{1: 5, 2: 5}]


# --- Who is cut off --------------------------------------------------------------------------------------------------


@in_trio_time
async def test_of_a_job_cut_in_two_the_larger_part_goes_on_alone_and_the_other_learns_it_later() -> None:
    job = _Job(5, [1, 2, 3, 4, 5])
    async with job.running():
        job.doors.cut |= {0, 1}
        for judge, suspects in ((2, [0, 1]), (0, [2, 3, 4]), (4, [1])):
            await job.calls[judge].judge(suspects)
        await trio.sleep(_WITHIN_S)
        assert job.since(range(5)) == [{}, {}, *[{0: 6, 1: 6}] * 3]
        job.doors.cut.clear()
        await job.calls[1].judge([3])
        assert 1 in job.calls[1].losses


@in_trio_time
async def test_of_two_halves_that_of_the_lowest_rank_goes_on() -> None:
    job = _Job(2)
    async with job.running():
        job.doors.cut.add(1)
        await job.calls[1].judge([0])
        await job.calls[0].judge([1])
        assert job.since(range(2)) == [{1: 1}, {}]
        job.doors.cut.clear()
        await trio.sleep(2 * _TIMEOUT_S)
        await job.calls[1].judge([0])
        assert job.since(range(2)) == [{1: 1}] * 2
        assert job.calls[0].guests == {1}


@in_trio_time
async def test_a_refusal_by_a_host_that_was_never_reached_proves_nothing() -> None:
    """A wall may refuse in its place."""
    job = _Job(2)
    async with job.running(met=False):
        job.doors.dead.add(0)
        await job.calls[1].judge([0])
        assert job.since([1]) == [{}]


# --- While it is agreed on -------------------------------------------------------------------------------------------


@in_trio_time
async def test_who_was_counted_begins_no_further_pass_until_it_is_told() -> None:
    job = _Job(3, [0, 0, 0])
    rollcall = job.calls[2]
    async with job.running():
        report = await rollcall.answer(Word(Kind.COUNT, 0, {}, (), 7))
        assert (report.begun, report.since) == (0, {})
        assert (rollcall.holds(0), rollcall.holds(1)) == (False, True)
        await rollcall.answer(Word(Kind.OVER, 0, {1: 1}, (), 6))  # of another ballot
        assert rollcall.holds(1)
        await rollcall.answer(Word(Kind.OVER, 0, {1: 1}, (), 7))
        assert not rollcall.holds(1)
        await rollcall.released()
        assert rollcall.losses.since == {1: 1}


@in_trio_time
async def test_a_mount_that_two_have_counted_waits_for_both_and_the_smaller_number_holds() -> None:
    job = _Job(4)
    rollcall = job.calls[3]
    async with job.running():
        for sender in (0, 1):
            await rollcall.answer(Word(Kind.COUNT, sender, {}, (), 1))
        await rollcall.answer(Word(Kind.OVER, 0, {2: 5}, (), 1))
        assert rollcall.holds(1)
        await rollcall.answer(Word(Kind.OVER, 1, {2: 4}, (), 1))
        assert not rollcall.holds(1)
        assert rollcall.losses.since == {2: 4}


@in_trio_time
async def test_a_coordinator_that_dies_before_it_tells_is_found_out_and_all_agree() -> None:
    job = _Job(4, [2, 2, 2, 2])
    async with job.running():
        for rank in (1, 2):  # it had counted these, and told one of them, when it died
            await job.calls[rank].answer(Word(Kind.COUNT, 0, {}, (), 9))
        await job.calls[1].answer(Word(Kind.OVER, 0, {3: 3}, (), 9))
        job.doors.dead |= {0, 3}
        begun = trio.current_time()
        assert job.calls[2].holds(3)
        await job.calls[2].released()
        assert trio.current_time() - begun <= 6 * _TIMEOUT_S + _WITHIN_S
        assert not job.calls[2].holds(3)
        await trio.sleep(_TIMEOUT_S)
        assert job.since([1, 2]) == [{0: 3, 3: 3}] * 2


@in_trio_time
async def test_the_next_rank_coordinates_if_the_lowest_does_not_answer() -> None:
    job = _Job(4)
    async with job.running():
        job.doors.dead |= {0, 2}
        begun = trio.current_time()
        await job.calls[3].judge([2])
        assert trio.current_time() - begun <= _WITHIN_S
        await trio.sleep(_TIMEOUT_S)
        assert job.since([1, 3]) == [{0: 1, 2: 1}] * 2


@in_trio_time
async def test_a_judgement_ends_in_time_though_all_are_stopped() -> None:
    job = _Job(6)
    async with job.running():
        job.doors.stopped |= {0, 1, 2, 3, 4}
        begun = trio.current_time()
        await job.calls[5].judge([4])
        assert trio.current_time() - begun <= _WITHIN_S
        assert job.since([5]) == [{}]


@in_trio_time
async def test_who_was_found_alive_is_not_judged_again_at_once() -> None:
    job = _Job(3)
    async with job.running():
        await job.calls[2].judge([1])
        calls = len(job.doors.calls)
        for _ in range(5):
            await job.calls[2].judge([1])
        assert len(job.doors.calls) == calls
        await trio.sleep(2 * _TIMEOUT_S)
        await job.calls[2].judge([1])
        assert len(job.doors.calls) > calls


@in_trio_time
async def test_all_that_notice_at_once_make_one_ballot() -> None:
    job = _Job(8)
    job.doors.delay = lambda: 0.01
    async with job.running():
        job.doors.dead.add(5)
        async with trio.open_nursery() as nursery:
            for rank in (0, 1, 2, 3, 4, 6, 7):
                nursery.start_soon(job.calls[rank].judge, [5])
        counts = [word for _, word in job.doors.calls if word.kind is Kind.COUNT]
        assert len(counts) == 6
        assert {word.ballot for word in counts} == {1}


@in_trio_time
async def test_another_mount_at_the_port_of_one_that_is_gone_is_not_taken_for_it() -> None:
    job = _Job(3)
    async with job.running():
        job.doors.answers[1] = job.calls[2].answer
        await job.calls[0].judge([1])
        assert job.since([0, 2]) == [{1: 1}] * 2


@in_trio_time
async def test_without_a_way_to_call_nobody_is_lost() -> None:
    rollcall = RollCall(0, 3)
    await rollcall.judge([1, 2])
    assert rollcall.losses.since == {}


def test_mounts_without_engines_look_after_each_other() -> None:
    job = _Job(4)
    job.calls[0].losses.learn({1: 0})
    assert [rollcall.neighbours() for rollcall in job.calls] == [[2], [2], [3], [0]]
    assert RollCall(0, 1).neighbours() == []


# --- Whatever happens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
@in_trio_time
async def test_all_that_are_left_agree_whoever_is_lost_when(seed: int) -> None:
    """Mounts begin pass after pass; some die, at any moment; who lives looks after some others now and then."""
    chance = random.Random(seed)
    n_ranks = chance.randrange(2, 7)
    job = _Job(n_ranks)
    job.doors.delay = lambda: chance.random() * 0.2
    plans: list[dict[int, frozenset[int]]] = [{} for _ in range(n_ranks)]
    dying = chance.sample(range(n_ranks), chance.randrange(1, n_ranks))

    async def live(rank: int, scope: trio.CancelScope) -> None:
        rollcall = job.calls[rank]
        with scope:
            while job.begun[rank] < _PASSES:
                await trio.sleep(chance.random() * 2)
                if chance.random() < 0.5:
                    await rollcall.judge(chance.sample(range(n_ranks), chance.randrange(1, n_ranks)))
                while rollcall.holds(job.begun[rank] + 1):
                    await rollcall.released()
                job.begun[rank] += 1
                plans[rank][job.begun[rank]] = rollcall.losses.out_in(job.begun[rank])

    async def die(rank: int, scope: trio.CancelScope) -> None:
        await trio.sleep(chance.random() * 40)
        job.doors.dead.add(rank)
        scope.cancel()

    async with job.running():
        for rollcall in job.calls:
            rollcall._met |= set(range(n_ranks))
        async with trio.open_nursery() as nursery:
            for rank in range(n_ranks):
                scope = trio.CancelScope()
                nursery.start_soon(live, rank, scope)
                if rank in dying:
                    nursery.start_soon(die, rank, scope)
    left = [rank for rank in range(n_ranks) if rank not in dying]
    # What was noticed last may not have been told to all that had begun all passes.
    for number in range(1, _PASSES + 1):
        assert len({plans[rank][number] for rank in left}) == 1
    assert plans[left[0]][_PASSES] == frozenset(dying)


def test_reports_of_a_silence_are_words() -> None:
    assert all(isinstance(silence.value, str) for silence in Silence)
    assert not isinstance(Silence.GONE, Report)
