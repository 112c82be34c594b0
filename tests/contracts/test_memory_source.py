"""The double that other tests read from keeps the contract of sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.contracts.sources import FileContender, FilesContract
from tests.doubles import MemorySource


class _Memory(FileContender):
    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self._memory = MemorySource(files)
        self.source = self._memory

    def change(self, path: bytes, data: bytes) -> None:
        self._memory.change(path, data)

    def remove(self, path: bytes) -> None:
        del self._memory.files[path]

    def add(self, path: bytes, data: bytes) -> None:
        self._memory.files[path] = (data, 1)


class TestMemorySource(FilesContract):
    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        return _Memory(files)
