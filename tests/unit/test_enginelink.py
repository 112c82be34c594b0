"""The mount's view of its engine: requests, what is staged, and an engine that is late, stuck, or gone."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.store import span
from deepiofs.memory.wire import IN_NODE, Answered, Asked, Missed, Pressed, Ready, Steal, Stolen, encode
from deepiofs.order.queues import Answer, Reply
from tests.doubles import in_trio_time
from tests.unit.jobs import Mounted

_FILES = {b"%d" % i: b"%d" % i * 1000 for i in range(8)}
_SPAN = span(1000)
# A staging segment has whole pages: this many units fill one.
_PAGE_UNITS = 4096 // _SPAN
# What a link waits beyond the time that it is given.
_GRACE_S = 0.5


async def _fetch_all(mounted: Mounted, units: list[int]) -> list[bool]:
    """Fetch units at once."""
    results: dict[int, bool] = {}

    async def fetch(i: int, unit: int) -> None:
        results[i] = await mounted.fetch(unit)

    async with trio.open_nursery() as nursery:
        for i, unit in enumerate(units):
            nursery.start_soon(fetch, i, unit)
    return [results[i] for i in range(len(units))]


# --- Requests --------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_a_unit_that_was_fetched_is_staged() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        assert mounted.staged(3) is None
        assert await mounted.fetch(3)
        assert mounted.staged(3) == _FILES[b"3"]
        assert mounted.engine.fetches == [3]


@in_trio_time
async def test_one_unit_is_asked_for_once_however_many_want_it() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        assert await _fetch_all(mounted, [3] * 5) == [True] * 5
        assert mounted.engine.fetches == [3]
        assert mounted.staged(3) == _FILES[b"3"]


@in_trio_time
async def test_what_is_staged_is_not_asked_for_again() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        for _ in range(3):
            assert await mounted.fetch(3)
        assert mounted.engine.fetches == [3]
        assert mounted.engine.arena.used == _SPAN


@in_trio_time
async def test_different_units_are_asked_for_at_once() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    async with mounted.running() as nursery:
        for unit in range(4):
            nursery.start_soon(mounted.fetch, unit)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(mounted.engine.fetches) == [0, 1, 2, 3]


@in_trio_time
async def test_what_the_engine_cannot_have_is_not_fetched_and_may_be_asked_for_again() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.missing = {3}
    async with mounted.running():
        assert await _fetch_all(mounted, [3, 3]) == [False, False]
        assert mounted.staged(3) is None
        mounted.engine.missing = set()
        assert await mounted.fetch(3)
        assert mounted.engine.fetches == [3, 3]


@in_trio_time
async def test_a_unit_that_is_now_in_the_node_is_found_there() -> None:
    mounted = Mounted(_FILES, home=lambda unit: 1)
    mounted.stores[1].give_up(mounted.dataset.at[3])

    def load(unit: int) -> Ready:
        mounted.dataset.publish(mounted.stores[1], unit)
        return Ready(unit, IN_NODE)

    mounted.engine.on_fetch = load
    async with mounted.running():
        assert mounted.link.in_node(3, 1000) is None
        assert await mounted.fetch(3)
        found = mounted.link.in_node(3, 1000)
        assert found is not None
        assert found[16:] == _FILES[b"3"]
        assert mounted.staged(3) is None


@in_trio_time
async def test_a_unit_without_a_home_is_not_asked_for() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
    async with mounted.running():
        assert not await mounted.fetch(0)
        assert mounted.engine.heard == []
        assert mounted.link.resident_units == 0


@in_trio_time
async def test_the_time_of_a_fetch_is_counted() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    async with mounted.running() as nursery:
        nursery.start_soon(mounted.fetch, 3)
        await trio.sleep(0.25)
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
    assert mounted.counts.fetch_quantile(0.5) == pytest.approx(250)


@in_trio_time
async def test_where_units_lie_is_known_without_asking() -> None:
    mounted = Mounted(_FILES, home=lambda unit: [0, 1, 2, NOWHERE][unit % 4])
    async with mounted.running():
        assert [mounted.link.home(unit) for unit in range(4)] == [0, 1, 2, NOWHERE]
        assert [mounted.link.in_node(unit, 1000) is not None for unit in range(4)] == [True, True, False, False]
        assert [mounted.link.reachable(unit) for unit in range(4)] == [False, False, True, False]
        assert mounted.link.resident_units == 6
        assert mounted.engine.heard == []


# --- Releasing -------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_what_was_used_longest_ago_is_released_when_half_of_staging_is_full() -> None:
    mounted = Mounted(_FILES, staging_bytes=4096)
    half = _PAGE_UNITS // 2
    async with mounted.running():
        for unit in range(half):
            assert await mounted.fetch(unit)
            assert mounted.staged(unit)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == []
        assert mounted.staged(0)  # so that unit 1 is now the oldest
        assert await mounted.fetch(half)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == [1]
        assert mounted.staged(1) is None
        assert mounted.staged(0) == _FILES[b"0"]


@in_trio_time
async def test_a_released_unit_may_be_fetched_again() -> None:
    mounted = Mounted(_FILES, staging_bytes=4096)
    async with mounted.running():
        for unit in (*range(8), *range(8)):
            assert await mounted.fetch(unit)
            assert mounted.staged(unit) == mounted.dataset.data(unit)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.arena.used <= 2048 + _SPAN


@in_trio_time
async def test_an_engine_without_room_is_given_half() -> None:
    mounted = Mounted(_FILES, staging_bytes=16 * 4096)
    async with mounted.running():
        for unit in range(4):
            assert await mounted.fetch(unit)
            assert mounted.staged(unit)
        await mounted.engine.channel.send(Pressed())
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == [0, 1]
        assert mounted.staged(3) == _FILES[b"3"]


@in_trio_time
async def test_the_only_unit_is_released_when_the_engine_has_no_room_and_it_was_read() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        assert await mounted.fetch(0)
        assert mounted.staged(0)
        await mounted.engine.channel.send(Pressed())
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == [0]


@in_trio_time
async def test_a_unit_is_not_released_before_who_waited_for_it_has_seen_it() -> None:
    mounted = Mounted(_FILES, staging_bytes=4096)
    mounted.engine.mute = True
    seen: dict[int, bytes | None] = {}

    async def fetch(unit: int) -> None:
        await mounted.fetch(unit)
        seen[unit] = mounted.staged(unit)

    async with mounted.running() as nursery:
        for unit in range(_PAGE_UNITS):
            nursery.start_soon(fetch, unit)
        await trio.testing.wait_all_tasks_blocked()
        for unit in range(_PAGE_UNITS):  # all answers lie on the wire before the first is taken
            place = mounted.engine.stage(unit)
            assert place is not None
            mounted.engine_end.send(encode(Ready(unit, place)))
        await trio.testing.wait_all_tasks_blocked()
    assert seen == {unit: mounted.dataset.data(unit) for unit in range(_PAGE_UNITS)}


# --- An engine that is late or stuck ---------------------------------------------------------------------------------


@in_trio_time
async def test_an_engine_that_does_not_answer_is_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    async with mounted.running():
        begin = trio.current_time()
        assert not await mounted.fetch(3)
        assert trio.current_time() - begin == pytest.approx(2 + _GRACE_S)
        assert mounted.counts.engine_timeouts == 1
        begin = trio.current_time()
        assert not await mounted.fetch(4)
        assert trio.current_time() == begin
        assert mounted.engine.fetches == [3]
        mounted.engine.mute = False
        await trio.sleep(5)
        assert await mounted.fetch(4)
    assert "does not answer" in caplog.text


@in_trio_time
async def test_a_late_answer_is_used() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    async with mounted.running():
        assert not await mounted.fetch(3)
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.staged(3) == _FILES[b"3"]
        assert mounted.counts.engine_timeouts == 1


@in_trio_time
async def test_a_unit_whose_answer_came_late_may_be_asked_for_again() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    async with mounted.running():
        assert not await mounted.fetch(3)
        await mounted.engine.channel.send(Missed(3))
        await trio.sleep(5)
        mounted.engine.mute = False
        assert await mounted.fetch(3)
        assert mounted.engine.fetches == [3, 3]


@in_trio_time
async def test_a_fetch_ends_in_time_though_the_wire_is_full() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    async with mounted.running(serving=False):
        mounted.fill_the_wire()
        begin = trio.current_time()
        assert await _fetch_all(mounted, [3, 4, 3]) == [False] * 3
        assert trio.current_time() - begin <= 2 + _GRACE_S + 0.01


@in_trio_time
async def test_a_request_that_never_got_on_the_wire_is_made_again() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    async with mounted.running(serving=False) as nursery:
        mounted.fill_the_wire()
        with trio.move_on_after(1):
            await mounted.fetch(3)
        mounted.empty_the_wire()
        nursery.start_soon(mounted.engine.serve)
        await trio.sleep(6)
        assert await mounted.fetch(3)
        assert mounted.staged(3) == _FILES[b"3"]


# --- An engine that is gone ------------------------------------------------------------------------------------------


@in_trio_time
async def test_requests_end_when_the_engine_does(caplog: pytest.LogCaptureFixture) -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    results: list[bool] = []

    async def fetch(unit: int) -> None:
        results.append(await mounted.fetch(unit))

    async with mounted.running() as nursery:
        begin = trio.current_time()
        async with trio.open_nursery() as waiting:
            for unit in (3, 3, 4):
                waiting.start_soon(fetch, unit)
            await trio.testing.wait_all_tasks_blocked()
            mounted.kill_engine()
        assert results == [False] * 3
        assert trio.current_time() == begin
        assert not mounted.link.running
        nursery.cancel_scope.cancel()
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "the engine is lost; serving resident memory and the source"
    ]


@in_trio_time
async def test_an_engine_that_is_gone_is_not_asked() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        assert not await mounted.fetch(3)
        assert not mounted.link.reachable(3)


@in_trio_time
async def test_that_the_engine_is_gone_is_noticed_by_who_tells_it_something() -> None:
    mounted = Mounted(_FILES)
    mounted.kill_engine()
    assert not await mounted.fetch(3)
    assert not mounted.link.running
    mounted.end.close()


@in_trio_time
async def test_what_was_staged_and_what_is_resident_outlives_the_engine() -> None:
    mounted = Mounted(_FILES, home=lambda unit: unit % 3)
    async with mounted.running():
        assert await mounted.fetch(2)
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.staged(2) == _FILES[b"2"]
        for unit in (0, 1):
            found = mounted.link.in_node(unit, 1000)
            assert found is not None
            assert found[16:] == mounted.dataset.data(unit)


# --- Entries of other ranks' queues ----------------------------------------------------------------------------------


@in_trio_time
async def test_a_rank_is_asked_for_an_entry_and_its_answer_is_handed_on_first() -> None:
    mounted = Mounted(_FILES)
    handed_on: list[tuple[int, int, int, Answer]] = []
    mounted.link.on_answer = lambda *answered: handed_on.append(answered)
    async with mounted.running() as nursery:
        answers: list[Answer | None] = []

        async def ask() -> None:
            answers.append(await mounted.link.ask(2, 7, 3, 5.0))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Steal(2, 7, 3)]
        await mounted.engine.channel.send(Stolen(2, 7, 3, Reply.SAMPLE, 41))
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [Answer(Reply.SAMPLE, 41)]
        assert handed_on == [(2, 7, 3, Answer(Reply.SAMPLE, 41))]


@in_trio_time
async def test_an_answer_that_comes_late_is_handed_on_all_the_same() -> None:
    mounted = Mounted(_FILES)
    handed_on: list[tuple[int, int, int, Answer]] = []
    mounted.link.on_answer = lambda *answered: handed_on.append(answered)
    async with mounted.running():
        begin = trio.current_time()
        assert await mounted.link.ask(2, 7, 3, 1.0) is None
        assert trio.current_time() - begin == pytest.approx(1.0)
        await mounted.engine.channel.send(Stolen(2, 7, 3, Reply.SAMPLE, 41))
        await trio.testing.wait_all_tasks_blocked()
        assert handed_on == [(2, 7, 3, Answer(Reply.SAMPLE, 41))]


@in_trio_time
async def test_who_waits_for_an_entry_is_told_that_the_engine_is_gone() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running() as nursery:
        answers: list[Answer | None] = []

        async def ask() -> None:
            answers.append(await mounted.link.ask(2, 7, 3, 5.0))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [None]
        assert await mounted.link.ask(2, 7, 3, 5.0) is None
        assert trio.current_time() == begin


@in_trio_time
async def test_another_rank_that_asks_is_answered() -> None:
    mounted = Mounted(_FILES)
    mounted.link.on_asked = lambda rank, group, number: Answer(Reply.AHEAD, 100 * rank + 10 * group + number)
    async with mounted.running():
        await mounted.engine.channel.send(Asked(5, 7, 3))
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Answered(5, 7, 3, Reply.AHEAD, 573)]


@in_trio_time
async def test_asking_for_an_entry_ends_in_time_though_the_wire_is_full() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running(serving=False):
        mounted.fill_the_wire()
        begin = trio.current_time()
        assert await mounted.link.ask(2, 7, 3, 1.0) is None
        assert trio.current_time() - begin == pytest.approx(1.0)
