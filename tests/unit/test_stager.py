"""From the source into staging: what is waited for first, neighbours together, and nothing lost that is given up."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import trio
import trio.testing

from deepiofs.engine.stager import _TURN_S, SourceRead, Stager
from deepiofs.memory.board import Board
from deepiofs.memory.placement import EXTENT_BYTES
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import EMPTY, LOADED, Store, genuine, span
from tests.doubles import Gate, in_trio
from tests.unit.jobs import Dataset, InlineStager

_WORKERS = 16
_FILES = {b"%02d" % i: bytes([i + 1]) * (1000 + i) for i in range(40)}
_HUGE = {b"huge": np.arange(3 * EXTENT_BYTES // 8, dtype=np.uint64).tobytes(), b"other": b"x" * 100}


class Staging:
    """A stager, and a place of its own for each read."""

    def __init__(
        self, files: dict[bytes, bytes], stager: Callable[[Dataset, Store, Board], Stager] | None = None
    ) -> None:
        self.dataset = Dataset(files)
        self.source = self.dataset.source
        self.board = Board.create()
        self.store = Store(Segment.create("staging", 2 * self.dataset.store_bytes))
        self._end = 0
        make = stager or (lambda d, store, board: Stager(d.units, d.manifest, d.source, store, board))
        self.stager = make(self.dataset, self.store, self.board)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stager.run)
            yield
            nursery.cancel_scope.cancel()

    def start(self, unit: int, urgent: bool = False) -> SourceRead:
        at, self._end = self._end, self._end + span(self.dataset.size(unit))
        return self.stager.start(unit, at, urgent)

    def state(self, read: SourceRead) -> int:
        """What the header at its place says."""
        return self.store.state(read.at)

    def check(self, read: SourceRead) -> None:
        """It is done, whole and genuine, with the bytes that it must have."""
        size = self.dataset.size(read.unit)
        assert read.done.is_set()
        assert read.good
        assert self.store.data(read.at, size) == self.dataset.data(read.unit)
        assert self.state(read) == LOADED
        assert genuine(self.store.unit(read.at, size))

    def batches(self) -> list[list[int]]:
        """What was read together, of an `InlineStager`."""
        assert isinstance(self.stager, InlineStager)
        return self.stager.batches

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """All workers hang in the files 00 to 15 while inside."""
        with Gate() as gate:
            for unit in range(_WORKERS):
                self.source.read_gates[b"%02d" % unit] = gate
            hanging = [self.start(unit, urgent=True) for unit in range(_WORKERS)]
            with trio.fail_after(10):
                while len(self.source.reads) < _WORKERS:
                    await trio.sleep(0.001)
            yield
        for read in hanging:
            await read.done.wait()
            self.check(read)


@in_trio
async def test_each_unit_is_read_into_its_place_and_nothing_stays_open() -> None:
    staging = Staging(_FILES)
    async with staging.running():
        reads = [staging.start(unit, urgent=unit % 3 == 0) for unit in range(len(_FILES))]
        for read in reads:
            await read.done.wait()
            staging.check(read)
    assert sorted(read[0] for read in staging.source.reads) == sorted(_FILES)
    assert staging.source.open_now == 0


@in_trio
async def test_what_is_waited_for_comes_before_what_is_ahead_and_a_hurry_moves_it_there() -> None:
    staging = Staging(_FILES, InlineStager)
    for unit in (2, 8, 20):
        staging.start(unit)
    for unit in (30, 11):
        staging.start(unit, urgent=True)
    staging.stager.hurry(20)
    staging.stager.hurry(30)  # it is urgent already
    staging.stager.hurry(39)  # nobody asked for it
    async with staging.running():
        await trio.testing.wait_all_tasks_blocked()
    assert staging.batches() == [[30], [11], [20], [2], [8]]


@in_trio
async def test_neighbours_that_are_ahead_are_read_together_up_to_8_mib() -> None:
    files = {b"%d" % i: bytes(3 << 20) for i in range(8)}
    staging = Staging(files, InlineStager)
    for unit in (3, 1, 2, 4, 0, 5, 7):
        staging.start(unit)
    async with staging.running():
        await trio.testing.wait_all_tasks_blocked()
    assert staging.batches() == [[3, 4, 5], [1, 2], [0], [7]]


@in_trio
async def test_where_more_waits_than_there_are_workers_small_files_go_by_the_handful() -> None:
    staging = Staging({b"%03d" % i: b"%d" % i for i in range(200)}, InlineStager)
    for unit in range(0, 3 * _WORKERS * 2, 2):
        staging.start(unit)
    async with staging.running():
        await trio.testing.wait_all_tasks_blocked()
    assert staging.batches()[:2] == [[0, 2, 4], [6, 8]]
    assert staging.batches()[-1] == [94]


@in_trio
async def test_a_handful_is_bounded_in_bytes() -> None:
    staging = Staging({b"%03d" % i: bytes(300_000) for i in range(200)}, InlineStager)
    for unit in range(0, 4 * _WORKERS * 2, 2):
        staging.start(unit)
    async with staging.running():
        await trio.testing.wait_all_tasks_blocked()
    assert staging.batches()[0] == [0, 2]


@in_trio
async def test_a_slow_source_gets_no_more_of_a_handful_than_is_begun() -> None:
    staging = Staging({b"%03d" % i: b"%d" % i for i in range(200)})
    with Gate() as first, Gate() as second:
        staging.source.read_gates |= {b"000": first, b"002": second}
        reads = [staging.start(unit) for unit in range(0, 3 * _WORKERS * 2, 2)]
        async with staging.running():
            await reads[-1].done.wait()
            assert not any(read.done.is_set() for read in reads[:3])
            await trio.sleep(2 * _TURN_S)
            first.open()
            await reads[2].done.wait()
            assert not reads[1].done.is_set()
            second.open()
            for read in reads:
                await read.done.wait()
                staging.check(read)


def test_what_goes_back_of_a_handful_is_first_of_what_is_ahead_and_hurries_if_a_reader_waits() -> None:
    staging = Staging({b"%03d" % i: b"%d" % i for i in range(200)})
    reads = [staging.start(unit) for unit in range(0, 3 * _WORKERS * 2, 2)]
    assert staging.stager._next() == reads[:3]
    staging.stager.hurry(reads[2].unit)
    for read in (reads[2], reads[1]):
        staging.stager._return(read, urgent=False)
    assert staging.stager._next() == [reads[2]]
    assert staging.stager._next()[0] is reads[1]


@in_trio
async def test_extents_of_one_file_that_are_read_together_share_one_open() -> None:
    staging = Staging(_HUGE)
    reads = [staging.start(unit) for unit in range(2)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
            staging.check(read)
    assert staging.source.opened == 1
    assert staging.source.open_now == 0


@in_trio
async def test_files_that_are_read_together_are_opened_one_after_another() -> None:
    staging = Staging(_FILES)
    reads = [staging.start(unit) for unit in range(10)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
            staging.check(read)
    assert staging.source.opened == 10
    assert [read[0] for read in staging.source.reads] == [b"%02d" % unit for unit in range(10)]
    assert staging.source.open_now == 0


@in_trio
async def test_a_hurry_is_heard_while_all_workers_are_busy() -> None:
    staging = Staging(_FILES)
    async with staging.running():
        async with staging.busy():
            reads = {unit: staging.start(unit) for unit in (20, 25, 30)}
            staging.stager.hurry(30)
            reads[35] = staging.start(35, urgent=True)
            await trio.testing.wait_all_tasks_blocked()
            assert len(staging.source.reads) == _WORKERS
        for read in reads.values():
            await read.done.wait()
            staging.check(read)
    assert staging.source.open_now == 0


# --- Given up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgent", [True, False])
def test_what_is_given_up_before_it_is_read_is_not_read_and_its_place_free_at_once(urgent: bool) -> None:
    @in_trio
    async def main() -> None:
        staging = Staging(_FILES)
        free: list[int] = []
        async with staging.running():
            async with staging.busy():
                given_up, other = staging.start(20, urgent), staging.start(21, urgent)
                staging.stager.abandon(given_up, lambda: free.append(20))
                assert free == [20]
            await other.done.wait()
            staging.check(other)
            await trio.testing.wait_all_tasks_blocked()
        assert b"20" not in {read[0] for read in staging.source.reads}
        assert not given_up.done.is_set()
        assert free == [20]

    main()


@pytest.mark.parametrize("urgent", [True, False])
def test_what_is_given_up_while_it_is_read_has_its_place_until_the_read_ends(urgent: bool) -> None:
    @in_trio
    async def main() -> None:
        staging = Staging(_FILES)
        free = trio.Event()
        async with staging.running():
            with Gate() as gate:
                staging.source.read_gates[b"20"] = gate
                read = staging.start(20, urgent)
                await gate.reached()
                staging.stager.abandon(read, free.set)
                await trio.testing.wait_all_tasks_blocked()
                assert not free.is_set()
            await free.wait()
            staging.check(read)

    main()


@in_trio
async def test_what_is_given_up_behind_a_neighbour_has_its_place_until_it_is_read() -> None:
    staging = Staging(_FILES)
    free = trio.Event()
    with Gate() as gate:
        staging.source.read_gates[b"20"] = gate
        first, second = staging.start(20), staging.start(21)
        async with staging.running():
            await gate.reached()
            staging.stager.abandon(second, free.set)
            await trio.testing.wait_all_tasks_blocked()
            assert not free.is_set()
            gate.open()
            await free.wait()
            staging.check(first)
            staging.check(second)


@in_trio
async def test_what_is_given_up_when_it_was_read_is_free_at_once() -> None:
    staging = Staging(_FILES)
    free: list[int] = []
    async with staging.running():
        read = staging.start(20, urgent=True)
        await read.done.wait()
        staging.stager.abandon(read, lambda: free.append(20))
    assert free == [20]


@in_trio
async def test_what_was_given_up_may_be_asked_for_again() -> None:
    staging = Staging(_FILES)
    async with staging.running():
        async with staging.busy():
            staging.stager.abandon(staging.start(20), lambda: None)
            again = staging.start(20)
        await again.done.wait()
        staging.check(again)
    assert [read[0] for read in staging.source.reads].count(b"20") == 1


# --- What the source says --------------------------------------------------------------------------------------------


def _fails_to_open(staging: Staging) -> None:
    staging.source.open_errors[b"11"] = errno.ENOENT


def _fails_to_read(staging: Staging) -> None:
    staging.source.read_errors[b"11"] = errno.EIO


def _is_shorter(staging: Staging) -> None:
    staging.source.cut[b"11"] = 500


def _has_changed(staging: Staging) -> None:
    staging.source.change(b"11", b"other")


@pytest.mark.parametrize("fault", [_fails_to_open, _fails_to_read, _is_shorter, _has_changed])
def test_what_the_source_does_not_give_is_told_and_its_neighbours_are_read(fault: Callable[[Staging], None]) -> None:
    @in_trio
    async def main() -> None:
        staging = Staging(_FILES)
        fault(staging)
        reads = [staging.start(unit) for unit in (10, 11, 12)]
        async with staging.running():
            for read in reads:
                await read.done.wait()
        assert [read.good for read in reads] == [True, False, True]
        for read in (reads[0], reads[2]):
            staging.check(read)
        assert staging.source.open_now == 0

    main()


@in_trio
async def test_extents_beyond_the_end_of_a_file_that_was_cut_are_not_good_and_the_file_is_closed() -> None:
    staging = Staging(_HUGE)
    staging.source.cut[b"huge"] = EXTENT_BYTES + 10
    reads = [staging.start(unit) for unit in range(3)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
    assert [read.good for read in reads] == [True, False, False]
    assert [staging.state(read) for read in reads] == [LOADED, EMPTY, EMPTY]
    assert staging.source.open_now == 0


@in_trio
async def test_after_an_extent_that_cannot_be_read_the_file_is_opened_anew_for_the_next() -> None:
    staging = Staging(_HUGE)
    staging.source.read_errors[b"huge"] = errno.ESTALE
    staging.source.errors_left[b"huge"] = 1
    reads = [staging.start(unit) for unit in range(2)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
    assert not reads[0].good
    staging.check(reads[1])
    assert staging.source.opened == 2
    assert staging.source.open_now == 0
