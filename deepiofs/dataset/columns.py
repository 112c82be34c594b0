"""Named numpy arrays in one flat buffer: the form of the index file and of the shared segments.

Layout: magic, format version, header length, total length, header (JSON: `meta`, and name, dtype and length of each
array), the arrays at multiples of 64 bytes, and at the end the xxh3_64 of all before it. Arrays read back are
views of the buffer, nothing is copied.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from deepiofs.errors import IndexMismatchError

MAGIC = b"deepiofs"
VERSION = 1
_PREFIX = struct.Struct("<8sIIQ")
_ALIGN = 64
_DIGEST_BYTES = 8

Arrays = Mapping[str, npt.NDArray[Any]]


def _aligned(place: int) -> int:
    return -(-place // _ALIGN) * _ALIGN


def _header(meta: Mapping[str, Any], arrays: Arrays) -> tuple[bytes, list[int], int]:
    """The header, where each array goes, and the length of it all."""
    table = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    header = json.dumps({"meta": dict(meta), "arrays": table}).encode()
    place = _aligned(_PREFIX.size + len(header))
    places = []
    for array in arrays.values():
        places.append(place)
        place = _aligned(place + array.nbytes)
    return header, places, place + _DIGEST_BYTES


def packed_size(meta: Mapping[str, Any], arrays: Arrays) -> int:
    """Bytes that `pack_into` will need."""
    return _header(meta, arrays)[2]


def pack_into(buffer: memoryview, meta: Mapping[str, Any], arrays: Arrays) -> None:
    """Write all of it; `buffer` has at least `packed_size` bytes and is zero where nothing is written."""
    header, places, total = _header(meta, arrays)
    buffer = buffer[:total]
    _PREFIX.pack_into(buffer, 0, MAGIC, VERSION, len(header), total)
    buffer[_PREFIX.size : _PREFIX.size + len(header)] = header
    for place, array in zip(places, arrays.values(), strict=True):
        buffer[place : place + array.nbytes] = np.ascontiguousarray(array).data.cast("B")
    buffer[-_DIGEST_BYTES:] = xxhash.xxh3_64_digest(buffer[:-_DIGEST_BYTES])


def unpack(buffer: memoryview) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """`meta` and the arrays, as views of `buffer`.

    Raises IndexMismatchError for a foreign or damaged buffer. The digest is not looked at: see `intact`.
    """
    try:
        magic, version, length, _ = _PREFIX.unpack_from(buffer)
        if magic != MAGIC:
            raise IndexMismatchError("not a deepiofs index")
        if version != VERSION:
            raise IndexMismatchError(f"index format {version}, this program writes {VERSION}")
        header = json.loads(bytes(buffer[_PREFIX.size : _PREFIX.size + length]))
        return header["meta"], _views(buffer, header["arrays"], _PREFIX.size + length)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise IndexMismatchError(f"damaged index: {error}") from None


def packed(buffer: memoryview) -> memoryview:
    """The part of a longer buffer that was written. IndexMismatchError if it is cut short."""
    try:
        magic, _, _, total = _PREFIX.unpack_from(buffer)
    except struct.error:
        raise IndexMismatchError("cut short") from None
    if magic != MAGIC:
        raise IndexMismatchError("not a deepiofs index")
    if total > len(buffer):
        raise IndexMismatchError("cut short")
    return buffer[:total]


def intact(buffer: memoryview) -> bool:
    """Whether the digest at the end is that of the rest; `buffer` is what `packed` returns."""
    return bytes(buffer[-_DIGEST_BYTES:]) == xxhash.xxh3_64_digest(buffer[:-_DIGEST_BYTES])


def _views(buffer: memoryview, table: list[list[Any]], place: int) -> dict[str, npt.NDArray[Any]]:
    views = {}
    for name, dtype, length in table:
        place = _aligned(place)
        views[name] = np.frombuffer(buffer, np.dtype(dtype), length, place)
        place += views[name].nbytes
    return views
