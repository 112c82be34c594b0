"""What a mount asks for and this node does not have: got from its home, verified, and given back."""

from __future__ import annotations

import errno
import itertools
import logging

import pytest
import trio
import trio.testing

from deepiofs.engine.peers import Note, NoteKind
from deepiofs.memory.board import Counter
from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.store import HEADER_BYTES, span
from deepiofs.memory.wire import IN_NODE, Message, Missed, Pressed, Ready
from tests.doubles import in_trio, in_trio_time
from tests.unit.jobs import Fetching

_FILES = {b"%02d" % i: b"%02d" % i * 500 for i in range(8)}
_SPAN = span(1000)
_PRESS_EVERY_S = 0.05


def _check_from_source(fetching: Fetching, answer: Message) -> None:
    """The engine read it itself, and it lies where it says."""
    assert isinstance(answer, Ready)
    assert answer.from_source == 1
    assert answer.unit in itertools.chain(*fetching.stager.batches)
    assert fetching.staged(answer) == fetching.dataset.data(answer.unit)


def _counts(fetching: Fetching) -> dict[str, int]:
    """The counters of what went wrong that are not zero."""
    watched = (Counter.VERIFY_FAILURES, Counter.PEER_TIMEOUTS, Counter.MPI_ERRORS, Counter.PEERS_SUSPECT)
    return {counter.name: fetching.board[counter] for counter in watched if fetching.board[counter]}


# --- From a peer -----------------------------------------------------------------------------------------------------


@in_trio_time
async def test_a_unit_is_brought_into_staging_and_released() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    async with fetching.running():
        answer = await fetching.fetch(3)
        assert fetching.staged(answer) == _FILES[b"03"]
        assert fetching.lent == _SPAN
        assert fetching.board[Counter.GETS] == 1
        fetching.fetcher.release(3)
    assert fetching.lent == 0
    assert _counts(fetching) == {}


@in_trio_time
async def test_many_units_are_brought_at_once_each_to_its_own_place() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running() as nursery:
        for unit in range(len(_FILES)):
            nursery.start_soon(fetching.obtain, unit)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.peers.gets_begun == len(_FILES)
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        for unit in range(len(_FILES)):
            [answer] = fetching.answers_for(unit)
            assert fetching.staged(answer) == fetching.dataset.data(unit)
            fetching.fetcher.release(unit)
    assert fetching.lent == 0


@pytest.mark.parametrize(("urgent", "every_s"), [(True, 0.025), (False, 0.5)])
def test_the_home_is_woken_once_for_many_gets(urgent: bool, every_s: float) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES)
        fetching.load_all()
        wake = (1, Note(NoteKind.WAKE, value=int(urgent)))
        async with fetching.running():
            for unit in range(4):
                await fetching.fetch(unit, urgent=urgent)
            assert fetching.peers.sent == [wake]
            await trio.sleep(every_s - 0.001)
            await fetching.fetch(4, urgent=urgent)
            assert fetching.peers.sent == [wake]
            await trio.sleep(0.002)
            await fetching.fetch(5, urgent=urgent)
            assert fetching.peers.sent == [wake] * 2

    main()


@in_trio_time
async def test_a_home_that_is_awake_is_told_of_what_is_urgent() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    async with fetching.running():
        for urgent in (False, True):
            await fetching.fetch(int(urgent), urgent=urgent)
    assert fetching.peers.sent == [(1, Note(NoteKind.WAKE, value=0)), (1, Note(NoteKind.WAKE, value=1))]


@in_trio_time
async def test_releasing_twice_or_what_was_never_staged_is_nothing() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    async with fetching.running():
        await fetching.fetch(1)
        fetching.fetcher.release(1)
        fetching.fetcher.release(1)
        fetching.fetcher.release(2)
    assert fetching.lent == 0


@in_trio_time
async def test_a_unit_larger_than_staging_is_missed_at_once() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN - 16)
    fetching.load_all()
    async with fetching.running():
        begin = trio.current_time()
        assert await fetching.fetch(0) == Missed(0)
        assert trio.current_time() == begin
    assert fetching.peers.gets_begun == 0
    assert fetching.sent == [Missed(0)]
    assert fetching.stager.batches == []
    assert _counts(fetching) == {}


