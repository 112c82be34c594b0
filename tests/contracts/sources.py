"""What every source does: a suite that each implementation, and each fake, subclasses."""

from __future__ import annotations

import abc
import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from deepiofs.dataset import columns
from deepiofs.dataset.manifest import ROOT, Manifest
from deepiofs.dataset.sources import Packed, Piece, Selection, Solo, Source, SourceFile, Team
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
    def disturb(self) -> None:
        """Change what is read, keeping sizes where that can be, so that what was indexed holds no more."""


class FileContender(Contender):
    """One whose files change one by one."""

    def disturb(self) -> None:
        self.change(next(iter(FILES)), b"2")

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
    """Subclass, and make a contender of some files. files: what is made; at least one of them is not empty."""

    files: Mapping[bytes, bytes] = FILES

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        """A fresh source that holds these files."""
        raise NotImplementedError

    @pytest.fixture
    def contender(self, tmp_path: Path) -> Iterator[Contender]:
        contender = self.make(tmp_path, self.files)
        yield contender
        contender.source.close()

    @pytest.fixture
    def manifest(self, contender: Contender) -> Manifest:
        return scan(contender.source)

    @property
    def largest(self) -> bytes:
        """The path of the largest file."""
        return max(self.files, key=lambda path: len(self.files[path]))

    def test_a_scan_finds_every_file_with_its_size(self, manifest: Manifest) -> None:
        assert sizes_of(manifest) == {path: len(data) for path, data in self.files.items()}

    def test_a_scan_finds_the_directories(self, manifest: Manifest) -> None:
        rows = [row for row in range(manifest.n_rows) if manifest.is_directory(row)]
        above = {path[: match.start()] for path in self.files for match in re.finditer(b"/", path)}
        assert {manifest.path(row) for row in rows} == {b"", *above}
        assert manifest.is_directory(ROOT)

    def test_a_scan_leaves_out_what_is_excluded_and_keeps_what_is_included(self, contender: Contender) -> None:
        first, *others = sorted(self.files)
        chosen = Selection(include=tuple(map(escaped, others)), exclude=(escaped(others[0]),))
        assert set(sizes_of(scan(contender.source, chosen))) == set(others[1:])
        assert first not in others

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
        data = self.files[self.largest]
        end = len(data)
        with opened(contender.source, manifest, self.largest) as file:
            for at, size in ((0, 1), (0, end), (1, 300), (255, 2), (end // 2, 7), (end - 1, 1)):
                assert read(file, at, size) == data[at : at + size]

    def test_a_read_is_short_only_at_the_end(self, contender: Contender, manifest: Manifest) -> None:
        for path, data in self.files.items():
            with opened(contender.source, manifest, path) as file:
                assert read(file, 0, len(data) + 10) == data
                assert read(file, max(len(data) - 3, 0), 10) == data[-3:]
                assert read(file, len(data), 10) == b""
                assert read(file, len(data) + 100, 10) == b""

    def test_a_short_read_leaves_the_rest_of_the_buffer_alone(self, contender: Contender, manifest: Manifest) -> None:
        data = self.files[self.largest]
        buffer = bytearray(b"-" * (len(data) + 7))
        with opened(contender.source, manifest, self.largest) as file:
            assert file.read_into(memoryview(buffer), 0) == len(data)
        assert buffer == data + b"-------"

    def test_threads_may_read_one_file_at_once(self, contender: Contender, manifest: Manifest) -> None:
        data = self.files[self.largest]
        with opened(contender.source, manifest, self.largest) as file, ThreadPoolExecutor(8) as pool:
            pieces = list(pool.map(lambda at: read(file, at, 64), range(0, len(data), 64)))
        assert b"".join(pieces) == data

    def test_close_may_be_called_twice(self, contender: Contender, manifest: Manifest) -> None:
        file = contender.source.open(manifest, row_of(manifest, self.largest))
        file.close()
        file.close()
        contender.source.close()
        contender.source.close()

    def test_a_closed_file_is_not_read(self, contender: Contender, manifest: Manifest) -> None:
        file = contender.source.open(manifest, row_of(manifest, self.largest))
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            read(file, 0, 1)

    @pytest.mark.parametrize("size", [1, 3])
    def test_what_has_not_changed_is_unchanged(self, contender: Contender, manifest: Manifest, size: int) -> None:
        assert as_team(size, lambda team: contender.source.unchanged(manifest, team)) == [None] * size

    @pytest.mark.parametrize("size", [1, 3])
    def test_every_rank_hears_of_a_disturbance(self, contender: Contender, manifest: Manifest, size: int) -> None:
        contender.disturb()
        found = as_team(size, lambda team: contender.source.unchanged(manifest, team))
        assert isinstance(found[0], str)
        assert found == [found[0]] * size


class FilesContract(SourceContract):
    """Of a source whose files change one by one."""

    def test_a_file_that_changed_is_not_opened(self, contender: FileContender, manifest: Manifest) -> None:
        contender.change(b"one", b"22")
        with pytest.raises(SourceChangedError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    def test_a_change_that_keeps_the_size_is_noticed(self, contender: FileContender, manifest: Manifest) -> None:
        contender.change(b"one", b"2")
        with pytest.raises(SourceChangedError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    @pytest.mark.parametrize("data", [b"2", b"22", b""], ids=["same size", "grown", "truncated"])
    def test_a_file_that_changes_while_it_is_open_is_not_read(
        self, contender: FileContender, manifest: Manifest, data: bytes
    ) -> None:
        with opened(contender.source, manifest, b"one") as file:
            assert read(file, 0, 1) == FILES[b"one"]
            contender.change(b"one", data)
            with pytest.raises(SourceChangedError, match="one: changed"):
                read(file, 0, 1)

    def test_a_file_that_is_removed_while_it_is_open_keeps_its_bytes(
        self, contender: FileContender, manifest: Manifest
    ) -> None:
        with opened(contender.source, manifest, b"a.bin") as file:
            contender.remove(b"a.bin")
            assert read(file, 0, 10_240) == FILES[b"a.bin"]

    def test_a_missing_file_is_an_os_error(self, contender: FileContender, manifest: Manifest) -> None:
        contender.remove(b"one")
        with pytest.raises(FileNotFoundError):
            contender.source.open(manifest, row_of(manifest, b"one"))

    def test_the_other_files_stay_readable(self, contender: FileContender, manifest: Manifest) -> None:
        contender.remove(b"one")
        contender.change(b"empty", b"not any more")
        with opened(contender.source, manifest, b"class b/x.jpg") as file:
            assert read(file, 0, 1000) == FILES[b"class b/x.jpg"]

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
        self, contender: FileContender, manifest: Manifest, edit: Callable[[FileContender], None], size: int
    ) -> None:
        edit(contender)
        found = as_team(size, lambda team: contender.source.unchanged(manifest, team))
        assert isinstance(found[0], str)
        assert found == [found[0]] * size


class PackedContract(SourceContract):
    """Of a source whose files lie in containers: who changes one of them has changed all."""

    def test_pieces_are_read_together(self, contender: Contender, manifest: Manifest) -> None:
        assert isinstance(contender.source, Packed)
        buffers = {path: bytearray(len(data)) for path, data in self.files.items()}
        pieces = [Piece(row_of(manifest, path), 0, memoryview(buffer)) for path, buffer in buffers.items()]
        assert contender.source.read_pieces(manifest, pieces[::-1]) == [None] * len(pieces)
        assert {path: bytes(buffer) for path, buffer in buffers.items()} == dict(self.files)

    def test_parts_are_read_together(self, contender: Contender, manifest: Manifest) -> None:
        assert isinstance(contender.source, Packed)
        data = self.files[self.largest]
        half = len(data) // 2
        buffers = [bytearray(half), bytearray(len(data) - half)]
        row = row_of(manifest, self.largest)
        pieces = [Piece(row, 0, memoryview(buffers[0])), Piece(row, half, memoryview(buffers[1]))]
        assert contender.source.read_pieces(manifest, pieces) == [None, None]
        assert b"".join(map(bytes, buffers)) == data

    def test_what_changed_is_not_opened(self, contender: Contender, manifest: Manifest) -> None:
        contender.disturb()
        with pytest.raises(SourceChangedError):
            contender.source.open(manifest, row_of(manifest, self.largest))

    def test_what_changes_while_it_is_open_is_not_read(self, contender: Contender, manifest: Manifest) -> None:
        path = self.largest
        with opened(contender.source, manifest, path) as file:
            assert read(file, 0, len(self.files[path])) == self.files[path]
            contender.disturb()
            with pytest.raises(SourceChangedError, match="changed"):
                read(file, 0, 1)

    def test_pieces_of_what_changed_are_not_read(self, contender: Contender, manifest: Manifest) -> None:
        assert isinstance(contender.source, Packed)
        contender.disturb()
        size = len(self.files[self.largest])
        piece = Piece(row_of(manifest, self.largest), 0, memoryview(bytearray(size)))
        (outcome,) = contender.source.read_pieces(manifest, [piece])
        assert isinstance(outcome, SourceChangedError)


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


def sizes_of(manifest: Manifest) -> dict[bytes, int]:
    """The size of each file, by its path."""
    rows = np.flatnonzero(manifest.is_regular).tolist()
    return {manifest.path(row): manifest.size_of[row] for row in rows}


def escaped(path: bytes) -> str:
    """A glob that means this path and no other."""
    return "/" + glob.escape(os.fsdecode(path)).replace("{", "[{]")


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
