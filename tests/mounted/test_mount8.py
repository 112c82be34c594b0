"""Through mount(8), fstab(5), umount(8) and findmnt(8), as an administrator and as a user without privileges."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mounts import DEEPIOFS, Journal, Mount, Namespace, Place, is_running, mounted, reachable_by_all, wait_until

pytestmark = [pytest.mark.mounted, pytest.mark.usefixtures("namespaces")]

HELPER = Path(DEEPIOFS).with_name("mount.deepiofs")
USER, OTHER = 65534, 1
OPTIONS = "cache=64M,staging=32M"
# What docs/LAUNCHING.md says to install, in a /sbin of the namespace's own with what the system has there for FUSE.
INSTALL = f"""
mkdir "$DIR/sbin"
cp -P /sbin/mount.fuse* "$DIR/sbin/" 2>/dev/null || true
mount --bind "$DIR/sbin" /sbin
ln -s {HELPER} /sbin/mount.deepiofs
ln -s {HELPER} /sbin/mount.fuse.deepiofs
mount --bind "$DIR/fstab" /etc/fstab
"""


@dataclass(frozen=True)
class Machine:
    """A mount namespace with the helper installed and an /etc/fstab of its own; `folder` holds source and mount."""

    folder: Path
    root: Place
    user: Place

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def point(self) -> Path:
        return self.folder / "mount"

    def fstab(self, options: str, source: Path | None = None) -> None:
        """The one line of /etc/fstab."""
        (self.folder / "fstab").write_text(f"{source or self.source} {self.point} deepiofs {options},{OPTIONS} 0 0\n")

    def is_mounted(self) -> bool:
        return str(self.point) in self.root.mountpoints()

    def read(self) -> str:
        return self.root.output("cat", f"{self.point}/file")


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not below pytest's own folders, which only root may enter.
    folder = Path(tempfile.mkdtemp(prefix="mount8-"))
    folder.chmod(0o755)
    for name in ("source", "mount", "journal"):
        (folder / name).mkdir()
        os.chown(folder / name, USER, USER)
    (folder / "source/file").write_text("its bytes")
    (folder / "fstab").touch()
    with Namespace(f"{reachable_by_all()}\nDIR={folder}\n{INSTALL}") as namespace:
        machine = Machine(folder, namespace.place(), namespace.place(USER, HOME="/"))
        yield machine
        left = machine.is_mounted()
        machine.root.run("umount", "-l", str(machine.point))
        assert not left
    shutil.rmtree(folder)


def refusal(place: Place, *line: str) -> str:
    """The one line that a command says, which must fail."""
    done = place.run(*line)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_mount_8_mounts_and_umount_8_unmounts(machine: Machine) -> None:
    journal = Journal(machine.folder / "journal")
    options = ["ro,noatime,_netdev,nofail,x-systemd.automount,x-gvfs-hide,user,comment=data", journal.option()]
    command = ["mount", "-t", "deepiofs"]
    with mounted(machine.source, machine.point, *options, place=machine.root, command=command) as view:
        assert machine.read() == "its bytes"
        machine.root.output("umount", str(view.point))
        wait_until(lambda: not any(map(is_running, view.processes)), "the processes ended")
    journal.check()


def test_findmnt_shows_what_it_is(machine: Machine) -> None:
    with mounted(machine.source, machine.point, place=machine.root, command=["mount", "-t", "deepiofs"]):
        said = machine.root.output("findmnt", "--json", "-o", "TARGET,SOURCE,FSTYPE,OPTIONS", str(machine.point))
        (found,) = json.loads(said)["filesystems"]
        assert (found["target"], found["source"]) == (str(machine.point), str(machine.source))
        assert found["fstype"] == "fuse.deepiofs"
        assert {"nosuid", "nodev", "default_permissions"} <= set(found["options"].split(","))
        assert machine.root.output("findmnt", "-no", "TARGET", "-t", "fuse.deepiofs") == f"{machine.point}\n"


def test_mount_8_hands_the_error_on(machine: Machine) -> None:
    line = ("mount", "-t", "deepiofs", "-o", "cahce=1G", str(machine.source), str(machine.point))
    assert "unknown option 'cahce'" in refusal(machine.root, *line)


@pytest.mark.parametrize("how", ["mount point", "source", "other file"])
def test_a_line_of_fstab_mounts_it(machine: Machine, how: str) -> None:
    machine.fstab("noauto,x-gvfs-hide")
    line = {
        "mount point": [str(machine.point)],
        "source": [str(machine.source)],
        "other file": ["--fstab", str(machine.folder / "fstab"), str(machine.point)],
    }[how]
    machine.root.output("mount", *line)
    assert machine.read() == "its bytes"
    machine.root.output("umount", str(machine.point))


def test_mount_a_mounts_what_is_not_noauto_and_once(machine: Machine) -> None:
    machine.fstab("noauto")
    machine.root.output("mount", "-a")
    assert not machine.is_mounted()
    machine.fstab("_netdev,nofail")
    machine.root.output("mount", "-a", "-O", "no_netdev")
    assert not machine.is_mounted()
    machine.root.output("mount", "-a", "-t", "deepiofs")
    machine.root.output("mount", "-a")
    assert machine.root.mountpoints() == {str(machine.point)}
    machine.root.output(DEEPIOFS, "umount", str(machine.point))


def test_mount_a_says_in_one_line_what_is_wrong(machine: Machine) -> None:
    machine.fstab("nofail", source=machine.folder / "nowhere")
    assert f"source {machine.folder}/nowhere: no such directory" in refusal(machine.root, "mount", "-a")


@pytest.mark.parametrize("variables", [(), ("PATH=/nowhere",)])
def test_it_needs_no_environment(machine: Machine, variables: tuple[str, ...]) -> None:
    kept = [f"PYTHONPATH={path}" for path in filter(None, [os.environ.get("PYTHONPATH")])]
    for place in (machine.root, machine.user):
        line = ["env", "-i", *kept, *variables, "/sbin/mount.deepiofs", str(machine.source), str(machine.point)]
        place.output(*line, "-o", OPTIONS)
        assert place.output("cat", f"{machine.point}/file") == "its bytes"
        place.output("env", "-i", *kept, *variables, sys.executable, DEEPIOFS, "umount", str(machine.point))
        assert not machine.is_mounted()


def test_a_user_mounts_a_line_with_user_and_unmounts_it(machine: Machine) -> None:
    machine.fstab("noauto,user")
    machine.user.output("mount", str(machine.point))
    assert machine.user.output("cat", f"{machine.point}/file") == "its bytes"
    assert f"user_id={USER}" in machine.root.output("findmnt", "-no", "OPTIONS", str(machine.point))
    assert machine.root.run("cat", f"{machine.point}/file").returncode == 1
    machine.user.output("umount", str(machine.point))
    assert not machine.is_mounted()


@pytest.fixture
def view(machine: Machine) -> Iterator[Mount]:
    journal = Journal(machine.folder / "journal")
    with mounted(machine.source, machine.point, journal.option(), place=machine.root) as mount:
        yield mount
    journal.check()


def test_remount_is_refused(machine: Machine, view: Mount) -> None:
    before = Path(f"/proc/{machine.root.process}/mountinfo").read_text()
    for options in ("remount", "remount,ro", "remount,cache=1G"):
        assert refusal(machine.root, "mount", "-o", options, str(view.point)) == (
            f"deepiofs: a mount cannot be changed while it is there; deepiofs umount {view.point}, and mount it again\n"
        )
    assert Path(f"/proc/{machine.root.process}/mountinfo").read_text() == before


def test_a_second_mount_at_the_same_place_is_refused(machine: Machine, view: Mount) -> None:
    machine.fstab("noauto")
    line = ("mount", "-t", "deepiofs", "-o", OPTIONS, str(machine.source), str(view.point))
    assert "is mounted already" in refusal(machine.root, *line)


@pytest.mark.parametrize("flag", ["-l", "-f", "-lf"])
def test_umount_8_takes_a_dead_mount_away(machine: Machine, flag: str) -> None:
    machine.root.output("mount", "-t", "deepiofs", "-o", OPTIONS, str(machine.source), str(machine.point))
    pid = int(json.loads(machine.root.output("cat", f"{machine.point}/.deepiofs/stats"))["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the mount was killed")
    # What is asked while it dies is told of an aborted connection.
    wait_until(lambda: "Transport endpoint" in machine.root.run("ls", str(machine.point)).stderr, "the mount is dead")
    machine.root.output("umount", flag, str(machine.point))
    assert not machine.is_mounted()
    machine.root.output("mount", "-t", "deepiofs", "-o", OPTIONS, str(machine.source), str(machine.point))
    machine.root.output("umount", str(machine.point))


def test_fake_checks_and_does_not_mount(machine: Machine) -> None:
    line = ["mount", "-f", "-t", "deepiofs", str(machine.source), str(machine.point), "-o"]
    machine.root.output(*line, OPTIONS)
    assert "cache=much" in refusal(machine.root, *line, "cache=much")
    assert not machine.is_mounted()


def test_sloppy_ignores_what_it_does_not_know(machine: Machine) -> None:
    line = ["mount", "-s", "-n", "-t", "deepiofs", str(machine.source), str(machine.point), "-o"]
    machine.root.output(*line, f"{OPTIONS},bootwait,colour=blue")
    config = json.loads(machine.root.output("cat", f"{machine.point}/.deepiofs/config"))
    assert config["staging"] == 32 << 20
    machine.root.output("umount", str(machine.point))


def test_verbose_says_what_is_mounted(machine: Machine) -> None:
    line = ["mount", "-v", "-t", "deepiofs", str(machine.source), str(machine.point), "-o", OPTIONS]
    assert f"{machine.source} at {machine.point}" in machine.root.output(*line)
    machine.root.output("umount", str(machine.point))


def test_a_type_with_fuse_before_it_is_the_same(machine: Machine) -> None:
    machine.root.output("mount", "-t", "fuse.deepiofs", str(machine.source), str(machine.point), "-o", OPTIONS)
    assert machine.read() == "its bytes"
    machine.root.output("umount", "-t", "fuse.deepiofs", str(machine.point))


def test_another_namespace_is_refused(machine: Machine) -> None:
    line = (str(HELPER), str(machine.source), str(machine.point), "-N", "/proc/1/ns/mnt", "-o", OPTIONS)
    assert "nsenter" in refusal(machine.root, *line)


def test_mount_8_makes_the_mount_point_if_asked(machine: Machine) -> None:
    point = machine.folder / "made"
    options = f"X-mount.mkdir=0755,{OPTIONS}"
    machine.root.output("mount", "-t", "deepiofs", "-o", options, str(machine.source), str(point))
    assert machine.root.output("cat", f"{point}/file") == "its bytes"
    machine.root.output("umount", str(point))
