"""TFRecord files keep the contract of sources, plain and compressed."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from deepiofs.dataset.sources import open_source
from tests.contracts.sources import Contender, PackedContract
from tests.packs import framed

_RECORDS = {
    b"a.tfrecord": [bytes(range(256)) * 40, b"", b"1"],
    b"class b/\xff\n.tfrecord": [b"x" * 1000, b"y" * 70_000, b""],
    b"none.tfrecord": [],
}


def _records(suffix: bytes) -> dict[bytes, bytes]:
    return {
        b"%s%s/%06d.rec" % (shard, suffix, i): data
        for shard, records in _RECORDS.items()
        for i, data in enumerate(records)
    }


class _TFRecords(Contender):
    def __init__(self, root: Path, files: Mapping[bytes, bytes]) -> None:
        self._paths: list[bytes] = []
        shards = itertools.groupby(files.items(), lambda file: os.path.dirname(file[0]))
        for shard, records in shards if files else [(b"none.tfrecord", [])]:
            path = os.path.join(os.fsencode(root), shard)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            data = b"".join(framed(record) for _, record in records)
            with open(path, "wb") as file:
                file.write(gzip.compress(data) if path.endswith(b".gz") else data)
            self._paths.append(path)
        self.source = open_source(f"tfrecord:{root}")

    def disturb(self) -> None:
        for path in self._paths:
            before = os.stat(path)
            with open(path, "r+b") as file:
                file.write(bytes(before.st_size))
            os.utime(path, ns=(before.st_mtime_ns + 1, before.st_mtime_ns + 1))  # whatever the clock's resolution


class TestTFRecord(PackedContract):
    files = _records(b"")

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _TFRecords(tmp_path, files)


class TestGzippedTFRecord(TestTFRecord):
    files = _records(b".gz")
