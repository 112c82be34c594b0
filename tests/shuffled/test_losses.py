"""Passes after a loss: over the mounts that are left each sample once, from the next pass on."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.mounts import DEEPIOFS, Journal, MpiMount, is_running, wait_until
from tests.shuffled.conftest import order_of

pytestmark = [pytest.mark.mounted, pytest.mark.mpi]

# All of one group, so that any name draws any sample.
NAMES = [f"{i:02}" for i in range(30)]
OPTIONS = ("shuffle=all", "timeout=0.5", "linger=1")
_SAID_OF_LOSSES = (
    "did not answer|MPI failed|does not answer|out of the passes|cannot be called|of this group do not answer"
)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Thirty files, each with its own name as content."""
    source = tmp_path / "tokens"
    source.mkdir()
    for name in NAMES:
        (source / name).write_text(name)
    return source


def draw(mounted: MpiMount, rank: int, count: int, begin: int = 0) -> list[str]:
    """Open so many names on a mount, one after the other; the samples."""
    names = [NAMES[(begin + i) % len(NAMES)] for i in range(count)]
    said = mounted.places[rank].output("sh", "-c", f"cd {mounted.mountpoints[rank]} && cat {' '.join(names)}")
    return [said[i : i + 2] for i in range(0, len(said), 2)]


def passes(logs: Iterable[Path]) -> dict[int, list[str]]:
    """The samples of each pass, sorted."""
    return {number: sorted(line.sample for line in lines) for number, lines in order_of(logs).items()}


def repeated(samples: Sequence[str]) -> set[str]:
    """What is there more than once."""
    return {sample for sample, count in collections.Counter(samples).items() if count > 1}


def draw_until(mounted: MpiMount, ranks: Sequence[int], number: int) -> None:
    """Draw on these mounts, one after the other, until each has drawn of a pass."""
    for rank in ranks:
        for i in range(len(NAMES) * (number + 1)):
            if int(mounted.control(rank, "epoch")) >= number:
                break
            draw(mounted, rank, 1, i)
        assert int(mounted.control(rank, "epoch")) >= number


def kill_rank(mounted: MpiMount, rank: int) -> None:
    """Kill mount and engine at once."""
    pids = [mounted.stats(rank)[name] for name in ("pid", "engine_pid")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "the rank is gone")


def assert_whole(found: dict[int, list[str]], numbers: Iterable[int], begin: int = 0) -> None:
    """These passes have every sample once, and no pass from `begin` on has one twice."""
    assert all(not repeated(samples) for number, samples in found.items() if number >= begin)
    for number in numbers:
        assert found[number] == NAMES, f"pass {number} lacks {set(NAMES) - set(found[number])}"


def assert_out(mounted: MpiMount, ranks: Sequence[int], lost: int, since: int) -> None:
    """These ranks know it, and say so."""
    for rank in ranks:
        wait_until(lambda: f"rank {lost} is out since pass {since}" in mounted.control(rank, "health"), "all know it")  # noqa: B023
        assert mounted.stats(rank)["members"] == len(ranks)


