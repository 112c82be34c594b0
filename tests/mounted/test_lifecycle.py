"""How mounts begin and end: signals, dead mounts, mount(8), no MPI, a changed source."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.mounts import DEEPIOFS, HERE, Journal, Mount, Namespace, Place, ending, is_running, wait_until

pytestmark = pytest.mark.mounted

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_unmounts_and_is_no_failure(mount: MountFactory, small: Path, number: signal.Signals) -> None:
    view = mount(small, foreground=True)
    assert view.process is not None
    view.process.send_signal(number)
    assert view.process.wait(10) == 0
    assert str(view.point) not in HERE.mountpoints()


def test_a_signal_unmounts_though_a_file_is_open(mount: MountFactory, small: Path) -> None:
    view = mount(small, foreground=True)
    assert view.process is not None
    with (view.point / "a/one.jpg").open("rb"):
        view.process.terminate()
        assert view.process.wait(10) == 0
        assert str(view.point) not in HERE.mountpoints()


def test_a_signal_while_it_is_loading(mount: MountFactory, small: Path) -> None:
    with (small / "much").open("wb") as file:
        file.truncate(40 << 20)
    view = mount(small, foreground=True, until="mounted")
    assert view.process is not None
    view.process.terminate()
    assert view.process.wait(10) == 0


def test_a_background_mount_leaves_its_caller(mount: MountFactory, small: Path) -> None:
    # The command has ended, and with it its pipes: `mount` has read them to their end.
    view = mount(small)
    pid, _ = view.processes
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}


def test_umount_waits_for_the_processes(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    view.umount()
    assert not is_running(view.processes[0])
    assert not is_running(view.processes[1])


@pytest.fixture
def copied(mount: MountFactory, small: Path, namespaces: None) -> Iterator[Mount]:
    """A mount of which another mount namespace has a copy, as that of a container that was started meanwhile."""
    view = mount(small)
    with Namespace(keep_mounts=True) as container:
        assert str(view.point) in container.place().mountpoints()
        yield view


def test_umount_ends_a_mount_of_which_a_container_has_a_copy(copied: Mount) -> None:
    copied.umount()
    wait_until(lambda: not any(map(is_running, copied.processes)), "the processes ended")


def test_what_such_a_mount_leaves_to_the_next_at_its_place_stays(copied: Mount, mount: MountFactory) -> None:
    HERE.output("umount", str(copied.point))
    view = mount(copied.source, at=copied.point)
    wait_until(lambda: not any(map(is_running, copied.processes)), "the processes of the first ended")
    assert (view.point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"


def test_umount_again_is_fine(mount: MountFactory, small: Path, tmp_path: Path) -> None:
    view = mount(small)
    view.umount()
    view.umount()
    HERE.output(DEEPIOFS, "umount", str(tmp_path / "was never there"), str(view.point))


def test_umount_of_a_mount_in_use_says_so(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    with (view.point / "a/one.jpg").open():
        done = HERE.deepiofs("umount", str(view.point))
    assert done.returncode == 1
    assert done.stderr.startswith("deepiofs: cannot unmount")
    assert (view.point / "a/one.jpg").exists()


def test_umount_leaves_other_file_systems_alone() -> None:
    done = HERE.deepiofs("umount", "/proc")
    assert done.returncode == 1
    assert "not of deepiofs" in done.stderr


@pytest.fixture
def dead(mount: MountFactory, small: Path) -> Mount:
    """A mount whose process was killed."""
    view = mount(small)
    os.kill(view.processes[0], signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, view.processes)), "both processes ended")
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(view.point)
    return view


def test_umount_clears_a_dead_mount(dead: Mount) -> None:
    dead.umount()
    assert str(dead.point) not in HERE.mountpoints()
    assert os.listdir(dead.point) == []


def test_mounting_over_a_dead_mount_works(dead: Mount, mount: MountFactory) -> None:
    view = mount(dead.source, at=dead.point)
    assert (view.point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"
    view.umount()
    assert str(dead.point) not in HERE.mountpoints()


def test_status_of_a_dead_mount_says_what_to_do(dead: Mount) -> None:
    done = HERE.deepiofs("status", str(dead.point))
    assert done.returncode == 1
    assert done.stderr == f"deepiofs: the mount at {dead.point} is dead; deepiofs umount {dead.point} clears it\n"


@pytest.fixture
def hanging(mount: MountFactory, small: Path) -> Iterator[Mount]:
    """A mount whose process does not answer."""
    view = mount(small)
    os.kill(view.processes[0], signal.SIGSTOP)
    yield view
    # Unmounted, it finds that it has nothing left to do.
    os.kill(view.processes[0], signal.SIGCONT)


def test_umount_clears_a_mount_that_hangs_and_frees_who_waits_for_it(hanging: Mount) -> None:
    with ending(HERE.start(["cat", f"{hanging.point}/a/one.jpg"], stderr=subprocess.DEVNULL)) as reader:
        start = time.monotonic()
        HERE.output(DEEPIOFS, "umount", str(hanging.point))
        assert time.monotonic() - start < 15
        assert str(hanging.point) not in HERE.mountpoints()
        assert reader.wait(10) == 1


def test_commands_do_not_hang_on_a_mount_that_does(hanging: Mount) -> None:
    lines = [
        ("wait", str(hanging.point), "--timeout", "0.3"),
        ("status", str(hanging.point)),
        ("mount", str(hanging.source), str(hanging.point), "-o", "cache=64M,staging=32M"),
    ]
    with ThreadPoolExecutor(len(lines)) as pool:
        waited, asked, mounted = pool.map(lambda line: HERE.deepiofs(*line), lines)
    assert waited.returncode == 5
    assert asked.returncode == 5
    assert "does not answer within" in asked.stderr
    assert mounted.returncode == 2
    assert "mounted already" in mounted.stderr


def test_the_mount_goes_on_without_its_engine(mount: MountFactory, small: Path, journal: Journal) -> None:
    journal.expect("the engine is lost")
    view = mount(small)
    os.kill(view.processes[1], signal.SIGKILL)
    wait_until(lambda: view.stats()["engine"] == "lost", "the loss was noticed")
    for name in ("a/one.jpg", "a/two.jpg", "b/three.txt"):
        assert (view.point / name).read_bytes() == (small / name).read_bytes()
    assert "engine lost" in view.control("health")


def test_wait_times_out(tmp_path: Path) -> None:
    done = HERE.deepiofs("wait", str(tmp_path), "--timeout", "0.2")
    assert done.returncode == 5
    assert done.stderr.startswith("deepiofs: not mounted after 0.2 s")


def test_warm_full_reports_success_when_all_is_loaded(mount: MountFactory, small: Path) -> None:
    view = mount(small, "warm=full", foreground=True, until="mounted")
    assert view.stats()["state"] == "warm"


def test_warm_demand_loads_what_is_read(mount: MountFactory, small: Path) -> None:
    view = mount(small, "warm=demand", until="mounted")
    before = view.stats()
    for _ in range(2):
        assert (view.point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"
    assert before["resident_bytes"] == 0
    assert view.stats()["resident_bytes"] == len("the bytes of a/one.jpg")


def test_no_mpi_library_is_needed_for_one_mount(mount: MountFactory, small: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden/mpi4py").mkdir(parents=True)
    (tmp_path / "hidden/mpi4py/__init__.py").write_text("raise ImportError('there is no MPI here')\n")
    paths = [str(tmp_path / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])]
    view = mount(small, place=Place(environment={"PYTHONPATH": ":".join(paths)}))
    assert (view.point / "b/three.txt").read_text() == "the bytes of b/three.txt"
    assert "libmpi" not in "".join(Path(f"/proc/{pid}/maps").read_text() for pid in view.processes)


def test_a_rank_without_an_mpi_library_says_what_to_install(small: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden/mpi4py").mkdir(parents=True)
    (tmp_path / "hidden/mpi4py/__init__.py").write_text("raise ImportError('there is no MPI here')\n")
    (tmp_path / "point").mkdir()
    paths = [str(tmp_path / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])]
    place = Place(environment={"PYTHONPATH": ":".join(paths)})
    done = place.deepiofs("mount", str(small), str(tmp_path / "point"), "-o", "mpi=on,cache=64M,staging=32M")
    assert done.returncode == 4
    assert done.stderr.startswith("deepiofs: no MPI library can be loaded (there is no MPI here)")
    assert done.stderr.count("\n") == 1


def test_an_index_is_used_while_it_matches(mount: MountFactory, small: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    mount(small, f"index={index}").umount()
    built = index.stat()
    assert sorted(os.listdir(mount(small, f"index={index}").point)) == ["a", "b"]
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == (built.st_ino, built.st_mtime_ns)


def test_an_index_is_built_anew_when_the_source_has_changed(
    mount: MountFactory, small: Path, tmp_path: Path, journal: Journal
) -> None:
    index = tmp_path / "index"
    HERE.output(DEEPIOFS, "index", str(small), "-o", f"index={index}")
    built = index.stat()
    (small / "a/new.jpg").write_text("later")
    journal.expect("the index is not used: .*; it is built anew")
    view = mount(small, f"index={index}")
    assert (view.point / "a/new.jpg").read_text() == "later"
    assert index.stat().st_ino != built.st_ino


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty"])
def test_a_damaged_index_is_built_anew(
    mount: MountFactory, small: Path, tmp_path: Path, journal: Journal, damage: str
) -> None:
    index = tmp_path / "index"
    HERE.output(DEEPIOFS, "index", str(small), "-o", f"index={index}")
    whole = index.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    index.write_bytes({"cut": whole[:-9], "flipped": bytes(flipped), "foreign": b"PK\3\4" * 100, "empty": b""}[damage])
    journal.expect("index .* is not used")
    view = mount(small, f"index={index}")
    assert (view.point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"


def test_a_file_that_changed_is_an_error_and_not_a_mixture(mount: MountFactory, small: Path, journal: Journal) -> None:
    journal.expect("a/one.jpg: changed in the source since it was indexed; mount again")
    view = mount(small, "warm=demand", until="mounted")
    (small / "a/one.jpg").write_text("THE BYTES OF A/ONE.JPG")
    with pytest.raises(OSError, match="Input/output error"):
        (view.point / "a/one.jpg").read_bytes()
    # The kernel asks again for a page that it could not read ahead.
    assert view.stats()["errors"].keys() == {"EIO"}
    assert (view.point / "a/two.jpg").read_text() == "the bytes of a/two.jpg"


@pytest.mark.parametrize(
    ("option", "left"), [("include=*.jpg", ["a", "b"]), ("exclude=a", ["b"]), ("exclude=b/**", ["a", "b"])]
)
def test_include_and_exclude_choose_what_is_in_the_view(
    mount: MountFactory, small: Path, option: str, left: list[str]
) -> None:
    view = mount(small, option)
    assert sorted(os.listdir(view.point)) == left
    assert not (view.point / "b/three.txt").exists() or option == "exclude=a"


def test_owner_and_modes_can_be_given(mount: MountFactory, small: Path) -> None:
    found = (mount(small, "uid=12", "gid=34", "umask=027").point / "a/one.jpg").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12, 34, 0o750)


def test_mount_point_in_a_relative_path_with_a_link_and_odd_characters(
    small: Path, tmp_path: Path, mount: MountFactory
) -> None:
    point = tmp_path / "a mount, point\twith \\ and ümlaut"
    point.mkdir()
    (tmp_path / "link").symlink_to(point.name)
    line = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(tmp_path), DEEPIOFS]
    HERE.output(*line, "mount", "source", "link", "-o", f"cache=64M,staging=32M,log={tmp_path}/log")
    assert (point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"
    HERE.output(*line, "wait", "link/", "--for", "warm")
    HERE.output(*line, "umount", "link")
    assert os.listdir(point) == []
    assert (tmp_path / "log").read_text() == ""


def test_mountinfo_shows_what_it_is(mount: MountFactory, small: Path) -> None:
    view = mount(small, "fsname=my dataset")
    line = HERE.output("findmnt", "-no", "FSTYPE,SOURCE,OPTIONS", str(view.point))
    assert line.startswith("fuse.deepiofs my dataset")
    assert {"nosuid", "nodev", "default_permissions"} <= set(line.split()[-1].split(","))
    assert "allow_other" not in line


def test_check_of_a_sample(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    assert HERE.output(DEEPIOFS, "check", str(view.point), "--sample", "2").startswith("2 files, ")


def test_a_reader_in_another_program_is_not_disturbed_by_status(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    with subprocess.Popen(["cat", view.point / "a/one.jpg"], stdout=subprocess.PIPE) as reader:
        HERE.output(DEEPIOFS, "status", str(view.point))
        assert reader.stdout is not None
        assert reader.stdout.read() == b"the bytes of a/one.jpg"
