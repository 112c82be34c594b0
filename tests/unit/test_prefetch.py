"""What is fetched before it is drawn: how much, of which groups, and what is waited for."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from deepiofs.fs.nearby import Nearby
from deepiofs.fs.prefetch import Prefetcher, _proportional
from deepiofs.memory.board import Counter
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE
from deepiofs.memory.store import span
from deepiofs.memory.wire import Fetch, Pressed, Release
from tests.doubles import in_trio_time
from tests.unit.jobs import Mounted

_SIZE = 1000
_SPAN = span(_SIZE)
_ROOMY = 1 << 20
_GRACE_S = 0.5


class _Queues:
    """The next samples of each group, as the test says. `computed`: groups whose queue is there without computing."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self.next = [list(group) for group in groups]
        self.computed = set(range(len(groups)))
        self.loads: list[int] = []

    def is_loaded(self, group: int) -> bool:
        return group in self.computed

    async def load(self, group: int) -> None:
        if group not in self.computed:
            self.loads.append(group)
            await trio.sleep(1)
            self.computed.add(group)

    def upcoming(self, group: int, count: int) -> list[int]:
        assert group in self.computed
        return self.next[group]


class _World:
    """A mount with shuffled samples, each of `files` files, none of which is in this node.

    groups: the samples of each. Sample s has the units s * files and on.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        count: int,
        *,
        files: int = 1,
        size: Callable[[int], int] = lambda unit: _SIZE,
        home: Callable[[int], int] = lambda unit: NOWHERE,
        staging_bytes: int = _ROOMY,
        timeout_s: float = 5.0,
    ) -> None:
        n_files = files * (max(itertools.chain(*groups), default=-1) + 1)
        contents = {b"%04d" % i: bytes([i % 251]) * size(i) for i in range(n_files)}
        self.mounted = Mounted(contents, home, staging_bytes=staging_bytes, timeout_s=timeout_s)
        self.engine, self.requests = self.mounted.engine, self.mounted.link.requests
        rows = [self.mounted.link.manifest.find(path) or 0 for path in sorted(contents)]
        n_samples = n_files // files
        self.nearby = Nearby(self.mounted.link, lambda s: rows[s * files : (s + 1) * files], n_samples)
        self.ahead = Prefetcher(self.requests, self.nearby, count, staging_bytes, timeout_s)
        self.requests.give_up_claim = self.ahead.give_up_newest
        self.queues = _Queues(groups)
        self.sizes = [len(group) for group in groups]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with self.mounted.running() as nursery:
            self.ahead.begin(self.queues, self.sizes)
            nursery.start_soon(self.ahead.run)
            await self.settle()
            yield nursery
            self.check()
            nursery.cancel_scope.cancel()

    async def settle(self) -> None:
        """Until nothing happens any more by itself."""
        await trio.testing.wait_all_tasks_blocked()
        self.check()

    async def draw(self, group: int) -> int | None:
        """What an open draws; None if it would have to wait."""
        sample = next((s for s in self.queues.next[group][: self.ahead.window] if self.ahead.ready(s)), None)
        if sample is not None:
            self.queues.next[group].remove(sample)
            self.ahead.taken(group)
            self.ahead.drawn(group, sample)
        await self.settle()
        return sample

    async def wait(self, group: int, wanted: int = 1) -> float:
        """Wait for a group's next sample as a draw does; for how long it did."""
        begin = trio.current_time()
        await self.ahead.wait(group, wanted)
        return trio.current_time() - begin

    async def answer(self, *units: int) -> None:
        for unit in units:
            await self.engine.answer(unit)
        await self.settle()

    def claimed(self) -> list[int]:
        """Samples that are claimed, in order."""
        return sorted(self.ahead._claims)

    def check(self) -> None:
        """What is true at any time."""
        ahead = self.ahead
        assert ahead.claimed_bytes == sum(claim.span for claim in ahead._claims.values())
        self.requests.staged.check_invariants()
        kept = collections.Counter(unit for claim in ahead._claims.values() for unit in claim.units)
        assert kept == self.requests.staged._claims
        twice = [unit for unit, count in collections.Counter(self._asked_since_released()).items() if count > 1]
        assert twice == []

    def _asked_since_released(self) -> list[int]:
        """Units that were asked for, but for those that were released since."""
        asked: list[int] = []
        for word in self.engine.heard:
            if isinstance(word, Release):
                asked.remove(word.unit)
            elif isinstance(word, Fetch):
                asked.append(word.unit)
        return [unit for unit in asked if unit not in self.engine.missing]


