"""A directory keeps the contract of sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from deepiofs.dataset.sources import open_source
from deepiofs.dataset.sources.directory import DirectorySource
from deepiofs.errors import SourceError
from tests.contracts.sources import FileContender, FilesContract


class _Directory(FileContender):
    def __init__(self, root: Path, files: Mapping[bytes, bytes]) -> None:
        self._root = os.fsencode(root)
        for path, data in files.items():
            os.makedirs(os.path.dirname(self._at(path)), exist_ok=True)
            self.add(path, data)
        self.source = DirectorySource(str(root))

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def change(self, path: bytes, data: bytes) -> None:
        before = os.stat(self._at(path)).st_mtime_ns
        self.add(path, data)
        os.utime(self._at(path), ns=(before + 1, before + 1))  # whatever the clock's resolution

    def remove(self, path: bytes) -> None:
        os.unlink(self._at(path))
        self._touch_directory_of(path)

    def add(self, path: bytes, data: bytes) -> None:
        new = not os.path.exists(self._at(path))
        with open(self._at(path), "wb") as file:
            file.write(data)
        if new:
            self._touch_directory_of(path)

    def _touch_directory_of(self, path: bytes) -> None:
        directory = os.path.dirname(self._at(path))
        at = os.stat(directory).st_mtime_ns + 1_000_000_000
        os.utime(directory, ns=(at, at))


class TestDirectorySource(FilesContract):
    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        return _Directory(tmp_path, files)


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere: no such directory"):
        open_source(str(tmp_path / "nowhere"))


def test_a_source_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="neither a directory nor a container"):
        open_source(str(tmp_path / "file"))
