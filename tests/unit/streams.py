"""A mount's reader with streams of chosen files, and what a stream must be, made in the obvious way."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.fs.streams.ahead import Ahead
from deepiofs.fs.streams.formats import formats_of
from deepiofs.fs.streams.layout import Layout
from deepiofs.fs.streams.reading import OpenStream
from deepiofs.fs.tree import Tree
from deepiofs.options import Settings
from tests.unit.jobs import Mounted

FORMATS = ("tar", "tfrecord", "list")


class Streaming:
    """Streams over the files of a `Mounted`. stored: paths, in the order of the stream."""

    def __init__(
        self,
        files: Mapping[bytes, bytes],
        home: Callable[[int], int] = lambda unit: 0,
        *,
        staging_bytes: int = 1 << 20,
        timeout_s: float = 5.0,
        prefetch: int = 64,
    ) -> None:
        self.files = files
        self.mounted = Mounted(files, home, staging_bytes=staging_bytes, timeout_s=timeout_s)
        self.manifest = self.mounted.link.manifest
        self.formats = formats_of(Tree(self.manifest, Settings(), lambda row: False))
        self.ahead = Ahead(self.mounted.link, staging_bytes, prefetch)

    def rows(self, stored: Sequence[bytes]) -> npt.NDArray[np.uint32]:
        """The rows of paths."""
        return np.array([self.manifest.find(path) for path in stored], np.uint32)

    def open(self, form: str, stored: Sequence[bytes]) -> OpenStream:
        """A handle on a stream."""
        layout = Layout(self.formats[form], self.manifest, self.rows(stored))
        return OpenStream(form, layout, self.mounted.reader, self.ahead)

    def whole(self, form: str, stored: Sequence[bytes]) -> bytes:
        """What the stream must be. Heads of a tar are the program's own: others read them in `members_of`."""
        if form == "list":
            return b"".join(path + b"\n" for path in stored)
        if form == "tfrecord":
            return b"".join(record(self.files[path]) for path in stored)
        head = self.formats["tar"].head
        parts = [
            head(int(row)) + self.files[path] + bytes(-len(self.files[path]) % 512)
            for path, row in zip(stored, self.rows(stored), strict=True)
        ]
        return b"".join([*parts, bytes(1024)])


def members_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """(path, bytes) of the members of a tar, by Python's tarfile."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = []
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found.append((member.name.encode("utf-8", "surrogateescape"), file.read()))
        return found


def crc32c(data: bytes) -> int:
    """The CRC of RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """A TFRecord, as its format is described (tensorflow/core/lib/io/record_writer.h)."""
    length = len(data).to_bytes(8, "little")
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return ((rotated + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def with_columns(manifest: Manifest, **columns: npt.ArrayLike) -> Manifest:
    """The same names with other facts."""
    dtypes = {name: array.dtype for name, array in manifest.columns.items()}
    return Manifest(
        manifest.meta,
        {**manifest.columns, **{name: np.asarray(values).astype(dtypes[name]) for name, values in columns.items()}},
    )
