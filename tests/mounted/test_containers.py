"""How a mount gets into a container, and a mount made in one: real namespaces, a root of its own, Podman if it runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.mounts import DEEPIOFS, Journal, Namespace, Place, is_running, mounted, reachable_by_all, wait_until

pytestmark = [pytest.mark.mounted, pytest.mark.usefixtures("namespaces")]

USER, OTHER = 65534, 1
OPTIONS = "cache=64M,staging=32M"


@pytest.fixture
def container() -> Iterator[Path]:
    """A root directory with the system's programs in it, and an empty `data`; users of other namespaces reach it."""
    folder = Path(tempfile.mkdtemp(prefix="container-"))
    root = folder / "root"
    for name in ("usr", "proc", "dev", "data", "old", "sys", "etc", "tmp", "run"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
        else:
            shutil.copytree(f"/{name}", root / name, symlinks=True)
    folder.chmod(0o755)
    yield root
    shutil.rmtree(folder)


def contained(root: Path, binds: str, *command: str, user: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program in a mount and pid namespace whose root is pivoted to `root`, with these mounts made before."""
    script = f"""set -e
mount --bind {root} {root}; mount --bind /usr {root}/usr; {binds}
cd {root}; pivot_root . old; cd /; mount -t proc proc /proc; umount -l /old
exec setpriv --reuid={user} --regid={user} --clear-groups -- "$@" """
    line = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", script, "sh", *command]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)


def test_a_mount_is_bound_into_a_container_with_a_root_of_its_own(
    mount: MountFactory, small: Path, container: Path
) -> None:
    view = mount(small)
    bind = f"mount --bind {view.point} {container}/data"
    done = contained(container, bind, "sh", "-c", "cat /data/a/one.jpg; ls -d /data/*; cat /data/.deepiofs/health")
    assert (done.returncode, done.stdout) == (0, "the bytes of a/one.jpg/data/a\n/data/b\nok\n"), done.stderr


def test_another_user_of_a_container_needs_allow_other(mount: MountFactory, small: Path, container: Path) -> None:
    for path in (small, *small.rglob("*")):
        path.chmod(0o755)
    for options, code in (((), 1), (("allow_other",), 0)):
        view = mount(small, *options)
        bind = f"mount --bind {view.point} {container}/data"
        done = contained(container, bind, "cat", "/data/a/one.jpg", user=OTHER)
        assert done.returncode == code
        assert done.stdout == "the bytes of a/one.jpg" if code == 0 else "Permission denied" in done.stderr


def test_a_container_does_not_hinder_unmounting(mount: MountFactory, small: Path, container: Path) -> None:
    view = mount(small)
    keep = f"mount --bind {view.point} {container}/data; mount --bind {container} {container}"
    with Namespace(keep, keep_mounts=True):
        view.umount()
        wait_until(lambda: not any(map(is_running, view.processes)), "the processes ended")


def test_a_mount_made_later_comes_through_a_slave_bind(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mounts"
    folder.mkdir()
    host = f"mount -t tmpfs deepiofs-test {folder}; mount --make-shared {folder}; mkdir {folder}/point"
    journal = Journal(tmp_path)
    with Namespace(host) as outside:
        pid = outside.place().process
        enter = ["nsenter", f"--target={pid}", "--mount", "unshare", "--mount", "--propagation", "slave"]
        with subprocess.Popen([*enter, "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1, text=True) as inside:
            assert inside.stdout is not None
            inside.stdout.readline()
            seen = Place(("nsenter", f"--target={inside.pid}", "--mount", "--"), str(inside.pid))
            with mounted(small, folder / "point", journal.option(), place=outside.place()) as view:
                assert seen.output("cat", f"{view.point}/a/one.jpg") == "the bytes of a/one.jpg"
            assert seen.output("ls", f"{folder}/point") == ""
            inside.communicate()
    journal.check()


@dataclass(frozen=True)
class Hers:
    """A user's folder and place, where she can run the program."""

    folder: Path
    namespace: Namespace
    place: Place


@pytest.fixture
def hers() -> Iterator[Hers]:
    folder = Path(tempfile.mkdtemp(prefix="contained-"))
    folder.chmod(0o755)
    for name in ("source", "mount"):
        (folder / name).mkdir()
    (folder / "source/file").write_text("its bytes")
    (folder / "source/secret").write_text("hers")
    (folder / "source/secret").chmod(0o600)
    for path in folder.rglob("*"):
        os.chown(path, USER, USER)
    with Namespace(reachable_by_all()) as namespace:
        yield Hers(folder, namespace, namespace.place(USER, HOME="/"))
    shutil.rmtree(folder)


@pytest.fixture
def root_of_her_own(hers: Hers) -> Hers:
    """The same, in a user namespace where she is root; fusermount3 is of no use there."""
    enter = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "--")
    place = Place((*hers.place.prefix, *enter), hers.place.process, hers.place.environment)
    done = place.run("true")
    if done.returncode:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    return Hers(hers.folder, hers.namespace, place)


def test_a_user_mounts_in_a_user_namespace_without_fusermount3(root_of_her_own: Hers) -> None:
    her = root_of_her_own
    source, point = her.folder / "source", her.folder / "mount"
    script = f"""set -e
mount --bind /dev/null /usr/bin/fusermount3
{DEEPIOFS} mount {source} {point} -o {OPTIONS}
{DEEPIOFS} wait {point} --for warm
cat {point}/file {point}/secret
{DEEPIOFS} check {point}
findmnt -no FSTYPE {point}
{DEEPIOFS} umount {point}; ls {point}"""
    said = her.place.output("sh", "-c", script)
    assert said == "its byteshers2 files, 0.0 MB compared, 0 differences\nfuse.deepiofs\n"


def test_a_namespace_s_root_cannot_read_what_the_user_cannot(root_of_her_own: Hers) -> None:
    her = root_of_her_own
    os.chown(her.folder / "source/secret", OTHER, OTHER)
    source, point = her.folder / "source", her.folder / "mount"
    script = f"{DEEPIOFS} mount {source} {point} -o {OPTIONS}; cat {point}/secret; {DEEPIOFS} umount {point}"
    done = her.place.run("sh", "-c", script)
    assert done.stdout == ""
    assert "Permission denied" in done.stderr


# A privileged program opens /dev/fuse, mounts it, and passes the descriptor to a program without privileges, as
# Apptainer's --fusemount does. It says "ready" when the program has ended.
GIVES_A_DESCRIPTOR = """
import ctypes, os, sys
point, options, *command = sys.argv[1:]
fd = os.open("/dev/fuse", os.O_RDWR)
data = f"fd={fd},rootmode=40000,user_id=65534,group_id=65534{options}".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"passed", point.encode(), b"fuse.deepiofs", 6, data):
    raise OSError(ctypes.get_errno(), "mount")
os.set_inheritable(fd, True)
os.execvp("setpriv", ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all",
    "--bounding-set=-all", "--no-new-privs", *command, f"/dev/fd/{fd}", "-o", "cache=64M,staging=32M"])
"""


@pytest.fixture
def gives(hers: Hers) -> list[str]:
    python = str(Path(DEEPIOFS).with_name("python"))
    return [python, "-c", GIVES_A_DESCRIPTOR, str(hers.folder / "mount")]


@contextlib.contextmanager
def served(hers: Hers, line: list[str]) -> Iterator[Place]:
    """A mount by a descriptor, made in the background; taken away by root, which ends its processes."""
    root, point = hers.namespace.place(), hers.folder / "mount"
    root.output(*line, DEEPIOFS, "mount", str(hers.folder / "source"))
    assert str(point) in root.mountpoints()
    stats = json.loads(hers.place.output("cat", f"{point}/.deepiofs/stats"))
    yield hers.place
    root.output("umount", str(point))
    wait_until(lambda: not any(is_running(stats[name]) for name in ("pid", "engine_pid")), "the processes ended")


def test_a_descriptor_of_a_mount_is_served_without_any_privilege(hers: Hers, gives: list[str]) -> None:
    with served(hers, [*gives, ",default_permissions"]) as place:
        assert place.output("cat", f"{hers.folder}/mount/file") == "its bytes"
        assert "0 differences" in place.output(DEEPIOFS, "check", f"{hers.folder}/mount")


def test_modes_decide_though_the_descriptor_s_mount_did_not_ask_for_it(hers: Hers, gives: list[str]) -> None:
    with served(hers, [*gives, ",allow_other"]):
        other = hers.namespace.place(OTHER)
        assert other.output("cat", f"{hers.folder}/mount/file") == "its bytes"
        assert "Permission denied" in other.run("cat", f"{hers.folder}/mount/secret").stderr


def test_the_engine_does_not_keep_a_descriptor_s_mount_alive(hers: Hers, gives: list[str]) -> None:
    with served(hers, [*gives, ""]) as place:
        engine = json.loads(place.output("cat", f"{hers.folder}/mount/.deepiofs/stats"))["engine_pid"]
        links = [os.readlink(path) for path in Path(f"/proc/{engine}/fd").iterdir()]
        assert "/dev/fuse" not in links


def podman(container: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program by Podman, without network and image."""
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
    line = ["podman", "--cgroup-manager=cgroupfs", *runtime, "run", "--rm", "--network=none", *limits]
    return subprocess.run(
        [*line, "-v", "/usr:/usr:ro", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def podman_runs(container: Path) -> None:
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    done = podman(container, "--rootfs", str(container), "/usr/bin/true")
    if done.returncode:
        pytest.skip(f"podman does not run: {done.stderr.strip()}")


def test_podman_gets_a_mount_by_a_bind(container: Path, podman_runs: None, mount: MountFactory, small: Path) -> None:
    for path in (small, *small.rglob("*")):
        path.chmod(0o755)
    alone, shared = container.parent / "alone", container.parent / "shared"
    mount(small, at=alone)
    mount(small, "allow_other", at=shared)

    def reads(point: Path, *arguments: str) -> bool:
        volume = f"{point}:/data:ro,rslave"
        done = podman(container, *arguments, "-v", volume, "--rootfs", str(container), "/bin/cat", "/data/a/one.jpg")
        assert done.returncode or done.stdout == "the bytes of a/one.jpg"
        return not done.returncode

    assert reads(alone)
    for other in ("--user=1000", "--uidmap=0:100000:65536"):
        assert not reads(alone, other)
        assert reads(shared, other)
