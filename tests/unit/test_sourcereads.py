"""The mount's own reads of the source: what hangs keeps two threads, its file, and nothing else."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from deepiofs.errors import SourceError
from deepiofs.fs.sourcereads import SourceHandle, SourceReads
from tests.doubles import Gate, MemorySource, in_trio
from tests.unit.jobs import Dataset

_FILES = {b"%03d" % i: bytes([i]) * 1000 for i in range(80)}
_HANGING_OF_FILE = 2
_THREADS = 64


class _Source:
    """Reads of `_FILES`, some of which hang."""

    def __init__(self) -> None:
        self.dataset = Dataset(_FILES)
        self.source: MemorySource = self.dataset.source
        self.reads = SourceReads(self.source, self.dataset.manifest)
        self.results: list[bytes] = []

    def handle(self, path: bytes) -> SourceHandle:
        row = self.dataset.manifest.find(path)
        assert row is not None
        return SourceHandle(row)

    async def read(self, path: bytes) -> bytes:
        """What one gets who opens, reads once, and closes."""
        handle = self.handle(path)
        try:
            return await self.reads.read(handle, 100, 50)
        finally:
            handle.mark_closed()
            handle.close()

    async def kept(self, path: bytes) -> None:
        self.results.append(await self.read(path))

    @contextlib.contextmanager
    def hanging(self, *paths: bytes) -> Iterator[Gate]:
        """Reads of these files hang inside the block, or until the gate is opened."""
        with Gate() as gate:
            for path in paths:
                self.source.read_gates[path] = gate
            yield gate

    async def leave_one(self, path: bytes) -> None:
        """Begin a read of a file that hangs, and leave it when it does."""
        begun = self.begun(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read, path)
            await self.until(lambda: self.begun(path) > begun)
            nursery.cancel_scope.cancel()

    def begun(self, path: bytes) -> int:
        """How many reads of a file have reached the source."""
        return sum(read[0] == path for read in self.source.reads)

    @staticmethod
    async def until(condition: object) -> None:
        assert callable(condition)
        with trio.fail_after(10):
            while not condition():
                await trio.sleep(0.001)


@in_trio
async def test_bytes_are_read_and_nothing_is_left() -> None:
    source = _Source()
    assert await source.read(b"007") == bytes([7]) * 50
    assert source.reads.hanging == 0
    assert source.source.open_now == 0


@pytest.mark.parametrize("on_open", [True, False])
def test_an_error_of_the_source_keeps_its_number_and_leaves_no_thread(on_open: bool) -> None:
    @in_trio
    async def main() -> None:
        source = _Source()
        (source.source.open_errors if on_open else source.source.read_errors)[b"007"] = errno.ESTALE
        for _ in range(5):
            with pytest.raises(OSError, match="Stale") as caught:
                await source.read(b"007")
            assert caught.value.errno == errno.ESTALE
        assert source.reads.hanging == 0
        assert source.source.open_now == 0

    main()


@in_trio
async def test_a_file_that_is_shorter_than_it_was_is_an_error() -> None:
    source = _Source()
    source.source.cut[b"007"] = 120
    with pytest.raises(SourceError, match="007: shorter"):
        await source.read(b"007")


@in_trio
async def test_a_file_that_hangs_keeps_two_threads_at_most() -> None:
    source = _Source()
    async with trio.open_nursery() as nursery:
        with source.hanging(b"007"):
            for _ in range(_HANGING_OF_FILE):
                await source.leave_one(b"007")
            assert source.reads.hanging == _HANGING_OF_FILE
            for _ in range(10):
                nursery.start_soon(source.kept, b"007")
            await trio.testing.wait_all_tasks_blocked()
            assert source.begun(b"007") == _HANGING_OF_FILE
            assert await source.read(b"008") == bytes([8]) * 50
        await source.until(lambda: len(source.results) == 10)  # those who waited go on
    assert source.results == [bytes([7]) * 50] * 10
    assert source.reads.hanging == 0
    await source.until(lambda: source.source.open_now == 0)


@in_trio
async def test_who_waits_for_a_file_that_hangs_can_stop_waiting() -> None:
    source = _Source()
    with source.hanging(b"007"):
        for _ in range(_HANGING_OF_FILE):
            await source.leave_one(b"007")
        for _ in range(5):
            with trio.move_on_after(0.01) as limit:
                await source.read(b"007")
            assert limit.cancelled_caught
        assert source.reads.hanging == _HANGING_OF_FILE
    await source.until(lambda: source.reads.hanging == 0)
    assert await source.read(b"007") == bytes([7]) * 50


@in_trio
async def test_one_thread_that_ends_lets_those_who_wait_go_on() -> None:
    source = _Source()
    async with trio.open_nursery() as nursery:
        with source.hanging(b"007") as first:
            await source.leave_one(b"007")
            with source.hanging(b"007"):
                await source.leave_one(b"007")
                del source.source.read_gates[b"007"]
                nursery.start_soon(source.kept, b"007")
                await trio.testing.wait_all_tasks_blocked()
                assert source.results == []
                first.open()
                await source.until(lambda: bool(source.results))
                assert source.reads.hanging == 1
    await source.until(lambda: source.reads.hanging == 0)


@in_trio
async def test_readers_that_still_wait_are_no_hanging_threads() -> None:
    source = _Source()
    async with trio.open_nursery() as nursery:
        with source.hanging(b"007"):
            for _ in range(5):
                nursery.start_soon(source.kept, b"007")
            await source.until(lambda: source.begun(b"007") == 5)
            assert source.reads.hanging == 0
    assert len(source.results) == 5


@in_trio
async def test_who_gave_up_before_there_was_a_thread_for_it_left_none_behind() -> None:
    source = _Source()
    names = sorted(_FILES)
    async with trio.open_nursery() as nursery:
        with source.hanging(*names[:_THREADS]):
            for path in names[:_THREADS]:
                nursery.start_soon(source.kept, path)
            await source.until(lambda: len(source.source.reads) == _THREADS)
            for _ in range(_HANGING_OF_FILE + 1):
                with trio.move_on_after(0.01) as limit:
                    await source.read(names[-1])
                assert limit.cancelled_caught
            assert source.reads.hanging == 0
        assert await source.read(names[-1]) == _FILES[names[-1]][:50]
    assert source.begun(names[-1]) == 1


@in_trio
async def test_whose_time_is_over_already_reads_nothing_and_leaves_nothing() -> None:
    source = _Source()
    for _ in range(_HANGING_OF_FILE + 1):
        with trio.CancelScope() as scope:
            scope.cancel()
            await source.read(b"007")
    assert source.reads.hanging == 0
    assert await source.read(b"007") == bytes([7]) * 50


@in_trio
async def test_a_thread_that_opened_a_file_after_its_handle_was_gone_closes_it() -> None:
    source = _Source()
    with Gate() as gate:
        source.source.open_gates[b"007"] = gate
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.read, b"007")
            await gate.reached()
            nursery.cancel_scope.cancel()
        assert source.reads.hanging == 1
    await source.until(lambda: source.source.opened == 1 and source.source.open_now == 0)
    await source.until(lambda: source.reads.hanging == 0)
