"""The job goes on: engines killed, mounts that leave, memory that lies, under each MPI's documented options."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.launchers import Launcher, mpis_in_turn
from tests.mounts import DEEPIOFS, Journal, is_running, wait_until
from tests.ranks.conftest import (
    engine,
    flip_first_byte,
    fresh_differences,
    held_elsewhere,
    wait_for_health,
)

Failing = Callable[..., tuple[int, list[str]]]

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.alone]


@pytest.fixture(params=["one host", "lab"])
def hosts(request: pytest.FixtureRequest) -> Lab | None:
    """Where the ranks are: None for this machine."""
    if request.param == "one host":
        return None
    lab: Lab = request.getfixturevalue("lab")
    return lab


def test_a_killed_engine_leaves_all_mounts_serving_right_bytes_and_health_says_so(
    mpi_mount: MpiMountFactory, hosts: Lab | None, dataset: Path, journal: Journal
) -> None:
    journal.expect("the engine is lost")
    journal.allow("did not answer|MPI failed|does not answer")
    mounted = mpi_mount(2, dataset, "timeout=1", "linger=1", "staging=16M", lab=hosts)
    assert mounted.control(1, "health") == "ok\n"
    readers = [
        place.start(["diff", "-r", str(dataset), f"{point}/.deepiofs/exact"], stdout=subprocess.PIPE)
        for place, point in zip(mounted.places, mounted.mountpoints, strict=True)
    ]
    os.kill(engine(mounted, 1, hosts), signal.SIGKILL)
    for reader in readers:
        out, _ = reader.communicate(timeout=60)
        assert (reader.returncode, out) == (0, "")
    wait_for_health(mounted, 1, "engine lost")
    assert mounted.stats(1)["engine"] == "lost"
    assert mounted.stats(0)["errors"] == mounted.stats(1)["errors"] == {}
    for rank in range(2):
        assert mounted.places[rank].run(DEEPIOFS, "check", str(mounted.mountpoints[rank])).returncode == 0


def test_after_one_mount_left_the_other_still_gets_its_half_from_the_lingering_engine(
    mpi_mount: MpiMountFactory, hosts: Lab | None, dataset: Path
) -> None:
    mounted = mpi_mount(2, dataset, "linger=20", lab=hosts)
    mounted.places[1].output(DEEPIOFS, "umount", str(mounted.mountpoints[1]))
    assert str(mounted.mountpoints[1]) not in mounted.places[1].mountpoints()
    assert fresh_differences(mounted, 0) == ""
    served = mounted.stats(0)["served"]
    assert served["source"] == 0
    assert served["peer" if hosts else "node"] > 0
    started = time.monotonic()
    mounted.umount()
    assert mounted.ended() == 0
    assert time.monotonic() - started < 20


def test_an_engine_whose_peer_never_leaves_ends_by_itself_within_linger(
    mpi_mount: MpiMountFactory, dataset: Path
) -> None:
    mounted = mpi_mount(2, dataset, "linger=1")
    pids = [mounted.stats(1)[name] for name in ("pid", "engine_pid")]
    mounted.places[1].output(DEEPIOFS, "umount", str(mounted.mountpoints[1]))
    wait_until(lambda: not any(map(is_running, pids)), "the rank that left has ended", 10)
    assert fresh_differences(mounted, 0) == ""


@mpis_in_turn("verify", ["fetch", "always"])
def test_a_flipped_byte_in_a_neighbours_memory_is_counted_and_never_delivered(
    mpi_mount: MpiMountFactory, dataset: Path, journal: Journal, verify: str
) -> None:
    journal.expect("does not have its digest")
    mounted = mpi_mount(2, dataset, f"verify={verify}")
    name = held_elsewhere(mounted, 0, "node")
    flip_first_byte(engine(mounted, 1), (dataset / name).read_bytes())
    assert fresh_differences(mounted, 0) == ""
    assert mounted.stats(0)["verify_failures"] == 1
    assert mounted.stats(0)["served"]["source"] >= 1
    if verify == "always":
        assert fresh_differences(mounted, 1) == ""
        assert mounted.stats(1)["verify_failures"] == 1


@pytest.fixture
def failing(launcher: Launcher, tmp_path: Path) -> Failing:
    """Runs a mount of two ranks that is to fail; (the ranks' exit status, what deepiofs said on stderr).

    The launcher's own status is not it: Open MPI with --enable-recovery ends with 0.
    """

    def run(source: Path, mountpoint: str, *options: str) -> tuple[int, list[str]]:
        line = [DEEPIOFS, "mount", str(source), mountpoint, "-o", ",".join(("cache=16M", "staging=16M", *options))]
        with contextlib.suppress(FileExistsError):
            (tmp_path / "m0").mkdir()
        told = ["sh", "-c", '"$@"; echo "status $?" >&2', "rank", *line]
        done = subprocess.run(
            launcher.command(2, told), env=launcher.environment(), capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        statuses = {int(text.split()[1]) for text in done.stderr.splitlines() if text.startswith("status ")}
        assert len(statuses) == 1, done.stderr
        return statuses.pop(), [text for text in done.stderr.splitlines() if text.startswith("deepiofs: ")]

    return run


def test_ranks_that_would_mount_at_one_place_all_fail_with_one_line(
    failing: Failing, dataset: Path, tmp_path: Path
) -> None:
    code, lines = failing(dataset, f"{tmp_path}/m0")
    assert code == 2
    assert len(lines) == 1
    assert "%r or %l" in lines[0]


def test_a_mount_point_that_is_missing_for_one_rank_fails_all_with_one_line(
    failing, dataset: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    code, lines = failing(dataset, f"{tmp_path}/m%r")
    assert code == 2
    assert len(lines) == 1
    assert "m1 does not exist" in lines[0]


def test_a_source_that_is_missing_is_told_once(failing: Failing, tmp_path: Path) -> None:
    (tmp_path / "m1").mkdir()
    code, lines = failing(tmp_path / "nothing", f"{tmp_path}/m%r")
    assert code == 3
    assert len(lines) == 1
