"""Reader processes for the benchmarks: open, read to the end, close; nothing else.

The program `python readers.py ROOT STEP_S` takes names on its standard input, up to an empty line, says "ready", waits
for another line, reads, and says when it was done and how much it read. It imports no more than that needs. After each
file it sleeps for STEP_S, as a reader does that waits for an accelerator to take what it has read.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mounts import Place

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Seat:
    """Where a reader process runs, the directory that it reads through, and its step, seconds of sleep per file."""

    place: Place
    root: Path
    step_s: float = 0.0


@dataclass(frozen=True)
class Reading:
    """What several readers read together, and the seconds from the start of all to the end of the last."""

    seconds: float
    files: int
    bytes: int


def read_together(seats: Sequence[Seat], names: Sequence[str], seed: int = 0) -> Reading:
    """All names once, in random order, dealt over the seats, as a distributed sampler deals them."""
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    readers = [_seated(seat) for seat in seats]
    try:
        for i, reader in enumerate(readers):
            _tell(reader, "".join(f"{name}\n" for name in shuffled[i :: len(readers)]))
        for reader in readers:
            assert _hear(reader) == "ready"
        begun = time.monotonic()
        for reader in readers:
            _tell(reader, "")
        said = [json.loads(_hear(reader)) for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    return Reading(max(one["ended"] for one in said) - begun, len(shuffled), sum(one["bytes"] for one in said))


def files_per_second(root: Path, names: Sequence[str], readers: int, seed: int = 0) -> float:
    """Of so many readers here, each name read once."""
    from tests.mounts import HERE

    reading = read_together([Seat(HERE, root)] * readers, names, seed)
    return reading.files / reading.seconds


def _seated(seat: Seat) -> subprocess.Popen[str]:
    line = [sys.executable, __file__, str(seat.root), str(seat.step_s)]
    return seat.place.start(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _tell(reader: subprocess.Popen[str], lines: str) -> None:
    assert reader.stdin is not None
    reader.stdin.write(f"{lines}\n")
    reader.stdin.flush()


def _hear(reader: subprocess.Popen[str]) -> str:
    assert reader.stdout is not None
    return reader.stdout.readline().strip()


def drop_caches(sync: bool = True) -> bool:
    """Make the page cache, names and inodes of all file systems cold; False where this process may not.

    sync: also what is to be written first, which takes its time where others write.
    """
    try:
        if sync:
            os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def make_files(root: Path, count: int, size: int, per_directory: int = 1000) -> list[str]:
    """Files of random bytes; their names relative to `root`."""
    generator = random.Random(0)
    block = generator.randbytes(size + count)
    names = []
    for i in range(count):
        name = f"d{i // per_directory:04}/{i:07}.bin"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(block[i : i + size])
        names.append(name)
    return names


def _read(root: str, names: Sequence[str], step_s: float) -> int:
    total = 0
    buffers = [bytearray(_READ_BYTES)]  # an object of a megabyte for each read would cost more than a small file
    for name in names:
        fd = os.open(f"{root}/{name}", os.O_RDONLY)
        while got := os.readv(fd, buffers):
            total += got
        os.close(fd)
        if step_s:
            time.sleep(step_s)
    return total


def main() -> None:
    """The program."""
    names = list(iter(lambda: sys.stdin.readline().rstrip("\n"), ""))
    print("ready", flush=True)
    sys.stdin.readline()
    total = _read(sys.argv[1], names, float(sys.argv[2]))
    print(json.dumps({"ended": time.monotonic(), "bytes": total}), flush=True)


if __name__ == "__main__":
    main()
