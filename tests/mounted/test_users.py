"""A user without privileges mounts without any configuration, and lets nobody else in."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mounts import DEEPIOFS, Journal, Mount, Namespace, Place, mounted, nothing_left, reachable_by_all

pytestmark = [pytest.mark.mounted, pytest.mark.usefixtures("namespaces")]

OWNER, OTHER = 65534, 1


@dataclass(frozen=True)
class Home:
    """A folder of the owner's, the namespace in which she works, and a dataset that only she may read."""

    folder: Path
    namespace: Namespace
    owner: Place
    other: Place

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def point(self) -> Path:
        return self.folder / "mount"

    def is_mounted(self) -> bool:
        return str(self.point) in self.owner.mountpoints()


@pytest.fixture
def home() -> Iterator[Home]:
    # Not below pytest's own folders, which only root may enter.
    folder = Path(tempfile.mkdtemp(prefix="mounts-of-a-user-"))
    for name in ("source/class", "mount", "journal"):
        (folder / name).mkdir(parents=True)
    (folder / "source/class/secret").write_text("for my eyes only")
    (folder / "source/class/secret").chmod(0o600)
    (folder / "source/class").chmod(0o700)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OWNER, OWNER)
    folder.chmod(0o755)
    with nothing_left(), Namespace(reachable_by_all()) as namespace:
        yield Home(folder, namespace, namespace.place(OWNER, HOME="/"), namespace.place(OTHER, HOME="/"))
    shutil.rmtree(folder)


@pytest.fixture
def view(home: Home) -> Iterator[Mount]:
    journal = Journal(home.folder / "journal")
    with mounted(home.source, home.point, journal.option(), place=home.owner) as mount:
        yield mount
    journal.check()


def test_a_user_mounts_reads_and_unmounts(home: Home, view: Mount) -> None:
    assert home.owner.output("cat", f"{view.point}/class/secret") == "for my eyes only"
    assert home.owner.output("stat", "-c", "%a %u", f"{view.point}/class/secret") == f"600 {OWNER}\n"
    assert "0 differences" in home.owner.output(DEEPIOFS, "check", str(view.point))
    view.umount()
    assert not home.is_mounted()
    assert home.owner.output("ls", "-A", str(view.point)) == ""


def test_another_user_and_root_do_not_get_in(home: Home, view: Mount) -> None:
    for place in (home.other, home.namespace.place()):
        for path in ("", "/class", "/class/secret", "/.deepiofs/stats"):
            done = place.run("stat", f"{view.point}{path}")
            assert done.returncode == 1
            assert "Permission denied" in done.stderr


def test_another_user_cannot_unmount_it(home: Home, view: Mount) -> None:
    done = home.other.deepiofs("umount", str(view.point))
    assert done.returncode == 1
    assert done.stderr.startswith("deepiofs: ")
    assert home.is_mounted()


def test_root_can_unmount_it(home: Home, view: Mount) -> None:
    home.namespace.place().output(DEEPIOFS, "umount", str(view.point))
    assert not home.is_mounted()


def test_what_the_user_may_not_read_is_said_in_one_line(home: Home) -> None:
    (home.source / "class").chmod(0o000)
    done = home.owner.deepiofs("mount", str(home.source), str(home.point), "-o", "cache=64M,staging=32M")
    assert done.returncode == 3
    assert done.stderr.startswith("deepiofs: ")
    assert done.stderr.count("\n") == 1
    assert f"{home.source}/class" in done.stderr
    assert not home.is_mounted()


def test_a_file_that_may_not_be_read_is_an_error_of_that_file_alone(home: Home) -> None:
    (home.source / "class/public").write_text("for all")
    (home.source / "class/secret").chmod(0o000)
    journal = Journal(home.folder / "journal")
    journal.expect("class/secret: .*Permission denied")
    with mounted(home.source, home.point, journal.option(), place=home.owner) as view:
        assert home.owner.output("cat", f"{view.point}/class/public") == "for all"
        assert "Permission denied" in home.owner.run("cat", f"{view.point}/class/secret").stderr
    journal.check()


@pytest.mark.parametrize("option", ["allow_other", "allow_root"])
def test_letting_others_in_needs_the_machine_s_consent(home: Home, option: str) -> None:
    done = home.owner.deepiofs("mount", str(home.source), str(home.point), "-o", f"cache=64M,{option}")
    assert done.returncode == 4
    assert done.stderr.startswith("deepiofs: ")
    assert "user_allow_other" in done.stderr
    assert not home.is_mounted()


def test_with_allow_other_the_modes_decide(home: Home) -> None:
    (home.source / "class").chmod(0o755)
    (home.source / "class/public").write_text("for all")
    journal = Journal(home.folder / "journal")
    with mounted(home.source, home.point, journal.option(), "allow_other", place=home.namespace.place()) as view:
        assert home.other.output("cat", f"{view.point}/class/public") == "for all"
        assert "Permission denied" in home.other.run("cat", f"{view.point}/class/secret").stderr
    journal.check()