# --- How many, and of which groups -----------------------------------------------------------------------------------


@in_trio_time
async def test_the_next_draws_are_fetched_ahead_in_their_order_and_one_more_after_each_draw() -> None:
    world = _World([range(20)], 4)
    async with world.running():
        assert world.engine.fetches == [0, 1, 2, 3]
        assert world.engine.urgent == []
        for sample in range(20):
            assert await world.draw(0) == sample
            assert world.engine.fetches == list(range(min(sample + 5, 20)))
        assert world.claimed() == []
        assert world.ahead.claimed_bytes == 0


@in_trio_time
async def test_what_is_in_the_node_is_not_fetched() -> None:
    world = _World([range(20)], 8, home=lambda unit: [0, 1, 2, NOWHERE][unit % 4])
    async with world.running():
        assert world.engine.fetches == [2, 3, 6, 7]
        for sample in range(20):
            assert await world.draw(0) == sample
        assert world.engine.fetches == [unit for unit in range(20) if unit % 4 >= 2]


@in_trio_time
async def test_what_is_to_be_in_the_node_and_is_not_loaded_yet_is_fetched() -> None:
    world = _World([range(4)], 4, home=lambda unit: 0)
    world.mounted.stores[0].give_up(world.mounted.dataset.at[2])
    async with world.running():
        assert world.engine.fetches == [2]


@in_trio_time
async def test_once_the_job_is_warm_what_the_node_was_to_hold_is_not_fetched() -> None:
    world = _World([range(4)], 4, home=lambda unit: 0)
    world.mounted.stores[0].give_up(world.mounted.dataset.at[2])
    world.mounted.link.board[Counter.STATE_WARM] = 1
    async with world.running():
        assert world.engine.fetches == []
        assert world.ahead.ready(2)


@in_trio_time
async def test_with_a_count_of_nothing_nothing_is_fetched_and_nothing_waited_for() -> None:
    world = _World([range(20)], 0)
    async with world.running():
        for sample in range(20):
            assert await world.draw(0) == sample
        world.ahead.changed(0)
        world.ahead.gone(3)
        world.ahead.restart()
        await world.settle()
        assert world.engine.heard == []


@in_trio_time
async def test_before_the_first_draw_each_group_has_its_share_by_size() -> None:
    world = _World([range(30), range(30, 40)], 8)
    async with world.running():
        assert sorted(world.engine.fetches) == [0, 1, 2, 3, 4, 5, 30, 31]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.integers(1, 100))
def test_shares_are_in_proportion_and_spread_evenly(sizes: list[int], count: int) -> None:
    groups = list(_proportional(sizes, count))
    assert len(groups) == count
    assert groups == sorted(groups)
    for group, size in enumerate(sizes):
        assert abs(groups.count(group) - size * count / sum(sizes)) <= 1
        assert size or not groups.count(group)


@in_trio_time
async def test_the_window_is_of_all_draws_and_follows_the_recent_ones() -> None:
    world = _World([range(100), range(100, 200)], 8)
    async with world.running():
        assert world.claimed() == [0, 1, 2, 3, 100, 101, 102, 103]
        for _ in range(4):
            for group in (0, 1, 1, 1):
                assert await world.draw(group) is not None
                assert len(world.claimed()) <= 8
        assert world.claimed() == [4, 5, *range(112, 118)]


