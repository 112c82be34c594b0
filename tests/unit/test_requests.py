"""Units that the engine is asked for: one request each, what comes late, and an engine that is late, stuck, or gone."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.store import span
from deepiofs.memory.wire import IN_NODE, Fetch, Hurry, Missed, Pressed, Ready, encode
from tests.doubles import in_trio_time
from tests.unit.jobs import Mounted

_FILES = {b"%d" % i: b"%d" % i * 1000 for i in range(8)}
_SPAN = span(1000)
# A staging segment has whole pages: this many units fill one.
_PAGE_UNITS = 4096 // _SPAN
# What a mount waits beyond the time that it is given.
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
async def test_a_unit_without_a_home_is_asked_for_too_and_the_engine_says_that_it_is_from_the_source() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE if unit else 2)
    async with mounted.running():
        assert await _fetch_all(mounted, [0, 1]) == [True, True]
        places = [mounted.link.requests.staged.find(unit) for unit in (0, 1)]
        assert [place and place.from_source for place in places] == [False, True]
        assert mounted.staged(1) == _FILES[b"1"]
        found = mounted.link.staged(1, 1000)
        assert found is not None
        assert found[1]


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


# --- Releasing -------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_what_was_used_longest_ago_is_released_when_three_eighths_of_staging_are_full() -> None:
    mounted = Mounted(_FILES, staging_bytes=2 * 4096)
    kept = 2 * _PAGE_UNITS * 3 // 8
    async with mounted.running():
        for unit in range(kept):
            assert await mounted.fetch(unit)
            assert mounted.staged(unit)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == []
        assert mounted.staged(0)  # so that unit 1 is now the oldest
        assert await mounted.fetch(kept)
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
        assert mounted.engine.arena.used <= 4096 * 3 // 8


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


# --- Asked without a task --------------------------------------------------------------------------------------------


def _ask(mounted: Mounted, unit: int, told: list[bool]) -> bool:
    return mounted.link.requests.ask(unit, mounted.dataset.size(unit), mounted.timeout_s, told.append)


@in_trio_time
async def test_who_asks_is_told_once_it_is_there_or_that_it_cannot_be_had() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.missing = {4}
    told: dict[int, list[bool]] = {unit: [] for unit in (3, 4)}
    async with mounted.running():
        for unit in told:
            assert _ask(mounted, unit, told[unit])
        assert told == {3: [], 4: []}
        await trio.testing.wait_all_tasks_blocked()
        assert told == {3: [True], 4: [False]}
        assert mounted.engine.heard == [Fetch(3, 1), Fetch(4, 1)]


@in_trio_time
async def test_who_asks_for_what_is_fetched_ahead_hurries_it() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    told: list[bool] = []
    async with mounted.running():
        await mounted.fetch_ahead(3)
        for _ in range(2):
            assert _ask(mounted, 3, told)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Fetch(3, 0), Hurry(3)]
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [True, True]


@in_trio_time
async def test_who_asks_an_engine_that_does_not_answer_is_told_in_time_and_it_is_left_alone() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    told: list[tuple[float, bool]] = []
    begin = trio.current_time()

    def tell(good: bool) -> None:
        told.append((trio.current_time() - begin, good))

    async with mounted.running():
        for unit in (3, 4):
            assert mounted.link.requests.ask(unit, 1000, 2, tell)
            await trio.sleep(1)
        await trio.sleep(1)
        # The first is late, and the second waits for the same engine.
        assert told == [(pytest.approx(2 + _GRACE_S), False)] * 2
        assert mounted.counts.engine_timeouts == 1
        assert not mounted.link.requests.ask(5, 1000, 2, tell)
        await trio.sleep(5)
        assert not mounted.link.requests.ask(3, 1000, 2, tell)  # given up, and not answered yet
        assert mounted.link.requests.ask(5, 1000, 2, tell)


@in_trio_time
async def test_who_asks_where_there_is_no_room_on_the_wire_has_to_wait_for_it() -> None:
    mounted = Mounted(_FILES)
    told: list[bool] = []
    async with mounted.running(serving=False):
        mounted.fill_the_wire()
        assert not _ask(mounted, 3, told)
        mounted.empty_the_wire()
        assert _ask(mounted, 3, told)


@in_trio_time
async def test_who_asked_an_engine_that_is_gone_is_told() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    told: list[bool] = []
    async with mounted.running():
        assert _ask(mounted, 3, told)
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [False]
        assert not _ask(mounted, 4, told)


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


# --- Ahead, and in a hurry -------------------------------------------------------------------------------------------


@in_trio_time
async def test_what_is_fetched_ahead_says_so_and_tells_how_it_went() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.missing = {4}
    told: list[tuple[int, bool]] = []

    def tell(unit: int, good: bool) -> None:
        told.append((unit, good))

    async with mounted.running():
        for unit in (3, 4):
            await mounted.fetch_ahead(unit, functools.partial(tell, unit))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [(3, True), (4, False)]
        assert mounted.engine.heard == [Fetch(3, 0), Fetch(4, 0)]
        assert mounted.staged(3) == _FILES[b"3"]
        assert mounted.counts.fetch_quantile(1) == 0  # nobody waited


@in_trio_time
async def test_what_is_staged_already_is_told_at_once() -> None:
    mounted = Mounted(_FILES)
    told: list[bool] = []
    async with mounted.running():
        await mounted.fetch(3)
        await mounted.fetch_ahead(3, told.append)
        assert told == [True]
        assert mounted.engine.fetches == [3]


@in_trio_time
async def test_a_unit_is_asked_for_once_by_all_who_want_it_ahead_and_those_who_wait() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    told: list[bool] = []
    results: list[bool] = []

    async def fetch() -> None:
        results.append(await mounted.fetch(3))

    async with mounted.running() as nursery:
        for _ in range(2):
            await mounted.fetch_ahead(3, told.append)
            nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Fetch(3, 0), Hurry(3)]
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        assert (told, results) == ([True, True], [True, True])


@in_trio_time
async def test_a_hurry_is_told_once_and_only_of_what_is_under_way_and_not_urgent() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    hurry = mounted.link.requests.hurry
    async with mounted.running() as nursery:
        await hurry(2)
        await mounted.fetch_ahead(3)
        for _ in range(3):
            await hurry(3)
        nursery.start_soon(mounted.fetch, 4)
        await trio.testing.wait_all_tasks_blocked()
        await hurry(4)
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        await hurry(3)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Fetch(3, 0), Hurry(3), Fetch(4, 1)]


@in_trio_time
async def test_what_is_fetched_ahead_for_one_who_waits_is_urgent() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    async with mounted.running():
        await mounted.fetch_ahead(4)
        for unit in (3, 4, 4):
            await mounted.link.requests.fetch_ahead(unit, 1000, lambda good: None, urgent=True)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.heard == [Fetch(4, 0), Fetch(3, 1), Hurry(4)]


@in_trio_time
async def test_a_unit_that_came_into_the_node_is_good_and_takes_no_staging() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.on_fetch = lambda unit: Ready(unit, IN_NODE)
    told: list[bool] = []
    async with mounted.running():
        await mounted.fetch_ahead(3, told.append)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [True]
        assert len(mounted.link.requests.staged) == 0


# --- Claimed ---------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_claimed_units_stay_and_the_others_go() -> None:
    mounted = Mounted(_FILES, staging_bytes=4096)
    staged = mounted.link.requests.staged
    async with mounted.running():
        staged.claim(0)
        for unit in range(8):
            assert await mounted.fetch(unit)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.staged(0) == _FILES[b"0"]
        assert mounted.engine.releases == [1, 2, 3, 4, 5, 6]  # one fits into three eighths
        staged.let_go(0)
        staged.check_invariants()


@in_trio_time
async def test_an_engine_without_room_gets_what_nobody_claims_before_a_claim_is_given_up() -> None:
    mounted = Mounted(_FILES, staging_bytes=16 * 4096)
    requests = mounted.link.requests
    claimed = [2, 3]

    def give_up() -> bool:
        if claimed:
            requests.staged.let_go(claimed.pop())
            return True
        return False

    requests.give_up_claim = give_up
    async with mounted.running():
        for unit in claimed:
            requests.staged.claim(unit)
        for unit in range(4):
            assert await mounted.fetch(unit)
        released: list[list[int]] = []
        for _ in range(5):
            await mounted.engine.channel.send(Pressed())
            await trio.testing.wait_all_tasks_blocked()
            released.append(mounted.engine.releases)
        assert released == [[0], [0, 1], [0, 1, 3], [0, 1, 3, 2], [0, 1, 3, 2]]
        assert claimed == []
        requests.staged.check_invariants()


# --- Given up, and answered late -------------------------------------------------------------------------------------


@in_trio_time
async def test_a_late_answer_is_kept_and_can_be_released() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    async with mounted.running():
        assert not await mounted.fetch(3)
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        await mounted.engine.channel.send(Pressed())
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == [3]
        assert mounted.staged(3) is None
        assert mounted.engine.arena.used == 0


@in_trio_time
async def test_what_was_given_up_is_not_asked_for_again_before_it_is_answered_and_nobody_waits_for_it() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    told: list[bool] = []
    async with mounted.running():
        assert not await mounted.fetch(3)
        await trio.sleep(5)
        begin = trio.current_time()
        assert not await mounted.fetch(3)
        await mounted.fetch_ahead(3, told.append)
        assert told == [False]
        assert trio.current_time() == begin
        assert mounted.engine.fetches == [3]
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        assert await mounted.fetch(3)
        assert mounted.engine.fetches == [3]


@in_trio_time
async def test_an_engine_that_is_late_ends_all_that_waits_and_what_is_ahead() -> None:
    mounted = Mounted(_FILES, timeout_s=2)
    mounted.engine.mute = True
    told: list[bool] = []
    results: list[bool] = []

    async def fetch(unit: int) -> None:
        results.append(await mounted.fetch(unit))

    async with mounted.running() as nursery:
        nursery.start_soon(fetch, 3)
        await trio.sleep(1)
        nursery.start_soon(fetch, 4)
        await mounted.fetch_ahead(5, told.append)
        await trio.sleep(1.6)
        assert (results, told) == ([False, False], [False])
        assert mounted.counts.engine_timeouts == 1
        await mounted.fetch_ahead(6, told.append)
        assert told == [False, False]
        assert sorted(mounted.engine.fetches) == [3, 4, 5]
        for unit in (3, 4, 5):
            await mounted.engine.answer(unit)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [False, False]  # a second word changes nothing
        assert all(mounted.staged(unit) for unit in (3, 4, 5))


@in_trio_time
async def test_an_engine_that_is_gone_ends_what_is_ahead() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    told: list[bool] = []
    async with mounted.running():
        await mounted.fetch_ahead(5, told.append)
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [False]
        await mounted.fetch_ahead(6, told.append)
        assert told == [False, False]
        assert not mounted.link.requests.usable


@in_trio_time
async def test_what_was_to_be_fetched_ahead_and_never_got_on_the_wire_is_told_and_asked_for_again() -> None:
    mounted = Mounted(_FILES)
    told: list[bool] = []
    async with mounted.running(serving=False) as nursery:
        mounted.fill_the_wire()
        with trio.move_on_after(1):
            await mounted.fetch_ahead(3, told.append)
        assert told == [False]
        mounted.empty_the_wire()
        nursery.start_soon(mounted.engine.serve)
        await mounted.fetch_ahead(3, told.append)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [False, True]
        assert mounted.engine.heard == [Fetch(3, 0)]


@in_trio_time
async def test_who_stops_waiting_leaves_the_request_to_the_others() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    results: list[bool] = []

    async def fetch() -> None:
        results.append(await mounted.fetch(3))

    async with mounted.running() as nursery:
        with trio.move_on_after(1):
            async with trio.open_nursery() as impatient:
                impatient.start_soon(mounted.fetch, 3)
                nursery.start_soon(fetch)
                await trio.sleep_forever()
        await mounted.engine.answer(3)
        await trio.testing.wait_all_tasks_blocked()
        assert results == [True]
        assert mounted.engine.fetches == [3]
        assert mounted.counts.engine_timeouts == 0


@in_trio_time
async def test_what_was_drawn_and_not_read_yet_is_spared_once_when_room_is_needed() -> None:
    mounted = Mounted(_FILES)
    requests = mounted.link.requests
    async with mounted.running():
        for unit in (2, 3):
            requests.staged.claim(unit)
            assert await mounted.fetch(unit)
            requests.staged.let_go(unit, to_be_read=True)
        requests.staged.spend(2)
        requests.pressed()
        assert 2 not in requests.staged, "it was read to its end"
        assert 3 in requests.staged, "its reader has but opened it"
        requests.pressed()
        assert 3 not in requests.staged, "its reader may never read it"
        requests.staged.check_invariants()
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.arena.used == 0


@in_trio_time
async def test_a_claim_that_is_given_up_is_not_spared() -> None:
    mounted = Mounted(_FILES)
    requests = mounted.link.requests

    def give_up() -> bool:
        requests.staged.let_go(3)
        return True

    requests.give_up_claim = give_up
    async with mounted.running():
        requests.staged.claim(3)
        assert await mounted.fetch(3)
        requests.pressed()
        assert 3 not in requests.staged
