"""The faulty source does what it is told, counts what it is asked, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faultysource import OPEN, FaultySource
from tests.mounts import HERE, ending, wait_until

pytestmark = pytest.mark.mounted

_BYTES = bytes(range(256)) * 40


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultySource]:
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    for name in ("a/one", "a/two"):
        (folder / name).write_bytes(_BYTES)
    with FaultySource(folder, tmp_path / "faulty") as source:
        yield source


def test_without_faults_it_is_the_folder(faulty: FaultySource) -> None:
    assert HERE.run("diff", "-r", str(faulty.folder), str(faulty.point)).stdout == ""
    own, seen = ((place / "a/one").stat() for place in (faulty.folder, faulty.point))
    assert (seen.st_size, seen.st_mtime_ns, seen.st_mode) == (own.st_size, own.st_mtime_ns, own.st_mode)


def test_each_read_reaches_it_and_is_counted(faulty: FaultySource) -> None:
    file = os.open(faulty.point / "a/one", os.O_RDONLY)
    for at in (0, 5000, 9000, 9500):
        assert os.pread(file, 1000, at) == _BYTES[at : at + 1000]
    os.close(file)
    assert faulty.reads("a/one") == [(0, 1000), (5000, 1000), (9000, 1000), (9500, 740)]
    assert faulty.most_read("a/one") == 2
    assert (faulty.opens("a/one"), faulty.opens("a/two"), faulty.most_read("a/two")) == (1, 0, 0)


@pytest.mark.parametrize("kind", ["read", "open"])
def test_requests_fail_as_often_as_they_are_told_to(faulty: FaultySource, kind: str) -> None:
    faulty.fail("*/one", errno.EREMOTEIO, kind=kind, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Remote") as told:
            (faulty.point / "a/one").read_bytes()
        assert told.value.errno == errno.EREMOTEIO
    for name in ("a/one", "a/two"):
        assert (faulty.point / name).read_bytes() == _BYTES


def test_reads_are_cut(faulty: FaultySource) -> None:
    faulty.cut("a/one", 100)
    assert (faulty.point / "a/one").read_bytes() == _BYTES[:100]
    assert (faulty.point / "a/one").stat().st_size == len(_BYTES)


def test_a_delay_takes_its_time_and_lets_others_pass(faulty: FaultySource) -> None:
    faulty.delay("a/one", 0.3, kind=OPEN)
    started = time.monotonic()
    assert (faulty.point / "a/two").read_bytes() == _BYTES
    between = time.monotonic()
    assert (faulty.point / "a/one").read_bytes() == _BYTES
    assert time.monotonic() - between >= 0.3 > between - started


def test_what_hangs_is_answered_when_it_is_healed(faulty: FaultySource) -> None:
    faulty.hang("a/one")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((faulty.point / "a/one").read_bytes()))
    reader.start()
    wait_until(lambda: faulty.hanging() == 1, "it hangs")
    assert (faulty.point / "a/two").read_bytes() == _BYTES
    faulty.heal()
    reader.join()
    assert got == [_BYTES]


def test_what_hangs_at_the_end_is_freed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/one").write_bytes(_BYTES)
    with FaultySource(tmp_path / "folder", tmp_path / "faulty") as faulty:
        faulty.hang("one", kind=OPEN)
        reader = HERE.start(["cat", str(faulty.point / "one")], stderr=-3)
        wait_until(lambda: faulty.hanging() == 1, "it hangs")
    assert reader.wait(10) != 0
    assert os.listdir(tmp_path / "faulty") == []


def test_readers_of_a_stopped_one_can_be_killed(faulty: FaultySource) -> None:
    faulty.stop()
    with ending(HERE.start(["cat", str(faulty.point / "a/one")], stderr=-3)) as reader:
        reader.kill()
        reader.wait(10)
    faulty.go_on()
    assert (faulty.point / "a/one").read_bytes() == _BYTES
