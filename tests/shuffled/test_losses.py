"""Passes after a loss: over the mounts that are left each sample once, from the next pass on."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.launchers import Launcher
from tests.mounts import DEEPIOFS, Journal, MpiMount, end, is_running, mpi_mounted, nothing_left, wait_until
from tests.shuffled.conftest import Drawn, order_of

pytestmark = [pytest.mark.mounted, pytest.mark.mpi]

# All of one group, so that any name draws any sample.
NAMES = [f"{i:02}" for i in range(30)]
OPTIONS = ("shuffle=all", "timeout=0.5", "linger=1")
_SAID_OF_LOSSES = "did not answer|MPI failed|does not answer|out of the passes|cannot be called"


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


def draw_pass(mounted: MpiMount, ranks: Sequence[int], logs: Sequence[Path], number: int) -> None:
    """Draw on these mounts, in turn, until all of them are in a later pass."""
    for rank in ranks:
        while int(mounted.control(rank, "epoch")) <= number:
            draw(mounted, rank, 1, len(order_of(logs).get(number, ())))


def kill_rank(mounted: MpiMount, rank: int) -> None:
    """Kill mount and engine at once."""
    pids = [mounted.stats(rank)[name] for name in ("pid", "engine_pid")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "the rank is gone")


def test_smoke(mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal) -> None:
    journal.allow(_SAID_OF_LOSSES)
    mounted = mpi_mount(3, tokens, *OPTIONS, f"order_log={tmp_path}/order-%r")
    logs = [tmp_path / f"order-{rank}" for rank in range(3)]
    for rank in range(3):
        draw(mounted, rank, 4)
    kill_rank(mounted, 1)
    draw_pass(mounted, [0, 2], logs, 2)
    for number, samples in passes(logs).items():
        print(number, len(samples), repeated(samples))
    print(mounted.control(0, "health"), mounted.stats(0)["members"])
    raise SystemExit