# --- Verified --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 7, HEADER_BYTES, HEADER_BYTES + 999])
def test_a_flipped_byte_is_noticed_counted_and_got_again(place: int, caplog: pytest.LogCaptureFixture) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES)
        fetching.load_all()
        fetching.peers.corrupt_next(place)
        async with fetching.running():
            answer = await fetching.fetch(2)
            assert fetching.staged(answer) == _FILES[b"02"]
            assert fetching.lent == _SPAN
            fetching.fetcher.release(2)
        assert _counts(fetching) == {"VERIFY_FAILURES": 1}
        assert fetching.peers.gets_begun == 2
        assert fetching.lent == 0

    with caplog.at_level(logging.ERROR):
        main()
    assert "does not have its digest" in caplog.text


@pytest.mark.parametrize("place", range(8, HEADER_BYTES))
def test_a_flipped_state_serves_no_wrong_byte(place: int) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES)
        fetching.load_all()
        fetching.peers.corrupt_next(place)
        async with fetching.running():
            answer = await fetching.fetch(2)
            assert fetching.staged(answer) == _FILES[b"02"]
            fetching.fetcher.release(2)
        assert fetching.lent == 0

    main()


@in_trio_time
async def test_a_unit_that_differs_twice_comes_from_the_source() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.corrupt_next(HEADER_BYTES)
    fetching.peers.corrupt_next(HEADER_BYTES + 1)
    async with fetching.running():
        _check_from_source(fetching, await fetching.fetch(2))
        fetching.fetcher.release(2)
    assert _counts(fetching) == {"VERIFY_FAILURES": 2}
    assert fetching.lent == 0


@in_trio_time
async def test_a_unit_that_is_rotten_at_its_home_comes_from_the_source() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.stores[1].data(fetching.dataset.at[2], 1000)[500] ^= 1
    async with fetching.running():
        _check_from_source(fetching, await fetching.fetch(2))
        answer = await fetching.fetch(3)
        assert fetching.staged(answer) == _FILES[b"03"]
    assert _counts(fetching) == {"VERIFY_FAILURES": 2}


@in_trio_time
async def test_while_the_job_is_loading_digests_are_compared_even_if_verify_is_off() -> None:
    fetching = Fetching(_FILES, verify=False)
    fetching.load_all()
    fetching.peers.corrupt_next(HEADER_BYTES)
    async with fetching.running():
        answer = await fetching.fetch(2)
        assert fetching.staged(answer) == _FILES[b"02"]
    assert _counts(fetching) == {"VERIFY_FAILURES": 1}


@in_trio_time
async def test_once_the_job_is_warm_verify_off_compares_nothing() -> None:
    fetching = Fetching(_FILES, verify=False)
    fetching.load_all()
    fetching.board[Counter.STATE_WARM] = 1
    fetching.peers.corrupt_next(HEADER_BYTES)
    async with fetching.running():
        answer = await fetching.fetch(2)
        assert fetching.staged(answer) != _FILES[b"02"]
    assert fetching.peers.gets_begun == 1


# --- Not loaded yet --------------------------------------------------------------------------------------------------


@in_trio_time
async def test_a_home_that_has_not_loaded_a_unit_is_asked_to() -> None:
    fetching = Fetching(_FILES)
    async with fetching.running():
        answer = await fetching.fetch(4)
        assert fetching.staged(answer) == _FILES[b"04"]
        fetching.fetcher.release(4)
    assert fetching.asked_to_load() == [4]
    assert fetching.lent == 0
    assert _counts(fetching) == {}


@in_trio_time
async def test_what_the_home_cannot_load_comes_from_the_source() -> None:
    fetching = Fetching(_FILES)
    fetching.on_load = lambda unit: False
    async with fetching.running():
        _check_from_source(fetching, await fetching.fetch(4))
        fetching.fetcher.release(4)
    assert fetching.lent == 0
    assert _counts(fetching) == {}


@in_trio_time
async def test_what_the_home_has_given_up_comes_from_the_source_without_asking() -> None:
    fetching = Fetching(_FILES)
    fetching.stores[1].give_up(fetching.dataset.at[4])
    async with fetching.running():
        _check_from_source(fetching, await fetching.fetch(4))
        fetching.fetcher.release(4)
    assert fetching.peers.gets_begun == 1
    assert fetching.asked_to_load() == []
    assert fetching.lent == 0