@in_trio_time
async def test_what_was_claimed_for_a_group_that_is_not_drawn_is_kept_while_nobody_needs_the_place_more() -> None:
    world = _World([range(100), range(100, 200)], 16)
    async with world.running():
        for _ in range(7):
            await world.draw(1)
        assert world.claimed()[:8] == list(range(8))
        assert await world.draw(0) == 0
        assert world.engine.fetches.count(0) == 1


@pytest.mark.parametrize("count", [2, 4, 16, 40])
def test_a_group_that_is_not_drawn_at_all_leaves_its_places_to_one_that_is_drawn_often(count: int) -> None:
    @in_trio_time
    async def main() -> None:
        world = _World([range(100), range(100, 300)], count)
        async with world.running():
            for _ in range(2 * count):
                if await world.draw(1) is None:
                    await world.wait(1)
                    assert await world.draw(1) is not None
            first = world.queues.next[1][0]
            assert world.claimed() == list(range(first, first + count))
            assert world.ahead.claimed_bytes == count * _SPAN

    main()


@in_trio_time
async def test_a_group_that_is_not_drawn_at_all_leaves_its_bytes_too() -> None:
    """Samples are so large that half of staging, and not the window, is full."""
    world = _World([[0, 1], [2, 3], *([group] for group in range(4, 60)), range(60, 100)], 30, staging_bytes=8 * 1024)
    async with world.running():
        assert len(world.claimed()) == 4
        for _ in range(32):
            if await world.draw(58) is None:
                await world.wait(58)
                assert await world.draw(58) is not None
        first = world.queues.next[58][0]
        assert world.claimed() == list(range(first, first + 4))


@in_trio_time
async def test_of_a_large_group_the_queue_is_computed_first() -> None:
    world = _World([range(4), range(4, 8)], 4)
    world.queues.computed = {0}
    async with world.running():
        assert world.engine.fetches == [0, 1]
        await trio.sleep(1.5)
        assert world.queues.loads == [1]
        assert world.engine.fetches == [0, 1, 4, 5]


@in_trio_time
async def test_of_a_group_of_nothing_and_of_nothing_at_all_nothing_is_fetched() -> None:
    cases: list[list[list[int]]] = [[[]], [], [[], [0, 1], []]]
    for groups in cases:
        world = _World(groups, 4)
        async with world.running():
            assert world.engine.fetches == list(itertools.chain(*groups))


# --- Room ------------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_half_of_staging_is_claimed_at_most_and_a_draw_makes_room_for_the_next() -> None:
    world = _World([range(40)], 30, staging_bytes=16 * 1024)
    async with world.running():
        assert world.engine.fetches == list(range(8))
        for sample in range(20):
            assert await world.draw(0) == sample
            assert world.ahead.claimed_bytes == 8 * _SPAN
            assert world.engine.fetches == list(range(9 + sample))


@in_trio_time
async def test_a_claim_stays_in_staging_until_it_is_drawn() -> None:
    world = _World([range(40)], 4, staging_bytes=16 * 1024)
    async with world.running():
        for unit in (*range(10, 40), *range(10, 40)):
            assert await world.mounted.fetch(unit)
        await world.settle()
        assert not {0, 1, 2, 3} & set(world.engine.releases)
        assert world.engine.fetches[:4] == [0, 1, 2, 3]
        for sample in range(4):
            assert await world.draw(0) == sample
            assert world.mounted.staged(sample)


@in_trio_time
async def test_what_a_reader_waits_for_is_claimed_room_or_not() -> None:
    world = _World([range(20), range(20, 22)], 18, staging_bytes=16 * 1024)
    world.queues.next[1] = [20, 21]
    async with world.running() as nursery:
        assert world.claimed() == list(range(8))
        world.engine.mute = True
        nursery.start_soon(world.ahead.wait, 1, 2)
        await world.settle()
        assert world.claimed() == [*range(8), 20, 21]
        assert world.engine.urgent == [20, 21]
        assert world.ahead.claimed_bytes == 10 * _SPAN
        await world.draw(0)
        assert world.claimed() == [*range(1, 8), 20, 21]  # nothing new before it fits


