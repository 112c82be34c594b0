"""Any range of a stream is that of the whole, wherever its data lie and in whatever order it is asked for."""

from __future__ import annotations

import errno
import functools
import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from deepiofs.errors import TimedOutError
from deepiofs.fs.counts import Origin
from deepiofs.memory.board import Counter
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE
from tests.doubles import in_trio
from tests.mounts import wait_until
from tests.unit.streams import FORMATS, Streaming, members_of

_SIZES = st.one_of(st.sampled_from([0, 1, 511, 512, 513]), st.integers(0, 3000))
_FILES = {b"%02d.bin" % i: random.Random(i).randbytes(700 * i) for i in range(12)}
_ORDER = list(_FILES)[::-1]
_HOMES = {"local": 0, "node": 1, "peer": 2, "source": NOWHERE}


def _all_closed(streaming: Streaming) -> None:
    """Files of the source are closed by threads, which nobody waits for."""
    source = streaming.mounted.source
    wait_until(lambda: source.open_now == 0, "all files closed")


@settings(max_examples=25)
@given(st.lists(_SIZES, max_size=8), st.sampled_from(FORMATS), st.data())
def test_any_range_is_that_of_the_whole(sizes: list[int], form: str, data: st.DataObject) -> None:
    files = {b"d%d/%03d.bin" % (i % 2, i): random.Random(i).randbytes(size) for i, size in enumerate(sizes)}
    stored = data.draw(st.permutations(list(files)))
    stored += stored[: data.draw(st.integers(0, 2))]  # as `pad` repeats
    streaming = Streaming(files or {b"one": b"1"})
    whole = streaming.whole(form, stored)
    ranges = data.draw(st.lists(st.tuples(st.integers(0, len(whole) + 10), st.integers(1, 4000)), max_size=6))

    @in_trio
    async def main() -> None:
        async with streaming.mounted.running():
            stream = streaming.open(form, stored)
            assert stream.layout.size == len(whole)
            assert bytes((await stream.read(0, len(whole) + 1))[0]) == whole
            for at, size in ranges:
                assert bytes((await stream.read(at, size))[0]) == whole[at : at + size]
            await stream.close()

    main()
    if form == "tar":
        assert members_of(whole) == [(path, files[path]) for path in stored]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("home", _HOMES)
def test_several_readers_in_any_order_see_the_same(home: str, form: str, warm: bool) -> None:
    @in_trio
    async def main() -> None:
        streaming = Streaming(_FILES, lambda unit: _HOMES[home], staging_bytes=256 << 10)
        streaming.mounted.link.board[Counter.STATE_WARM] = int(warm)
        whole = streaming.whole(form, _ORDER)
        async with streaming.mounted.running() as nursery:
            nursery.start_soon(streaming.ahead.run)
            stream = streaming.open(form, _ORDER)

            async def read(seed: int) -> None:
                places = list(range(0, len(whole), 2500))
                random.Random(seed).shuffle(places)
                for at in places:
                    data, origin = await stream.read(at, 4096)
                    assert bytes(data) == whole[at : at + 4096]
                    assert origin in (Origin.LOCAL, Origin[home.upper()])

            async with trio.open_nursery() as readers:
                for seed in range(3):
                    readers.start_soon(read, seed)
            await stream.close()
            assert streaming.ahead.claimed_bytes == 0
            streaming.mounted.link.requests.staged.check_invariants()
        _all_closed(streaming)

    main()


@in_trio
async def test_what_comes_next_is_fetched_before_it_is_read() -> None:
    files = {b"%02d" % i: bytes([i]) * 5000 for i in range(40)}
    streaming = Streaming(files, lambda unit: 2, staging_bytes=256 << 10)
    streaming.mounted.link.board[Counter.STATE_WARM] = 1
    async with streaming.mounted.running() as nursery:
        nursery.start_soon(streaming.ahead.run)
        stream = streaming.open("tar", list(files))
        await stream.read(0, 1000)
        await trio.testing.wait_all_tasks_blocked()
        # A quarter of staging, of members of 5,000 bytes.
        assert 11 <= len(streaming.mounted.engine.fetches) <= 15
        assert streaming.mounted.engine.fetches == list(range(len(streaming.mounted.engine.fetches)))
        for at in range(0, stream.layout.size, 4096):
            await stream.read(at, 4096)
            await trio.testing.wait_all_tasks_blocked()
        assert streaming.mounted.engine.fetches == list(range(40))
        assert streaming.ahead.claimed_bytes < 60_000
        await stream.close()
        assert streaming.ahead.claimed_bytes == 0


