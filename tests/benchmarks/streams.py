"""How fast a stream is: `python -m tests.benchmarks.streams [REPETITIONS]`.

2,000 files of 100 KB in one shuffled mount, warm. Its tar stream of a pass is read in order by one reader; beside it
the same files, opened one by one in random order through the same mount, and a file of the same size that the least
FUSE file system in C (`memoryfs.c`) serves from memory. In turn; the kernel's caches are dropped before each. Medians,
and medians of the ratios within one turn.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.peers import by_c
from tests.benchmarks.readers import drop_caches, files_per_second, make_files
from tests.mounts import Mount, mounted

_FILES, _BYTES = 2000, 100_000
_READ_BYTES = 1 << 20


def megabytes_per_second(path: Path) -> float:
    """One reader, in order, to the end."""
    buffer = bytearray(_READ_BYTES)
    begun, total = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            total += n
    return total / 1e6 / (time.perf_counter() - begun)


def compare(mount: Mount, names: list[str], c_file: Path, repetitions: int) -> None:
    """Print the table."""
    stream = mount.point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar"
    ways: dict[str, Callable[[int], float]] = {
        "shuffled files, one by one": lambda seed: files_per_second(mount.point, names, 1, seed) * _BYTES / 1e6,
        "tar stream": lambda seed: megabytes_per_second(stream),
        "one file by C": lambda seed: megabytes_per_second(c_file),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(-1, repetitions):
        for way, measure in ways.items():
            drop_caches()
            rate = measure(repetition + 1)
            if repetition >= 0:
                rates[way].append(rate)
    print("| | MB/s | stream's share |\n|---|---|---|")
    for way, measured in rates.items():
        ratio = statistics.median(a / b for a, b in zip(rates["tar stream"], measured, strict=True))
        print(f"| {way} | {statistics.median(measured):,.0f} | {ratio:.2f} |")


def main() -> None:
    repetitions = int(sys.argv[1]) if sys.argv[1:] else 7
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:
        folder = Path(name)
        source, point = folder / "source", folder / "mnt"
        names = make_files(source, _FILES, _BYTES)
        point.mkdir()
        with mounted(source, point, "cache=1G", "shuffle=dir") as mount:
            content = folder / "content"
            content.mkdir()
            shutil.copyfile(point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar", content / "file")
            with by_c(content, folder) as root:
                compare(mount, names, root / "file", repetitions)


if __name__ == "__main__":
    main()
