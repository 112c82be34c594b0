"""Loading from a source that fails for a moment, or hangs: what passes is loaded, what hangs keeps nobody up."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest
import trio

from deepiofs.dataset.sources import retry
from deepiofs.engine import batches
from deepiofs.engine import loader as loader_module
from deepiofs.engine.batches import MOST_LEFT_ALONE
from deepiofs.engine.loader import WORKERS
from deepiofs.memory.board import Counter
from deepiofs.memory.store import BROKEN, EMPTY, LOADED
from tests.doubles import Gate, in_trio
from tests.unit.test_loader import Loading

_FILES = {b"%03d" % i: b"%03d" % i * 20 for i in range(200)}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds on a mount takes moments here."""
    monkeypatch.setattr(batches, "HANGS_AFTER_S", 0.05)
    monkeypatch.setattr(loader_module, "_LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(retry, "PAUSES_S", (0.01, 0.02))


@contextlib.contextmanager
def _hanging(loading: Loading, numbers: range) -> Iterator[list[Gate]]:
    """Reads of these files hang until their gates, or all at the end, are opened."""
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(Gate()) for _ in numbers]
        for i, gate in zip(numbers, gates, strict=True):
            loading.source.read_gates[b"%03d" % i] = gate
        yield gates


async def _until_loaded(loading: Loading, count: int) -> None:
    while loading.board[Counter.LOADED_UNITS] < count:
        await trio.sleep(0.005)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_what_fails_for_a_moment_is_loaded(number: int, caplog: pytest.LogCaptureFixture) -> None:
    loading = Loading(_FILES)
    loading.source.read_errors[b"005"] = number
    loading.source.errors_left[b"005"] = 2
    in_trio(loading.load_all)()
    loading.check_loaded(5)
    assert loading.counted() == (len(_FILES), 0)
    assert len([path for path, _, _ in loading.source.reads if path == b"005"]) == 3
    assert not caplog.records
    assert loading.source.open_now == 0


def test_what_goes_on_failing_is_given_up_after_the_last_try(caplog: pytest.LogCaptureFixture) -> None:
    loading = Loading(_FILES)
    loading.source.read_errors[b"005"] = errno.EIO
    in_trio(loading.load_all)()
    assert loading.state(b"005") == BROKEN
    assert loading.counted() == (len(_FILES) - 1, 1)
    assert len([path for path, _, _ in loading.source.reads if path == b"005"]) == 1 + len(retry.PAUSES_S)
    assert [record.message for record in caplog.records] == ["not loaded: 005: [Errno 5] Input/output error"]


@in_trio
async def test_what_lasts_is_not_tried_again() -> None:
    loading = Loading(_FILES)
    loading.source.open_errors[b"005"] = errno.ENOENT
    await loading.load_all()
    assert loading.counted() == (len(_FILES) - 1, 1)
    assert not loading.loader._tries


@in_trio
async def test_who_needs_what_fails_for_a_moment_gets_it() -> None:
    loading = Loading(_FILES)
    loading.source.read_errors[b"005"] = errno.EIO
    loading.source.errors_left[b"005"] = 1
    async with loading.running():
        assert await loading.loader.need(5)
    assert loading.counted() == (1, 0)


@in_trio
async def test_a_hanging_file_keeps_nothing_from_being_loaded_but_itself() -> None:
    loading = Loading(_FILES)
    with _hanging(loading, range(3, 4)) as gates:
        async with loading.running() as nursery:
            nursery.start_soon(loading.loader.load_all)
            await _until_loaded(loading, len(_FILES) - 1)
            assert loading.state(b"003") == EMPTY
            assert loading.board[Counter.SOURCE_HANGS] == 1
            assert not loading.loader.finished.is_set()
            gates[0].open()
            await loading.loader.finished.wait()
            loading.check_loaded(3)
            assert loading.board[Counter.SOURCE_HANGS] == 0
    assert loading.counted() == (len(_FILES), 0)
    assert len(loading.source.reads) == len(_FILES)
    assert loading.source.open_now == 0


@in_trio
async def test_more_hanging_files_than_slots_keep_nothing_from_being_loaded() -> None:
    loading = Loading(_FILES)
    hanging = MOST_LEFT_ALONE - 1
    assert hanging > WORKERS
    with _hanging(loading, range(hanging)) as gates:
        async with loading.running() as nursery:
            nursery.start_soon(loading.loader.load_all)
            await _until_loaded(loading, len(_FILES) - hanging)
            assert await loading.loader.need(150)
            assert loading.board[Counter.SOURCE_HANGS] == hanging
            for gate in gates:
                gate.open()
            await loading.loader.finished.wait()
    assert loading.counted() == (len(_FILES), 0)
    assert loading.loader._left_alone == loading.board[Counter.SOURCE_HANGS] == 0


@in_trio
async def test_no_more_threads_than_are_allowed_hang_at_once() -> None:
    loading = Loading(_FILES)
    with _hanging(loading, range(len(_FILES))) as gates:
        async with loading.running() as nursery:
            nursery.start_soon(loading.loader.load_all)
            while loading.board[Counter.SOURCE_HANGS] < WORKERS + MOST_LEFT_ALONE:
                await trio.sleep(0.005)
            assert len(loading.source.reads) == WORKERS + MOST_LEFT_ALONE
            for gate in gates:
                gate.open()
            await loading.loader.finished.wait()
    assert loading.counted() == (len(_FILES), 0)
    assert loading.loader._left_alone == loading.board[Counter.SOURCE_HANGS] == 0
    assert len(loading.source.reads) == len(_FILES)


@in_trio
async def test_who_waits_for_a_unit_behind_a_hanging_one_gets_it() -> None:
    loading = Loading(_FILES)
    results = []

    async def need(unit: int) -> None:
        results.append(await loading.loader.need(unit))

    with _hanging(loading, range(1)) as gates:
        async with loading.running() as workers, trio.open_nursery() as nursery:
            workers.start_soon(loading.loader.load_all)
            await gates[0].reached()
            nursery.start_soon(need, 40)  # of the same batch
            while not results:
                await trio.sleep(0.005)
            assert loading.state(b"000") == EMPTY
            assert loading.state(b"040") == LOADED
    assert results == [True]
