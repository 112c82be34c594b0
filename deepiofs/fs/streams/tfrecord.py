"""Members of a TFRecord file: a record for each file, its data the file's bytes. `dataset/tfrecords` has the framing.

Nothing is wrapped in a tf.train.Example: what the bytes mean
is the reader's.
"""

from __future__ import annotations

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.tfrecords import HEAD, LENGTH, SUM, Crc, masked
from deepiofs.fs.streams.layout import Ints, Rows


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
        return np.full(len(rows), HEAD.size, np.int64)

    def tail_lengths(self, sizes: Ints) -> Ints:
        return np.full(len(sizes), SUM.size, np.int64)

    def head(self, row: int) -> bytes:
        """The length, and its checksum."""
        length = LENGTH.pack(self._manifest.size_of[row])
        return length + SUM.pack(masked(self._crc(length, 0)))

    def tail(self, size: int, checksum: int) -> bytes:
        """The checksum of the data."""
        return SUM.pack(masked(checksum))

    def extend(self, checksum: int, data: memoryview | bytes) -> int:
        return self._crc(data, checksum)