@in_trio_time
async def test_an_engine_without_room_is_given_the_claim_that_is_needed_last() -> None:
    world = _World([range(20)], 6)
    async with world.running():
        await world.mounted.fetch(15)
        for expected in ([15], [15, 5], [15, 5, 4]):
            await world.engine.channel.send(Pressed())
            await world.settle()
            assert world.engine.releases == expected
        assert world.claimed() == [0, 1, 2, 3]
        assert [await world.draw(0) for _ in range(6)] == list(range(6))
        assert [world.engine.fetches.count(unit) for unit in range(6)] == [1, 1, 1, 1, 2, 2]


@in_trio_time
async def test_what_is_still_on_its_way_is_not_given_up() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    async with world.running():
        await world.answer(1)
        assert world.ahead.give_up_newest()
        assert not world.ahead.give_up_newest()
        assert 1 not in world.claimed()


# --- Several files, several units ------------------------------------------------------------------------------------


@in_trio_time
async def test_a_sample_is_ready_when_all_its_files_are() -> None:
    world = _World([range(10)], 2, files=3)
    world.engine.mute = True
    async with world.running():
        assert world.engine.fetches == [0, 1, 2, 3, 4, 5]
        await world.answer(4, 3)
        assert await world.draw(0) is None
        await world.answer(5)
        assert await world.draw(0) == 1
        assert world.engine.fetches[6:] == [6, 7, 8]
        await world.answer(2, 0, 1)
        assert await world.draw(0) == 0


@in_trio_time
async def test_of_a_sample_only_what_is_not_in_the_node_is_fetched_and_counted() -> None:
    world = _World([range(4)], 4, files=3, home=lambda unit: NOWHERE if unit % 3 == 1 else 0)
    async with world.running():
        assert world.engine.fetches == [1, 4, 7, 10]
        assert world.ahead.claimed_bytes == 4 * _SPAN


@in_trio_time
async def test_a_file_of_several_extents_is_fetched_whole() -> None:
    world = _World([range(3)], 2, size=lambda unit: 2 * EXTENT_BYTES + 100 if unit == 1 else 0, staging_bytes=32 << 20)
    world.engine.mute = True
    async with world.running():
        assert world.engine.fetches == [0, 1, 2]
        assert world.ahead.claimed_bytes == 2 * span(EXTENT_BYTES) + span(100)
        assert await world.draw(0) == 0  # of 0 bytes
        await world.answer(0, 2)
        assert not world.ahead.ready(1)
        await world.answer(1)
        assert await world.draw(0) == 1


@in_trio_time
async def test_a_sample_that_is_larger_than_half_of_staging_is_claimed_alone() -> None:
    world = _World([range(4)], 4, size=lambda unit: 3 << 20, staging_bytes=4 << 20)
    async with world.running():
        for sample in range(4):
            assert world.claimed() == [sample]
            assert await world.draw(0) == sample
        await world.settle()
        assert world.engine.fetches == [0, 1, 2, 3]


@in_trio_time
async def test_a_sample_that_is_larger_than_staging_is_not_fetched_nor_waited_for() -> None:
    world = _World([range(3)], 3, size=lambda unit: (_SIZE, 2 * EXTENT_BYTES, _SIZE)[unit], staging_bytes=6 << 20)
    async with world.running():
        drawn = []
        for _ in range(3):
            if (sample := await world.draw(0)) is None:
                assert await world.wait(0) == 0
                sample = await world.draw(0)
            drawn.append(sample)
        assert sorted(sample for sample in drawn if sample is not None) == [0, 1, 2]
        assert world.engine.fetches == [0, 3]
        assert world.ahead.claimed_bytes == 0


# --- What is ready first ---------------------------------------------------------------------------------------------


@in_trio_time
async def test_a_draw_takes_the_first_that_is_ready_and_those_it_skips_stay_in_order() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    async with world.running():
        assert await world.draw(0) is None
        await world.answer(2)
        assert await world.draw(0) == 2
        assert world.queues.next[0][:4] == [0, 1, 3, 4]
        assert world.engine.fetches == [0, 1, 2, 3, 4]
        assert await world.draw(0) is None
        await world.answer(4, 1)
        assert [await world.draw(0) for _ in range(2)] == [1, 4]
        await world.answer(0)
        assert await world.draw(0) == 0
        assert world.queues.next[0][0] == 3