@in_trio_time
async def test_a_home_that_does_not_say_how_it_went_is_late_and_not_suspect() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.on_load = lambda unit: None
    fetching.load(5)
    async with fetching.running():
        begin = trio.current_time()
        _check_from_source(fetching, await fetching.fetch(4))
        assert trio.current_time() - begin == pytest.approx(3)
        assert _counts(fetching) == {"PEER_TIMEOUTS": 1}
        answer = await fetching.fetch(5)
        assert fetching.staged(answer) == _FILES[b"05"]
        assert answer == Ready(5, _SPAN, 0)
        for unit in (4, 5):
            fetching.fetcher.release(unit)
    assert fetching.lent == 0


@in_trio_time
async def test_a_home_that_did_not_load_in_time_is_not_asked_to_for_five_seconds() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.on_load = lambda unit: None
    async with fetching.running():
        await fetching.fetch(4)
        begin = trio.current_time()
        _check_from_source(fetching, await fetching.fetch(5))
        assert trio.current_time() == begin
        assert fetching.asked_to_load() == [4]
        fetching.on_load = fetching.load
        await trio.sleep(5)
        assert fetching.staged(await fetching.fetch(6)) == _FILES[b"06"]
        assert fetching.asked_to_load() == [4, 6]


@in_trio_time
async def test_a_late_word_of_a_load_is_taken_and_the_home_asked_again() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.on_load = lambda unit: None
    async with fetching.running() as nursery:
        nursery.start_soon(fetching.obtain, 4)
        await trio.sleep(1)
        nursery.start_soon(fetching.obtain, 5)
        await trio.sleep(2.5)  # that of unit 4 is late, and the one of unit 5 comes
        fetching.load(5)
        fetching.job.peers[1].send(0, Note(NoteKind.LOADED, 5, 1))
        await trio.testing.wait_all_tasks_blocked()
        [answer] = fetching.answers_for(5)
        assert isinstance(answer, Ready)
        assert not answer.from_source
        fetching.on_load = fetching.load
        await fetching.fetch(6)
        assert fetching.asked_to_load() == [4, 5, 6]


@in_trio_time
async def test_one_who_gives_up_does_not_take_the_answer_from_another() -> None:
    fetching = Fetching(_FILES)
    fetching.on_load = lambda unit: None

    async def make_replica() -> None:
        async with fetching.fetcher.borrowed(4):
            pass

    async with fetching.running() as nursery:
        with trio.CancelScope() as impatient:
            async with trio.open_nursery() as first:
                first.start_soon(make_replica)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(fetching.obtain, 4)
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel()
        fetching.load(4)
        fetching.job.peers[1].send(0, Note(NoteKind.LOADED, 4, 1))
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.asked_to_load() == [4]
        [answer] = fetching.answers_for(4)
        assert fetching.staged(answer) == _FILES[b"04"]
        assert fetching.stager.batches == []


# --- Late and failing peers ------------------------------------------------------------------------------------------


@in_trio_time
async def test_what_a_peer_does_not_give_in_time_comes_from_the_source_and_the_peer_is_suspect() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        begin = trio.current_time()
        _check_from_source(fetching, await fetching.fetch(1))
        assert trio.current_time() - begin == pytest.approx(3)
        assert _counts(fetching) == {"PEER_TIMEOUTS": 1, "PEERS_SUSPECT": 1}
        assert fetching.lent == 2 * _SPAN  # the late get still has a place
        fetching.fetcher.release(1)
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
    assert fetching.lent == 0


@in_trio_time
async def test_if_peer_and_source_are_late_the_mount_is_told_within_the_timeout_and_a_quarter_second() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.load_all()
    fetching.peers.silent.add(1)
    fetching.stager.held = True
    async with fetching.running():
        begin = trio.current_time()
        assert await fetching.fetch(1) == Missed(1)
        assert trio.current_time() - begin == pytest.approx(3.25)
        assert fetching.lent == 2 * _SPAN
        fetching.stager.let_go()
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.lent == 0
    assert fetching.answers_for(1) == [Missed(1)]


