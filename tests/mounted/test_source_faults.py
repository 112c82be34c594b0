"""A source that fails, hangs, or changes while it is mounted: right bytes or a clean error, for that file alone."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.faultysource import CLOSE, OPEN, READ, FaultySource
from tests.mounts import DEEPIOFS, HERE, Journal, Mount, is_running, wait_until

pytestmark = [pytest.mark.mounted]

TIMEOUT_S = 1
# A request is answered within `timeout` + 2 s, and the kernel may send a failed one again.
READ_S = 2 * (TIMEOUT_S + 2.0)
ILL = "ill.bin"
WELL = [f"{i}.bin" for i in range(8)]
RESIDENT, NOTHING_RESIDENT = "cache=64M", "cache=0"
caches = pytest.mark.parametrize("cache", [RESIDENT, NOTHING_RESIDENT], ids=["resident", "nothing resident"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of nine files, 1.8 MB; what is to be ill is in the middle of a batch of the loader."""
    generator = random.Random(3)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (*WELL, ILL):
        (folder / name).write_bytes(generator.randbytes(200_000))
    return folder


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Iterator[FaultySource]:
    with FaultySource(folder, tmp_path / "faulty") as faulty:
        yield faulty


@pytest.fixture
def view(source: FaultySource, mount: MountFactory) -> Callable[..., Mount]:
    """`view(*options, until=...)` mounts the faulty source."""
    return lambda *options, until="warm": mount(source.point, f"timeout={TIMEOUT_S}", *options, until=until)