@in_trio_time
async def test_no_draw_is_moved_further_than_the_window() -> None:
    world = _World([range(20)], 4, home=lambda unit: 0 if unit > 3 else NOWHERE)
    world.engine.mute = True
    async with world.running():
        assert await world.draw(0) is None
        await world.answer(3)
        assert [await world.draw(0) for _ in range(5)] == [3, 4, 5, 6, 7]


@in_trio_time
async def test_what_cannot_be_fetched_is_drawn_in_its_turn_and_not_waited_for() -> None:
    world = _World([range(20)], 4)
    world.engine.missing = {0, 2}
    async with world.running():
        assert world.ahead.claimed_bytes == 2 * _SPAN  # nor does it take room
        assert [await world.draw(0) for _ in range(4)] == [0, 1, 2, 3]


@in_trio_time
async def test_what_is_not_fetched_while_the_engine_is_stuck_takes_no_room() -> None:
    world = _World([range(40)], 4, timeout_s=3)
    world.engine.mute = True
    async with world.running():
        await world.wait(0)
        assert world.ahead.claimed_bytes == 4 * _SPAN  # that may come late
        for sample in range(4):
            assert await world.draw(0) == sample
        assert world.claimed() == [4, 5, 6, 7]
        assert world.ahead.claimed_bytes == 0
        await world.answer(0, 1, 2, 3)
        assert world.requests.staged.is_unclaimed(3)
        await trio.sleep(5)
        world.engine.mute = False
        assert [await world.draw(0) for _ in range(5)] == [4, 5, 6, 7, 8]
        assert world.engine.fetches == [0, 1, 2, 3, *range(8, 13)]
        assert world.ahead.claimed_bytes == 4 * _SPAN


@in_trio_time
async def test_what_comes_late_is_kept_for_its_draw() -> None:
    world = _World([range(20)], 4, timeout_s=3)
    world.engine.mute = True
    async with world.running():
        await world.wait(0)
        await world.answer(3)
        assert not world.requests.staged.is_unclaimed(3)
        assert world.ahead.claimed_bytes == 4 * _SPAN


@in_trio_time
async def test_what_is_drawn_after_the_engine_is_gone_takes_no_room() -> None:
    world = _World([range(20)], 4, files=2)
    world.engine.mute = True
    async with world.running():
        world.mounted.kill_engine()
        await world.settle()
        assert world.ahead.claimed_bytes == 0
        assert [await world.draw(0) for _ in range(8)] == list(range(8))
        assert world.ahead.claimed_bytes == 0


@in_trio_time
async def test_of_a_sample_of_which_a_part_cannot_be_fetched_the_rest_is_not_waited_for() -> None:
    world = _World([range(4)], 2, files=2)
    world.engine.mute = True
    world.engine.missing = {1}
    async with world.running():
        await world.answer(1)
        assert await world.draw(0) == 0
        await world.answer(0)
        assert world.requests.staged.is_unclaimed(0)


# --- Waiting ---------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_who_waits_has_the_first_samples_hurried_one_for_each() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    async with world.running() as nursery:
        nursery.start_soon(world.ahead.wait, 0, 1)
        await world.settle()
        assert world.engine.hurries == [0]
        nursery.start_soon(world.ahead.wait, 0, 3)
        await world.settle()
        assert world.engine.hurries == [0, 1, 2]


@in_trio_time
async def test_a_wait_ends_when_something_comes() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    waited: list[float] = []

    async def wait() -> None:
        waited.append(await world.wait(0))

    async with world.running() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(2)
        assert waited == []
        await world.answer(3)
        assert waited == [pytest.approx(2)]
        assert await world.draw(0) == 3


