"""Batch scripts' way of use: `deepiofs-prolog` and `deepiofs-epilog` as a job of some manager runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.launchers import installed_launchers
from tests.mounts import DEADLINE_S, HERE, Place, is_running, no_process_left, nothing_left, parent_of, wait_until

SCRIPTS = Path(__file__).parents[2] / "mount-scripts"
_FILES = 40


@dataclasses.dataclass
class Job:
    """What a batch script has: an environment, and a place to run in. points: the mount point of each node."""

    folder: Path
    environment: dict[str, str]
    points: list[Path]
    places: Sequence[Place]
    prefix: tuple[str, ...] = ()

    def script(self, name: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run one of the scripts to its end."""
        return subprocess.run(
            [*self.prefix, str(SCRIPTS / name), *arguments], env={**self.environment, **changes},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def prolog(self, **changes: str) -> subprocess.CompletedProcess[str]:
        """`deepiofs-prolog`"""
        return self.script("deepiofs-prolog", **changes)

    def epilog(self) -> None:
        """`deepiofs-epilog`; then no node has a mount or a process of it."""
        done = self.script("deepiofs-epilog")
        assert (done.returncode, done.stderr) == (0, "")
        assert self.mounted() == []
        assert list((self.folder / "shared").glob("*")) in ([], [self.folder / "shared/logs"])

    def mounted(self) -> list[Path]:
        """The mount points that are mounted on."""
        nodes = zip(self.points, self.places, strict=True)
        return [point for point, place in nodes if str(point) in place.mountpoints()]

    def logs(self) -> str:
        """Of all nodes."""
        return "".join(file.read_text() for file in sorted((self.folder / "shared/logs").glob("*")))

    def processes(self, word: str) -> list[int]:
        """Those of this job that have a word in their command line, by the machine's numbers, in order of their age."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if word in file.read_text().replace("\0", " ") and self._is_ours(file.with_name("environ")):
                    found.append(int(file.parent.name))
        return sorted(found)

    def _is_ours(self, environ: Path) -> bool:
        mark = f"DEEPIOFS_TEST_MARK={self.environment['DEEPIOFS_TEST_MARK']}"
        return mark.encode() in environ.read_bytes().split(b"\0")

    def keepers(self) -> list[int]:
        """The mounts' parents; there are also guards of the same command line."""
        return [parent_of(pid) for pid in self.processes("deepiofs.cli.main mount")]

    def kill(self, *victims: int) -> None:
        """SIGKILL."""
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, victims)), f"{victims} ended")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Some files."""
    folder = tmp_path / "source"
    for number in range(_FILES):
        path = folder / f"{number % 4}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 * number))
    return folder


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No other test has a job meanwhile: what prologs keep lies in one folder of the user's."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


Begin = Callable[..., Job]


@pytest.fixture
def begin(tmp_path: Path, source: Path) -> Iterator[Begin]:
    """`begin(environment, points, places, prefix)` makes a job; in the end its epilog runs, and nothing may be left."""
    if not any(launcher.name == "mpich" for launcher in installed_launchers()):
        pytest.skip("the prolog's ranks need MPICH")
    with _alone(), nothing_left(jobs=True), no_process_left() as mark, contextlib.ExitStack() as stack:

        def make(
            environment: Mapping[str, str],
            points: list[Path],
            places: Sequence[Place] = (HERE, HERE),
            prefix: tuple[str, ...] = (),
        ) -> Job:
            settings = {
                "SOURCE": str(source),
                "OPTIONS": "cache=32M,staging=32M",
                "TIMEOUT": "40",
                "SHARED_DIR": str(tmp_path / "shared"),
                "PYTHON": str(Path(shutil.which("deepiofs") or "").with_name("python")),
            }
            named = {f"DEEPIOFS_{name}": value for name, value in settings.items()}
            job = Job(tmp_path, {**os.environ, **named, **mark, **environment}, points, places, prefix)
            stack.callback(job.script, "deepiofs-epilog")
            return job

        yield make