def read_fresh(path: Path, at: int = 0, size: int = 1 << 20) -> bytes:
    """A read that no page of the kernel answers, and that it sends once."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(file, size, at)
    finally:
        os.close(file)


def failure(read: Callable[[], object]) -> tuple[int, float]:
    """The errno that a read ends with, and after how many seconds."""
    started = time.monotonic()
    try:
        read()
    except OSError as error:
        return error.errno or 0, time.monotonic() - started
    raise AssertionError("the read did not fail")


def check_well(mount: Mount, folder: Path) -> None:
    """All but the ill file are served right."""
    for name in WELL:
        assert read_fresh(mount.point / name) == (folder / name).read_bytes()


@caches
@pytest.mark.parametrize("kind", [OPEN, READ])
def test_an_error_that_passes_is_seen_by_nobody(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal, cache: str, kind: str
) -> None:
    journal.allow(f"{ILL}: .Errno 5")
    source.fail(ILL, errno.EIO, kind=kind, times=2)
    mount = view(cache)
    assert read_fresh(mount.point / ILL) == (folder / ILL).read_bytes()
    check_well(mount, folder)
    assert mount.stats()["errors"] == {}
    assert mount.control("health") == "ok\n"


@caches
@pytest.mark.parametrize(
    ("kind", "number"),
    [(OPEN, errno.ENOENT), (OPEN, errno.ESTALE), (READ, errno.EIO)],
    ids=["ENOENT", "ESTALE", "EIO"],
)
def test_an_error_that_lasts_is_that_of_the_source_for_that_file_alone(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal, cache: str, kind: str, number: int
) -> None:
    journal.expect(ILL)
    source.fail(ILL, number, kind=kind)
    mount = view(cache)
    told, seconds = failure(lambda: read_fresh(mount.point / ILL))
    assert told == number
    assert seconds < TIMEOUT_S + 2
    check_well(mount, folder)
    assert mount.stats()["errors"] == {errno.errorcode[number]: 1}
    source.heal()
    assert read_fresh(mount.point / ILL) == (folder / ILL).read_bytes()


@caches
def test_a_source_that_ends_a_file_early_is_an_error_and_not_a_shorter_file(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal, cache: str
) -> None:
    journal.expect(f"{ILL}.*shorter")
    source.cut(ILL, 100_000)
    mount = view(cache)
    assert failure(lambda: read_fresh(mount.point / ILL))[0] == errno.EIO
    check_well(mount, folder)
    source.heal()
    assert read_fresh(mount.point / ILL) == (folder / ILL).read_bytes()


def test_each_byte_is_read_once_though_readers_come_before_the_loader(
    view: Callable[..., Mount], source: FaultySource, folder: Path
) -> None:
    source.delay("*", 0.05)
    mount = view(RESIDENT, until="mounted")
    with ThreadPoolExecutor(4) as pool:
        for name, data in zip(WELL, pool.map(lambda name: read_fresh(mount.point / name), WELL), strict=True):
            assert data == (folder / name).read_bytes()
    mount.wait("warm")
    assert [source.most_read(name) for name in (*WELL, ILL)] == [1] * 9


def test_a_file_that_hangs_keeps_nothing_else_from_memory_and_is_told_of(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal
) -> None:
    journal.expect(f"{ILL}: the source has not answered")
    journal.expect(f"{ILL}: no answer in")
    source.hang(ILL)
    mount = view(RESIDENT, until="mounted")
    told, seconds = failure((mount.point / ILL).read_bytes)
    assert told == errno.ETIMEDOUT
    assert seconds < READ_S
    wait_until(lambda: mount.stats()["resident_bytes"] == 8 * 200_000, "all but the ill file are loaded")
    check_well(mount, folder)
    assert mount.stats()["served"]["source"] == 0
    # The loader's one, and those of the reader, which the kernel may have sent twice.
    wait_until(lambda: mount.stats()["source_hangs"] >= 2, "loader and reader hang")
    hangs = mount.stats()["source_hangs"]
    assert hangs <= 3
    assert f"{hangs} reads of the source hang" in mount.control("health")
    assert re.search(rf"{hangs} reads of the source\s+hang", HERE.output(DEEPIOFS, "status", str(mount.point)))
    source.heal()
    mount.wait("warm")
    assert read_fresh(mount.point / ILL) == (folder / ILL).read_bytes()
    wait_until(lambda: mount.control("health") == "ok\n", "nothing hangs any more")


def test_many_reads_of_a_file_that_hangs_keep_no_other_file_from_being_read(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal
) -> None:
    journal.allow(r"\.bin: (no answer in|the source has not answered)|\.bin: .*: no answer in")
    source.hang(ILL)
    mounts = [view(cache, "timeout=0.2", until="mounted") for cache in (RESIDENT, NOTHING_RESIDENT)]
    # Of each mount more than it has threads for its source (64). The kernel may let only 12 be under way at once.
    count = 72
    with ThreadPoolExecutor(2 * count) as pool:
        reads = [
            pool.submit(failure, lambda mount=mount, at=at: read_fresh(mount.point / ILL, at, 1000))
            for at in range(0, 1000 * count, 1000)
            for mount in mounts
        ]
        wait_until(lambda: source.hanging() > 0, "it hangs")
        while not all(read.done() for read in reads):
            for mount in mounts:
                check_well(mount, folder)
        assert {read.result()[0] for read in reads} == {errno.ETIMEDOUT}
    for mount in mounts:
        check_well(mount, folder)
        assert mount.stats()["errors"] == {"ETIMEDOUT": count}
    source.heal()
    wait_until(lambda: source.hanging() == 0, "nothing hangs")
    for mount in mounts:
        assert read_fresh(mount.point / ILL) == (folder / ILL).read_bytes()


def test_a_mount_whose_source_hangs_can_be_left(
    mount: MountFactory, folder: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.allow(f"{ILL}: (no answer in|the source has not answered)")
    with contextlib.ExitStack() as stack:
        # Side by side, as each takes its time.
        sources, mounts = [], []
        for cache, kind in ((RESIDENT, OPEN), (NOTHING_RESIDENT, READ), (NOTHING_RESIDENT, CLOSE)):
            sources.append(stack.enter_context(FaultySource(folder, tmp_path / f"faulty-{kind}")))
            sources[-1].hang(ILL, kind=kind)
            mounts.append(mount(sources[-1].point, f"timeout={TIMEOUT_S}", cache, until="mounted"))
        with ThreadPoolExecutor(len(mounts)) as pool:
            list(pool.map(lambda one: HERE.run("cat", str(one.point / ILL)), mounts))
            started = time.monotonic()
            left = list(pool.map(lambda one: HERE.deepiofs("umount", str(one.point)), mounts))
        assert time.monotonic() - started < 15
        assert [(done.returncode, done.stderr) for done in left] == [(0, "")] * len(mounts)
        assert not {str(one.point) for one in mounts} & HERE.mountpoints()
        for source in sources:
            source.heal()
        processes = [pid for one in mounts for pid in one.processes]
        wait_until(lambda: not any(map(is_running, processes)), "all processes have ended", 15)


@caches
def test_no_process_is_left_of_a_mount_though_its_source_still_hangs(
    view: Callable[..., Mount], source: FaultySource, folder: Path, journal: Journal, cache: str
) -> None:
    journal.allow(f"{ILL}: no answer in")
    mount = view(cache, "warm=demand", until="mounted")
    check_well(mount, folder)
    source.stop()
    try:
        reader = HERE.start(["cat", str(mount.point / ILL)], stderr=-3)
        assert reader.wait(READ_S + 1) != 0
        mount.umount()
        wait_until(lambda: not any(map(is_running, mount.processes)), "all processes have ended", 15)
    finally:
        source.go_on()


# --- A plain folder that changes while it is mounted -----------------------------------------------------------------

# The kernel asks for so much in one request: it is read from the source each time, and never staged.
UNSTAGED_BYTES = 120_000


@pytest.fixture
def unstaged(tmp_path: Path) -> Path:
    """A dataset of nine files that are not staged."""
    generator = random.Random(4)
    folder = tmp_path / "unstaged"
    folder.mkdir()
    for name in (*WELL, ILL):
        (folder / name).write_bytes(generator.randbytes(UNSTAGED_BYTES))
    return folder


def truncate(path: Path) -> None:
    os.truncate(path, 100_000)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def overwrite(path: Path) -> None:
    """In place, with other bytes of the same number or fewer."""
    with path.open("r+b") as file:
        file.write(bytes(UNSTAGED_BYTES))


def replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(bytes(UNSTAGED_BYTES))
    path.with_suffix(".new").rename(path)


CHANGES = pytest.mark.parametrize("change", [truncate, grow, overwrite], ids=lambda change: change.__name__)


@CHANGES
def test_a_file_that_changes_while_it_is_open_is_an_error_and_no_mixture(
    mount: MountFactory, unstaged: Path, journal: Journal, change: Callable[[Path], None]
) -> None:
    journal.expect(f"{ILL}: changed in the source")
    made = mount(unstaged, NOTHING_RESIDENT)
    was = (unstaged / ILL).read_bytes()
    file = os.open(made.point / ILL, os.O_RDONLY | os.O_DIRECT)
    try:
        assert os.pread(file, 1000, 0) == was[:1000]
        change(unstaged / ILL)
        for at in (0, 1000, 90_000):
            assert failure(lambda at=at: os.pread(file, 1000, at))[0] == errno.EIO
    finally:
        os.close(file)
    assert failure(lambda: read_fresh(made.point / ILL))[0] == errno.EIO
    check_well(made, unstaged)


@pytest.mark.parametrize(
    ("change", "number"), [(replace, errno.EIO), (Path.unlink, errno.ENOENT)], ids=["replaced", "removed"]
)
def test_a_file_that_is_no_longer_there_keeps_its_bytes_for_who_has_it_open(
    mount: MountFactory, unstaged: Path, journal: Journal, change: Callable[[Path], None], number: int
) -> None:
    journal.expect(ILL)
    made = mount(unstaged, NOTHING_RESIDENT)
    was = (unstaged / ILL).read_bytes()
    file = os.open(made.point / ILL, os.O_RDONLY | os.O_DIRECT)
    try:
        assert os.pread(file, 1000, 0) == was[:1000]
        change(unstaged / ILL)
        assert os.pread(file, 1 << 20, 1000) == was[1000:]
    finally:
        os.close(file)
    assert failure(lambda: read_fresh(made.point / ILL))[0] == number
    check_well(made, unstaged)


@pytest.mark.parametrize(
    "change", [truncate, grow, overwrite, replace, Path.unlink], ids=lambda change: change.__name__
)
def test_what_is_resident_is_served_whatever_becomes_of_the_source(
    mount: MountFactory, folder: Path, change: Callable[[Path], None]
) -> None:
    made = mount(folder, RESIDENT)
    was = (folder / ILL).read_bytes()
    change(folder / ILL)
    assert read_fresh(made.point / ILL) == was
    assert made.stats()["errors"] == {}


@CHANGES
def test_what_was_staged_keeps_the_bytes_of_that_time(
    mount: MountFactory, folder: Path, change: Callable[[Path], None]
) -> None:
    made = mount(folder, NOTHING_RESIDENT)
    was = (folder / ILL).read_bytes()
    file = os.open(made.point / ILL, os.O_RDONLY | os.O_DIRECT)
    try:
        assert os.pread(file, 1000, 0) == was[:1000]
        change(folder / ILL)
        assert os.pread(file, 1 << 20, 1000) == was[1000:]
    finally:
        os.close(file)
    assert made.stats()["errors"] == {}


def test_a_file_that_is_written_to_all_the_time_never_gives_a_mixture(
    mount: MountFactory, unstaged: Path, journal: Journal
) -> None:
    journal.expect(f"{ILL}: changed in the source")
    made = mount(unstaged, NOTHING_RESIDENT)
    was = (unstaged / ILL).read_bytes()
    other = bytes(UNSTAGED_BYTES)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            with (unstaged / ILL).open("r+b") as file:
                file.write(other)

    def outcome() -> bytes | int:
        try:
            return os.pread(file, UNSTAGED_BYTES, 0)
        except OSError as error:
            return error.errno or 0

    file = os.open(made.point / ILL, os.O_RDONLY | os.O_DIRECT)
    writer = threading.Thread(target=write)
    try:
        assert outcome() == was
        writer.start()
        wait_until(lambda: outcome() == errno.EIO, "the change is seen")
        assert {outcome() for _ in range(200)} == {errno.EIO}
    finally:
        over.set()
        writer.join()
        os.close(file)
