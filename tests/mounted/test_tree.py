"""The mount shows the source's names, attributes and bytes, whatever they are."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.mounted import trees
from tests.mounts import DEEPIOFS, HERE, Mount

pytestmark = pytest.mark.mounted

CROWD = 100_000


def test_check_finds_no_difference(nasty: Mount) -> None:
    said = HERE.output(DEEPIOFS, "check", str(nasty.point)).splitlines()[-1]
    assert said.endswith(" 0 differences")
    assert int(said.split()[0]) == nasty.stats()["files"]


def test_check_finds_what_differs(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    (small / "a/one.jpg").write_text("the BYTES of a/one.jpg")
    (small / "b/new").touch()
    done = HERE.deepiofs("check", str(view.point))
    assert done.returncode == 1
    assert "a/one.jpg" in done.stdout
    assert "b/new" in done.stdout


def test_diff_finds_only_what_is_left_out(nasty: Mount) -> None:
    done = HERE.run("env", "LC_ALL=C", "diff", "-r", str(nasty.source), str(nasty.point))
    left_out = {path for paths in trees.LEFT_OUT.values() for path in paths}
    expected = {f"Only in {nasty.source}/{os.path.dirname(path)}: {os.path.basename(path)}" for path in left_out}
    assert set(done.stdout.splitlines()) == expected
    assert done.stderr == ""


def test_what_is_left_out_is_counted(nasty: Mount) -> None:
    assert nasty.stats()["left_out"] == {reason: len(paths) for reason, paths in trees.LEFT_OUT.items()}


def test_names_and_attributes_are_those_of_the_source(nasty: Mount) -> None:
    expected = dict(attributes(nasty.source))
    assert dict(attributes(nasty.point)) == expected
    assert len(expected) > 100


def test_the_exact_twin_is_the_same_tree(nasty: Mount) -> None:
    assert dict(attributes(nasty.point / ".deepiofs/exact")) == dict(attributes(nasty.point))


def test_inode_numbers_are_stable_and_tell_files_apart(nasty: Mount) -> None:
    first = {path: found.st_ino for path, found in trees.walk(os.fsencode(nasty.point))}
    assert first == {path: found.st_ino for path, found in trees.walk(os.fsencode(nasty.point))}
    # Three names of one file are the only ones that share a number.
    assert len(first) - len(set(first.values())) == 2
    assert os.path.samefile(nasty.point / "hard/first", nasty.point / "plain/third")
    assert os.stat(nasty.point / "hard/first").st_nlink == 3


def test_directory_entries_tell_the_type(nasty: Mount) -> None:
    entries = {entry.name: entry for entry in os.scandir(nasty.point / "plain")}
    assert entries["4096"].is_file(follow_symlinks=False)
    assert entries["folder"].is_dir(follow_symlinks=False)
    assert all(entry.inode() == entry.stat().st_ino for entry in entries.values())


def test_a_name_that_is_not_there_is_not_found(nasty: Mount) -> None:
    for name in ("nothing", "plain/nothing", "special/fifo", "links/dangling", "hard/first/below"):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            os.stat(nasty.point / name)


def test_a_name_longer_than_any_can_be_is_an_error_of_its_own(nasty: Mount) -> None:
    with pytest.raises(OSError, match="File name too long"):
        os.stat(nasty.point / ("n" * 256))


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of many files."""
    folder = tmp_path_factory.mktemp("crowd")
    directory = os.open(folder, os.O_RDONLY)
    for number in range(CROWD):
        file = os.open(crowd_name(number), os.O_CREAT | os.O_WRONLY, dir_fd=directory)
        if number % 500 == 0:
            os.write(file, str(number).encode())
        os.close(file)
    os.close(directory)
    yield folder
    shutil.rmtree(folder)


def test_a_directory_of_many_files_is_complete_and_right(mount: MountFactory, crowd: Path) -> None:
    view = mount(crowd)
    names = os.listdir(view.point)
    assert len(names) == CROWD
    assert set(names) == {crowd_name(number) for number in range(CROWD)}
    for number in random.Random(1).sample(range(0, CROWD, 500), 50):
        assert (view.point / crowd_name(number)).read_text() == str(number)
    for number in random.Random(2).sample(range(CROWD), 1000):
        assert stat.S_ISREG(os.stat(view.point / crowd_name(number)).st_mode)
        assert not (view.point / f"{crowd_name(number)}0").exists()


def test_a_listing_goes_on_where_it_was_put_back_to(mount: MountFactory, small: Path) -> None:
    for number in range(2000):
        (small / f"a/{number:04}").touch()
    view = mount(small)
    with os.scandir(view.point / "a") as entries:
        first = [next(entries).name for _ in range(700)]
        rest = [entry.name for entry in entries]
    assert sorted(first + rest) == sorted(os.listdir(small / "a"))


def crowd_name(number: int) -> str:
    return f"{number * 7919 % CROWD:06}.jpg"


def attributes(top: Path) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Path below `top`, and what both sides must agree on; a directory's size and link count are its own affair."""
    for path, found in trees.walk(os.fsencode(top)):
        size = (found.st_size, found.st_nlink) if stat.S_ISREG(found.st_mode) else ()
        yield path[len(os.fsencode(top)) :], (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, *size)
