"""What every source does: a suite that each implementation, and each fake, subclasses."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from deepiofs.dataset import columns
from deepiofs.dataset.manifest import ROOT, Manifest
from deepiofs.dataset.sources import Selection, Solo, Source, SourceFile, Team
from deepiofs.errors import SourceChangedError
from tests.doubles import as_team

FILES: Mapping[bytes, bytes] = {
    b"a.bin": bytes(range(256)) * 40,
    b"empty": b"",
    b"one": b"1",
    b"class b/x.jpg": b"x" * 1000,
    b"class b/\xff\n.jpg": b"a name that is not text",
    b"class b/deep/er/y": b"y" * 70_000,
}


class Contender(abc.ABC):
    """A source under test, and a hand that changes what it reads from."""

    source: Source

    @abc.abstractmethod
    def change(self, path: bytes, data: bytes) -> None:
        """Write other bytes to a file, as a program does that saves it anew."""

    @abc.abstractmethod
    def remove(self, path: bytes) -> None:
        """Remove a file."""

    @abc.abstractmethod
    def add(self, path: bytes, data: bytes) -> None:
        """Add a file to a directory that exists."""


class SourceContract:
    """Subclass, and make a contender of some files."""

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        """A fresh source that holds these files."""
        raise NotImplementedError

    @pytest.fixture
    def contender(self, tmp_path: Path) -> Iterator[Contender]:
        contender = self.make(tmp_path, FILES)
        yield contender
        contender.source.close()

    @pytest.fixture
    def manifest(self, contender: Contender) -> Manifest:
        return scan(contender.source)

    def test_a_scan_finds_every_file_with_its_size(self, manifest: Manifest) -> None:
        rows = np.flatnonzero(manifest.is_regular).tolist()
        assert {manifest.path(row): manifest.size_of[row] for row in rows} == {p: len(d) for p, d in FILES.items()}

    def test_a_scan_finds_the_directories(self, manifest: Manifest) -> None:
        rows = [row for row in range(manifest.n_rows) if manifest.is_directory(row)]
        assert {manifest.path(row) for row in rows} == {b"", b"class b", b"class b/deep", b"class b/deep/er"}
        assert manifest.is_directory(ROOT)

    def test_a_scan_leaves_out_what_is_excluded_and_keeps_what_is_included(self, contender: Contender) -> None:
        manifest = scan(contender.source, Selection(include=("class b", "one"), exclude=("deep",)))
        files = {manifest.path(row) for row in np.flatnonzero(manifest.is_regular).tolist()}
        assert files == {b"one", b"class b/x.jpg", b"class b/\xff\n.jpg"}

    def test_a_scan_of_nothing_is_a_root(self, tmp_path: Path) -> None:
        contender = self.make(tmp_path, {})
        manifest = scan(contender.source)
        assert manifest.n_rows == 1
        assert manifest.is_directory(ROOT)
        assert list(manifest.children(ROOT)) == []
        contender.source.close()

    def test_only_rank_0_of_a_team_gets_the_columns(self, contender: Contender) -> None:
        alone = scan(contender.source)
        found = as_team(3, lambda team: contender.source.scan(Selection(), team))
        assert found[1:] == [None, None]
        assert isinstance(found[0], tuple)
        assert sorted(paths_of(Manifest(*found[0]))) == sorted(paths_of(alone))

    def test_what_is_open_reads_at_any_place(self, contender: Contender, manifest: Manifest) -> None:
        path = b"a.bin"
        with opened(contender.source, manifest, path) as file:
            for at, size in ((0, 1), (0, len(FILES[path])), (1, 300), (255, 2), (10_000, 240)):
                assert read(file, at, size) == FILES[path][at : at + size]

    def test_a_read_is_short_only_at_the_end(self, contender: Contender, manifest: Manifest) -> None:
        for path, data in FILES.items():
            with opened(contender.source, manifest, path) as file:
                assert read(file, 0, len(data) + 10) == data
                assert read(file, max(len(data) - 3, 0), 10) == data[-3:]
                assert read(file, len(data), 10) == b""
                assert read(file, len(data) + 100, 10) == b""

    def test_a_short_read_leaves_the_rest_of_the_buffer_alone(self, contender: Contender, manifest: Manifest) -> None:
        buffer = bytearray(b"-" * 8)
        with opened(contender.source, manifest, b"one") as file:
            assert file.read_into(memoryview(buffer), 0) == 1
        assert buffer == b"1-------"

    def test_threads_may_read_one_file_at_once(self, contender: Contender, manifest: Manifest) -> None:
        path = b"a.bin"
        with opened(contender.source, manifest, path) as file, ThreadPoolExecutor(8) as pool:
            pieces = list(pool.map(lambda at: read(file, at, 64), range(0, len(FILES[path]), 64)))
        assert b"".join(pieces) == FILES[path]

    def test_a_file_that_changed_is_not_opened(self, contender: Contender, manifest: Manifest) -> None:
        contender.change(b"one", b"22")
        with pytest.raises(SourceChangedError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    def test_a_change_that_keeps_the_size_is_noticed(self, contender: Contender, manifest: Manifest) -> None:
        contender.change(b"one", b"2")
        with pytest.raises(SourceChangedError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    @pytest.mark.parametrize("data", [b"2", b"22", b""], ids=["same size", "grown", "truncated"])
    def test_a_file_that_changes_while_it_is_open_is_not_read(
        self, contender: Contender, manifest: Manifest, data: bytes
    ) -> None:
        with opened(contender.source, manifest, b"one") as file:
            assert read(file, 0, 1) == FILES[b"one"]
            contender.change(b"one", data)
            with pytest.raises(SourceChangedError, match="one: changed"):
                read(file, 0, 1)

    def test_a_file_that_is_removed_while_it_is_open_keeps_its_bytes(
        self, contender: Contender, manifest: Manifest
    ) -> None:
        with opened(contender.source, manifest, b"a.bin") as file:
            contender.remove(b"a.bin")
            assert read(file, 0, 10_240) == FILES[b"a.bin"]

    def test_a_missing_file_is_an_os_error(self, contender: Contender, manifest: Manifest) -> None:
        contender.remove(b"one")
        with pytest.raises(FileNotFoundError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    def test_the_other_files_stay_readable(self, contender: Contender, manifest: Manifest) -> None:
        contender.remove(b"one")
        contender.change(b"empty", b"not any more")
        with opened(contender.source, manifest, b"class b/x.jpg") as file:
            assert read(file, 0, 1000) == FILES[b"class b/x.jpg"]

    def test_close_may_be_called_twice(self, contender: Contender, manifest: Manifest) -> None:
        file = contender.source.open(manifest, row_of(manifest, b"one"))
        file.close()
        file.close()
        contender.source.close()
        contender.source.close()

    def test_a_closed_file_is_not_read(self, contender: Contender, manifest: Manifest) -> None:
        file = contender.source.open(manifest, row_of(manifest, b"one"))
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            read(file, 0, 1)

    @pytest.mark.parametrize("size", [1, 3])
    def test_what_has_not_changed_is_unchanged(self, contender: Contender, manifest: Manifest, size: int) -> None:
        assert as_team(size, lambda team: contender.source.unchanged(manifest, team)) == [None] * size

    @pytest.mark.parametrize("size", [1, 3])
    @pytest.mark.parametrize(
        "edit",
        [
            lambda contender: contender.change(b"class b/deep/er/y", b"longer" * 50_000),
            lambda contender: contender.remove(b"class b/x.jpg"),
            lambda contender: contender.add(b"class b/new.jpg", b"new"),
        ],
        ids=["changed", "removed", "added"],
    )
    def test_every_rank_hears_of_a_change(
        self, contender: Contender, manifest: Manifest, edit: Callable[[Contender], None], size: int
    ) -> None:
        edit(contender)
        found = as_team(size, lambda team: contender.source.unchanged(manifest, team))
        assert isinstance(found[0], str)
        assert found == [found[0]] * size


@contextlib.contextmanager
def opened(source: Source, manifest: Manifest, path: bytes) -> Iterator[SourceFile]:
    """A file of a source, closed at the end."""
    file = source.open(manifest, row_of(manifest, path))
    try:
        yield file
    finally:
        file.close()


def read(file: SourceFile, at: int, size: int) -> bytes:
    """What a read of so many bytes brings."""
    buffer = bytearray(size)
    return bytes(buffer[: file.read_into(memoryview(buffer), at)])


def row_of(manifest: Manifest, path: bytes) -> int:
    """The row of a path that is there."""
    row = manifest.find(path)
    assert row is not None
    return row


def paths_of(manifest: Manifest) -> list[bytes]:
    """All paths, by row."""
    return [manifest.path(row) for row in range(manifest.n_rows)]


def scan(source: Source, selection: Selection | None = None, team: Team | None = None) -> Manifest:
    """The manifest of a source, through the packed form that processes hand each other."""
    found = source.scan(selection or Selection(), team or Solo())
    assert found is not None
    buffer = memoryview(bytearray(columns.packed_size(*found)))
    columns.pack_into(buffer, *found)
    return Manifest(*columns.unpack(buffer))
