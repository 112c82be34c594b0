"""Records of TFRecord files as files: `tfrecord:PATH`, a directory of such, or a pattern.

Record 42 of `train-00000-of-00010.tfrecord` is the file `train-00000-of-00010.tfrecord/000042.rec`. A header's CRC is
looked at when the file is indexed (one that is wrong leaves nothing to go on by), that of the data when it is read.

Files that are compressed as a whole (`GZIP`) are known by their first bytes; see `inflating` for what that costs.

**Threading.** `index` may be called from several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from deepiofs.dataset.sources.containers import Container, OpenContainer
from deepiofs.dataset.sources.packs.inflating import InflatedContainer
from deepiofs.dataset.sources.packs.skimming import Skimmer
from deepiofs.dataset.sources.records import RecordSource
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.dataset.tfrecords import HEAD, SUM, Crc, load_crc, masked
from deepiofs.errors import CorruptRecordError, SourceError

_GZIPPED = {"compression": "gzip"}
_DIGITS = 6
_LENGTH_BYTES = HEAD.size - SUM.size
_UNKNOWN = 1 << 62


class TFRecordSource(RecordSource):
    """A file for each record; what the bytes mean (a tf.train.Example, mostly) is the reader's."""

    kind = "tfrecord"
    suffixes = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
    after_bytes = SUM.size
    # Each may hold what it takes to read a compressed one.
    most_open = 16

    def __init__(self, name: str) -> None:
        self._crc = load_crc()
        super().__init__(name)

    def index(self, container: Container, opened: OpenContainer) -> Found:
        head = bytes(Skimmer(opened, container.size).look(0, HEAD.size))
        packed = head[:3] == b"\x1f\x8b\x08" and not _is_head(head, self._crc)
        if packed:
            opened = InflatedContainer(opened, container.name)
        size, at, end = _Records(container.name, opened, _UNKNOWN if packed else container.size, self._crc).read()
        digits = max(_DIGITS, len(str(len(size) - 1)))
        prefix = os.fsencode(container.name)
        paths = [b"%s/%0*d.rec" % (prefix, digits, i) for i in range(len(size))]
        details, span = (_GZIPPED, end) if packed else (None, None)
        return Found(paths, np.array(size, np.int64), np.array(at, np.int64), details=details, span=span)

    def open_container(self, container: Container, details: Any) -> OpenContainer:
        opened = super().open_container(container, details)
        return InflatedContainer(opened, container.name) if details == _GZIPPED else opened

    def verify(self, chunks: Iterable[memoryview], after: memoryview, where: str) -> None:
        crc = 0
        for chunk in chunks:
            crc = self._crc(chunk, crc)
        if SUM.unpack(after)[0] != masked(crc):
            raise CorruptRecordError(f"{where}: its CRC differs")


class _Records:
    """The headers of one file, unpacked if need be."""

    def __init__(self, name: str, opened: OpenContainer, size: int, crc: Crc) -> None:
        self._name, self._size, self._crc = name, size, crc
        self._file = Skimmer(opened, size)

    def read(self) -> tuple[list[int], list[int], int]:
        """Size and place of each record, and the byte behind the last."""
        sizes: list[int] = []
        places: list[int] = []
        at = 0
        while head := self._file.look(at, HEAD.size) if at < self._size else b"":
            if not _is_head(head, self._crc):
                self._refuse(at, head)
            size: int = HEAD.unpack(head)[0]
            end = at + HEAD.size + size + SUM.size
            if end > self._size or (self._size == _UNKNOWN and not self._file.look(end - 1, 1)):
                raise SourceError(f"{self._name}: byte {at}: a record of {size} bytes is cut short")
            sizes.append(size)
            places.append(at + HEAD.size)
            at = end
        return sizes, places, at

    def _refuse(self, at: int, head: memoryview | bytes) -> NoReturn:
        if len(head) < HEAD.size:
            raise SourceError(f"{self._name}: byte {at}: the header of a record is cut short")
        text = "not the header of a record (its CRC differs)"
        # RFC 1950: method 8, and a check of the first two bytes.
        if at == 0 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0:
            text += "; if it was written with ZLIB compression, write it with GZIP or none"
        raise SourceError(f"{self._name}: byte {at}: {text}")


def _is_head(head: memoryview | bytes, crc: Crc) -> bool:
    return len(head) == HEAD.size and SUM.unpack(head[_LENGTH_BYTES:])[0] == masked(crc(head[:_LENGTH_BYTES], 0))
