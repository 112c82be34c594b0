"""From the source into staging: what is waited for first, neighbours together, and nothing lost that is given up."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import trio
import trio.testing

from deepiofs.engine.stager import SourceRead, Stager
from deepiofs.memory.placement import EXTENT_BYTES
from tests.doubles import Gate, in_trio
from tests.unit.jobs import Dataset, InlineStager

_WORKERS = 16
_FILES = {b"%02d" % i: bytes([i + 1]) * (1000 + i) for i in range(40)}
_HUGE = {b"huge": np.arange(3 * EXTENT_BYTES // 8, dtype=np.uint64).tobytes(), b"other": b"x" * 100}


class _Staging:
    """A stager, and a buffer of its own for each read."""

    def __init__(self, files: dict[bytes, bytes], stager: Callable[[Dataset], Stager] | None = None) -> None:
        self.dataset = Dataset(files)
        self.source = self.dataset.source
        make = stager or (lambda d: Stager(d.units, d.manifest, d.source))
        self.stager = make(self.dataset)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stager.run)
            yield
            nursery.cancel_scope.cancel()

    def start(self, unit: int, urgent: bool = False) -> SourceRead:
        return self.stager.start(unit, memoryview(bytearray(self.dataset.size(unit))), urgent)

    def check(self, read: SourceRead) -> None:
        """It is done, with the bytes that it must have."""
        assert read.done.is_set()
        assert read.good
        assert read.into == self.dataset.data(read.unit)

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
    staging = _Staging(_FILES)
    async with staging.running():
        reads = [staging.start(unit, urgent=unit % 3 == 0) for unit in range(len(_FILES))]
        for read in reads:
            await read.done.wait()
            staging.check(read)
    assert sorted(read[0] for read in staging.source.reads) == sorted(_FILES)
    assert staging.source.open_now == 0


@in_trio
async def test_what_is_waited_for_comes_before_what_is_ahead_and_a_hurry_moves_it_there() -> None:
    staging = _Staging(_FILES, InlineStager)
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
    staging = _Staging(files, InlineStager)
    for unit in (3, 1, 2, 4, 0, 5, 7):
        staging.start(unit)
    async with staging.running():
        await trio.testing.wait_all_tasks_blocked()
    assert staging.batches() == [[3, 4, 5], [1, 2], [0], [7]]


@in_trio
async def test_extents_of_one_file_that_are_read_together_share_one_open() -> None:
    staging = _Staging(_HUGE)
    reads = [staging.start(unit) for unit in range(2)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
            staging.check(read)
    assert staging.source.opened == 1
    assert staging.source.open_now == 0


@in_trio
async def test_files_that_are_read_together_are_opened_one_after_another() -> None:
    staging = _Staging(_FILES)
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
    staging = _Staging(_FILES)
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
        staging = _Staging(_FILES)
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
        staging = _Staging(_FILES)
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
async def test_what_is_given_up_behind_a_neighbour_that_hangs_has_its_place_until_the_batch_ends() -> None:
    staging = _Staging(_FILES)
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


@in_trio
async def test_what_is_given_up_when_it_was_read_is_free_at_once() -> None:
    staging = _Staging(_FILES)
    free: list[int] = []
    async with staging.running():
        read = staging.start(20, urgent=True)
        await read.done.wait()
        staging.stager.abandon(read, lambda: free.append(20))
    assert free == [20]


@in_trio
async def test_what_was_given_up_may_be_asked_for_again() -> None:
    staging = _Staging(_FILES)
    async with staging.running():
        async with staging.busy():
            staging.stager.abandon(staging.start(20), lambda: None)
            again = staging.start(20)
        await again.done.wait()
        staging.check(again)
    assert [read[0] for read in staging.source.reads].count(b"20") == 1


# --- What the source says --------------------------------------------------------------------------------------------


def _fails_to_open(staging: _Staging) -> None:
    staging.source.open_errors[b"11"] = errno.ENOENT


def _fails_to_read(staging: _Staging) -> None:
    staging.source.read_errors[b"11"] = errno.EIO


def _is_shorter(staging: _Staging) -> None:
    staging.source.cut[b"11"] = 500


def _has_changed(staging: _Staging) -> None:
    staging.source.change(b"11", b"other")


@pytest.mark.parametrize("fault", [_fails_to_open, _fails_to_read, _is_shorter, _has_changed])
def test_what_the_source_does_not_give_is_told_and_its_neighbours_are_read(fault: Callable[[_Staging], None]) -> None:
    @in_trio
    async def main() -> None:
        staging = _Staging(_FILES)
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
async def test_an_extent_that_cannot_be_read_leaves_the_file_open_for_the_next() -> None:
    staging = _Staging(_HUGE)
    staging.source.cut[b"huge"] = EXTENT_BYTES + 10
    reads = [staging.start(unit) for unit in range(3)]
    async with staging.running():
        for read in reads:
            await read.done.wait()
    assert [read.good for read in reads] == [True, False, False]
    assert staging.source.open_now == 0