def test_after_a_rank_was_killed_in_the_middle_of_a_pass_the_next_is_whole(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.expect("out of the passes: rank 1 from 1 on")
    journal.allow(_SAID_OF_LOSSES)
    mounted = mpi_mount(3, tokens, *OPTIONS, "linger=60", f"order_log={tmp_path}/order-%r")
    logs = [tmp_path / f"order-{rank}" for rank in range(3)]
    for rank in range(3):
        draw(mounted, rank, 4)
    kill_rank(mounted, 1)
    draw_until(mounted, [0, 2], 3)
    found = passes(logs)
    # Its ten, less the four that it had drawn.
    assert len(found[0]) == 24
    assert_whole(found, [1, 2])
    assert_out(mounted, [0, 2], lost=1, since=1)
    # Nobody lingers for the rank that is lost.
    begun = time.monotonic()
    mounted.umount()
    mounted.ended()
    assert time.monotonic() - begun < 30


def test_after_a_mount_has_left_in_the_middle_of_a_pass_the_next_is_whole(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.expect("out of the passes: rank 0 from 1 on")
    mounted = mpi_mount(3, tokens, *OPTIONS, "linger=20", f"order_log={tmp_path}/order-%r")
    logs = [tmp_path / f"order-{rank}" for rank in range(3)]
    for rank in range(3):
        draw(mounted, rank, 4)
    mounted.places[0].output(DEEPIOFS, "umount", str(mounted.mountpoints[0]))
    draw_until(mounted, [2, 1], 2)
    found = passes(logs)
    assert len(found[0]) == 24
    assert_whole(found, [1])
    assert_out(mounted, [1, 2], lost=0, since=1)


def test_a_mount_without_its_engine_keeps_its_share_also_when_another_is_killed(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.expect("the engine is lost")
    journal.allow(_SAID_OF_LOSSES)
    mounted = mpi_mount(3, tokens, *OPTIONS, f"order_log={tmp_path}/order-%r")
    logs = [tmp_path / f"order-{rank}" for rank in range(3)]
    os.kill(mounted.stats(2)["engine_pid"], signal.SIGKILL)
    wait_until(lambda: mounted.stats(2)["engine"] == "lost", "the loss was noticed")
    for rank in (0, 1, 2):
        draw_until(mounted, [rank], 1)
    assert_whole(passes(logs), [0])
    kill_rank(mounted, 1)
    draw_until(mounted, [0], 3)
    wait_until(lambda: "rank 1 is out since pass 2" in mounted.control(2, "health"), "it was told")
    draw_until(mounted, [2], 3)
    assert_whole(passes(logs), [2])


@pytest.mark.lab
def test_on_two_hosts_passes_are_whole_after_a_rank_was_killed(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal, lab: Lab
) -> None:
    journal.expect("out of the passes: rank 1 from 1 on")
    journal.allow(_SAID_OF_LOSSES + "|the engine is lost")
    mounted = mpi_mount(2, tokens, *OPTIONS, f"order_log={tmp_path}/order-%r", lab=lab)
    logs = [tmp_path / "order-0", tmp_path / "order-1"]
    for rank in range(2):
        draw(mounted, rank, 4)
    kill_all_on(lab, "node2")
    draw_until(mounted, [0], 2)
    found = passes(logs)
    assert len(found[0]) == 19
    assert_whole(found, [1])


@pytest.mark.lab
def test_a_host_that_was_cut_off_serves_nothing_of_its_own_once_it_is_back(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal, lab: Lab
) -> None:
    journal.allow(_SAID_OF_LOSSES + "|the engine is lost")
    mounted = mpi_mount(2, tokens, *OPTIONS, f"order_log={tmp_path}/order-%r", lab=lab)
    for rank in range(2):
        draw(mounted, rank, 4)
    lab.link("node2", up=False)
    try:
        draw_until(mounted, [0], 2)
        assert_whole(passes([tmp_path / "order-0"]), [1])
        assert "rank 1 is out since pass 1" in mounted.control(0, "health")
        draw(mounted, 1, 11)
    finally:
        lab.link("node2", up=True)
    # It has found nobody to decide with, and goes on with its share; now it is told, at the end of a pass.
    names = itertools.cycle(NAMES)

    def told() -> bool:
        mounted.places[1].run("cat", f"{mounted.mountpoints[1]}/{next(names)}")
        return "this rank is out since pass 1" in mounted.control(1, "health")

    wait_until(told, "the rank that was cut off knows it")
    # MPI's connection needs a while more; until then nobody gives it anything.
    wait_until(
        lambda: not mounted.places[1].run("cat", f"{mounted.mountpoints[1]}/{next(names)}").returncode, "it is given"
    )
    assert mounted.stats(1)["steals"] > 0
    now = max(int(mounted.control(rank, "epoch")) for rank in range(2))
    draw_until(mounted, [1, 0], now + 3)
    assert_whole(passes([tmp_path / "order-0", tmp_path / "order-1"]), [now + 1, now + 2], begin=now + 1)


def kill_all_on(lab: Lab, host: str) -> None:
    """Kill mount and engine of the rank on a host."""
    pids = [
        pid for pid in lab.processes(host) if b"/python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    ]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "the rank is gone")
