"""Passes over mounts of which some are lost: nothing twice, and from the agreed pass on every sample again.

As `test_shuffle_simulation`, with the roll call between the mounts, and processes that are killed, left, stopped, cut
off, or lose their engine.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest
import trio

from deepiofs.errors import TimedOutError
from deepiofs.fs.rollcall import RollCall
from deepiofs.order.queues import Answer, Reply
from tests.calls import LocalDoors
from tests.doubles import in_trio_time
from tests.order.test_shuffle_simulation import _Job, _same_schedule, _threads

__all__ = ["_same_schedule", "_threads"]

_TIMEOUT_S = 5.0
_N_GROUPS = 3


@pytest.fixture(autouse=True)
def _losses_are_expected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class _LossyJob(_Job):
    """With doors. engineless: ranks that neither ask nor are asked. given: what a rank was given by others."""

    def __init__(self, size: int, node: Sequence[int], seed: int = 7) -> None:
        self.doors = LocalDoors()
        self.engineless: set[int] = set()
        self.left: set[int] = set()
        self.given: dict[int, set[tuple[int, bytes]]] = collections.defaultdict(set)
        self.scopes: dict[int, trio.CancelScope] = {}
        sizes = {b"%02d/%04d.jpg" % (c, i): 1 + c * size + i for c in range(_N_GROUPS) for i in range(size)}
        super().__init__(sizes, node, seed=seed, rollcall=lambda rank: self._rollcall(rank, len(node)))
        self.name_of_sample = {self.sample_of[name]: name for name in self.names}

    def _rollcall(self, rank: int, n_ranks: int) -> RollCall:
        rollcall = RollCall(rank, n_ranks, self.doors.call_of(rank), _TIMEOUT_S)
        rollcall.has_engine = lambda: rank not in self.engineless
        rollcall._met |= set(range(n_ranks))
        self.doors.answers[rank] = rollcall.answer
        return rollcall

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running(), trio.open_nursery() as nursery:
            self.doors.nursery = self._nursery
            for mount in self.mounts:
                nursery.start_soon(mount.rollcall.run)
            yield
            nursery.cancel_scope.cancel()

    def kill(self, rank: int) -> None:
        """Mount and engine end at once."""
        self.doors.dead.add(rank)
        if rank in self.scopes:
            self.scopes[rank].cancel()

    def leave(self, rank: int) -> None:
        """The mount ends; its engine lingers."""
        self.left.add(rank)
        self.kill(rank)

    async def draw(self, rank: int, thread: int, chance: random.Random, until: int) -> None:
        """A reader that opens names at random, until its mount is in this pass in all groups."""
        mount = self.mounts[rank]
        with trio.CancelScope() as self.scopes[rank]:
            while min(mount._queues_of(group).current for group in range(_N_GROUPS)) < until:
                behind = [g for g in range(_N_GROUPS) if mount._queues_of(g).current < until]
                name = chance.choice([n for n in self.names if self.group[self.sample_of[n]] in behind])
                while rank in self.doors.stopped:
                    await trio.sleep(0.5)
                await self.read(rank, thread, [name])
                await trio.sleep(chance.random() * 0.1)

    async def draw_on(self, ranks: Iterable[int], threads: Sequence[int], seed: int, until: int) -> None:
        """A reader on each mount."""
        async with trio.open_nursery() as nursery:
            for rank in ranks:
                nursery.start_soon(self.draw, rank, threads[rank], random.Random(100 * seed + rank), until)

    async def _travel(
        self, asker: int, rank: int, group: int, number: int, answers: list[Answer], done: trio.Event
    ) -> None:
        await trio.sleep(self.delay())
        if asker in self.engineless or rank in self.engineless or not self.doors.reach(asker, rank):
            return
        while rank in self.doors.stopped:
            await trio.sleep(0.5)
        if rank in self.left:
            answer = Answer(Reply.LEFT)
        elif rank in self.doors.dead:
            return
        else:
            answer = self.mounts[rank].asked(asker, group, number)
        if answer.reply is Reply.SAMPLE:
            self.given[asker].add((number, self.name_of_sample[answer.value]))
        await trio.sleep(self.delay())
        if asker not in self.doors.dead and self.doors.reach(asker, rank) and rank not in self.doors.dead - self.left:
            self.mounts[asker].stolen(rank, group, number, answer)
            answers.append(answer)
            done.set()

    async def _ask(self, asker: int, rank: int, group: int, number: int) -> Answer | None:
        if asker in self.engineless:
            return None
        assert self._nursery is not None
        done, answers = trio.Event(), list[Answer]()
        self._nursery.start_soon(self._travel, asker, rank, group, number, answers, done)
        with trio.move_on_after(_TIMEOUT_S):
            await done.wait()
        return answers[0] if answers else None

    def planned(self, rank: int, number: int) -> set[bytes]:
        """A rank's queues of a pass as planned over all."""
        plan = self.mounts[0].plan
        return {self.name_of_sample[s] for group in range(_N_GROUPS) for s in plan.queue(rank, group, number).tolist()}

    def drawn_by(self, ranks: Iterable[int]) -> dict[int, list[bytes]]:
        """The samples that these ranks drew, by pass, sorted."""
        ranks = set(ranks)
        passes: dict[int, list[bytes]] = collections.defaultdict(list)
        for drawn in self.drawn:
            if drawn.rank in ranks:
                passes[drawn.number].append(drawn.sample)
        return {number: sorted(samples) for number, samples in sorted(passes.items())}


