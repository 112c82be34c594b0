"""A tar keeps the contract of sources."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from deepiofs.dataset.sources import open_source
from tests.contracts.sources import Contender, PackedContract


class TarContender(Contender):
    """One tar that the library has written."""

    def __init__(self, path: Path, files: Mapping[bytes, bytes], form: int) -> None:
        self._path = path
        with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(os.fsdecode(name))
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        self.source = open_source(f"tar:{path}")

    def disturb(self) -> None:
        before = self._path.stat().st_mtime_ns
        data = self._path.read_bytes()
        self._path.write_bytes(data[::-1])
        os.utime(self._path, ns=(before + 1, before + 1))  # whatever the clock's resolution


class _TarContract(PackedContract):
    form: int

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return TarContender(tmp_path / "data.tar", files, self.form)


class TestGnuTar(_TarContract):
    form = tarfile.GNU_FORMAT


class TestPaxTar(_TarContract):
    form = tarfile.PAX_FORMAT


class TestUstar(_TarContract):
    form = tarfile.USTAR_FORMAT
