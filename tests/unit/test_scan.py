"""Scanning a directory: what is followed, left out and counted; alone and in a team; and what has changed since."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.scan import scan_directory, stat_names
from deepiofs.dataset.sources import Selection, Solo, Team
from deepiofs.dataset.sources.directory import DirectorySource
from deepiofs.errors import SourceError
from tests.contracts.sources import opened, read, row_of
from tests.doubles import as_team
from tests.unit.trees import TREES, Tree, as_nobody, on_disk, paths, scanned, write

_TREE: Tree = {
    b"a": {b"1.jpg": b"one", b"2.jpg": b"two", b"cache": {b"x.tmp": b"", b"y.jpg": b"y"}},
    b"b": {b"1.jpg": b"uno", b"notes.txt": b"n", b"deep": {b"er": {b"3.jpg": b"tres"}}},
    b"readme.txt": b"r",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, _TREE)
    return tmp_path


def _left_out(manifest: Manifest) -> dict[str, int]:
    left_out: dict[str, int] = manifest.meta["left_out"]
    return left_out


def _opener(root: Path) -> Callable[[bytes], int]:
    return lambda path: os.open(os.path.join(os.fsencode(root), path), os.O_RDONLY | os.O_DIRECTORY)


def _read(root: Path, manifest: Manifest, path: bytes) -> bytes:
    source = DirectorySource(str(root))
    with opened(source, manifest, path) as file:
        data = read(file, 0, 100)
    source.close()
    return data


# --- Links -----------------------------------------------------------------------------------------------------------


def test_a_link_to_a_file_is_that_file(tree: Path) -> None:
    (tree / "link").symlink_to("a/1.jpg")
    m = scanned(tree)
    row = row_of(m, b"link")
    assert stat.S_ISREG(m.mode_of[row])
    assert m.size_of[row] == 3
    assert _read(tree, m, b"link") == b"one"
    assert _left_out(m) == {}


def test_a_link_to_a_file_of_the_dataset_shares_its_content(tree: Path) -> None:
    (tree / "link").symlink_to("a/1.jpg")
    m = scanned(tree)
    assert m.content_of[row_of(m, b"link")] == m.content_of[row_of(m, b"a/1.jpg")]
    assert len(m.content_rows()) == len(np.flatnonzero(m.is_regular)) - 1


def test_a_link_to_a_directory_is_walked(tree: Path) -> None:
    (tree / "link").symlink_to("b")
    m = scanned(tree)
    assert m.is_directory(row_of(m, b"link"))
    assert row_of(m, b"link/deep/er/3.jpg")
    assert _read(tree, m, b"link/1.jpg") == b"uno"
    assert m.content_of[row_of(m, b"link/1.jpg")] == m.content_of[row_of(m, b"b/1.jpg")]


def test_a_link_may_lead_out_of_the_dataset(tree: Path) -> None:
    with on_disk({b"outside": {b"far.jpg": b"far"}}) as other:
        (tree / "file").symlink_to(other / "outside" / "far.jpg")
        (tree / "directory").symlink_to(other / "outside")
        m = scanned(tree)
        assert _read(tree, m, b"file") == b"far"
        assert _read(tree, m, b"directory/far.jpg") == b"far"


def test_a_link_that_dangles_is_left_out_and_counted(tree: Path) -> None:
    (tree / "nowhere").symlink_to("missing")
    (tree / "through").symlink_to("readme.txt/below")
    m = scanned(tree)
    assert _left_out(m) == {"dangling": 2}
    assert m.find(b"nowhere") is m.find(b"through") is None


def test_a_link_to_itself_is_left_out_and_counted(tree: Path) -> None:
    (tree / "self").symlink_to("self")
    (tree / "ping").symlink_to("pong")
    (tree / "pong").symlink_to("ping")
    assert _left_out(scanned(tree)) == {"looping": 3}


def test_a_link_to_a_directory_above_it_is_left_out_and_counted(tree: Path) -> None:
    (tree / "b" / "deep" / "up").symlink_to("../..")
    (tree / "b" / "deep" / "er" / "near").symlink_to(".")
    (tree / "root").symlink_to(".")
    m = scanned(tree)
    assert _left_out(m) == {"looping": 3}
    assert row_of(m, b"b/deep/er/3.jpg")


def test_links_that_lead_to_each_others_directories_end(tree: Path) -> None:
    (tree / "a" / "to_b").symlink_to("../b")
    (tree / "b" / "to_a").symlink_to("../a")
    m = scanned(tree)
    assert _read(tree, m, b"a/to_b/1.jpg") == b"uno"
    assert _read(tree, m, b"b/to_a/1.jpg") == b"one"
    assert _left_out(m) == {"looping": 2}


def test_all_links_are_left_out_if_asked(tree: Path) -> None:
    expected = paths(scanned(tree))
    (tree / "file").symlink_to("a/1.jpg")
    (tree / "directory").symlink_to("b")
    (tree / "nowhere").symlink_to("missing")
    m = scanned(tree, links="skip")
    assert paths(m) == expected
    assert _left_out(m) == {"links": 3}


def test_the_source_itself_may_be_a_link(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(tree)
    assert paths(scanned(link, links="skip")) == paths(scanned(tree))


def test_hard_links_are_one_content_and_several_names(tree: Path) -> None:
    os.link(tree / "a" / "1.jpg", tree / "b" / "same.jpg")
    m = scanned(tree)
    first, second = row_of(m, b"a/1.jpg"), row_of(m, b"b/same.jpg")
    assert m.content_of[first] == m.content_of[second] == min(first, second)
    assert m.nlink_of[first] == m.nlink_of[second] == 2
    assert m.content_of[row_of(m, b"a/2.jpg")] == row_of(m, b"a/2.jpg")


def test_equal_bytes_are_not_one_content(tree: Path) -> None:
    write(tree, {b"x": b"same", b"y": b"same"})
    m = scanned(tree)
    assert m.content_of[row_of(m, b"x")] != m.content_of[row_of(m, b"y")]


# --- What is left out ------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_left_out_and_counted(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "socket", stat.S_IFSOCK | 0o600)
    (tree / "link to fifo").symlink_to("fifo")
    (tree / "null").symlink_to("/dev/null")
    m = scanned(tree)
    assert _left_out(m) == {"special": 4}
    assert m.find(b"fifo") is None


def test_a_name_that_vanishes_meanwhile_is_left_out_and_counted(tree: Path) -> None:
    listings = 0

    def open_directory(path: bytes) -> int:
        nonlocal listings
        fd = _opener(tree)(path)
        listings += path == b""
        if listings == 3:  # the root was looked at, was listed, and now its names are
            (tree / "readme.txt").unlink(missing_ok=True)
        return fd

    found = scan_directory(open_directory, Selection(), Solo())
    assert found is not None
    m = Manifest(*found)
    assert _left_out(m) == {"vanished": 1}
    assert m.find(b"readme.txt") is None
    assert row_of(m, b"b/deep/er/3.jpg")


def test_the_facts_of_a_name_that_is_gone_have_no_mode(tree: Path) -> None:
    facts = stat_names(_opener(tree), (b"a", [b"1.jpg", b"gone", b"2.jpg"]), True)
    assert [bool(mode > 0) for mode in facts[:, 0]] == [True, False, True]


def test_an_excluded_directory_is_not_even_listed(tree: Path) -> None:
    listed: list[bytes] = []

    def open_directory(path: bytes) -> int:
        listed.append(path)
        return _opener(tree)(path)

    found = scan_directory(open_directory, Selection(exclude=("cache", "b")), Solo())
    assert found is not None
    m = Manifest(*found)
    assert set(listed) == {b"", b"a"}
    assert paths(m) == {b"a", b"a/1.jpg", b"a/2.jpg", b"readme.txt"}
    assert _left_out(m) == {"excluded": 2}


@pytest.mark.parametrize(
    ("exclude", "gone"),
    [
        (("*.txt",), {b"readme.txt", b"b/notes.txt"}),
        (("1.jpg",), {b"a/1.jpg", b"b/1.jpg"}),
        (("a/*.jpg",), {b"a/1.jpg", b"a/2.jpg"}),
        (("b/**",), {b"b/1.jpg", b"b/notes.txt", b"b/deep", b"b/deep/er", b"b/deep/er/3.jpg"}),
        (("**/er",), {b"b/deep/er", b"b/deep/er/3.jpg"}),
        (("a/cache/**", "b/deep/er/*"), {b"a/cache/x.tmp", b"a/cache/y.jpg", b"b/deep/er/3.jpg"}),
        (("{a,b}/1.jpg",), {b"a/1.jpg", b"b/1.jpg"}),
        (("nothing",), set()),
    ],
)
def test_exclude_takes_away(tree: Path, exclude: tuple[str, ...], gone: set[bytes]) -> None:
    assert paths(scanned(tree)) - paths(scanned(tree, exclude=exclude)) == gone


@pytest.mark.parametrize(
    ("include", "files"),
    [
        (("*.txt",), {b"readme.txt", b"b/notes.txt"}),
        (("a",), {b"a/1.jpg", b"a/2.jpg", b"a/cache/x.tmp", b"a/cache/y.jpg"}),
        (("b/deep",), {b"b/deep/er/3.jpg"}),
        (("**/er/*",), {b"b/deep/er/3.jpg"}),
        (("a/*",), {b"a/1.jpg", b"a/2.jpg", b"a/cache/x.tmp", b"a/cache/y.jpg"}),
        (("a/*.jpg", "readme.txt"), {b"a/1.jpg", b"a/2.jpg", b"readme.txt"}),
    ],
)
def test_include_keeps_these_files_only(tree: Path, include: tuple[str, ...], files: set[bytes]) -> None:
    m = scanned(tree, include=include)
    kept = {m.path(row) for row in np.flatnonzero(m.is_regular).tolist()}
    assert kept == files
    assert _left_out(m)["not included"] == 8 - len(files)


def test_exclude_is_stronger_than_include(tree: Path) -> None:
    m = scanned(tree, include=("*.jpg",), exclude=("cache", "2.jpg"))
    files = {m.path(row) for row in np.flatnonzero(m.is_regular).tolist()}
    assert files == {b"a/1.jpg", b"b/1.jpg", b"b/deep/er/3.jpg"}


def test_a_directory_counts_the_directories_of_the_view_and_not_of_the_source(tree: Path) -> None:
    (tree / "a" / "link").symlink_to("../b")
    m = scanned(tree, exclude=("deep",))
    links = {path: m.nlink_of[row_of(m, path)] for path in (b"", b"a", b"b", b"a/link")}
    assert links == {b"": 4, b"a": 4, b"b": 2, b"a/link": 2}


def test_the_selection_is_kept_in_the_manifest(tree: Path) -> None:
    m = scanned(tree, include=("*.jpg",), links="skip")
    assert m.meta["selection"] == {"include": ("*.jpg",), "exclude": (), "links": "skip"}


# --- What cannot be read ---------------------------------------------------------------------------------------------


def _scan_as_nobody(root: Path, team_size: int = 1, **selection: Any) -> Any:
    def scan(team: Team) -> int:
        source = DirectorySource(str(root))
        found = source.scan(Selection(**selection), team)
        return len(found[1]["parent"]) if found else 0

    return as_nobody(lambda: as_team(team_size, scan))


# 0o000 cannot be listed, 0o444 can be listed but not entered, 0o111 entered but not listed.
@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
@pytest.mark.parametrize("team_size", [1, 3])
def test_a_directory_that_cannot_be_read_is_an_error_on_every_rank(mode: int, team_size: int) -> None:
    with on_disk(_TREE) as root:
        (root / "b" / "deep").chmod(mode)
        found = _scan_as_nobody(root, team_size)
    assert [type(error) for error in found] == [SourceError] * team_size
    assert {str(error) for error in found} == {str(found[0])}
    assert "b/deep" in str(found[0])
    assert "Permission denied" in str(found[0])


def test_a_directory_that_cannot_be_read_may_be_excluded() -> None:
    with on_disk(_TREE) as root:
        (root / "b" / "deep").chmod(0)
        assert _scan_as_nobody(root, exclude=("deep",)) == [len(paths(scanned(root))) - 3 + 1]


def test_a_file_that_cannot_be_read_is_listed_all_the_same() -> None:
    with on_disk(_TREE) as root:
        (root / "a" / "1.jpg").chmod(0)
        assert _scan_as_nobody(root) == [len(paths(scanned(root))) + 1]


def test_a_link_whose_target_may_not_be_looked_at_is_left_out_and_counted_apart() -> None:
    with on_disk({b"closed": {b"file": b"data"}}) as other, on_disk(_TREE) as root:
        (root / "a" / "link").symlink_to(other / "closed" / "file")
        (other / "closed").chmod(0)
        assert as_nobody(lambda: _left_out(scanned(root))) == {"unreadable links": 1}


# --- In a team -------------------------------------------------------------------------------------------------------


def _together(root: Path, size: int, selection: Selection) -> tuple[dict[str, Any], dict[str, Any]]:
    source = DirectorySource(str(root))
    found = as_team(size, lambda team: source.scan(selection, team))
    source.close()
    assert found[1:] == [None] * (size - 1)
    assert isinstance(found[0], tuple)
    return found[0]


def _assert_same(left: tuple[dict[str, Any], dict[str, Any]], right: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert {**left[0], "built_ns": 0} == {**right[0], "built_ns": 0}
    assert {name: array.tobytes() for name, array in left[1].items()} == {
        name: array.tobytes() for name, array in right[1].items()
    }


@settings(max_examples=15)
@given(TREES)
def test_a_team_finds_what_one_finds(tree: Tree) -> None:
    with on_disk(tree) as root:
        _assert_same(_together(root, 1, Selection()), _together(root, 3, Selection()))


def test_a_team_finds_what_one_finds_with_links_and_globs(tree: Path) -> None:
    (tree / "up").symlink_to(".")
    (tree / "nowhere").symlink_to("missing")
    (tree / "c").symlink_to("b")
    os.mkfifo(tree / "a" / "fifo")
    selection = Selection(include=("*.jpg",), exclude=("cache",))
    _assert_same(_together(tree, 1, selection), _together(tree, 3, selection))


def test_a_team_shares_one_large_directory(tmp_path: Path) -> None:
    for i in range(2500):
        (tmp_path / f"{i:05}.jpg").write_bytes(b"")
    alone, shared = _together(tmp_path, 1, Selection()), _together(tmp_path, 3, Selection())
    _assert_same(alone, shared)
    assert len(alone[1]["parent"]) == 2501


def test_an_error_on_one_rank_is_raised_on_all(tree: Path) -> None:
    def scan(team: Team) -> object:
        def open_directory(path: bytes) -> int:
            if team.rank == 1 and path:
                raise SourceError("rank 1 cannot list it")
            return _opener(tree)(path)

        return scan_directory(open_directory, Selection(), team)

    found = as_team(3, scan)
    assert [(type(error), str(error)) for error in found] == [(SourceError, "rank 1 cannot list it")] * 3


# --- Deep paths ------------------------------------------------------------------------------------------------------


def test_paths_longer_than_a_system_call_takes_are_scanned_and_read() -> None:
    name = b"d" * 250
    deep = b"/".join([name] * 20)
    with on_disk({}) as root:
        fd = os.open(root, os.O_DIRECTORY)
        for _ in range(20):
            os.mkdir(name, dir_fd=fd)
            inner = os.open(name, os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        with os.fdopen(os.open(b"file", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "wb") as file:
            file.write(b"found")
        os.close(fd)
        m = scanned(root)
        assert m.path(m.n_rows - 1) == deep + b"/file"
        assert _read(root, m, deep + b"/file") == b"found"
        assert DirectorySource(str(root)).unchanged(m, Solo()) is None


def test_no_descriptor_is_left_open(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    m = scanned(tree)
    _read(tree, m, b"a/1.jpg")
    assert len(os.listdir("/proc/self/fd")) == before


# --- Changes ---------------------------------------------------------------------------------------------------------


def _difference(root: Path, manifest: Manifest, size: int = 1) -> str | None:
    source = DirectorySource(str(root))
    found = as_team(size, lambda team: source.unchanged(manifest, team))
    source.close()
    assert found == [found[0]] * size
    assert found[0] is None or isinstance(found[0], str)
    return found[0]


def _add(root: Path) -> None:
    (root / "b" / "deep" / "new").write_bytes(b"")


def _remove(root: Path) -> None:
    (root / "b" / "deep" / "er" / "3.jpg").unlink()


def _rename(root: Path) -> None:
    (root / "b" / "deep" / "er" / "3.jpg").rename(root / "b" / "deep" / "er" / "4.jpg")


def _grow(root: Path) -> None:
    path = root / "b" / "deep" / "er" / "3.jpg"
    before = path.stat()
    with path.open("ab") as file:
        file.write(b"more")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _touch(root: Path) -> None:
    os.utime(root / "b" / "deep" / "er" / "3.jpg", ns=(0, 0))


def _chmod(root: Path) -> None:
    (root / "b" / "deep" / "er" / "3.jpg").chmod(0o600)


def _chmod_directory(root: Path) -> None:
    (root / "b" / "deep").chmod(0o700)


def _replace_by_directory(root: Path) -> None:
    path = root / "b" / "deep" / "er" / "3.jpg"
    path.unlink()
    path.mkdir()


_EDITS = [_add, _remove, _rename, _grow, _touch, _chmod, _chmod_directory, _replace_by_directory]


@pytest.mark.parametrize("edit", _EDITS, ids=lambda edit: edit.__name__.strip("_"))
def test_a_change_is_noticed_and_named(tree: Path, edit: Callable[[Path], None]) -> None:
    for directory, _, _ in os.walk(tree):
        os.utime(directory, ns=(1, 1))  # so that a change within the clock's resolution shows
    m = scanned(tree)
    assert _difference(tree, m) is None
    edit(tree)
    difference = _difference(tree, m)
    assert difference is not None
    assert difference.startswith("b/deep")
    assert _difference(tree, m, 3) is not None


def test_reading_is_no_change(tree: Path) -> None:
    m = scanned(tree)
    (tree / "a" / "1.jpg").read_bytes()
    os.listdir(tree / "b")
    assert _difference(tree, m, 3) is None


def test_a_change_behind_a_link_is_noticed(tree: Path) -> None:
    with on_disk({b"far.jpg": b"far"}) as other:
        (tree / "link").symlink_to(other / "far.jpg")
        m = scanned(tree)
        assert _difference(tree, m) is None
        (other / "far.jpg").write_bytes(b"farther")
        assert _difference(tree, m) == "link: changed since"
