"""Loading a rank's own units: each once, what is needed first, and what the source would not give."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import Counter as Count
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
import trio
import trio.testing

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece
from deepiofs.engine.loader import WORKERS, Loader
from deepiofs.errors import DeepiofsError
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import EXTENT_BYTES
from deepiofs.memory.store import BROKEN, EMPTY, LOADED, Store, genuine
from tests.doubles import Gate, MemorySource, in_trio
from tests.unit.jobs import Dataset

_FILES = {b"%02d" % i: b"%02d" % i * (50 + i) for i in range(20)}
# Long enough to be sure that a test hangs, as nothing in it waits for time.
_HUNG_S = 5.0


class Loading:
    def __init__(self, files: dict[bytes, bytes], own: list[int] | None = None) -> None:
        self.dataset = Dataset(files)
        self.source: MemorySource = self.dataset.source
        self.store: Store = self.dataset.new_store()
        self.board = Board.create()
        self.own = list(range(len(self.dataset))) if own is None else own
        self.loader: Loader = self.dataset.loader(self.own, self.store, self.board)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """With the loader's workers at work."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.loader.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def load_all(self) -> None:
        """Load everything, from start to end."""
        async with self.running():
            await self.loader.load_all()

    def state(self, path: bytes) -> int:
        return self.store.state(self.dataset.at[self.dataset.unit(path)])

    def check_loaded(self, unit: int) -> None:
        at, size = self.dataset.at[unit], self.dataset.size(unit)
        assert self.store.state(at) == LOADED
        assert genuine(self.store.unit(at, size))
        assert self.store.data(at, size) == self.dataset.data(unit)

    def counted(self) -> tuple[int, int]:
        return self.board[Counter.LOADED_UNITS], self.board[Counter.BROKEN_UNITS]


@in_trio
async def test_every_own_unit_is_loaded_genuine() -> None:
    loading = Loading(_FILES)
    await loading.load_all()
    for unit in loading.own:
        loading.check_loaded(unit)
    assert loading.counted() == (len(_FILES), 0)
    assert loading.board[Counter.LOADED_BYTES] == sum(map(len, _FILES.values()))
    assert loading.board[Counter.SOURCE_BYTES] == loading.board[Counter.LOADED_BYTES]


def test_what_is_to_be_loaded_is_known_before() -> None:
    loading = Loading(_FILES, own=[0, 3])
    assert loading.board[Counter.OWN_UNITS] == 2
    assert loading.board[Counter.OWN_BYTES] == loading.dataset.size(0) + loading.dataset.size(3)


@in_trio
async def test_units_of_others_are_left_alone() -> None:
    loading = Loading(_FILES, own=[1, 4, 9])
    await loading.load_all()
    states = [loading.store.state(at) for at in loading.dataset.at]
    assert [unit for unit, state in enumerate(states) if state == LOADED] == [1, 4, 9]
    assert len(loading.source.reads) == 3


@in_trio
async def test_every_byte_is_read_once_and_every_file_closed() -> None:
    loading = Loading({b"huge": bytes(2 * EXTENT_BYTES + 5), **_FILES})
    await loading.load_all()
    assert max(Count(loading.source.reads).values()) == 1
    assert sum(size for _, _, size in loading.source.reads) == 2 * EXTENT_BYTES + 5 + sum(map(len, _FILES.values()))
    assert loading.source.open_now == 0


