"""A reader that compares every byte: `python -m tests.ranks.reader_program SOURCE MOUNTPOINT SEED`.

It says `ready`, reads random files in random pieces, each past the kernel's pages, until its standard input ends, and
prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

# One request of the kernel: what is promised of a request then holds for a read.
_READ_BYTES = 128 << 10
_KEPT = 5


class Reader:
    """Reads, and what came of them."""

    def __init__(self, source: Path, point: Path, seed: int) -> None:
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        self._point = point
        self._files = [(str(path.relative_to(source)), path.read_bytes()) for path in paths]
        self._random = random.Random(seed)
        self.reads = self.bytes = self.opens = 0
        self.longest_s = 0.0
        self.wrong: list[str] = []
        self.errors: list[str] = []

    def read_one(self) -> None:
        """Open a file, read all of it or a piece of it, close it."""
        name, content = self._random.choice(self._files)
        whole = len(content) < 1 << 20 or self._random.random() < 0.1
        begin = 0 if whole else self._random.randrange(len(content))
        end = len(content) if whole else begin + 2 * _READ_BYTES
        try:
            started = time.monotonic()
            file = os.open(self._point / name, os.O_RDONLY | os.O_DIRECT)
            self._timed(started)
        except OSError as error:
            self.errors.append(f"{name}: open: {error}")
            return
        self.opens += 1
        try:
            for at in range(begin, max(end, 1), _READ_BYTES):
                self._read(file, name, content, at)
        finally:
            os.close(file)

    def report(self) -> dict[str, Any]:
        """All counts, and the first few of what went wrong."""
        return {
            "reads": self.reads, "bytes": self.bytes, "opens": self.opens, "longest_s": round(self.longest_s, 3),
            "wrong": len(self.wrong), "errors": len(self.errors), "examples": (self.wrong + self.errors)[:_KEPT],
        }  # fmt: skip

    def _read(self, file: int, name: str, content: bytes, at: int) -> None:
        started = time.monotonic()
        try:
            data = os.pread(file, _READ_BYTES, at)
        except OSError as error:
            self.errors.append(f"{name} at {at} after {time.monotonic() - started:.2f} s: {error}")
        else:
            self.bytes += len(data)
            if data != content[at : at + _READ_BYTES]:
                self.wrong.append(f"{name} at {at}: {len(data)} bytes that are not the source's")
        self._timed(started)
        self.reads += 1

    def _timed(self, started: float) -> None:
        self.longest_s = max(self.longest_s, time.monotonic() - started)


def main() -> None:
    source, point, seed = sys.argv[1:]
    reader = Reader(Path(source), Path(point), int(seed))
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        reader.read_one()
    print(json.dumps(reader.report()), flush=True)


if __name__ == "__main__":
    main()