@in_trio
async def test_a_jump_forgets_what_was_ahead() -> None:
    files = {b"%03d" % i: bytes([i]) * 5000 for i in range(250)}
    streaming = Streaming(files, lambda unit: 2, staging_bytes=256 << 10)
    streaming.mounted.link.board[Counter.STATE_WARM] = 1
    async with streaming.mounted.running() as nursery:
        nursery.start_soon(streaming.ahead.run)
        stream = streaming.open("tar", list(files))
        await stream.read(0, 1000)
        await trio.testing.wait_all_tasks_blocked()
        await stream.read(stream.layout.offset_of[200] + 600, 1000)
        await trio.testing.wait_all_tasks_blocked()
        after = streaming.mounted.engine.fetches[-5:]
        assert all(unit > 200 for unit in after)
        await stream.close()


@in_trio
async def test_with_prefetch_off_nothing_is_fetched_that_is_not_read() -> None:
    streaming = Streaming(_FILES, lambda unit: 2, prefetch=0)
    streaming.mounted.link.board[Counter.STATE_WARM] = 1
    async with streaming.mounted.running() as nursery:
        nursery.start_soon(streaming.ahead.run)
        stream = streaming.open("tar", _ORDER)
        await stream.read(0, 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert len(streaming.mounted.engine.fetches) == 1
        await stream.close()


@pytest.mark.parametrize("form", ["tar", "tfrecord"])
def test_a_member_of_several_extents_is_whole(form: str) -> None:
    huge = bytes(range(251)) * (1 + 5 * EXTENT_BYTES // (2 * 251))
    files = {b"a": b"small", b"huge": huge, b"z": b"last"}
    small = streaming_sums(files, form)

    @in_trio
    async def main() -> None:
        streaming = Streaming(files, lambda unit: [0, 2, NOWHERE, 1, 2][unit], staging_bytes=32 << 20)
        async with streaming.mounted.running() as nursery:
            nursery.start_soon(streaming.ahead.run)
            stream = streaming.open(form, list(files))
            assert stream.layout.size == small[-1]
            whole = b""
            for at in range(0, stream.layout.size, 1 << 20):
                whole += bytes((await stream.read(at, 1 << 20))[0])
            begin, end = stream.layout.data_range(1)
            assert whole[begin:end] == huge
            tail = whole[end : end + 16]
            assert bytes((await stream.read(end, 16))[0]) == tail
            await stream.close()

    main()


def streaming_sums(files: dict[bytes, bytes], form: str) -> list[int]:
    """Ends of the members, and of it all, by adding up."""
    total, ends = 0, []
    for data in files.values():
        total += 512 + len(data) + -len(data) % 512 if form == "tar" else 16 + len(data)
        ends.append(total)
    return [*ends, total + (1024 if form == "tar" else 0)]


@in_trio
async def test_a_member_that_the_source_does_not_give_is_an_error_of_its_own_range() -> None:
    streaming = Streaming(_FILES, lambda unit: NOWHERE, prefetch=0)
    mounted = streaming.mounted
    mounted.engine.missing = set(range(len(_FILES)))
    mounted.source.open_errors = {b"05.bin": errno.EACCES}
    async with mounted.running():
        stream = streaming.open("tar", list(_FILES))
        begin, end = stream.layout.data_range(5)
        whole = streaming.whole("tar", list(_FILES))
        with pytest.raises(PermissionError):
            await stream.read(begin - 10, 20)
        assert bytes((await stream.read(end, 1000))[0]) == whole[end : end + 1000]
        assert bytes((await stream.read(0, begin))[0]) == whole[:begin]
        await stream.close()
    _all_closed(streaming)


@in_trio
async def test_a_read_over_many_members_is_answered_in_time_though_nobody_answers() -> None:
    streaming = Streaming(_FILES, lambda unit: 2, timeout_s=0.2)
    streaming.mounted.engine.mute = True
    whole = streaming.whole("tar", _ORDER)
    async with streaming.mounted.running() as nursery:
        nursery.start_soon(streaming.ahead.run)
        stream = streaming.open("tar", _ORDER)
        started = trio.current_time()
        # All come from the source, once the engine is known to be stuck.
        data, origin = await stream.read(0, len(whole))
        assert (bytes(data), origin) == (whole, Origin.SOURCE)
        assert trio.current_time() - started < 2.2
        await stream.close()


@in_trio
async def test_the_farthest_origin_counts_and_staging_may_be_small() -> None:
    streaming = Streaming(_FILES, lambda unit: unit % 3, staging_bytes=24 << 10)
    whole = streaming.whole("tar", _ORDER)
    async with streaming.mounted.running() as nursery:
        nursery.start_soon(streaming.ahead.run)
        stream = streaming.open("tar", _ORDER)
        read = functools.partial(stream.read, 0, len(whole))
        data, origin = await read()
        assert (bytes(data), origin) == (whole, Origin.PEER)
        await stream.close()


def test_a_timeout_has_its_errno() -> None:
    assert TimedOutError("x").errno == errno.ETIMEDOUT