@in_trio_time
async def test_the_place_of_a_late_get_is_lent_until_the_get_ends() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running() as nursery:
        assert await fetching.fetch(1) == Missed(1)
        assert fetching.lent == _SPAN
        assert fetching.board[Counter.QUARANTINED_BYTES] == _SPAN
        pressed = fetching.sent.count(Pressed())
        nursery.start_soon(fetching.obtain, 2)  # from the source, and the late get still has the only place
        await trio.sleep(1.5 * _PRESS_EVERY_S)
        assert fetching.sent.count(Pressed()) > pressed
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        [answer] = fetching.answers_for(2)
        _check_from_source(fetching, answer)
        fetching.fetcher.release(2)
    assert fetching.lent == fetching.board[Counter.QUARANTINED_BYTES] == 0


@in_trio_time
async def test_a_suspect_is_left_alone_and_then_probed() -> None:
    fetching = Fetching(_FILES, timeout_s=2)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        await fetching.fetch(1)
        begun, begin = fetching.peers.gets_begun, trio.current_time()
        for unit in (2, 3, 4):
            _check_from_source(fetching, await fetching.fetch(unit))
        assert fetching.peers.gets_begun == begun
        assert trio.current_time() == begin
        await trio.sleep(4.9)
        assert fetching.peers.gets_begun == begun
        fetching.peers.silent.discard(1)
        await trio.sleep(0.2)  # the probe, which nobody waits for
        assert fetching.peers.gets_begun == begun + 1
        assert _counts(fetching) == {"PEER_TIMEOUTS": 1}
        answer = await fetching.fetch(5)
        assert fetching.staged(answer) == _FILES[b"05"]
        assert fetching.peers.gets_begun == begun + 2
        for unit in range(1, 6):
            fetching.fetcher.release(unit)
        await trio.testing.wait_all_tasks_blocked()
    assert fetching.lent == 0


@in_trio_time
async def test_a_suspect_that_does_not_answer_a_probe_is_not_sent_another_meanwhile() -> None:
    fetching = Fetching(_FILES, timeout_s=2)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        await fetching.fetch(1)
        begun = fetching.peers.gets_begun
        await trio.sleep(300)
        assert fetching.peers.gets_begun == begun + 1
        assert fetching.board[Counter.PEERS_SUSPECT] == 1
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.board[Counter.PEERS_SUSPECT] == 0


@in_trio_time
async def test_probes_that_fail_come_ever_less_often() -> None:
    fetching = Fetching(_FILES, timeout_s=2)
    fetching.load_all()
    for _ in range(5):
        fetching.peers.fail_next(OSError(errno.ECONNRESET, "peer is gone"))
    async with fetching.running():
        await fetching.fetch(1)
        probes: list[float] = []
        begin = trio.current_time()
        while fetching.board[Counter.PEERS_SUSPECT]:
            begun = fetching.peers.gets_begun
            await trio.sleep(1)
            if fetching.peers.gets_begun > begun:
                probes.append(trio.current_time() - begin)
        assert probes == pytest.approx([5, 15, 35, 75, 135], abs=1)
        assert fetching.board[Counter.MPI_ERRORS] == 1


@in_trio_time
async def test_a_note_of_a_suspect_clears_it() -> None:
    fetching = Fetching(_FILES, timeout_s=2)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        await fetching.fetch(1)
        fetching.peers.answer(1)
        fetching.job.peers[1].send(0, Note(NoteKind.WAKE))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(await fetching.fetch(1), Ready)
    assert fetching.board[Counter.PEERS_SUSPECT] == 0


@in_trio_time
async def test_gets_that_are_late_together_make_a_peer_suspect_once() -> None:
    fetching = Fetching(_FILES, timeout_s=2)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        async with trio.open_nursery() as nursery:
            for unit in range(len(_FILES)):
                nursery.start_soon(fetching.obtain, unit)
        assert fetching.board[Counter.PEER_TIMEOUTS] == len(_FILES)
        assert fetching.board[Counter.PEERS_SUSPECT] == 1
        begun = fetching.peers.gets_begun
        await trio.sleep(5.01)
        assert fetching.peers.gets_begun == begun + 1


