"""Zip files keep the contract of sources."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from deepiofs.dataset.sources import open_source
from tests.contracts.sources import FILES, Contender, PackedContract

# Names are text in a zip.
_FILES = {path.replace(b"\xff", "é".encode()): data for path, data in FILES.items()}


class _Zip(Contender):
    def __init__(self, path: Path, files: Mapping[bytes, bytes], method: int) -> None:
        self._path = path
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(os.fsdecode(name), data)
        self.source = open_source(f"zip:{path}")

    def disturb(self) -> None:
        before = self._path.stat()
        with self._path.open("r+b") as file:
            file.write(bytes(before.st_size))
        os.utime(self._path, ns=(before.st_mtime_ns + 1, before.st_mtime_ns + 1))  # whatever the clock's resolution


class TestStoredZip(PackedContract):
    files = _FILES
    method = zipfile.ZIP_STORED

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _Zip(tmp_path / "data.zip", files, self.method)


class TestDeflatedZip(TestStoredZip):
    method = zipfile.ZIP_DEFLATED
