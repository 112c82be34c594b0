"""The file of an LMDB: what its meta pages say, and where what the library finds in its map of it lies.

The place of a key or value in the file is its address less that of the map; values are contiguous, also on overflow
pages. py-lmdb touches every page of a value that it hands out (preload.h), which would read all of the dataset only to
learn where it lies; so it is asked for keys alone, and the node around a key tells where the value is.

The layouts are those of liblmdb 0.9 (`MDB_meta`, `MDB_node` in mdb.c) on 64-bit machines of this byte order.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deepiofs.errors import SourceError

META_BYTES = 152
# Page: number, pad, flags; 4 bytes that a meta page does not use. Meta: magic, version, address, size of the map.
_HEAD = struct.Struct("<QHHI IIQQ")
# The first field of the first database is the size of a page.
_PAGE_SIZE_AT = 40
_LAST = struct.Struct("<QQ")
_LAST_AT = 136
_META_FLAG, _MAGIC, _VERSION = 0x08, 0xBEEFC0DE, 1
_PAGE_SIZES = tuple(256 << i for i in range(9))
# Reading on over a gap costs less than another request, up to about here.
_GAP_BYTES = 64 << 10
_PLACE = struct.Struct("<q")
# Before a key: size of the value, in two halves, flags, size of the key. Behind it the value, or, if it is large, the
# number of its first page, on which it comes behind the head.
_NODE = struct.Struct("<HHHH")
_PAGE_NUMBER = struct.Struct("<Q")
_PAGE_HEAD_BYTES = 16
# In the head of a page: where the numbers end that tell where its nodes are.
_LOWER, _LOWER_AT = struct.Struct("<H"), 12
_ON_OWN_PAGES, _DATABASE = 0x01, 0x02


class Place(NamedTuple):
    """Of a value: byte of the file, bytes. database: whether it stands for a database."""

    at: int
    size: int
    database: bool = False


@dataclass(frozen=True)
class Meta:
    """page: bytes of one. last: number of the last one in use. transaction: of the last one that was committed."""

    page: int
    last: int
    transaction: int


def read_meta(read: Callable[[int, int], bytes], name: str) -> Meta:
    """What the newer meta page says. read: bytes at a place. SourceError, naming file and byte, if there are no two."""
    first = _meta(read(0, META_BYTES), 0, name)
    second = _meta(read(first.page, META_BYTES), first.page, name)
    return max(first, second, key=lambda meta: meta.transaction)


def _meta(data: bytes, at: int, name: str) -> Meta:
    where = f"{name}: byte {at:,}"
    if len(data) < META_BYTES:
        raise SourceError(f"{where}: the file ends within a meta page: truncated, or no LMDB")
    _, _, flags, _, magic, version, _, _ = _HEAD.unpack_from(data)
    if magic != _MAGIC or not flags & _META_FLAG:
        raise SourceError(f"{where}: is no meta page of an LMDB of this byte order and word size")
    if version != _VERSION:
        raise SourceError(
            f"{where}: data format {version}, of which only {_VERSION} can be read; copy it with mdb_dump"
        )
    (page,) = struct.unpack_from("<I", data, _PAGE_SIZE_AT)
    if page not in _PAGE_SIZES or at not in (0, page):
        raise SourceError(f"{where}: says that pages have {page:,} bytes: damaged")
    return Meta(page, *_LAST.unpack_from(data, _LAST_AT))


def check_length(meta: Meta, size: int, name: str) -> None:
    """SourceError if the file is cut within a page.

    It may lack pages at its end: those that a transaction took and gave back again are not written. Whether one that
    is needed is missing shows when it is followed.
    """
    if size % meta.page:
        raise SourceError(f"{name}: {shortage(meta, size)}: truncated")


def shortage(meta: Meta, size: int) -> str:
    """How long a file is and should be, in words."""
    return f"ends at byte {size:,}, its pages are in use up to byte {(meta.last + 1) * meta.page:,}"


class MappedFile:
    """A file that the library has mapped, and this too: places of what it finds, and pages asked for ahead.

    progress: 8 bytes where the place that was found last is left, for whoever sees this process crash.
    """

    def __init__(self, path: str, progress: mmap.mmap) -> None:
        self.name = os.path.basename(path)
        self._fd = os.open(path, os.O_RDONLY)
        self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._bytes = memoryview(self._map)
        self._progress = progress
        self._base: int | None = None
        self._asked = -1
        self.meta = self.read_meta()

    def read_meta(self) -> Meta:
        """As it is now."""
        return read_meta(lambda at, size: os.pread(self._fd, size, at), self.name)

    def value(self, place: Place) -> memoryview:
        """The bytes of a value; pages are read as they are touched."""
        return self._bytes[place.at : place.at + place.size]

    def place_of(self, value: memoryview) -> Place:
        """Where a value, or key, of the library lies. SourceError if that is not in the file."""
        if not len(value):
            return Place(0, 0)
        address: int = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
        if self._base is None:
            self._base = _base_of_map(address)
        return self._checked(address - self._base, len(value))

    def place_behind(self, key: memoryview) -> Place:
        """Where the value of a key of the library lies. SourceError if that is not in the file."""
        at = self.place_of(key).at
        self._ask_ahead(at)
        low, high, flags, length = self._read(_NODE, at - _NODE.size)
        if length != len(key):
            raise SourceError(f"{self.name}: byte {at:,}: a key of {len(key)} bytes claims {length}: damaged")
        size, at = low | high << 16, at + length
        if flags & _ON_OWN_PAGES:
            at = self._read(_PAGE_NUMBER, at)[0] * self.meta.page + _PAGE_HEAD_BYTES
        return self._checked(at, size, bool(flags & _DATABASE))

    def _ask_ahead(self, at: int) -> None:
        """Have the kernel read what the nodes of a page with keys lead to, when the first of its keys is seen.

        The first page of a large value, which the library touches as it walks, and the last, which the reader of
        Datums looks at; that of one mostly adjoins the first of the next. All are asked for at once: one by one, each
        would be waited for.
        """
        page = at // self.meta.page
        if page == self._asked:
            return
        self._asked = page
        begin = end = 0
        for first, last in sorted(self._ends_of_values(page * self.meta.page)):
            for at in (first, last):
                if at - end > _GAP_BYTES:
                    self._ask(begin, end)
                    begin = at
                end = at + 1
        self._ask(begin, end)

    def _ask(self, begin: int, end: int) -> None:
        if end > begin:
            os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_WILLNEED)

    def _ends_of_values(self, page: int) -> Iterator[tuple[int, int]]:
        """First and last bytes of the large values of a page with keys; damage is not its business."""
        try:
            (lower,) = _LOWER.unpack_from(self._map, page + _LOWER_AT)
            count = max(0, min(lower, self.meta.page) - _PAGE_HEAD_BYTES) // 2
            for node in struct.unpack_from(f"<{count}H", self._map, page + _PAGE_HEAD_BYTES):
                low, high, flags, length = _NODE.unpack_from(self._map, page + node)
                if flags & _ON_OWN_PAGES:
                    (number,) = _PAGE_NUMBER.unpack_from(self._map, page + node + _NODE.size + length)
                    first = number * self.meta.page
                    last = first + _PAGE_HEAD_BYTES + (low | high << 16) - 1
                    if last < len(self._bytes):
                        yield first, last
        except struct.error:
            return

    def _read(self, form: struct.Struct, at: int) -> tuple[int, ...]:
        self._checked(at, form.size)
        return form.unpack_from(self._map, at)

    def _checked(self, at: int, size: int, database: bool = False) -> Place:
        if at < 0 or at + size > len(self._bytes):
            text = f"{self.name}: byte {at:,}: claims {size:,} bytes, the file ends at byte {len(self._bytes):,}"
            raise SourceError(f"{text}: truncated or damaged")
        _PLACE.pack_into(self._progress, 0, at)
        return Place(at, size, database)


def place_reached(progress: mmap.mmap) -> int:
    """What a `MappedFile` has left."""
    at: int = _PLACE.unpack_from(progress)[0]
    return at


def _base_of_map(address: int) -> int:
    """Where byte 0 of the file is, that is mapped at an address, or would be."""
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            span, _, offset, _ = line.split(maxsplit=3)
            first, last = (int(end, 16) for end in span.split(b"-"))
            if first <= address < last:
                return first - int(offset, 16)
    raise SourceError("a value of the LMDB lies outside of all maps")
