"""Members of a TFRecord file: a record for each file, its data the file's bytes.

    u64 length, u32 masked CRC-32C of the length, data, u32 masked CRC-32C of the data     (tensorflow/core/lib/io)

The CRC is the library `crc32c`'s (the extra `tfrecord`). Nothing is wrapped in a tf.train.Example: what the bytes mean
is the reader's.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.errors import EnvironmentFault
from deepiofs.fs.streams.layout import Ints, Rows

_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _SUM.size
_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFFFFFF

Crc = Callable[[memoryview | bytes, int], int]


class TfRecord:
    """The format `tfrecord`."""

    name = "tfrecord"
    extension = "tfrecord"
    ending = b""
    has_data = True
    is_summed = True

    def __init__(self, manifest: Manifest, crc: Crc) -> None:
        """crc: continues a CRC-32C."""
        self._manifest, self._crc = manifest, crc

    def head_lengths(self, rows: Rows) -> Ints:
        return np.full(len(rows), _HEAD_BYTES, np.int64)

    def tail_lengths(self, sizes: Ints) -> Ints:
        return np.full(len(sizes), _SUM.size, np.int64)

    def head(self, row: int) -> bytes:
        """The length, and its checksum."""
        length = _LENGTH.pack(self._manifest.size_of[row])
        return length + _SUM.pack(_masked(self._crc(length, 0)))

    def tail(self, size: int, checksum: int) -> bytes:
        """The checksum of the data."""
        return _SUM.pack(_masked(checksum))

    def extend(self, checksum: int, data: memoryview | bytes) -> int:
        return self._crc(data, checksum)


def load_crc() -> Crc:
    """CRC-32C of the library. EnvironmentFault, which names the extra, if it is not installed."""
    try:
        crc: Crc = importlib.import_module("crc32c").crc32c
    except ImportError:
        raise EnvironmentFault("streams of TFRecord need the library crc32c; install deepiofs[tfrecord]") from None
    return crc


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _WORD
