"""What cannot be mounted is said in one line, with the right exit status, and nothing is left behind."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.launchers import Launcher
from tests.mounts import DEADLINE_S, DEEPIOFS, HERE, Namespace, Place, no_process_left, nothing_left

pytestmark = pytest.mark.mounted

USAGE, SOURCE, ENVIRONMENT = 2, 3, 4


@dataclass(frozen=True)
class Refused:
    """How a mount ended that was not to be."""

    status: int
    line: str


def refused(source: Path, point: Path, options: str = "cache=64M,staging=32M", place: Place = HERE) -> Refused:
    """Try to mount; exactly one line is said, and no mount, process or file remains."""
    with nothing_left(), no_process_left() as mark:
        marked = replace(place, environment={**place.environment, **mark})
        before = marked.mountpoints()
        done = marked.deepiofs("mount", str(source), str(point), "-o", options)
        assert str(point) not in marked.mountpoints() - before
    assert done.stdout == ""
    assert re.fullmatch(r"deepiofs: [^\n]+\n", done.stderr), done.stderr
    return Refused(done.returncode, done.stderr.strip())


@pytest.fixture
def point(tmp_path: Path) -> Path:
    (tmp_path / "point").mkdir()
    return tmp_path / "point"


def test_a_missing_source(point: Path) -> None:
    end = refused(point / "nowhere", point)
    assert end.status == SOURCE
    assert f"{point}/nowhere" in end.line


def test_a_source_that_is_no_dataset(tmp_path: Path, point: Path) -> None:
    (tmp_path / "notes.txt").write_text("no dataset")
    assert refused(tmp_path / "notes.txt", point).status == SOURCE


def test_an_unknown_option_names_the_nearest(small: Path, point: Path) -> None:
    end = refused(small, point, "cahce=64M")
    assert end.status == USAGE
    assert "'cahce'" in end.line
    assert "'cache'" in end.line


@pytest.mark.parametrize(
    "option",
    ["cache=much", "staging=1X", "entropy=2", "verify=maybe", "umask=9", "timeout=0", "links=", "allow_other=perhaps"],
)
def test_a_value_that_an_option_cannot_have(small: Path, point: Path, option: str) -> None:
    end = refused(small, point, option)
    assert end.status == USAGE
    assert option in end.line


def test_all_that_is_wrong_with_the_options_is_said_at_once(small: Path, point: Path) -> None:
    end = refused(small, point, "cahce=64M,entropy=2,warm=hot")
    assert all(text in end.line for text in ("cahce", "entropy=2", "warm=hot"))


def test_a_mount_point_that_does_not_exist(small: Path, tmp_path: Path) -> None:
    end = refused(small, tmp_path / "nowhere")
    assert end.status == USAGE
    assert "does not exist" in end.line


def test_a_mount_point_that_is_no_directory(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    end = refused(small, tmp_path / "file")
    assert end.status == USAGE
    assert "not a directory" in end.line


def test_a_mount_point_that_is_not_empty(small: Path, point: Path) -> None:
    (point / "file").touch()
    end = refused(small, point)
    assert end.status == USAGE
    assert "not empty" in end.line


def test_a_mount_point_that_is_in_use(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    end = refused(small, view.point)
    assert end.status == USAGE
    assert "mounted already" in end.line
    assert sorted(os.listdir(view.point)) == ["a", "b"]


@pytest.mark.parametrize("option", ["cache=1000T", "staging=1000T", "cache=100%"])
def test_more_memory_than_there_is(small: Path, point: Path, option: str) -> None:
    end = refused(small, point, option)
    assert end.status == ENVIRONMENT
    assert "lower cache= or staging=" in end.line


def test_a_log_that_cannot_be_written(small: Path, point: Path) -> None:
    end = refused(small, point, f"cache=64M,log={point}/nowhere/log")
    assert end.status == USAGE
    assert f"{point}/nowhere/log" in end.line


def test_an_index_that_cannot_be_written(small: Path, point: Path) -> None:
    end = refused(small, point, f"cache=64M,index={point}/nowhere/index")
    assert end.status == USAGE
    assert f"{point}/nowhere/index" in end.line


@pytest.mark.parametrize("line", [[], ["mount"], ["mount", "only-a-source"], ["nonsense"], ["wait"]], ids=str)
def test_a_wrong_command_line(line: list[str]) -> None:
    done = HERE.deepiofs(*line)
    assert done.returncode == USAGE
    assert re.fullmatch(r"deepiofs[^\n]*: [^\n]+\n", done.stderr)


@pytest.fixture(params=["absent", "closed"])
def without_fuse(request: pytest.FixtureRequest, namespaces: None) -> Iterator[Place]:
    """A place where /dev/fuse is not there, or is no FUSE device."""
    nodes = {"null": 3, "zero": 5, "random": 8, "urandom": 9}
    absent = ["mount -t tmpfs deepiofs-test /dev", *(f"mknod -m 666 /dev/{n} c 1 {i}" for n, i in nodes.items())]
    script = {"absent": "\n".join([*absent, "mkdir /dev/shm"]), "closed": "mount --bind /dev/null /dev/fuse"}
    with Namespace(script[request.param]) as namespace:
        yield namespace.place()


def test_a_machine_without_fuse(small: Path, point: Path, without_fuse: Place) -> None:
    end = refused(small, point, place=without_fuse)
    assert end.status == ENVIRONMENT
    assert "/dev/fuse" in end.line or "cannot mount" in end.line


@pytest.mark.mpi
@pytest.mark.parametrize("mistake", ["source", "point"])
def test_of_several_ranks_one_says_what_is_wrong(launcher: Launcher, small: Path, tmp_path: Path, mistake: str) -> None:
    (tmp_path / "point0").mkdir()
    source = tmp_path / "nowhere" if mistake == "source" else small
    mount = [DEEPIOFS, "mount", str(source), f"{tmp_path}/point%r", "-o", "cache=64M,staging=32M"]
    # A launcher that goes on without a lost rank ends with 0, whatever its ranks end with.
    line = ["sh", "-c", '"$@"; echo $? >>"$0"', f"{tmp_path}/statuses", *mount]
    if mistake == "source":
        (tmp_path / "point1").mkdir()
    with nothing_left(), no_process_left() as mark:
        done = subprocess.run(
            launcher.command(2, line), env={**launcher.environment(), **mark}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.startswith("deepiofs: ")]
    assert len(said) == 1, done.stderr
    assert ("nowhere" if mistake == "source" else "point1 does not exist") in said[0]
    assert (tmp_path / "statuses").read_text().split() == [str(SOURCE if mistake == "source" else USAGE)] * 2
    assert not {path for path in HERE.mountpoints() if path.startswith(str(tmp_path))}
