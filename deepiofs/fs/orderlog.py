"""The order log: every draw of a mount as CSV (RFC 4180), with a heading; written line by line.

Columns: pass, position (of the draw in this mount, from 0 on), name (the path opened), sample (the path whose bytes
it stands for), origin. Paths are UTF-8 with surrogateescape.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TextIO

from deepiofs.errors import UsageError

_HEADING = ("pass", "position", "name", "sample", "origin")


class OrderLog:
    """An open order log. **Threading.** The trio thread; a line is one write."""

    def __init__(self, path: str) -> None:
        """UsageError if it cannot be written."""
        try:
            self._file: TextIO = Path(path).open("w", 1, "utf-8", "surrogateescape", "")  # noqa: SIM115 - see `close`
        except OSError as error:
            raise UsageError(f"cannot write order_log {path}: {error.strerror}") from None
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(_HEADING)

    def drawn(self, number: int, position: int, name: bytes, sample: bytes, origin: str) -> None:
        """A draw."""
        self._writer.writerow((number, position, os.fsdecode(name), os.fsdecode(sample), origin))

    def close(self) -> None:
        self._file.close()