@in_trio_time
async def test_what_waits_for_a_peer_that_is_found_late_waits_no_more() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running() as nursery:
        nursery.start_soon(fetching.obtain, 1)
        await trio.sleep(2)
        begin = trio.current_time()
        _check_from_source(fetching, await fetching.fetch(2))
        assert trio.current_time() - begin == pytest.approx(1)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_of_mpi_is_counted_and_suspect_and_the_source_read(at_once: bool) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES)
        fetching.load_all()
        fetching.peers.fail_next(OSError(errno.ECONNRESET, "peer is gone"), at_once=at_once)
        async with fetching.running():
            _check_from_source(fetching, await fetching.fetch(1))
            fetching.fetcher.release(1)
            assert fetching.lent == 0
        assert _counts(fetching) == {"MPI_ERRORS": 1, "PEERS_SUSPECT": 1}
        assert fetching.board[Counter.GETS] == 0

    main()


@in_trio_time
async def test_a_late_get_that_ends_in_an_error_gives_its_place_back() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        await fetching.fetch(1)
        fetching.fetcher.release(1)
        fetching.peers.fail_next(OSError(errno.ECONNRESET, "peer is gone"))
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
    assert fetching.lent == 0


@in_trio_time
async def test_a_get_that_ends_as_it_is_given_up_gives_its_place_back() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.silent.add(1)

    async def borrow() -> None:
        async with fetching.fetcher.borrowed(1):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(borrow)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        fetching.peers.silent.clear()
        fetching.peers.poll()  # before the task runs that was cancelled
    assert fetching.lent == 0


@in_trio_time
async def test_a_get_that_fails_at_once_as_it_is_given_up_gives_its_place_back() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.fail_next(OSError(errno.ECONNRESET, "peer is gone"), at_once=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with fetching.fetcher.borrowed(1):
            pass
    assert fetching.lent == 0


# --- Room ------------------------------------------------------------------------------------------------------------


@in_trio_time
async def test_without_room_the_mount_is_pressed_and_the_fetch_goes_on_after_a_release() -> None:
    fetching = Fetching(_FILES, staging_bytes=2 * _SPAN)
    fetching.load_all()
    async with fetching.running() as nursery:
        await fetching.fetch(0)
        await fetching.fetch(1)
        nursery.start_soon(fetching.obtain, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.sent[-1] == Pressed()
        assert fetching.answers_for(2) == []
        fetching.fetcher.release(0)
        await trio.testing.wait_all_tasks_blocked()
        [answer] = fetching.answers_for(2)
        assert fetching.staged(answer) == _FILES[b"02"]
        assert fetching.staged(fetching.answers_for(1)[0]) == _FILES[b"01"]
        for unit in (1, 2):
            fetching.fetcher.release(unit)
    assert fetching.lent == 0


@in_trio_time
async def test_all_who_wait_for_room_get_it_in_the_end() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN)
    fetching.load_all()
    async with fetching.running() as nursery:
        for unit in range(len(_FILES)):
            nursery.start_soon(fetching.obtain, unit)
        served: set[int] = set()
        while len(served) < len(_FILES):
            await trio.testing.wait_all_tasks_blocked()
            [ready] = [m for m in fetching.sent if isinstance(m, Ready) and m.unit not in served]
            assert fetching.staged(ready) == fetching.dataset.data(ready.unit)
            served.add(ready.unit)
            fetching.fetcher.release(ready.unit)
    assert fetching.lent == 0
    assert _counts(fetching) == {}


@in_trio_time
async def test_however_many_wait_for_room_the_mount_is_pressed_20_times_a_second() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN)
    fetching.load_all()
    async with fetching.running() as nursery:
        await fetching.fetch(0)
        for unit in range(1, len(_FILES)):
            nursery.start_soon(fetching.obtain, unit)
        await trio.sleep(1 - _PRESS_EVERY_S / 2)
        assert fetching.sent.count(Pressed()) == 20


@in_trio_time
async def test_that_staging_is_full_is_not_the_peers_fault() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN)
    fetching.load_all()
    async with fetching.running():
        await fetching.fetch(0)
        assert await fetching.fetch(1) == Missed(1)
        assert _counts(fetching) == {}
        fetching.fetcher.release(0)
        assert isinstance(await fetching.fetch(1), Ready)


# --- For replicas ----------------------------------------------------------------------------------------------------


@in_trio_time
async def test_a_unit_is_borrowed_with_its_header_for_a_block() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    async with fetching.running():
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is not None
            assert bytes(whole[HEADER_BYTES:]) == _FILES[b"05"]
            assert fetching.lent == _SPAN
        assert fetching.lent == 0
    assert fetching.sent == []


