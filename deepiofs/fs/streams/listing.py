"""Members of a list: one path per line, those of the tar in its order, for readers who open `exact/` themselves."""

from __future__ import annotations

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.fs.streams.layout import Ints, Rows
from deepiofs.fs.streams.tar import path_lengths


class Listing:
    """The format `list`. A path has the bytes of its names, and is ended by a newline, whatever it contains."""

    name = "list"
    extension = "txt"
    ending = b""
    has_data = False
    is_summed = False

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def head_lengths(self, rows: Rows) -> Ints:
        return path_lengths(self._manifest, rows) + 1

    def tail_lengths(self, sizes: Ints) -> Ints:
        return np.zeros(len(sizes), np.int64)

    def head(self, row: int) -> bytes:
        """The line."""
        return self._manifest.path(row) + b"\n"

    def tail(self, size: int, checksum: int) -> bytes:
        return b""

    def extend(self, checksum: int, data: memoryview | bytes) -> int:
        return 0