def _assert_kept(job: _LossyJob, lost: set[int], until: int) -> None:
    """What is promised of passes before `until`, which all that are left have gone through."""
    left = set(range(len(job.mounts))) - lost
    facts = [job.mounts[rank].rollcall.losses.since for rank in left]
    assert all(known == facts[0] for known in facts)
    assert facts[0].keys() == lost
    by_all, by_left = job.drawn_by(range(len(job.mounts))), job.drawn_by(left)
    for number in range(until):
        seen = by_left.get(number, [])
        assert len(seen) == len(set(seen)), f"pass {number} repeats"
        out = {rank for rank, since in facts[0].items() if number >= since}
        if out == lost:
            assert seen == job.names, f"pass {number} lacks {set(job.names) - set(seen)}"
            continue
        whole = job.drawn_by(left | (lost - out)).get(number, [])
        assert len(whole) == len(set(whole))
        # Missing: of a lost rank's queue what it had not drawn, and what was on the way to it or from it.
        missing = set(job.names) - set(by_all[number])
        if not out:
            excused = [
                job.planned(rank, number) | {s for n, s in job.given[rank] if n == number} for rank in lost - out
            ]
            given = {s for n, s in set().union(*job.given.values()) if n == number}
            assert missing <= set().union(*excused, given)


