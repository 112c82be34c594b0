"""From a byte range to its bytes: this node's memory, a peer's, the source; never a wrong byte, never late."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import AsyncIterator

import numpy as np
import pytest
import trio
import trio.testing

from deepiofs.errors import SourceChangedError, TimedOutError
from deepiofs.fs.counts import Origin
from deepiofs.fs.openfile import OpenFile
from deepiofs.memory.board import Counter
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE
from deepiofs.memory.store import span
from deepiofs.memory.wire import Channel, Fetch, Hurry, Release
from tests.doubles import Gate, in_trio, in_trio_time
from tests.unit.jobs import Fetching, Mounted

_FILES = {b"%d" % i: bytes([i + 1]) * (1000 + i) for i in range(8)}
# Short, for the tests that wait for it to pass.
_SHORT_S = 0.2
# A request of the kernel is answered within the timeout and this.
_ANSWERED_S = 2.0


def _open(mounted: Mounted, path: bytes) -> OpenFile:
    row = mounted.link.manifest.find(path)
    assert row is not None
    return mounted.reader.open(row)


async def _read(mounted: Mounted, path: bytes, at: int = 0, size: int = 1 << 30) -> tuple[bytes, Origin]:
    """What a reader gets who opens, reads once, and closes."""
    file = _open(mounted, path)
    try:
        data, origin = await mounted.reader.read(file, at, size)
        return bytes(data), origin
    finally:
        await mounted.reader.close(file)


async def _until_closed(mounted: Mounted, opened: int = 0) -> None:
    """Wait until so many files were opened in the source, and none of them still is."""
    with trio.fail_after(5):
        while mounted.source.opened < opened or mounted.source.open_now:
            await trio.sleep(0.001)


# --- Nearest first ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("home", "origin"), [(0, Origin.LOCAL), (1, Origin.NODE), (2, Origin.PEER)])
def test_bytes_come_from_the_nearest_memory_that_has_them(home: int, origin: Origin) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES, home=lambda unit: home)
        async with mounted.running():
            for path, data in _FILES.items():
                assert await _read(mounted, path) == (data, origin)
        assert mounted.source.reads == []
        assert mounted.engine.fetches == (list(range(len(_FILES))) if origin is Origin.PEER else [])

    main()


@pytest.mark.parametrize("resident", [True, False])
def test_bytes_come_from_the_source_if_no_memory_has_them(resident: bool) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES, home=lambda unit: 2 if resident else NOWHERE)
        mounted.engine.missing = set(range(len(_FILES)))
        async with mounted.running():
            for path, data in _FILES.items():
                assert await _read(mounted, path) == (data, Origin.SOURCE)
        assert mounted.counts.source_bytes == sum(map(len, _FILES.values()))
        assert bool(mounted.engine.fetches) == resident
        await _until_closed(mounted)

    main()


@in_trio
async def test_a_local_unit_is_read_without_a_copy() -> None:
    mounted = Mounted(_FILES, home=lambda unit: 0)
    async with mounted.running():
        data, _ = await mounted.reader.read(_open(mounted, b"3"), 10, 20)
        mounted.stores[0].data(mounted.dataset.at[3], 1003)[10] = 99
        assert data[0] == 99


@in_trio
async def test_a_unit_that_is_fetched_is_kept_for_the_next_read() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        file = _open(mounted, b"3")
        for at in (0, 500, 999):
            data, origin = await mounted.reader.read(file, at, 4)
            assert (bytes(data), origin) == (_FILES[b"3"][at : at + 4], Origin.PEER)
    assert mounted.engine.fetches == [3]


@in_trio
async def test_where_bytes_would_come_from_is_known() -> None:
    mounted = Mounted(_FILES, home=lambda unit: [0, 1, 2, NOWHERE][unit % 4])
    async with mounted.running():
        origins = [mounted.reader.origin(_open(mounted, b"%d" % unit)) for unit in range(4)]
        assert origins == [Origin.LOCAL, Origin.NODE, Origin.PEER, Origin.SOURCE]
    assert mounted.engine.fetches == []
    assert mounted.source.reads == []


# --- Ranges ----------------------------------------------------------------------------------------------------------

_PIECE = bytes(range(251))
_HUGE = (_PIECE * (1 + 5 * EXTENT_BYTES // (2 * len(_PIECE))))[: 5 * EXTENT_BYTES // 2]
_EDGE = EXTENT_BYTES


@in_trio
async def test_a_read_may_cross_extents_that_lie_in_different_places() -> None:
    mounted = Mounted({b"huge": _HUGE}, home=lambda unit: [0, 2, NOWHERE][unit], staging_bytes=18 << 20)
    async with mounted.running():
        for at, size, farthest in (
            (0, 100, Origin.LOCAL),
            (_EDGE - 50, 50, Origin.LOCAL),
            (_EDGE - 50, 100, Origin.PEER),
            (_EDGE, 100, Origin.PEER),
            (2 * _EDGE - 50, 100, Origin.SOURCE),
            (_EDGE - 1, _EDGE + 2, Origin.SOURCE),
            (2 * _EDGE, 100, Origin.SOURCE),
            (0, len(_HUGE), Origin.SOURCE),
        ):
            assert await _read(mounted, b"huge", at, size) == (_HUGE[at : at + size], farthest)
        # The last extent is brought whole where what lies before it is read too.
        assert mounted.engine.fetches == [1, 2]
        assert mounted.source.reads == [(b"huge", 2 * _EDGE, 50)]
    await _until_closed(mounted)


@in_trio
async def test_the_farthest_of_several_origins_is_told_wherever_it_lies() -> None:
    mounted = Mounted({b"huge": _HUGE}, home=lambda unit: [2, 0, 1][unit], staging_bytes=8 << 20)
    async with mounted.running():
        for at, farthest in ((_EDGE - 50, Origin.PEER), (2 * _EDGE - 50, Origin.NODE)):
            assert await _read(mounted, b"huge", at, 100) == (_HUGE[at : at + 100], farthest)
    assert mounted.source.reads == []


@in_trio
async def test_a_read_is_short_only_at_the_end_of_the_file() -> None:
    mounted = Mounted({b"huge": _HUGE, b"empty": b""}, home=lambda unit: 0)
    async with mounted.running():
        end = len(_HUGE)
        for at, size in ((end - 10, 100), (end - _EDGE, 2 * _EDGE), (end, 10), (end + 10_000_000, 10), (0, 0)):
            assert await _read(mounted, b"huge", at, size) == (_HUGE[at : at + size], Origin.LOCAL)
        assert await _read(mounted, b"empty") == (b"", Origin.LOCAL)
        assert mounted.reader.origin(_open(mounted, b"empty")) is Origin.LOCAL


@in_trio
async def test_several_readers_of_one_unit_share_one_fetch() -> None:
    mounted = Mounted(_FILES)
    results: list[tuple[bytes, Origin]] = []

    async def read() -> None:
        results.append(await _read(mounted, b"5"))

    async with mounted.running(), trio.open_nursery() as readers:
        for _ in range(10):
            readers.start_soon(read)
    assert results == [(_FILES[b"5"], Origin.PEER)] * 10
    assert mounted.engine.fetches == [5]


# --- What no memory holds --------------------------------------------------------------------------------------------

_REQUEST = 128 << 10
_MANY = 9 * EXTENT_BYTES + 1000


def _big(size: int) -> bytes:
    """Bytes that tell where they are."""
    return np.arange(-(-size // 8), dtype=np.uint64).tobytes()[:size]


async def _read_in_order(mounted: Mounted, file: OpenFile, begin: int, end: int) -> list[Origin]:
    """Read a range in requests as the kernel makes them; where each came from."""
    origins = []
    for at in range(begin, end, _REQUEST):
        data, origin = await mounted.reader.read(file, at, _REQUEST)
        assert data == mounted.source.files[mounted.reader.name(file).encode()][0][at : at + _REQUEST]
        origins.append(origin)
    await trio.testing.wait_all_tasks_blocked()
    return origins


@in_trio
async def test_a_file_of_one_request_is_read_without_the_engine() -> None:
    mounted = Mounted({b"small": _big(_REQUEST)}, home=lambda unit: NOWHERE)
    async with mounted.running():
        assert await _read(mounted, b"small") == (_big(_REQUEST), Origin.SOURCE)
    assert mounted.engine.heard == []
    assert mounted.source.reads == [(b"small", 0, _REQUEST)]
    assert mounted.counts.source_bytes == _REQUEST


@pytest.mark.parametrize("size", [_REQUEST + 1, EXTENT_BYTES])
@pytest.mark.parametrize("begin", [0, _REQUEST // 2])
def test_a_file_of_several_requests_is_staged_whole_wherever_it_is_read_first(size: int, begin: int) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted({b"image": _big(size)}, home=lambda unit: NOWHERE, staging_bytes=32 << 20)
        async with mounted.running():
            file = _open(mounted, b"image")
            assert mounted.reader.origin(file) is Origin.SOURCE
            assert set(await _read_in_order(mounted, file, begin, size)) == {Origin.SOURCE}
            assert mounted.reader.origin(file) is Origin.SOURCE
        assert mounted.engine.heard == [Fetch(0, 1)]
        assert mounted.source.reads == []
        assert mounted.counts.source_bytes == 0  # the engine counts its own

    main()


@in_trio
async def test_a_big_file_that_is_read_here_and_there_is_read_exactly_as_asked() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging_bytes=64 << 20)
    places = [(5 * _EDGE + 17, 1000), (_EDGE - 100, 200), (8 * _EDGE, _REQUEST), (3 * _EDGE + 3, 1), (_MANY - 10, 10)]
    async with mounted.running():
        file = _open(mounted, b"huge")
        for at, size in places:
            data, origin = await mounted.reader.read(file, at, size)
            assert (bytes(data), origin) == (_big(_MANY)[at : at + size], Origin.SOURCE)
        await mounted.reader.close(file)
    assert mounted.engine.heard == []
    assert mounted.source.reads == [
        (b"huge", 5 * _EDGE + 17, 1000),
        (b"huge", _EDGE - 100, 100),
        (b"huge", _EDGE, 100),
        *((b"huge", at, size) for at, size in places[2:]),
    ]
    assert mounted.counts.source_bytes == sum(size for _, size in places)
    await _until_closed(mounted)


@in_trio
async def test_of_a_file_that_is_read_in_order_the_next_two_extents_are_fetched_ahead() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging_bytes=64 << 20)
    async with mounted.running():
        file = _open(mounted, b"huge")
        asked = []
        for extent in range(9):
            await _read_in_order(mounted, file, extent * _EDGE, extent * _EDGE + _REQUEST)
            asked.append(sorted(mounted.engine.fetches))
            await _read_in_order(mounted, file, extent * _EDGE + _REQUEST, (extent + 1) * _EDGE)
            assert sorted(mounted.engine.fetches) == asked[-1]
        assert asked == [list(range(min(extent + 3, 10))) for extent in range(9)]
        assert mounted.engine.urgent == [0]
        await mounted.reader.close(file)
    assert mounted.source.reads == []


@in_trio
async def test_of_a_file_that_peers_hold_the_next_extents_are_fetched_ahead_too() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: 2 if unit % 2 else 0, staging_bytes=64 << 20)
    async with mounted.running():
        file = _open(mounted, b"huge")
        assert set(await _read_in_order(mounted, file, 0, _REQUEST)) == {Origin.LOCAL}
        assert mounted.engine.heard == [Fetch(1, 0)]
        assert set(await _read_in_order(mounted, file, _REQUEST, _EDGE)) == {Origin.LOCAL}
        assert set(await _read_in_order(mounted, file, _EDGE, _EDGE + _REQUEST)) == {Origin.PEER}
        assert mounted.engine.heard == [Fetch(1, 0), Fetch(3, 0)]


@in_trio
async def test_what_is_fetched_ahead_for_readers_is_a_quarter_of_staging_at_most() -> None:
    files = {b"%d" % i: _big(3 * EXTENT_BYTES) for i in range(4)}
    mounted = Mounted(files, home=lambda unit: NOWHERE, staging_bytes=16 * EXTENT_BYTES)
    mounted.engine.mute = True

    def ahead() -> list[int]:
        return [unit for unit in mounted.engine.fetches if unit not in mounted.engine.urgent]

    async with mounted.running() as nursery:
        opened = [_open(mounted, path) for path in files]
        for file in opened:
            nursery.start_soon(mounted.reader.read, file, 0, 10)
            await trio.testing.wait_all_tasks_blocked()
        assert ahead() == [1, 2, 4, 5]
        await mounted.reader.close(opened[0])
        nursery.start_soon(mounted.reader.read, opened[3], 10, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert ahead() == [1, 2, 4, 5, 10, 11]
        nursery.cancel_scope.cancel()


@in_trio
async def test_who_closes_gives_up_what_was_fetched_ahead_through_this_handle_and_no_other() -> None:
    sizes = {b"huge": _big(_MANY), b"other": _big(_MANY)}
    mounted = Mounted(sizes, home=lambda unit: NOWHERE, staging_bytes=32 << 20)  # a quarter are two extents
    async with mounted.running():
        first, second, third = _open(mounted, b"huge"), _open(mounted, b"huge"), _open(mounted, b"other")
        for file in (first, second):
            await _read_in_order(mounted, file, 0, _REQUEST)
        begin = mounted.engine.fetches.copy()
        await mounted.reader.close(first)
        await _read_in_order(mounted, third, 0, _REQUEST)
        assert mounted.engine.fetches[len(begin) :] == [third.first]  # the second still goes to read its two
        await mounted.reader.close(second)
        await _read_in_order(mounted, third, _REQUEST, 2 * _REQUEST)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.fetches[len(begin) + 1 :] == [third.first + 1, third.first + 2]
        await mounted.reader.close(third)
    assert not mounted.reader._ahead


@in_trio
async def test_with_a_small_staging_nothing_is_fetched_ahead_for_readers() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging_bytes=15 << 20)
    async with mounted.running():
        await _read_in_order(mounted, _open(mounted, b"huge"), 0, 3 * _EDGE)
    assert mounted.engine.heard[0] == Fetch(0, 1)
    assert mounted.engine.fetches == mounted.engine.urgent == [0, 1, 2]


@in_trio
async def test_who_jumps_is_believed_again_after_half_a_mebibyte_in_order() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging_bytes=64 << 20)
    jump = 5 * _EDGE
    async with mounted.running():
        file = _open(mounted, b"huge")
        await _read_in_order(mounted, file, jump, jump + 3 * _REQUEST)
        assert mounted.engine.heard == []
        assert len(mounted.source.reads) == 3
        await _read_in_order(mounted, file, jump + 3 * _REQUEST, jump + 4 * _REQUEST)
        assert mounted.engine.urgent == [5]
        assert sorted(mounted.engine.fetches) == [5, 6, 7]
        assert len(mounted.source.reads) == 3
        await mounted.reader.close(file)


@in_trio
async def test_requests_that_the_kernel_makes_a_little_out_of_order_are_in_order() -> None:
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging_bytes=64 << 20)
    async with mounted.running():
        file = _open(mounted, b"huge")
        for i in (2, 0, 1, 5, 3, 4, 7, 6):
            await _read_in_order(mounted, file, i * _REQUEST, (i + 1) * _REQUEST)
        assert mounted.engine.urgent == [0]
    assert mounted.source.reads == []


@in_trio
async def test_what_was_read_to_its_end_makes_room_before_what_was_not() -> None:
    mounted = Mounted(_FILES, staging_bytes=2 * 4096)  # of which three are kept
    async with mounted.running():
        await _read(mounted, b"0", 0, 10)
        await _read(mounted, b"1", 0, 1001)
        await _read(mounted, b"2", 0, 10)
        await _read(mounted, b"3", 0, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert mounted.engine.releases == [1]
        assert mounted.staged(0) == _FILES[b"0"]


@in_trio
async def test_what_the_engine_cannot_stage_is_read_by_the_mount() -> None:
    size = 2 * EXTENT_BYTES
    mounted = Mounted({b"huge": _big(size)}, home=lambda unit: NOWHERE, staging_bytes=32 << 20)
    mounted.engine.missing = {0, 1}
    async with mounted.running():
        file = _open(mounted, b"huge")
        assert set(await _read_in_order(mounted, file, 0, _REQUEST)) == {Origin.SOURCE}
        mounted.source.read_errors[b"huge"] = errno.EIO
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            await mounted.reader.read(file, _REQUEST, _REQUEST)
        assert caught.value.errno == errno.EIO
        await mounted.reader.close(file)
    assert mounted.source.reads[0] == (b"huge", 0, _REQUEST)
    assert mounted.counts.source_bytes == _REQUEST


# --- Never a wrong byte ----------------------------------------------------------------------------------------------


def _rot(mounted: Mounted, home: int, unit: int) -> None:
    """Flip a byte of a unit in memory."""
    mounted.stores[home].data(mounted.dataset.at[unit], mounted.dataset.size(unit))[700] ^= 1


@pytest.mark.parametrize(("home", "verify"), [(1, "fetch"), (1, "always"), (0, "always")])
def test_a_rotten_unit_is_never_served(home: int, verify: str, caplog: pytest.LogCaptureFixture) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES, home=lambda unit: home, verify=verify)
        _rot(mounted, home, 3)
        async with mounted.running():
            for at, size in ((0, 10), (690, 20), (0, 2000)):
                assert await _read(mounted, b"3", at, size) == (_FILES[b"3"][at : at + size], Origin.SOURCE)
            assert mounted.reader.origin(_open(mounted, b"3")) is Origin.SOURCE
            assert (await _read(mounted, b"4"))[1] is not Origin.SOURCE
        assert mounted.counts.verify_failures == 1
        assert mounted.engine.fetches == []

    with caplog.at_level(logging.ERROR):
        main()
    assert caplog.text.count("does not have its digest") == 1


@in_trio
async def test_a_unit_is_compared_once_for_each_handle() -> None:
    mounted = Mounted(_FILES, home=lambda unit: 1)
    async with mounted.running():
        file = _open(mounted, b"3")
        await mounted.reader.read(file, 0, 10)
        _rot(mounted, 1, 3)
        data, origin = await mounted.reader.read(file, 0, 10)
        assert (bytes(data), origin) == (_FILES[b"3"][:10], Origin.NODE)
        assert await _read(mounted, b"3", 0, 10) == (_FILES[b"3"][:10], Origin.SOURCE)


@in_trio
async def test_verify_off_compares_nothing() -> None:
    mounted = Mounted(_FILES, home=lambda unit: unit % 2, verify="off")
    async with mounted.running():
        for unit in (2, 3):
            _rot(mounted, unit % 2, unit)
            data, _ = await _read(mounted, b"%d" % unit)
            assert data != mounted.dataset.data(unit)
    assert mounted.counts.verify_failures == 0


@in_trio
async def test_one_rotten_extent_leaves_the_others_in_memory() -> None:
    mounted = Mounted({b"huge": _HUGE}, home=lambda unit: 1)
    _rot(mounted, 1, 1)
    async with mounted.running():
        assert await _read(mounted, b"huge", _EDGE - 10, 20) == (_HUGE[_EDGE - 10 : _EDGE + 10], Origin.SOURCE)
        assert await _read(mounted, b"huge", 0, 20) == (_HUGE[:20], Origin.NODE)
        assert await _read(mounted, b"huge", 2 * _EDGE, 20) == (_HUGE[2 * _EDGE : 2 * _EDGE + 20], Origin.NODE)


# --- What the source says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("on_open", [True, False])
def test_an_error_of_the_source_keeps_its_number(number: int, on_open: bool) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
        (mounted.source.open_errors if on_open else mounted.source.read_errors)[b"3"] = number
        async with mounted.running():
            with pytest.raises(OSError, match=r"\[Errno") as caught:
                await _read(mounted, b"3")
            assert caught.value.errno == number
            assert await _read(mounted, b"4") == (_FILES[b"4"], Origin.SOURCE)
        await _until_closed(mounted)

    main()


@in_trio
async def test_a_file_that_changed_is_an_error_and_not_other_bytes() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
    mounted.source.change(b"3", b"other")
    async with mounted.running():
        with pytest.raises(SourceChangedError):
            await _read(mounted, b"3")


@in_trio
async def test_a_file_that_is_shorter_than_it_was_is_an_error() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
    mounted.source.cut[b"3"] = 500
    async with mounted.running():
        with pytest.raises(OSError, match="shorter") as caught:
            await _read(mounted, b"3")
        assert caught.value.errno == errno.EIO
        assert await _read(mounted, b"3", 0, 500) == (_FILES[b"3"][:500], Origin.SOURCE)
    await _until_closed(mounted)


@in_trio
async def test_resident_bytes_are_served_whatever_became_of_the_source() -> None:
    mounted = Mounted(_FILES, home=lambda unit: unit % 3)
    mounted.source.files.clear()
    async with mounted.running():
        mounted.engine.on_fetch = None
        for unit in (0, 1):
            assert (await _read(mounted, b"%d" % unit))[0] == _FILES[b"%d" % unit]


@in_trio
async def test_one_handle_opens_the_source_once() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
    async with mounted.running():
        file = _open(mounted, b"3")
        for at in range(0, 1000, 100):
            await mounted.reader.read(file, at, 100)
        assert (mounted.source.opened, mounted.source.open_now) == (1, 1)
        await mounted.reader.close(file)
        await _until_closed(mounted)


@in_trio
async def test_reads_at_once_through_one_handle_leave_one_file_open() -> None:
    mounted = Mounted(_FILES, home=lambda unit: NOWHERE)
    results: dict[int, bytes] = {}
    file = _open(mounted, b"3")

    async def read(at: int) -> None:
        results[at] = bytes((await mounted.reader.read(file, at, 100))[0])

    async with mounted.running():
        with Gate() as gate:
            mounted.source.open_gates[b"3"] = gate
            async with trio.open_nursery() as readers:
                for at in range(0, 1000, 100):
                    readers.start_soon(read, at)
                await gate.reached()
                gate.open()
        assert mounted.source.open_now == 1
        await mounted.reader.close(file)
    assert b"".join(results[at] for at in sorted(results)) == _FILES[b"3"][:1000]
    await _until_closed(mounted)


# --- The job goes on -------------------------------------------------------------------------------------------------


@in_trio
async def test_without_an_engine_bytes_come_from_the_source_and_resident_ones_from_memory() -> None:
    mounted = Mounted(_FILES, home=lambda unit: unit % 3)
    async with mounted.running():
        mounted.kill_engine()
        await trio.testing.wait_all_tasks_blocked()
        expected = [Origin.LOCAL, Origin.NODE, Origin.SOURCE]
        for unit in range(6):
            assert await _read(mounted, b"%d" % unit) == (_FILES[b"%d" % unit], expected[unit % 3])
        assert mounted.reader.origin(_open(mounted, b"2")) is Origin.SOURCE


@in_trio
async def test_an_engine_that_dies_while_it_is_asked_costs_no_read() -> None:
    mounted = Mounted(_FILES)
    mounted.engine.mute = True
    async with mounted.running():
        results: list[tuple[bytes, Origin]] = []

        async def read() -> None:
            results.append(await _read(mounted, b"3"))

        async with trio.open_nursery() as readers:
            readers.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            mounted.kill_engine()
    assert results == [(_FILES[b"3"], Origin.SOURCE)]


@in_trio
async def test_a_late_engine_costs_one_wait_and_then_none() -> None:
    mounted = Mounted(_FILES, timeout_s=_SHORT_S)
    mounted.engine.mute = True
    async with mounted.running():
        begin = trio.current_time()
        assert await _read(mounted, b"3") == (_FILES[b"3"], Origin.SOURCE)
        assert trio.current_time() - begin < _SHORT_S + _ANSWERED_S
        for unit in range(4, 8):
            assert await _read(mounted, b"%d" % unit) == (_FILES[b"%d" % unit], Origin.SOURCE)
    assert mounted.engine.fetches == [3]
    assert mounted.counts.engine_timeouts == 1


@in_trio
async def test_a_stuck_engine_with_a_full_wire_costs_no_read() -> None:
    mounted = Mounted(_FILES, timeout_s=_SHORT_S)
    async with mounted.running(serving=False):
        mounted.fill_the_wire()
        results: list[tuple[bytes, Origin]] = []

        async def read() -> None:
            results.append(await _read(mounted, b"3"))

        async with trio.open_nursery() as readers:
            for _ in range(3):
                readers.start_soon(read)
    assert results == [(_FILES[b"3"], Origin.SOURCE)] * 3


@pytest.mark.parametrize("on_open", [True, False])
def test_a_source_that_hangs_ends_in_time_with_an_error(on_open: bool) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES, home=lambda unit: NOWHERE, timeout_s=_SHORT_S)
        async with mounted.running():
            with Gate() as gate:
                (mounted.source.open_gates if on_open else mounted.source.read_gates)[b"3"] = gate
                begin = trio.current_time()
                with pytest.raises(TimedOutError, match="3: no answer"):
                    await _read(mounted, b"3")
                assert trio.current_time() - begin < _SHORT_S + _ANSWERED_S
                assert await _read(mounted, b"4") == (_FILES[b"4"], Origin.SOURCE)
            await _until_closed(mounted, opened=2)

    main()


@in_trio
async def test_a_hanging_source_does_not_keep_resident_bytes_back() -> None:
    mounted = Mounted(_FILES, home=lambda unit: 0 if unit == 4 else NOWHERE)
    async with mounted.running() as nursery:
        with Gate() as gate:
            mounted.source.read_gates[b"3"] = gate
            file = _open(mounted, b"3")
            nursery.start_soon(mounted.reader.read, file, 0, 10)
            await gate.reached()
            assert await _read(mounted, b"4") == (_FILES[b"4"], Origin.LOCAL)
            gate.open()
        await trio.testing.wait_all_tasks_blocked()


# --- With the engine's own fetcher at the other end ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _joined(fetching: Fetching, mounted: Mounted) -> AsyncIterator[None]:
    """The mount's words go to the fetcher and its answers back, as in the engine's service."""
    channel = Channel(mounted.engine_end)
    fetching.on_say = lambda message: nursery.start_soon(channel.send, message)

    async def serve(nursery: trio.Nursery) -> None:
        while received := await channel.receive():
            match received[0]:
                case Fetch(unit, urgent):
                    fetching.fetcher.fetch(unit, bool(urgent), nursery.start_soon)
                case Hurry(unit):
                    fetching.fetcher.hurry(unit)
                case Release(unit):
                    fetching.fetcher.release(unit)

    async with fetching.running() as nursery, mounted.running(serving=False):
        nursery.start_soon(serve, nursery)
        yield


def _with_fetcher(files: dict[bytes, bytes], staging_bytes: int) -> tuple[Fetching, Mounted]:
    fetching = Fetching(files, staging_bytes=staging_bytes)
    fetching.load_all()
    return fetching, Mounted(files, staging=fetching.staging)


@in_trio_time
async def test_a_file_is_read_through_a_staging_that_holds_one_extent() -> None:
    fetching, mounted = _with_fetcher({b"huge": _HUGE}, span(EXTENT_BYTES) + 4096)
    async with _joined(fetching, mounted):
        for at in range(0, len(_HUGE), 1 << 20):
            assert await _read(mounted, b"huge", at, 1 << 20) == (_HUGE[at : at + (1 << 20)], Origin.PEER)
        # Its first part makes room for the second before it is answered.
        assert await _read(mounted, b"huge", _EDGE - 500, 1000) == (_HUGE[_EDGE - 500 : _EDGE + 500], Origin.PEER)
    assert fetching.board[Counter.PEER_TIMEOUTS] == 0
    assert mounted.source.reads == []


@in_trio_time
async def test_readers_at_once_share_a_staging_that_holds_one_unit() -> None:
    fetching, mounted = _with_fetcher(_FILES, span(1007))
    results: dict[bytes, tuple[bytes, Origin]] = {}

    async def read(path: bytes) -> None:
        results[path] = await _read(mounted, path)

    async with _joined(fetching, mounted), trio.open_nursery() as readers:
        for path in _FILES:
            readers.start_soon(read, path)
    assert results == {path: (data, Origin.PEER) for path, data in _FILES.items()}
    assert fetching.board[Counter.PEER_TIMEOUTS] == 0


@in_trio_time
async def test_a_big_file_that_no_memory_holds_is_read_once_from_the_source_and_by_the_engine() -> None:
    fetching = Fetching({b"huge": _big(_MANY)}, home=NOWHERE, staging_bytes=64 << 20)
    mounted = Mounted({b"huge": _big(_MANY)}, home=lambda unit: NOWHERE, staging=fetching.staging)
    async with _joined(fetching, mounted):
        file = _open(mounted, b"huge")
        assert set(await _read_in_order(mounted, file, 0, _MANY)) == {Origin.SOURCE}
        assert fetching.lent <= 32 << 20
        await mounted.reader.close(file)
    assert fetching.board[Counter.SOURCE_BYTES] == _MANY
    assert mounted.source.reads == []


@in_trio_time
async def test_every_unit_is_read_many_times_through_a_small_staging() -> None:
    fetching, mounted = _with_fetcher(_FILES, 4 * span(1007))
    async with _joined(fetching, mounted):
        for _ in range(5):
            for path, data in _FILES.items():
                assert await _read(mounted, path) == (data, Origin.PEER)
        await trio.testing.wait_all_tasks_blocked()
        assert fetching.lent <= 4 * span(1007)
    assert fetching.board[Counter.GETS] >= len(_FILES)
    assert mounted.source.reads == []