@in_trio
async def test_the_extents_of_a_large_file_have_their_own_bytes() -> None:
    data = bytes(range(256)) * (EXTENT_BYTES // 128) + b"the rest"
    loading = Loading({b"huge": data})
    await loading.load_all()
    assert len(loading.own) == 3
    for unit in loading.own:
        loading.check_loaded(unit)


@in_trio
async def test_many_small_files_are_all_loaded() -> None:
    loading = Loading({b"%04d" % i: b"%d" % i for i in range(1500)})
    await loading.load_all()
    assert loading.counted() == (1500, 0)
    assert max(Count(loading.source.reads).values()) == 1


@in_trio
async def test_nothing_to_load_is_loaded_at_once() -> None:
    await Loading({}).load_all()
    loading = Loading(_FILES, own=[])
    await loading.load_all()
    assert loading.source.reads == []


@in_trio
async def test_a_needed_unit_is_loaded_alone_and_not_again() -> None:
    loading = Loading(_FILES)
    async with loading.running():
        assert await loading.loader.need(7)
        loading.check_loaded(7)
        assert len(loading.source.reads) == 1
        assert await loading.loader.need(7)
        await loading.loader.load_all()
    assert max(Count(loading.source.reads).values()) == 1
    assert loading.counted() == (len(_FILES), 0)


@in_trio
async def test_a_unit_needed_while_it_is_loading_is_read_once() -> None:
    loading = Loading(_FILES)
    results = []

    async def need(unit: int) -> None:
        results.append(await loading.loader.need(unit))

    with Gate() as gate:
        loading.source.read_gates[b"05"] = gate
        async with loading.running() as workers, trio.open_nursery() as nursery:
            workers.start_soon(loading.loader.load_all)
            await gate.reached()
            for _ in range(3):
                nursery.start_soon(need, 5)
            nursery.start_soon(need, 12)  # of the same batch, and behind it
            await trio.testing.wait_all_tasks_blocked()
            assert results == []
            gate.open()
    assert results == [True] * 4
    assert max(Count(loading.source.reads).values()) == 1
    assert loading.counted() == (len(_FILES), 0)


@in_trio
async def test_a_unit_needed_by_several_is_read_once() -> None:
    loading = Loading(_FILES)
    results = []

    async def need() -> None:
        results.append(await loading.loader.need(5))

    async with loading.running(), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(need)
    assert results == [True] * 5
    assert loading.source.reads == [(b"05", 0, len(_FILES[b"05"]))]
    assert loading.counted() == (1, 0)


@in_trio
async def test_who_needs_a_unit_does_not_wait_for_the_rest() -> None:
    loading = Loading(_FILES, own=list(range(20)))
    with Gate() as gate:
        loading.source.read_gates[b"19"] = gate
        async with loading.running() as nursery:
            nursery.start_soon(loading.loader.need, 19)
            await gate.reached()
            assert await loading.loader.need(3)
            assert loading.state(b"19") == EMPTY
            gate.open()


def _open_error(source: MemorySource) -> None:
    source.open_errors[b"05"] = errno.EACCES


def _read_error(source: MemorySource) -> None:
    source.read_errors[b"05"] = errno.EIO


def _truncated(source: MemorySource) -> None:
    source.cut[b"05"] = 3


def _changed(source: MemorySource) -> None:
    source.change(b"05", b"other")


def _removed(source: MemorySource) -> None:
    del source.files[b"05"]


_FAULTS = [_open_error, _read_error, _truncated, _changed, _removed]


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_what_the_source_does_not_give_is_broken_and_counted(
    fault: Callable[[MemorySource], None], caplog: pytest.LogCaptureFixture
) -> None:
    loading = Loading(_FILES)
    fault(loading.source)
    with caplog.at_level(logging.WARNING):
        in_trio(loading.load_all)()
    assert loading.state(b"05") == BROKEN
    assert loading.counted() == (len(_FILES) - 1, 1)
    assert loading.board[Counter.LOADED_BYTES] == sum(map(len, _FILES.values())) - len(_FILES[b"05"])
    assert [record.message.partition(": ")[2].partition(":")[0] for record in caplog.records] == ["05"]
    assert loading.source.open_now == 0


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_who_needs_a_broken_unit_is_told(fault: Callable[[MemorySource], None]) -> None:
    loading = Loading(_FILES)
    fault(loading.source)

    @in_trio
    async def main() -> None:
        async with loading.running():
            assert not await loading.loader.need(5)
            reads = len(loading.source.reads)
            assert not await loading.loader.need(5)
            assert len(loading.source.reads) == reads
            assert await loading.loader.need(6)

    main()
    assert loading.counted() == (1, 1)


@in_trio
async def test_one_broken_extent_leaves_the_others_of_its_file() -> None:
    loading = Loading({b"huge": bytes(2 * EXTENT_BYTES)})
    loading.source.cut[b"huge"] = EXTENT_BYTES + 10
    await loading.load_all()
    loading.check_loaded(0)
    assert loading.store.state(loading.dataset.at[1]) == BROKEN
    assert loading.source.open_now == 0


@in_trio
async def test_who_gives_up_waiting_does_not_stop_the_load_for_the_others() -> None:
    loading = Loading(_FILES)
    results: list[bool] = []

    async def need() -> None:
        results.append(await loading.loader.need(5))

    with Gate() as gate:
        loading.source.read_gates[b"05"] = gate
        async with loading.running():
            async with trio.open_nursery() as impatient:
                impatient.start_soon(loading.loader.need, 5)
                await gate.reached()
                impatient.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(need)
                await trio.testing.wait_all_tasks_blocked()
                gate.open()
    assert results == [True]
    assert len(loading.source.reads) == 1
    assert loading.counted() == (1, 0)


@in_trio
async def test_a_load_that_nobody_waits_for_any_more_is_waited_for_by_load_all_and_counted() -> None:
    loading = Loading(_FILES)
    with Gate() as gate:
        loading.source.read_gates[b"05"] = gate
        async with loading.running() as nursery:
            async with trio.open_nursery() as impatient:
                impatient.start_soon(loading.loader.need, 5)
                await gate.reached()
                impatient.cancel_scope.cancel()

            async def open_when_all_else_is_loaded() -> None:
                while loading.board[Counter.LOADED_UNITS] < len(_FILES) - 1:
                    await trio.sleep(0.001)
                await trio.testing.wait_all_tasks_blocked()
                assert not loading.loader.finished.is_set()
                gate.open()

            nursery.start_soon(open_when_all_else_is_loaded)
            await loading.loader.load_all()
            assert loading.counted() == (len(_FILES), 0)
            loading.check_loaded(5)


@in_trio
async def test_only_what_is_needed_is_loaded_before_load_all_is_called() -> None:
    loading = Loading(_FILES)
    async with loading.running():
        for unit in (3, 11):
            assert await loading.loader.need(unit)
        await trio.testing.wait_all_tasks_blocked()
    assert [path for path, _, _ in loading.source.reads] == [b"03", b"11"]
    assert not loading.loader.finished.is_set()


@in_trio
async def test_loading_ends_when_all_was_needed() -> None:
    loading = Loading(_FILES)
    async with loading.running():
        for unit in loading.own:
            assert await loading.loader.need(unit)
        await loading.loader.finished.wait()
    assert loading.counted() == (len(_FILES), 0)


@in_trio
async def test_what_is_needed_is_loaded_before_the_rest() -> None:
    loading = Loading({b"%04d" % i: b"%d" % i for i in range(2000)})
    with contextlib.ExitStack() as gates:
        # Hold every worker in its first batch, so that the rest is still to be taken.
        held = [gates.enter_context(Gate()) for _ in range(WORKERS)]
        for i, gate in enumerate(held):
            loading.source.read_gates[b"%04d" % (64 * i)] = gate
        async with loading.running() as nursery:
            nursery.start_soon(loading.loader.load_all)
            for gate in held:
                await gate.reached()
            nursery.start_soon(loading.loader.need, 1999)
            await trio.testing.wait_all_tasks_blocked()
            held[0].open()
            with trio.fail_after(_HUNG_S):
                assert await loading.loader.need(1999)
            read = [path for path, _, _ in loading.source.reads]
            # What one worker may have begun meanwhile; the other seven are held.
            assert read.index(b"1999") <= WORKERS + 2 * 64


class Together(MemorySource):
    """Reads many files at once, and tells which."""

    def __init__(self, files: dict[bytes, bytes]) -> None:
        super().__init__(files)
        self.together: list[list[int]] = []

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[OSError | DeepiofsError | None]:
        self.together.append([piece.row for piece in pieces])
        for piece in pieces:
            file = self.open(manifest, piece.row)
            file.read_into(piece.buffer, piece.at)
            file.close()
        return [None] * len(pieces)


@in_trio
async def test_a_record_that_is_needed_brings_those_behind_it() -> None:
    loading = Loading({b"%02d" % i: bytes([i]) * (500 << 10) for i in range(40)})
    source = Together({path: data for path, (data, _) in loading.source.files.items()})
    loading.dataset.source = source
    manifest = loading.dataset.manifest
    places = {**manifest.columns, "source_at": np.arange(manifest.n_rows)}
    loading.dataset.manifest = Manifest({**manifest.meta, "containers": []}, places)
    loader = loading.dataset.loader(loading.own, loading.store, loading.board)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.load_all)
        await trio.testing.wait_all_tasks_blocked()
        for unit in (30, 32, 9):
            nursery.start_soon(loader.need, unit)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(loader.run)
        await loader.finished.wait()
        nursery.cancel_scope.cancel()
    rows = loading.dataset.units.row.tolist()
    for together in (rows[9:14], rows[30:32], rows[32:37]):
        assert together in source.together
    assert sorted(row for batch in source.together for row in batch) == rows