@pytest.mark.parametrize("seed", range(25))
@in_trio_time
async def test_whoever_is_killed_or_leaves_when_nothing_is_repeated_and_later_passes_are_whole(
    threads: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    n_ranks = chance.randrange(2, 6)
    job = _LossyJob(chance.randrange(5, 25), [rank // 2 for rank in range(n_ranks)], seed)
    job.delay = job.doors.delay = lambda: chance.random() * 0.2
    lost = chance.sample(range(n_ranks), chance.randrange(1, n_ranks))

    async def lose(rank: int) -> None:
        await trio.sleep(chance.random() * 8)
        (job.leave if chance.random() < 0.5 else job.kill)(rank)

    async with job.running(), trio.open_nursery() as nursery:
        for rank in lost:
            nursery.start_soon(lose, rank)
        await job.draw_on(range(n_ranks), threads, seed, until=9)
    _assert_kept(job, set(lost), until=9)


@pytest.mark.parametrize("seed", range(10))
@in_trio_time
async def test_a_mount_without_an_engine_keeps_its_share_and_learns_of_losses(threads: list[int], seed: int) -> None:
    """Over all mounts that are left each pass is whole again, though one neither asks nor is asked."""
    chance = random.Random(seed)
    job = _LossyJob(18, [0, 0, 1, 1], seed)
    job.delay = job.doors.delay = lambda: chance.random() * 0.1
    lost, engineless = chance.sample(range(4), 2)

    async def lose() -> None:
        await trio.sleep(chance.random() * 3)
        job.engineless.add(engineless)
        await trio.sleep(chance.random() * 3)
        job.kill(lost)

    async with job.running(), trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        await job.draw_on(range(4), threads, seed, until=9)
    left = [rank for rank in range(4) if rank != lost]
    since = job.mounts[left[0]].rollcall.losses.since
    assert [job.mounts[rank].rollcall.losses.since for rank in left] == [since] * 3
    assert since.keys() == {lost}
    for number in range(since[lost], 9):
        assert job.drawn_by(left)[number] == job.names


@in_trio_time
async def test_if_all_engines_are_lost_a_killed_mount_is_found_out_all_the_same(threads: list[int]) -> None:
    job = _LossyJob(12, [0, 1, 2, 3])
    async with job.running():
        job.engineless |= {0, 1, 2, 3}
        await job.draw_on(range(4), threads, 1, until=2)
        await trio.sleep(2 * _TIMEOUT_S)  # so that who was found alive is judged again
        job.kill(2)
        await job.draw_on([0, 1, 3], threads, 2, until=6)
    since = job.mounts[0].rollcall.losses.since
    assert since.keys() == {2}
    for number in range(since[2], 6):
        assert job.drawn_by([0, 1, 3])[number] == job.names


@in_trio_time
async def test_a_mount_that_is_stopped_for_long_is_not_out_and_goes_on_with_its_share(threads: list[int]) -> None:
    job = _LossyJob(12, [0, 1, 2])

    async def stop_for_a_while() -> None:
        await trio.sleep(0.3)
        job.doors.stopped.add(1)
        await trio.sleep(30)
        job.doors.stopped.clear()

    async with job.running(), trio.open_nursery() as nursery:
        nursery.start_soon(stop_for_a_while)
        await job.draw_on(range(3), threads, 3, until=8)
    assert all(mount.rollcall.losses.since == {} for mount in job.mounts)
    for number, samples in job.passes().items():
        assert len(samples) == len(set(samples))
        if number < 8:
            assert samples == job.names


@in_trio_time
async def test_a_mount_that_was_cut_off_and_comes_back_repeats_nothing_from_then_on(threads: list[int]) -> None:
    job = _LossyJob(20, [0, 0, 1])
    async with job.running():
        await job.draw_on(range(3), threads, 4, until=1)
        job.doors.cut.add(2)
        await job.draw_on([0, 1], threads, 5, until=4)
        await job.draw_on([2], threads, 6, until=3)
        since = job.mounts[0].rollcall.losses.since
        assert since.keys() == {2}
        assert job.mounts[2].rollcall.losses.since == {}
        job.doors.cut.clear()
        await trio.sleep(2 * _TIMEOUT_S)
        await job.mounts[2].rollcall.judge([0])
        assert job.mounts[2].rollcall.losses.since == since
        await job.draw_on(range(3), threads, 7, until=7)
    by_all = job.drawn_by(range(3))
    for number in range(4, 7):
        assert by_all[number] == job.names
    assert any(drawn.rank == 2 for drawn in job.drawn if drawn.number >= 4)
    # While it was cut off it served its share of the plan over all, which the others served too.
    for number in range(since[2], 3):
        assert job.drawn_by([0, 1])[number] == job.names
        assert set(job.drawn_by([2]).get(number, [])) <= job.planned(2, number)


@in_trio_time
async def test_who_asks_while_it_is_out_is_told(threads: list[int]) -> None:
    job = _LossyJob(20, [0, 0, 1])
    async with job.running():
        await trio.sleep(_TIMEOUT_S)  # it has greeted, and knows of nothing
        job.mounts[0].rollcall._learn({2: 0})
        job.mounts[1].rollcall._learn({2: 0})
        assert (await job._ask(2, 0, 0, 0)) is not None
        await trio.sleep(_TIMEOUT_S)
        assert job.mounts[2].rollcall.losses.since == {2: 0}
        await job.draw_on(range(3), threads, 7, until=3)
    by_all = job.drawn_by(range(3))
    assert by_all[1] == by_all[2] == job.names


@in_trio_time
async def test_what_a_rank_that_is_out_has_taken_and_not_drawn_is_drawn_by_another(threads: list[int]) -> None:
    job = _LossyJob(8, [0, 1])
    async with job.running():
        for mount in job.mounts:
            mount.rollcall._learn({1: 0})
        await trio.sleep(_TIMEOUT_S)
        group = int(job.group[job.sample_of[job.names[0]]])
        await job.mounts[1].look(threads[1], job.row[job.names[0]])
        assert job.mounts[1].steals == 1
        for name in job.names[:8]:
            await job.read(0, threads[0], [name])
    assert job.mounts[0]._queues_of(group).current == 0
    assert job.drawn_by([0]) == {0: job.names[:8]}


@in_trio_time
async def test_who_has_promised_to_begin_no_pass_does_not_do_so_for_another(threads: list[int]) -> None:
    job = _LossyJob(8, [0, 1])
    mount = job.mounts[0]
    await job.read(0, threads[0], job.names[:1])
    mount.rollcall._hold(1, 1)
    assert mount.asked(1, 0, 1) == Answer(Reply.BUSY)
    assert mount.asked(1, 0, 0).reply is Reply.SAMPLE
    mount.rollcall._release(1, 1)
    assert mount.asked(1, 0, 1).reply is Reply.SAMPLE


@in_trio_time
async def test_who_hears_late_of_a_loss_leaves_what_it_has_not_drawn_to_the_others(threads: list[int]) -> None:
    job = _LossyJob(12, [0, 0, 1])
    mount = job.mounts[0]
    await job.read(0, threads[0], job.names[:1])
    assert mount.asked(1, 0, 1).reply is Reply.SAMPLE  # of a pass that this mount has not come to
    mount.rollcall._learn({2: 1})
    assert mount.asked(1, 0, 0).reply is Reply.SAMPLE
    assert mount.asked(1, 0, 1) == Answer(Reply.EMPTY)


@in_trio_time
async def test_a_mount_that_is_out_and_that_nobody_answers_fails_to_open(threads: list[int]) -> None:
    job = _LossyJob(6, [0, 1])
    async with job.running():
        job.mounts[1].rollcall._learn({1: 0})
        job.doors.cut.add(1)
        with pytest.raises(TimedOutError):
            await job.open(1, threads[1], job.names[0])
        job.doors.cut.clear()
        await trio.sleep(90)
        assert (await job.open(1, threads[1], job.names[0])).number == 0


@in_trio_time
async def test_a_mount_left_alone_with_groups_of_which_it_has_nothing_fails_to_open(threads: list[int]) -> None:
    job = _LossyJob(1, [0, 0])
    async with job.running():
        job.engineless |= {0, 1}
        failures = 0
        for name in job.names:
            try:
                await job.open(0, threads[0], name)
            except TimedOutError:
                failures += 1
    assert 0 < failures < len(job.names)
