"""Reading a source that hangs into staging: what hangs keeps its own place, and nobody up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import trio

from deepiofs.engine import batches
from deepiofs.engine.batches import MOST_LEFT_ALONE
from deepiofs.engine.stager import SourceRead
from deepiofs.memory.board import Counter
from tests.doubles import Gate, in_trio
from tests.unit.test_stager import Staging

_FILES = {b"%02d" % i: bytes([i + 1]) * (1000 + i) for i in range(99)}
_WORKERS = 16


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds on a mount takes moments here."""
    monkeypatch.setattr(batches, "HANGS_AFTER_S", 0.05)
    monkeypatch.setattr(batches, "_LOOK_AGAIN_S", 0.01)


@contextlib.contextmanager
def _hanging(staging: Staging, units: range) -> Iterator[list[Gate]]:
    """Reads of these units hang until their gates, or all at the end, are opened."""
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(Gate()) for _ in units]
        for unit, gate in zip(units, gates, strict=True):
            staging.source.read_gates[b"%02d" % unit] = gate
        yield gates


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.002)


def _hangs(staging: Staging) -> int:
    return staging.board[Counter.SOURCE_HANGS]


async def _check(staging: Staging, reads: list[SourceRead]) -> None:
    for read in reads:
        await read.done.wait()
        staging.check(read)


@pytest.mark.parametrize("on_open", [True, False])
def test_a_read_that_hangs_keeps_its_own_unit_and_is_told_of_until_it_ends(
    on_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @in_trio
    async def main() -> None:
        staging = Staging(_FILES)
        with Gate() as gate:
            (staging.source.open_gates if on_open else staging.source.read_gates)[b"21"] = gate
            before, hanging, *behind = [staging.start(unit) for unit in (20, 21, 22, 23)]
            async with staging.running():
                await _check(staging, [before, *behind])
                assert _hangs(staging) == 1
                assert not hanging.done.is_set()
                gate.open()
                await _check(staging, [hanging])
                await _until(lambda: _hangs(staging) == 0)
        assert [read[0] for read in staging.source.reads].count(b"22") == 1
        assert staging.source.open_now == 0

    main()
    assert [record.message for record in caplog.records] == ["21: the source has not answered for 10 s"]


@in_trio
async def test_more_reads_that_hang_than_slots_keep_no_other_from_being_read() -> None:
    staging = Staging(_FILES)
    n_hanging = MOST_LEFT_ALONE - 1
    assert n_hanging > _WORKERS
    with _hanging(staging, range(n_hanging)) as gates:
        async with staging.running():
            hanging = [staging.start(unit, urgent=True) for unit in range(n_hanging)]
            await _until(lambda: _hangs(staging) == n_hanging)
            others = [staging.start(unit, urgent=unit % 2 == 0) for unit in range(60, 99)]
            await _check(staging, others)
            assert not any(read.done.is_set() for read in hanging)
            for gate in gates:
                gate.open()
            await _check(staging, hanging)
            await _until(lambda: _hangs(staging) == 0)
    assert staging.source.open_now == 0


@in_trio
async def test_no_more_threads_than_are_allowed_hang_at_once() -> None:
    staging = Staging(_FILES)
    most = MOST_LEFT_ALONE + _WORKERS
    with _hanging(staging, range(80)) as gates:
        async with staging.running():
            reads = [staging.start(unit, urgent=True) for unit in range(80)]
            await _until(lambda: _hangs(staging) == most)
            for _ in range(10):  # they look again, and again
                await trio.sleep(batches._LOOK_AGAIN_S)
            assert len(staging.source.reads) == most
            for gate in gates:
                gate.open()
            await _check(staging, reads)
            await _until(lambda: _hangs(staging) == 0)


@in_trio
async def test_a_slot_whose_thread_comes_back_goes_on_though_too_many_others_hang() -> None:
    staging = Staging(_FILES)
    most = MOST_LEFT_ALONE + _WORKERS
    with _hanging(staging, range(most)) as gates:
        async with staging.running():
            for unit in range(most):
                staging.start(unit, urgent=True)
            await _until(lambda: _hangs(staging) == most)
            other = staging.start(90, urgent=True)
            gates[most - 1].open()  # the last one begun, when as many as may be were left alone already
            await _check(staging, [other])
            assert _hangs(staging) == most - 1


def test_what_waited_behind_a_read_that_hangs_comes_before_all_that_is_ahead() -> None:
    staging = Staging(_FILES)
    _, behind = staging.start(20), staging.start(21)
    assert len(staging.stager._next()) == 2
    ahead = staging.start(30)
    staging.stager._return(behind, urgent=True)
    assert [staging.stager._next() for _ in range(2)] == [[behind], [ahead]]


# --- Given up --------------------------------------------------------------------------------------------------------


@in_trio
async def test_what_was_given_up_while_it_hangs_is_read_again_elsewhere_and_left_alone_there() -> None:
    staging = Staging(_FILES)
    size = staging.dataset.size(20)
    free = trio.Event()
    with _hanging(staging, range(20, 21)) as gates:
        async with staging.running():
            old = staging.start(20, urgent=True)
            await gates[0].reached()
            staging.stager.abandon(old, free.set)
            del staging.source.read_gates[b"20"]
            new = staging.start(20, urgent=True)
            await _check(staging, [new])
            assert not free.is_set()  # the thread may still write to the old place
            staging.store.data(new.at, size)[:] = b"n" * size
            gates[0].open()
            await free.wait()
            staging.check(old)
            assert staging.store.data(new.at, size) == b"n" * size


@in_trio
async def test_what_was_given_up_behind_a_read_that_hangs_is_not_read_and_its_place_free() -> None:
    staging = Staging(_FILES)
    free = trio.Event()
    with _hanging(staging, range(20, 21)) as gates:
        _, behind, last = staging.start(20), staging.start(21), staging.start(22)
        async with staging.running():
            await gates[0].reached()
            staging.stager.abandon(behind, free.set)
            await free.wait()
            await _check(staging, [last])
            assert not behind.good
            assert _hangs(staging) == 1
    assert b"21" not in {read[0] for read in staging.source.reads}


@pytest.mark.parametrize("urgent", [True, False])
def test_what_was_given_up_behind_a_read_that_hangs_may_be_asked_for_again(urgent: bool) -> None:
    @in_trio
    async def main() -> None:
        staging = Staging(_FILES)
        free = trio.Event()
        with _hanging(staging, range(20, 21)) as gates:
            _, behind = staging.start(20), staging.start(21)
            async with staging.running():
                await gates[0].reached()
                staging.stager.abandon(behind, free.set)
                again = staging.start(21, urgent)
                await free.wait()
                await _check(staging, [again])
        assert [read[0] for read in staging.source.reads].count(b"21") == 1

    main()


@in_trio
async def test_a_read_that_hangs_and_was_given_up_fails_in_the_end_and_its_place_is_free() -> None:
    staging = Staging(_FILES)
    free = trio.Event()
    with _hanging(staging, range(20, 21)) as gates:
        async with staging.running():
            read = staging.start(20)
            await _until(lambda: _hangs(staging) == 1)
            staging.stager.abandon(read, free.set)
            staging.source.change(b"20", b"other")
            gates[0].open()
            await free.wait()
            assert not read.good
            await _until(lambda: _hangs(staging) == 0)
    assert staging.source.open_now == 0