@in_trio_time
async def test_what_the_mount_has_staged_and_what_is_borrowed_do_not_touch() -> None:
    fetching = Fetching(_FILES, staging_bytes=2 * _SPAN)
    fetching.load_all()
    async with fetching.running():
        answer = await fetching.fetch(5)
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is not None
        other = await fetching.fetch(6)
        assert fetching.staged(other) == _FILES[b"06"]
        assert fetching.staged(answer) == _FILES[b"05"]
        for unit in (5, 6):
            fetching.fetcher.release(unit)
    assert fetching.lent == 0


@in_trio_time
async def test_mount_and_replica_may_want_a_unit_at_once() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.silent.add(1)
    copies: list[bytes] = []

    async def make_replica() -> None:
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is not None
            copies.append(bytes(whole[HEADER_BYTES:]))

    async with fetching.running() as nursery:
        nursery.start_soon(fetching.obtain, 5)
        nursery.start_soon(make_replica)
        await trio.testing.wait_all_tasks_blocked()
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        [answer] = fetching.answers_for(5)
        assert [fetching.staged(answer), *copies] == [_FILES[b"05"]] * 2
        fetching.fetcher.release(5)
    assert fetching.lent == 0


@pytest.mark.parametrize("home", [1, NOWHERE])
def test_what_cannot_be_had_is_not_borrowed(home: int) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES, home=home)
        fetching.on_load = lambda unit: False
        async with fetching.running():
            begin = trio.current_time()
            async with fetching.fetcher.borrowed(5) as whole:
                assert whole is None
            assert trio.current_time() == begin
        assert fetching.lent == 0
        assert bool(fetching.peers.gets_begun) == (home != NOWHERE)

    main()


@in_trio_time
async def test_what_is_borrowed_is_verified() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    for place in (0, 1):
        fetching.peers.corrupt_next(HEADER_BYTES + place)
    async with fetching.running(), fetching.fetcher.borrowed(5) as whole:
        assert whole is None
    assert _counts(fetching) == {"VERIFY_FAILURES": 2}
    assert fetching.lent == 0


@in_trio_time
async def test_a_peer_from_which_nothing_can_be_borrowed_in_time_is_suspect() -> None:
    fetching = Fetching(_FILES)
    fetching.load_all()
    fetching.peers.silent.add(1)
    async with fetching.running():
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is None
        assert _counts(fetching) == {"PEER_TIMEOUTS": 1, "PEERS_SUSPECT": 1}
        async with fetching.fetcher.borrowed(6) as whole:
            assert whole is None
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
    assert fetching.lent == 0


@in_trio_time
async def test_what_cannot_be_borrowed_in_time_is_not_waited_for() -> None:
    fetching = Fetching(_FILES, staging_bytes=_SPAN, timeout_s=3)
    fetching.load_all()
    async with fetching.running():
        await fetching.fetch(0)  # and staging is full
        begin = trio.current_time()
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is None
        assert trio.current_time() - begin == pytest.approx(3.25)
        assert _counts(fetching) == {}
        fetching.fetcher.release(0)
    assert fetching.lent == 0


@in_trio_time
async def test_a_home_that_loads_too_slowly_is_not_waited_for_either() -> None:
    fetching = Fetching(_FILES, timeout_s=3)
    fetching.on_load = lambda unit: None
    fetching.peers.silent.add(1)
    async with fetching.running() as nursery:
        begin = trio.current_time()
        nursery.start_soon(_answer_after, fetching, 2.0)
        async with fetching.fetcher.borrowed(5) as whole:
            assert whole is None
        assert trio.current_time() - begin == pytest.approx(3.25)
    assert fetching.lent == 0


async def _answer_after(fetching: Fetching, seconds: float) -> None:
    await trio.sleep(seconds)
    fetching.peers.answer(1)


# --- In this node ----------------------------------------------------------------------------------------------------


@in_trio
async def test_an_own_unit_is_loaded_now() -> None:
    fetching = Fetching(_FILES, home=0)
    async with fetching.running():
        assert await fetching.fetch(2) == Ready(2, IN_NODE)
    assert fetching.stores[0].data(fetching.dataset.at[2], 1000) == _FILES[b"02"]
    assert fetching.lent == 0


