"""The mount's view of its engine: where units lie, an engine that is gone, and entries of other ranks' queues."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.wire import Answered, Asked, Steal, Stolen
from deepiofs.order.queues import Answer, Reply
from tests.doubles import in_trio_time
from tests.unit.jobs import Mounted

_FILES = {b"%d" % i: b"%d" % i * 1000 for i in range(8)}


@in_trio_time
async def test_where_units_lie_is_known_without_asking() -> None:
    mounted = Mounted(_FILES, home=lambda unit: [0, 1, 2, NOWHERE][unit % 4])
    async with mounted.running():
        assert [mounted.link.home(unit) for unit in range(4)] == [0, 1, 2, NOWHERE]
        assert [mounted.link.in_node(unit, 1000) is not None for unit in range(4)] == [True, True, False, False]
        assert [mounted.link.reachable(unit) for unit in range(4)] == [False, False, True, False]
        assert mounted.link.resident_units == 6
        assert mounted.engine.heard == []


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
