"""A user without privileges mounts without any configuration, and lets nobody else in."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
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


def test_without_fusermount3_it_is_said_what_to_install(home: Home) -> None:
    line = ["env", f"PATH={Path(DEEPIOFS).parent}", DEEPIOFS, "mount", str(home.source), str(home.point)]
    done = home.owner.run(*line, "-o", "cache=64M,staging=32M")
    assert done.returncode == 4
    assert done.stderr == "deepiofs: fusermount3 is not found; install the package fuse3\n"
    assert not home.is_mounted()
