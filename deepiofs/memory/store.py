"""The layout of a rank's store, which is its window: a page of header, then units, each behind its own header.

    unit header, 16 bytes:  u64 xxh3_64 of the bytes, u64 state (EMPTY, LOADED, BROKEN)

The header lies right before the bytes, so that one get brings digest, state and bytes together. The window is
never exposed before a unit is filled: its state is written last, and memfd pages are zero (EMPTY).

**Threading.** One writer per unit (a loader thread of the home's engine), several units at a time; readers anywhere,
they see EMPTY or a whole unit.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from deepiofs.memory.segments import Segment

EMPTY, LOADED, BROKEN = 0, 1, 2
HEADER_BYTES = 16
UNITS_AT = 4096
_HEADER = struct.Struct("<QQ")
_STATE_AT = 8

T = TypeVar("T", int, npt.NDArray[np.int64])


def span(size: T) -> T:
    """Bytes that a unit takes in a store: header and bytes, rounded up to 16."""
    return (size + HEADER_BYTES + 15) // 16 * 16


def split(unit: memoryview) -> tuple[int, int, memoryview]:
    """(digest, state, bytes) of a unit with its header, as a get brings it."""
    digest, state = _HEADER.unpack_from(unit)
    return digest, state, unit[HEADER_BYTES:]


def genuine(unit: memoryview) -> bool:
    """Whether the bytes behind a header are those that it was written for."""
    digest, _, data = split(unit)
    return xxhash.xxh3_64_intdigest(data) == digest


class Store:
    """Units in a segment, by their place."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._view = segment.view
        self._copying = threading.Lock()

    def state(self, at: int) -> int:
        return int.from_bytes(self._view[at + _STATE_AT : at + HEADER_BYTES], "little")

    def unit(self, at: int, size: int) -> memoryview:
        """Header and bytes."""
        return self._view[at : at + HEADER_BYTES + size]

    def data(self, at: int, size: int) -> memoryview:
        """The bytes alone: what a source is read into, and what a reader gets."""
        return self._view[at + HEADER_BYTES : at + HEADER_BYTES + size]

    def loaded(self, at: int, size: int) -> memoryview | None:
        """The bytes alone, if they are there."""
        # States are small numbers: the first of their eight bytes tells them apart.
        return (
            self._view[at + HEADER_BYTES : at + HEADER_BYTES + size] if self._view[at + _STATE_AT] == LOADED else None
        )

    def publish(self, at: int, size: int) -> None:
        """Digest the bytes that are there now, then let everyone see them."""
        digest = xxhash.xxh3_64_intdigest(self.data(at, size))
        _HEADER.pack_into(self._view, at, digest, EMPTY)
        _HEADER.pack_into(self._view, at, digest, LOADED)

    def write(self, at: int, data: memoryview) -> None:
        """Have the kernel copy bytes into the segment, and the digest; then let everyone see them.

        OSError (ENOMEM, ENOSPC) if there is no memory for them.
        """
        digest = xxhash.xxh3_64_intdigest(data)
        self._copy((_HEADER.pack(digest, EMPTY), data), at, HEADER_BYTES + len(data))
        _HEADER.pack_into(self._view, at, digest, LOADED)

    def write_pieces(self, at: int, pieces: Iterable[memoryview]) -> None:
        """The same with bytes that come in pieces; each may be overwritten when the next is asked for."""
        digest = xxhash.xxh3_64()
        end = at + HEADER_BYTES
        for piece in pieces:
            digest.update(piece)
            self._copy((piece,), end, len(piece))
            end += len(piece)
        _HEADER.pack_into(self._view, at, digest.intdigest(), EMPTY)
        _HEADER.pack_into(self._view, at, digest.intdigest(), LOADED)

    def _copy(self, parts: tuple[bytes | memoryview, ...], at: int, size: int) -> None:
        # The kernel lets one thread at a time write to a file. Others would spin for it, and hand the
        # interpreter's lock around; asleep they cost nothing. Of 8 threads on 2 cores: 160 us of processor time per
        # 100 KB, and 210 without it.
        with self._copying:
            written = os.pwritev(self.segment.fd, parts, at)
        if written != size:
            raise OSError(errno.ENOMEM, "no memory for what was read")

    def give_up(self, at: int) -> None:
        """Say that the source would not give these bytes: readers ask the source themselves and get its errno."""
        _HEADER.pack_into(self._view, at, 0, BROKEN)
