"""The cluster, a dataset on it, and jobs in both ways of use."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import HOSTS
from tests.mounts import wait_until
from tests.slurm.cluster import USER, Slurm

_FILES, _BYTES = 200, 20_000
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
_END_S = 90.0
_LOOK_S = 0.3
WAYS = ("batch", "site")


@dataclasses.dataclass
class Job:
    """A job of two nodes, one task on each, that reads until `stop`."""

    slurm: Slurm
    number: str
    signs: Path
    mountpoint: Path

    def state(self) -> str:
        """As Slurm tells it."""
        said = self.slurm.command("scontrol", "show", "job", self.number, user="root")
        return re.findall(r"JobState=(\S+)", said)[0]

    def output(self) -> str:
        """Of the batch script and its steps."""
        file = self.slurm.base / "home" / USER / f"{self.number}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_reading(self, rounds: int = 1) -> None:
        """Return when the tasks of both nodes have read all files so many more times."""
        had = {host: self._rounds(host) for host in HOSTS}
        wait_until(
            seldom(lambda: self.state() in _OVER or all(self._rounds(host) >= had[host] + rounds for host in HOSTS)),
            lambda: f"rounds on both nodes: {self.output()}\n{self.slurm.logs()}",
        )
        assert self.state() == "RUNNING", self.output() + self.slurm.logs()

    def _rounds(self, host: str) -> int:
        sign = self.signs / host
        return int(sign.read_text()) if sign.exists() else 0

    def stop(self) -> None:
        """The tasks end after the next round."""
        (self.signs / "stop").touch()

    def wait_over(self, deadline_s: float = _END_S) -> str:
        """The state in which it ended, once all epilogs have run."""
        over = seldom(lambda: self.state() in _OVER)
        wait_until(over, lambda: f"the end of {self.number}: {self.slurm.logs()}", deadline_s)
        self.slurm.wait_idle()
        return self.state()

    def nothing_left(self) -> None:
        """No mount, process, shared memory or folder remains. Without an administrator it may take a moment."""
        wait_until(
            lambda: not self.slurm.leftovers(), lambda: f"{self.slurm.leftovers()} gone:\n{self.slurm.logs()}", 20
        )


Submit = Callable[..., Job]


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """The cluster; skips, saying why, where it cannot be made."""
    if reason := Slurm.unavailable():
        pytest.skip(reason)
    with Slurm() as cluster:
        _make_dataset(cluster.base / "dataset")
        yield cluster


def seldom(condition: Callable[[], bool]) -> Callable[[], bool]:
    """The same condition, asked a few times a second at most: each look starts a program, and processors are few."""

    def asked() -> bool:
        time.sleep(_LOOK_S)
        return condition()

    return asked


def _make_dataset(folder: Path) -> None:
    generator = random.Random(7)
    for number in range(_FILES):
        path = folder / f"class{number % 4}" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.randbytes(_BYTES))


@pytest.fixture
def submit(slurm: Slurm) -> Iterator[Submit]:
    """`submit(way, *sbatch options, source=, stop=)` starts a job in one of the WAYS; none outlives the test."""
    jobs: list[Job] = []
    counter = itertools.count()

    def start(
        way: str, *options: str, source: Path | None = None, stop: bool = False, mount_options: str = "", by: str = ""
    ) -> Job:
        home = slurm.base / "home" / USER
        number = next(counter)
        signs, mountpoint = home / f"signs{number}-{way}", home / f"data{number}-{way}"
        signs.mkdir(exist_ok=True)
        for old in signs.iterdir():
            old.unlink()
        signs.chmod(0o777)
        source = source or slurm.base / "dataset"
        script = home / f"job{number}-{way}.sh"
        script.write_text(_script(slurm, way, source, mountpoint, f"{signs} {by}"))
        comment = [f"--comment=deepiofs {source} {mountpoint} {mount_options}"] if way == "site" else []
        said = slurm.command("sbatch", "--parsable", "-N2", "-n2", "-o%j.out", *comment, *options, str(script))
        jobs.append(Job(slurm, said.strip(), signs, mountpoint))
        if stop:
            jobs[-1].stop()
        return jobs[-1]

    yield start
    for job in jobs:
        if job.state() not in _OVER:
            slurm.command("scancel", job.number, user="root")
    slurm.wait_idle()


def _script(slurm: Slurm, way: str, source: Path, mountpoint: Path, last: str) -> str:
    reader = f"{slurm.base}/venv/bin/python {Path(__file__).with_name('reader.py')}"
    train = f"srun --overlap --kill-on-bad-exit {reader} {mountpoint} {slurm.base / 'dataset'} {last}"
    if way == "site":
        return f"#!/bin/bash\n{train}\n"
    return f"""#!/bin/bash
export DEEPIOFS_SOURCE={source} DEEPIOFS_MOUNTPOINT={mountpoint}
trap {slurm.site}/deepiofs-epilog EXIT
{slurm.site}/deepiofs-prolog || exit 1
{train}
"""
