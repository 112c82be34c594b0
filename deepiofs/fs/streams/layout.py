"""Where everything lies in a stream, without its bytes: members one behind the other, then an ending.

A member is a head, which is rendered when it is read, a file's data (or none), and a tail. It takes 20 bytes of
memory; no object is made of it.

**Threading.** Read-only after construction.
"""

from __future__ import annotations

import bisect
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest

Rows = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]


class Format(Protocol):
    """How members are framed. Lengths are known without rendering anything."""

    name: str
    extension: str
    ending: bytes
    has_data: bool
    is_summed: bool  # whether a tail is computed from the data: `tail` then gets their checksum

    def head_lengths(self, rows: Rows) -> Ints:
        """Bytes before the data of each of these files, int64."""

    def tail_lengths(self, sizes: Ints) -> Ints:
        """Bytes behind data of these sizes, int64."""

    def head(self, row: int) -> bytes:
        """What comes before the data of a file."""

    def tail(self, size: int, checksum: int) -> bytes:
        """What comes behind data of this size."""

    def extend(self, checksum: int, data: memoryview | bytes) -> int:
        """The checksum of what it was of, and these bytes behind it; 0 is that of nothing."""


class Layout:
    """One stream.

    rows: uint32 (n,), the file of each member. offset_of: int64 (n + 1,), where each begins, and the ending. data_at:
    int64 (n,), where the data of each begin. size: of it all, bytes.
    """

    def __init__(self, form: Format, manifest: Manifest, rows: Rows) -> None:
        self.form = form
        self.rows = rows
        sizes = manifest.sizes[rows] if form.has_data else np.zeros(len(rows), np.int64)
        heads = form.head_lengths(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(heads + sizes + form.tail_lengths(sizes), out=offsets[1:])
        # Reading one element through a memoryview takes a third of the time of numpy's scalar indexing.
        self.row_of, self.offset_of, self.data_at = self.rows.data, offsets.data, (offsets[:-1] + heads).data
        self._size_of = manifest.size_of
        self.size = int(offsets[-1]) + len(form.ending)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, at: int) -> int:
        """The member that a byte is in; their number for the ending."""
        return bisect.bisect_right(self.offset_of, at) - 1

    def data_range(self, index: int) -> tuple[int, int]:
        """Where the data of a member begin and end in the stream."""
        begin = self.data_at[index]
        return begin, begin + (self._size_of[self.row_of[index]] if self.form.has_data else 0)