@in_trio
async def test_an_own_unit_that_the_source_does_not_give_is_missed() -> None:
    fetching = Fetching(_FILES, home=0)
    fetching.dataset.source.open_errors[b"02"] = errno.EIO
    async with fetching.running():
        assert await fetching.fetch(2) == Missed(2)
    assert _counts(fetching) == {}


@in_trio_time
async def test_a_unit_of_a_node_mate_is_not_copied() -> None:
    fetching = Fetching(_FILES, mates=True)
    fetching.load_all()
    async with fetching.running():
        assert await fetching.fetch(2) == Ready(2, IN_NODE)
    assert fetching.peers.gets_begun == 0
    assert fetching.peers.sent == []


@in_trio_time
async def test_a_node_mate_is_asked_to_load() -> None:
    fetching = Fetching(_FILES, mates=True)
    async with fetching.running():
        assert await fetching.fetch(2) == Ready(2, IN_NODE)
    assert fetching.asked_to_load() == [2]
    assert fetching.peers.gets_begun == 0


@in_trio_time
async def test_what_a_node_mate_does_not_load_in_time_comes_from_the_source() -> None:
    fetching = Fetching(_FILES, mates=True)
    fetching.peers.deaf.add(1)
    async with fetching.running():
        begin = trio.current_time()
        _check_from_source(fetching, await fetching.fetch(2))
        assert trio.current_time() - begin == pytest.approx(5)
        _check_from_source(fetching, await fetching.fetch(4))
        assert trio.current_time() - begin == pytest.approx(5)
    assert _counts(fetching) == {"PEER_TIMEOUTS": 1}


@in_trio_time
async def test_units_of_a_late_node_mate_that_are_loaded_are_used_all_the_same() -> None:
    fetching = Fetching(_FILES, mates=True)
    fetching.load(3)
    fetching.peers.deaf.add(1)
    async with fetching.running():
        await fetching.fetch(2)
        assert await fetching.fetch(3) == Ready(3, IN_NODE, 0)


# --- From the source -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgent", [True, False])
def test_a_unit_without_a_home_is_staged_from_the_source(urgent: bool) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES, home=NOWHERE)
        async with fetching.running():
            _check_from_source(fetching, await fetching.fetch(0, urgent=urgent))
            assert fetching.lent == _SPAN
            assert fetching.board[Counter.SOURCE_BYTES] == 1000
            fetching.fetcher.release(0)
            assert fetching.lent == 0
        assert fetching.peers.gets_begun == 0
        assert fetching.peers.sent == []

    main()


@pytest.mark.parametrize("on_open", [True, False])
def test_what_the_source_does_not_give_is_missed_and_its_place_given_back(on_open: bool) -> None:
    @in_trio_time
    async def main() -> None:
        fetching = Fetching(_FILES, home=NOWHERE)
        source = fetching.dataset.source
        (source.open_errors if on_open else source.read_errors)[b"02"] = errno.EIO
        async with fetching.running():
            assert await fetching.fetch(2) == Missed(2)
            assert fetching.lent == 0
        assert fetching.board[Counter.SOURCE_BYTES] == 0
        assert source.open_now == 0

    main()


@in_trio_time
async def test_a_late_source_is_missed_in_time_and_its_place_lent_until_it_is_done() -> None:
    fetching = Fetching(_FILES, home=NOWHERE, timeout_s=3)
    fetching.stager.held = True
    async with fetching.running():
        begin = trio.current_time()
        assert await fetching.fetch(2) == Missed(2)
        assert trio.current_time() - begin == pytest.approx(3.25)
        assert fetching.lent == fetching.board[Counter.QUARANTINED_BYTES] == _SPAN
        fetching.stager.let_go()
        assert fetching.lent == fetching.board[Counter.QUARANTINED_BYTES] == 0
        assert fetching.board[Counter.SOURCE_BYTES] == 1000  # it was read, if in vain
        _check_from_source(fetching, await fetching.fetch(2))
    assert fetching.board[Counter.SOURCE_BYTES] == 2000