@in_trio_time
async def test_a_wait_is_for_news_whatever_is_there() -> None:
    world = _World([range(20)], 4)
    waited: list[float] = []

    async def wait() -> None:
        waited.append(await world.wait(0))

    async with world.running() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(2)
        assert waited == []
        assert await world.draw(0) == 0  # so that another is fetched
        assert world.engine.fetches == [0, 1, 2, 3, 4]
        assert waited == [pytest.approx(2)]


@in_trio_time
async def test_a_wait_ends_at_once_for_what_was_staged_meanwhile_for_somebody_else() -> None:
    world = _World([range(20), [20]], 4)
    async with world.running():
        world.queues.next[1] = [20]
        assert await world.mounted.fetch(20)
        assert await world.wait(1) == 0
        assert await world.draw(1) == 20
        assert world.engine.fetches.count(20) == 1


@in_trio_time
async def test_a_wait_ends_when_the_engine_is_late_and_what_it_was_asked_for_is_drawn_all_the_same() -> None:
    world = _World([range(20)], 4, timeout_s=3)
    world.engine.mute = True
    async with world.running():
        assert await world.wait(0) == pytest.approx(3 + _GRACE_S)
        assert world.mounted.counts.engine_timeouts == 1
        assert [await world.draw(0) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        assert world.engine.fetches == [0, 1, 2, 3]


@in_trio_time
async def test_when_the_engine_answers_again_it_is_asked_again() -> None:
    world = _World([range(40)], 4, timeout_s=3)
    world.engine.mute = True
    async with world.running():
        await world.wait(0)
        world.engine.mute = False
        await world.answer(0, 1, 2, 3)
        await trio.sleep(5)
        for sample in range(20):
            assert await world.draw(0) == sample
        assert set(range(10, 20)) <= set(world.engine.fetches)


@in_trio_time
async def test_a_wait_ends_when_the_engine_is_gone() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    waited: list[float] = []

    async def wait() -> None:
        waited.append(await world.wait(0))

    async with world.running() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        world.mounted.kill_engine()
        await world.settle()
        assert waited == [pytest.approx(1)]
        assert [await world.draw(0) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        assert world.mounted.counts.engine_timeouts == 0


# --- Others, and other passes ----------------------------------------------------------------------------------------


@in_trio_time
async def test_what_another_rank_takes_is_let_go_and_its_place_used() -> None:
    world = _World([range(3), range(10, 13)], 6, staging_bytes=8 * 1024)
    async with world.running():
        assert world.claimed() == [0, 1, 2, 10]
        for sample in (12, 2):
            world.queues.next[sample // 10].remove(sample)
            world.ahead.gone(sample)
        await world.settle()
        assert world.claimed() == [0, 1, 10, 11]
        assert world.requests.staged.is_unclaimed(2)


@in_trio_time
async def test_what_comes_back_or_from_another_rank_is_fetched_next() -> None:
    world = _World([range(10), range(10, 20)], 4)
    async with world.running():
        assert world.claimed() == [0, 1, 10, 11]
        world.queues.next[0].insert(0, 7)
        world.ahead.changed(0)
        assert await world.draw(1) == 10
        assert world.engine.fetches[4:] == [7]
        assert await world.draw(0) == 7


@in_trio_time
async def test_a_sample_that_was_looked_up_and_given_back_is_fetched_once() -> None:
    world = _World([range(10)], 4)
    async with world.running():
        for _ in range(20):
            sample = world.queues.next[0].pop(0)
            world.ahead.taken(0)
            await world.settle()
            world.queues.next[0].insert(0, sample)
            world.ahead.returned(0, sample)
            await world.settle()
        assert world.engine.fetches == [0, 1, 2, 3]


@in_trio_time
async def test_a_scan_looks_at_the_sample_that_comes_back_and_not_at_all_behind_it_again() -> None:
    world = _World([range(60)], 40, home=lambda unit: 0)
    looked_at: list[int] = []
    rows_of = world.nearby._rows_of

    def recorded(sample: int) -> Sequence[int]:
        looked_at.append(sample)
        return rows_of(sample)

    async with world.running():
        world.nearby._rows_of = recorded
        for _ in range(50):
            world.queues.next[0].remove(0)
            world.ahead.taken(0)
            world.queues.next[0].insert(0, 0)
            world.ahead.returned(0, 0)
        assert looked_at == [0] * 50


@in_trio_time
async def test_a_sample_that_comes_back_and_is_no_longer_there_is_fetched() -> None:
    world = _World([range(10)], 4)
    async with world.running():
        assert await world.draw(0) == 0
        world.queues.next[0].insert(0, 0)
        world.requests.pressed()
        world.requests.pressed()
        assert world.mounted.staged(0) is None
        world.ahead.returned(0, 0)
        assert await world.draw(0) == 1
        assert world.engine.fetches == [0, 1, 2, 3, 4, 0]


@in_trio_time
async def test_another_pass_lets_all_go_and_fetches_anew() -> None:
    world = _World([range(20)], 4)
    world.engine.mute = True
    async with world.running():
        await world.answer(0, 1)
        world.queues.next[0] = [1, 2, 15, 16, 17]
        world.ahead.restart()
        await world.settle()
        assert world.claimed() == [1, 2, 15, 16]
        assert world.engine.fetches == [0, 1, 2, 3, 15, 16]  # what was staged or on its way is used
        assert world.requests.staged.is_unclaimed(0)
        await world.answer(3)
        assert world.requests.staged.is_unclaimed(3)
        assert await world.draw(0) == 1
        await world.answer(2)
        assert await world.draw(0) == 2


# --- Whatever happens ------------------------------------------------------------------------------------------------

_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("draw"), st.integers(0, 2)),
        st.tuples(st.just("answer"), st.integers(0, 9)),
        st.tuples(st.just("steal"), st.integers(0, 2)),
        st.tuples(st.just("give"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(0, 2)),
        st.tuples(st.just("press"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(st.integers(1, 12), st.sampled_from([4, 8, 1024]), st.integers(1, 2), _EVENTS)
def test_in_any_order_of_events_bounds_hold_and_each_sample_is_drawn_in_the_end(
    count: int, pages: int, files: int, events: list[tuple[str, int]]
) -> None:
    groups = [range(6), range(6, 18), range(18, 27)]

    @in_trio_time
    async def main() -> None:
        world = _World(groups, count, files=files, staging_bytes=4096 * pages)
        world.engine.mute = True
        world.engine.missing = {5, 20}
        waited = False
        taken: set[int] = set()
        async with world.running() as nursery:

            def check() -> None:
                world.check()
                if not waited:
                    assert len(world.claimed()) <= count
                    assert world.ahead.claimed_bytes <= max(2048 * pages, files * _SPAN)
                assert not taken & set(world.claimed())

            for event, number in events:
                if event == "draw":
                    sample = await world.draw(number)
                    taken |= set() if sample is None else {sample}
                elif event == "answer" and world.engine.unanswered:
                    await world.answer(world.engine.unanswered[number % len(world.engine.unanswered)])
                elif event == "steal" and world.queues.next[number]:
                    sample = world.queues.next[number].pop()
                    world.ahead.gone(sample)
                    taken.add(sample)
                elif event == "give" and taken & set(groups[number]):
                    sample = min(taken & set(groups[number]))
                    taken.remove(sample)
                    world.queues.next[number].insert(0, sample)
                    world.ahead.returned(number, sample)
                elif event == "wait" and world.queues.next[number]:
                    waited = True
                    nursery.start_soon(world.ahead.wait, number, 1)
                elif event == "press":
                    world.requests.pressed()
                elif event == "restart":
                    world.ahead.restart()
                await world.settle()
                check()
            world.engine.mute = False
            for unit in world.engine.unanswered:
                await world.answer(unit)
            for group in range(3):
                while world.queues.next[group]:
                    if (sample := await world.draw(group)) is None:
                        await world.ahead.wait(group, 1)
                        continue
                    taken.add(sample)
            assert taken == set(range(27))
            assert world.claimed() == []
            assert world.mounted.counts.engine_timeouts == 0

    main()
