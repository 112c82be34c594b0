"""Each piece that mounting needs, taken away for real: one line says which it is, with exit code 4."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deepiofs.fuse import requirements
from tests.mounted.test_bad_input import ENVIRONMENT, USAGE, refused
from tests.mounts import Namespace, Place, mounted, reachable_by_all

pytestmark = [pytest.mark.mounted, pytest.mark.usefixtures("namespaces")]

ROOT, USER, OTHER = 0, 65534, 1
OPTIONS = "cache=64M,staging=32M"


@dataclass(frozen=True)
class Machine:
    """A place of some user, with a source and an empty mount point that are hers."""

    source: Path
    point: Path
    namespace: Namespace
    place: Place

    def refusal(self, options: str = OPTIONS) -> str:
        """The one line with which a mount is refused; nothing is left."""
        end = refused(self.source, self.point, options, self.place)
        assert end.status == ENVIRONMENT
        return end.line


def machine_of(script: str, user: int) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="missing-"))
    folder.chmod(0o755)
    for name in ("source", "point"):
        (folder / name).mkdir()
        os.chown(folder / name, user, user)
    (folder / "source/file").write_text("its bytes")
    with Namespace(f"{reachable_by_all()}\nTMP={folder}\n{script}") as namespace:
        yield Machine(folder / "source", folder / "point", namespace, namespace.place(user, HOME="/"))
    shutil.rmtree(folder)


NODES = {"null": 3, "zero": 5, "random": 8, "urandom": 9}
MAKE_NODES = "; ".join(f"mknod -m 666 /dev/{name} c 1 {number}" for name, number in NODES.items())
EMPTY_DEV = f"mount -t tmpfs deepiofs-test /dev; {MAKE_NODES}; mkdir /dev/shm"
INSTEAD = 'mount --bind "$TMP/fusermount3" /usr/bin/fusermount3'
ON_ITSELF = "mount --bind /usr/bin/fusermount3 /usr/bin/fusermount3"
CASES = {
    "no device": (EMPTY_DEV, ROOT, "/dev/fuse is missing; load the fuse module, or pass the device"),
    "no device for a user": (EMPTY_DEV, USER, "/dev/fuse is missing; load the fuse module, or pass the device"),
    "another device": (
        "mount --bind /dev/null /dev/fuse",
        ROOT,
        "/dev/fuse is not the FUSE device; make it with mknod",
    ),
    "a closed device": ("chmod 600 /dev/fuse", USER, "/dev/fuse may not be opened by this user; ask for mode 0666"),
    "a nodev device": ("mount -o remount,bind,nodev /dev/fuse", ROOT, "/dev/fuse lies on a file system mounted nodev"),
    "no fusermount3": (
        "mount --bind /dev/null /usr/bin/fusermount3",
        USER,
        "fusermount3 is not found; install the package fuse3",
    ),
    "fusermount3 without its bit": (
        f'cp /usr/bin/fusermount3 "$TMP/"; chmod 755 "$TMP/fusermount3"; {INSTEAD}',
        USER,
        "/usr/bin/fusermount3 is not set-user-id root; chmod u+s it as root, or mount below unshare",
    ),
    "fusermount3 of another": (
        f'cp -p /usr/bin/fusermount3 "$TMP/"; chown {OTHER} "$TMP/fusermount3"; chmod 4755 "$TMP/fusermount3"; '
        + INSTEAD,
        USER,
        "/usr/bin/fusermount3 is not set-user-id root; chmod u+s it as root, or mount below unshare",
    ),
    "fusermount3 on nosuid": (
        f"{ON_ITSELF}; mount -o remount,bind,nosuid /usr/bin/fusermount3",
        USER,
        "/usr/bin/fusermount3 lies on a file system mounted nosuid",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_piece_that_is_missing_is_named(case: str) -> None:
    script, user, text = CASES[case]
    for machine in machine_of(script, user):
        assert text in machine.refusal()


def test_privileges_that_may_not_be_gained_are_named() -> None:
    for machine in machine_of("", USER):
        place = machine.place
        bound = replace(machine, place=replace(place, prefix=(*place.prefix, "setpriv", "--no-new-privs")))
        assert "fusermount3 gets no privileges here (no_new_privs)" in bound.refusal()


def test_root_that_may_not_mount_is_told_so() -> None:
    for machine in machine_of("", ROOT):
        place = machine.place
        poor = (*place.prefix, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
        assert "it lacks CAP_SYS_ADMIN" in replace(machine, place=replace(place, prefix=poor)).refusal()


@pytest.mark.parametrize("option", ["allow_other", "allow_root"])
def test_user_allow_other_is_asked_for_and_then_used(option: str) -> None:
    conf = 'echo "{}" >"$TMP/fuse.conf"; mount --bind "$TMP/fuse.conf" /etc/fuse.conf'
    for machine in machine_of(conf.format("# user_allow_other"), USER):
        assert "need the line user_allow_other in /etc/fuse.conf" in machine.refusal(f"{OPTIONS},{option}")
    for machine in machine_of(conf.format("user_allow_other"), USER):
        with mounted(machine.source, machine.point, option, place=machine.place) as view:
            other = machine.namespace.place(OTHER if option == "allow_other" else ROOT)
            assert other.output("cat", f"{view.point}/file") == "its bytes"


def test_root_needs_no_fusermount3() -> None:
    for machine in machine_of("mount --bind /dev/null /usr/bin/fusermount3", ROOT):
        with mounted(machine.source, machine.point, place=machine.place) as view:
            assert machine.place.output("cat", f"{view.point}/file") == "its bytes"


def test_a_descriptor_that_was_not_passed_is_named() -> None:
    for machine in machine_of("", ROOT):
        for number in (0, 77):
            end = refused(machine.source, Path(f"/dev/fd/{number}"), OPTIONS, machine.place)
            assert end.status == USAGE
            assert f"/dev/fd/{number} is not a descriptor of /dev/fuse" in end.line


@pytest.mark.parametrize(
    ("number", "text"), [(errno.EPERM, "forbidden to this container"), (errno.ENODEV, "has no driver")]
)
def test_what_the_kernel_says_of_the_device_is_explained(
    monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    # A control group for devices, and a kernel without FUSE, cannot be made everywhere.
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(requirements.os, "open", refuse)
    with pytest.raises(requirements.FuseUnavailableError, match=text):
        requirements._check_device()