@in_trio_time
async def test_a_late_source_that_fails_in_the_end_has_read_nothing() -> None:
    fetching = Fetching(_FILES, home=NOWHERE)
    fetching.dataset.source.read_errors[b"02"] = errno.EIO
    fetching.stager.held = True
    async with fetching.running():
        assert await fetching.fetch(2) == Missed(2)
        fetching.stager.let_go()
    assert fetching.lent == fetching.board[Counter.QUARANTINED_BYTES] == 0
    assert fetching.board[Counter.SOURCE_BYTES] == 0


@in_trio_time
async def test_nobody_waits_for_what_is_fetched_ahead_so_it_has_no_deadline() -> None:
    fetching = Fetching(_FILES, home=NOWHERE, timeout_s=3)
    fetching.stager.held = True
    async with fetching.running() as nursery:
        nursery.start_soon(lambda: fetching.obtain(2, urgent=False))
        await trio.sleep(1000)
        assert fetching.sent == []
        fetching.stager.let_go()
        await trio.testing.wait_all_tasks_blocked()
        [answer] = fetching.answers_for(2)
        _check_from_source(fetching, answer)


@in_trio_time
async def test_what_was_fetched_ahead_has_a_deadline_from_when_somebody_waits_for_it() -> None:
    fetching = Fetching(_FILES, home=NOWHERE, timeout_s=3)
    fetching.stager.held = True
    async with fetching.running() as nursery:
        nursery.start_soon(lambda: fetching.obtain(2, urgent=False))
        await trio.sleep(10)
        fetching.fetcher.hurry(2)
        fetching.fetcher.hurry(2)
        await trio.sleep(3.2)
        assert fetching.sent == []
        await trio.sleep(0.1)
        assert fetching.sent == [Missed(2)]
        fetching.fetcher.hurry(2)  # too late to mean anything
        fetching.stager.let_go()
    assert fetching.lent == 0


@in_trio_time
async def test_a_hurry_may_come_before_the_task_has_its_turn() -> None:
    fetching = Fetching(_FILES, home=NOWHERE, timeout_s=3)
    fetching.stager.held = True
    async with fetching.running() as nursery:
        fetching.fetcher.fetch(2, False, nursery.start_soon)
        fetching.fetcher.hurry(2)
        await trio.sleep(3.3)
        assert fetching.sent == [Missed(2)]
        fetching.stager.let_go()
    assert fetching.lent == 0


@in_trio_time
async def test_of_what_is_fetched_ahead_from_one_peer_32_gets_are_begun_at_once_and_readers_come_besides() -> None:
    files = {b"%02d" % i: b"%02d" % i * 50 for i in range(50)}
    fetching = Fetching(files)
    fetching.load_all()
    fetching.peers.silent.add(1)

    async def fetch_ahead(unit: int) -> None:
        await fetching.obtain(unit, urgent=False)

    async with fetching.running() as nursery:
        for unit in range(40):
            nursery.start_soon(fetch_ahead, unit)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.peers.gets_begun == 32
        nursery.start_soon(fetching.obtain, 45)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.peers.gets_begun == 33
        fetching.peers.answer(1)
        await trio.testing.wait_all_tasks_blocked()
        for unit in (*range(40), 45):
            [answer] = fetching.answers_for(unit)
            assert fetching.staged(answer) == fetching.dataset.data(unit)
    assert fetching.stager.batches == []


# --- For the peers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [True, False])
def test_a_peer_that_asks_for_an_own_unit_is_told_how_it_went(good: bool) -> None:
    @in_trio
    async def main() -> None:
        fetching = Fetching(_FILES, home=0)
        if not good:
            fetching.dataset.source.read_errors[b"06"] = errno.EIO
        told: list[Note] = []
        heard = trio.Event()

        def hear(rank: int, note: Note) -> None:
            told.append(note)
            heard.set()

        async with fetching.running():
            fetching.job.peers[1].on_note = hear
            fetching.job.peers[1].send(0, Note(NoteKind.LOAD, 6))
            await heard.wait()
        assert told == [Note(NoteKind.LOADED, 6, int(good))]

    main()


@in_trio_time
async def test_an_answer_that_nobody_waits_for_is_nothing() -> None:
    fetching = Fetching(_FILES)
    async with fetching.running():
        fetching.job.peers[1].send(0, Note(NoteKind.LOADED, 6, 1))
        fetching.job.peers[1].send(0, Note(NoteKind.WAKE))
        await trio.testing.wait_all_tasks_blocked()
    assert fetching.sent == []
