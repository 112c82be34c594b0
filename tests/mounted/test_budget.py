"""What a mount may take: little time while nobody asks for anything, and no more memory than it was given.

Measurements by their nature, with bounds that a loaded machine keeps, too.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory

pytestmark = [pytest.mark.mounted, pytest.mark.alone]

WATCHED_S = 3.0
IDLE_SHARE = 0.03
PROGRAM_BYTES = 250 << 20
CACHE_MB, STAGING_MB = 64, 32


def cpu_seconds(*pids: int) -> float:
    """User and system time of processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def idle_share(*pids: int) -> float:
    """Of a core, while nothing is asked for. The settling time is that of the pump, which stays awake a while."""
    time.sleep(1.5)
    before, start = cpu_seconds(*pids), time.monotonic()
    time.sleep(WATCHED_S)
    return (cpu_seconds(*pids) - before) / (time.monotonic() - start)


def test_an_idle_mount_takes_next_to_no_time(mount: MountFactory, small: Path) -> None:
    assert idle_share(*mount(small).processes) < IDLE_SHARE


@pytest.mark.mpi
def test_idle_ranks_take_next_to_no_time(mpi_mount: MpiMountFactory, small: Path) -> None:
    ranks = mpi_mount(2, small)
    stats = ranks.stats(0)
    assert idle_share(stats["pid"], stats["engine_pid"]) < IDLE_SHARE


def test_memory_stays_within_what_was_given(mount: MountFactory, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    generator = random.Random(1)
    for number in range(20):
        (source / str(number)).write_bytes(generator.randbytes(10_000_000))
    view = mount(source, f"cache={CACHE_MB}M", f"staging={STAGING_MB}M")
    most = 0
    for _ in range(2):
        for file in sorted(source.iterdir()):
            assert (view.point / file.name).read_bytes() == file.read_bytes()
            most = max(most, view.stats()["rss_bytes"])
    assert CACHE_MB << 20 < most < (CACHE_MB + STAGING_MB << 20) + PROGRAM_BYTES
    assert view.stats()["resident_bytes"] <= CACHE_MB << 20