@dataclass(frozen=True)
class Shared:
    """A dataset of root's with files for all, for some and for root alone, mounted by root with allow_other."""

    home: Home
    view: Mount

    def denied(self, path: str, user: int = OTHER) -> bool:
        """Whether a user may not read a file of the view; what he gets is right if he may."""
        done = self.home.namespace.place(user).run("cat", f"{self.view.point}/{path}")
        assert done.returncode == 0 or "Permission denied" in done.stderr
        return done.returncode != 0


# Who may not read it: user 1 is in group 1.
SECRETS = {"root-alone": (0o600, 0, 0), "not-the-group": (0o604, 0, OTHER), "not-the-owner": (0o044, OTHER, 0)}


@contextlib.contextmanager
def shared(home: Home, *options: str, secrets: Mapping[str, tuple[int, int, int]] = SECRETS) -> Iterator[Shared]:
    source = home.folder / "shared"
    (source / "class").mkdir(parents=True)
    for folder in (source, source / "class"):
        folder.chmod(0o755)
    for name in ("public", "public2"):
        (source / "class" / f"{name}.txt").write_text("for all")
    for name, (mode, user, group) in secrets.items():
        path = source / "class" / f"{name}.txt"
        path.write_text("a secret")
        os.chown(path, user, group)
        path.chmod(mode)
    journal = Journal(home.folder / "journal")
    with mounted(source, home.point, journal.option(), "allow_other", *options, place=home.namespace.place()) as view:
        yield Shared(home, view)
    journal.check()


def test_with_allow_other_a_secret_is_denied_by_its_own_mode(home: Home) -> None:
    with shared(home) as there:
        for below, secret in itertools.product(("", ".deepiofs/exact/"), SECRETS):
            assert not there.denied(f"{below}class/public.txt")
            assert there.denied(f"{below}class/{secret}.txt"), secret
            path = f"{there.view.point}/{below}class/{secret}.txt"
            program = "import os, sys; print(os.getxattr(sys.argv[1], 'user.deepiofs.xxh3'))"
            done = home.other.run(sys.executable, "-c", program, path)
            assert "PermissionError" in done.stderr, secret


@pytest.mark.parametrize("secret", SECRETS)
def test_no_stream_tells_a_secret(home: Home, secret: str) -> None:
    with shared(home, secrets={secret: SECRETS[secret]}) as there:
        for path in ("tar/epoch-0/0-of-1.tar", "tfrecord/epoch-7/1-of-3.tfrecord", "list/epoch-0/0-of-1.txt"):
            assert there.denied(f".deepiofs/stream/{path}")
            assert not there.denied(f".deepiofs/stream/{path}", user=0)


def test_a_stream_of_what_all_may_read_is_for_all(home: Home) -> None:
    with shared(home, secrets={}) as there:
        assert not there.denied(".deepiofs/stream/tar/epoch-0/0-of-1.tar")


def test_a_stream_does_not_tell_the_names_in_a_directory_that_may_not_be_listed(home: Home) -> None:
    source = home.folder / "shared/unlisted"
    source.mkdir(parents=True)
    (source / "hidden-name.txt").write_text("to be read by who knows its name")
    source.chmod(0o711)
    with shared(home, secrets={}) as there:
        assert not there.denied("unlisted/hidden-name.txt")
        assert there.denied(".deepiofs/stream/list/epoch-0/0-of-1.txt")


@pytest.mark.parametrize("secret", SECRETS)
def test_no_shuffled_name_tells_a_secret(home: Home, secret: str) -> None:
    with shared(home, "shuffle=dir", secrets={secret: SECRETS[secret]}) as there:
        for _ in range(4):
            assert there.denied("class/public.txt")
        assert not there.denied("class/public.txt", user=0)
        assert not there.denied(".deepiofs/exact/class/public.txt")
        assert there.denied(f".deepiofs/exact/class/{secret}.txt")


def test_no_shuffled_name_tells_what_lies_in_a_closed_directory(home: Home) -> None:
    closed = home.folder / "shared/closed"
    closed.mkdir(parents=True)
    (closed / "inside.txt").write_text("a secret")
    closed.chmod(0o700)
    with shared(home, "shuffle=all", secrets={}) as there:
        assert there.denied("class/public.txt")
        assert there.denied("class/public2.txt")


def test_what_the_same_users_may_read_is_shuffled_for_them(home: Home) -> None:
    with shared(home, "shuffle=dir", secrets={}) as there:
        assert not there.denied("class/public.txt")


def test_other_users_read_the_control_files_and_do_not_write_them(home: Home) -> None:
    with shared(home, "shuffle=dir") as there:
        assert not there.denied(".deepiofs/stats")
        done = home.other.run("sh", "-c", f"echo 3 >{there.view.point}/.deepiofs/epoch")
        assert "Permission denied" in done.stderr
        assert there.view.control("epoch") == "0\n"


def test_control_files_are_closed_to_whom_the_root_is(home: Home) -> None:
    with mounted(home.source, home.point, "allow_other,umask=077", place=home.namespace.place()) as view:
        for path in ("stats", "config", "exact", "stream/tar/epoch-0/0-of-1.tar"):
            assert "Permission denied" in home.other.run("stat", f"{view.point}/.deepiofs/{path}").stderr
