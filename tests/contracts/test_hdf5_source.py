"""An HDF5 file keeps the contract of sources."""

from __future__ import annotations

import collections
import io
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepiofs.dataset.sources.hdf5.source import Hdf5Source
from tests.contracts.sources import Contender, PackedContract

h5py = pytest.importorskip("h5py")


def npy(array: Any) -> bytes:
    """What numpy.save writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ROWS: Mapping[bytes, bytes] = {
    **{f"images/{i:06d}.npy".encode(): npy(np.full((20, 30), i, ">f4")) for i in range(4)},
    **{f"labels/{i:06d}.npy".encode(): npy(np.array(i, "<i8")) for i in range(4)},
    **{f"deep/er/x y/{i:06d}.npy".encode(): npy(np.arange(5) + i) for i in range(11)},
}


class _File(Contender):
    def __init__(self, path: Path, files: Mapping[bytes, bytes], options: dict[str, Any], where: str) -> None:
        self._path = path
        rows: dict[str, list[Any]] = collections.defaultdict(list)
        for name, data in sorted(files.items()):
            rows[os.path.dirname(name).decode()].append(np.load(io.BytesIO(data)))
        with h5py.File(path, "w") as file:
            for dataset, arrays in rows.items():
                file.create_dataset(dataset, data=np.array(arrays, arrays[0].dtype), **options)
        self.source = Hdf5Source(f"{where}{path}")

    def disturb(self) -> None:
        at = self._path.stat().st_mtime_ns + 1_000_000
        with h5py.File(self._path, "r+") as file:
            file["images"][:] = 7
        os.utime(self._path, ns=(at, at))


class TestContiguous(PackedContract):
    files = ROWS
    options: Mapping[str, Any] = {}
    where = ""

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _File(tmp_path / f"{uuid.uuid4().hex}.h5", files, dict(self.options), self.where)


class TestCompressed(TestContiguous):
    options = {"chunks": True, "compression": "gzip", "fletcher32": True}  # noqa: RUF012


class TestInAStore(TestContiguous):
    where = "file://"


class TestCompressedInAStore(TestCompressed):
    where = "file://"
