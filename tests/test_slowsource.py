"""The slow source is as slow as asked, for those that are to be slow, and nothing is left of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import DEADLINE_S, Place, end, mounted, wait_until
from tests.slowsource import SlowSource, slow_source

RATE = 40_000_000
FILES, FILE_BYTES = 20, 1 << 20
CONTENT_BYTES = FILES * FILE_BYTES

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(SlowSource.unavailable() is not None, reason=str(SlowSource.unavailable())),
]


@pytest.fixture
def slow() -> Iterator[SlowSource]:
    """Twenty files of 1 MiB."""
    with slow_source(RATE, CONTENT_BYTES) as source:
        for number in range(FILES):
            (source.root / f"{number:02}").write_bytes(bytes([number + 1]) * FILE_BYTES)
        yield source


def read_all(root: Path, *prefix: str) -> float:
    """Seconds."""
    start = time.monotonic()
    line = [*prefix, "sh", "-c", f"cat {root}/[0-9]*"]
    content = subprocess.run(line, stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S).stdout
    assert content == b"".join(bytes([number + 1]) * FILE_BYTES for number in range(FILES))
    return time.monotonic() - start


def test_cold_reads_come_at_the_rate_and_are_counted(slow: SlowSource) -> None:
    rates = []
    for _ in range(3):
        slow.evict()
        before = slow.device_bytes
        seconds = read_all(slow.root, *slow.prefix)
        crossed = slow.device_bytes - before
        assert CONTENT_BYTES <= crossed < 1.1 * CONTENT_BYTES
        rates.append(crossed / seconds)
    # One reader that asks for one file after the other gets less than the rate, and on a busy machine still less.
    assert 0.5 * RATE < max(rates) < 1.1 * RATE


def test_a_second_pass_crosses_the_device_only_after_eviction(slow: SlowSource) -> None:
    slow.evict()
    read_all(slow.root, *slow.prefix)
    cold = slow.device_bytes
    read_all(slow.root, *slow.prefix)
    warm = slow.device_bytes - cold
    assert warm < CONTENT_BYTES // 10  # the kernel may have needed some page for something else
    slow.evict()
    read_all(slow.root, *slow.prefix)
    assert slow.device_bytes - warm - cold >= CONTENT_BYTES


def test_what_is_outside_is_not_counted(slow: SlowSource) -> None:
    slow.evict()
    before = slow.device_bytes
    read_all(slow.root)
    assert slow.device_bytes == before


@pytest.mark.mounted
def test_a_mount_inside_loads_at_the_rate(slow: SlowSource, tmp_path: Path) -> None:
    slow.evict()
    before, start = slow.device_bytes, time.monotonic()
    with mounted(slow.root, tmp_path, "mpi=off", place=Place(slow.prefix)) as mount:
        seconds = time.monotonic() - start
        assert slow.device_bytes - before >= CONTENT_BYTES
        assert seconds > 0.85 * CONTENT_BYTES / RATE
        assert mount.stats()["source_bytes"] == CONTENT_BYTES
        read_all(mount.point)


def test_nothing_is_left_of_it_even_if_a_process_stays() -> None:
    with slow_source(RATE, 1 << 20) as source:
        stays = subprocess.Popen([*source.prefix, "sleep", "100"], cwd=source.root)
        wait_until(lambda: (source.group / "tasks").read_text() == f"{stays.pid}\n", "the process is in the group")
    end(stays)
    assert not source.group.exists()
    assert not source.root.parent.exists()
    assert str(source.root) not in Path("/proc/self/mountinfo").read_text()
    wait_until(lambda: str(source.root.parent) not in backing_files(), "the loop device is free")


def backing_files() -> str:
    return "".join(path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file"))
