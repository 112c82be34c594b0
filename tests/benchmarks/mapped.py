"""What does reading ahead cost those who map? `python -m tests.benchmarks.mapped [--quick]`.

An LMDB of values of one size, mounted as a plain file in one rank's memory. Processes get values in random order, all
of them once, or a twentieth (as when the kernel's cache holds little of what is read), through the library's map, with
its default advice to the kernel, or with MADV_RANDOM (`readahead=False`), while the mount's `read_ahead_kb` is 128 (the
kernel's default) or 1024 (what a mount of root sets). In turn, medians.

Cache policy: memory of the mount warm, the kernel's caches dropped before each. *Served*: bytes that the mount served
by bytes of the values that were got.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lmdb

from tests.benchmarks.measuring import Table, clean_up_on_sigterm
from tests.benchmarks.readers import drop_caches
from tests.mounts import Mount, mounted

_AHEAD_KB = (128, 1024)
_SHARES = (1.0, 0.05)
Way = tuple[float, int, bool, int]
# Gets its share of the keys in random order and sums a byte of each page, as one does that decodes them.
_READER = """
import lmdb, random, sys, time
path, ahead, part, parts, count, wanted = sys.argv[1], sys.argv[2] == "1", *map(int, sys.argv[3:])
numbers = list(range(count))
random.Random(1).shuffle(numbers)
environment = lmdb.open(path, readonly=True, lock=False, readahead=ahead)
print("ready", flush=True)
sys.stdin.readline()
with environment.begin() as transaction:
    total = sum(len(transaction.get(b"%08d" % i)) for i in numbers[:wanted][part::parts])
print(total, flush=True)
"""


def make(path: Path, count: int, size: int) -> None:
    """An LMDB of random values."""
    block = random.Random(0).randbytes(size + count)
    room = 2 * count * (size + 8192) + (1 << 24)
    with lmdb.open(str(path), map_size=room) as environment, environment.begin(write=True) as transaction:
        for i in range(count):
            transaction.put(b"%08d" % i, block[i : i + size])


def gets(path: Path, processes: int, ahead: bool, count: int, wanted: int) -> float:
    """Seconds until all have all of their values."""
    line = [sys.executable, "-c", _READER, str(path), str(int(ahead))]
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen([*line, *map(str, (i, processes, count, wanted))], **how) for i in range(processes)]
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for reader in readers:
        reader.stdin.write("\n")
        reader.stdin.flush()
    for reader in readers:
        assert int(reader.stdout.readline())
    seconds = time.monotonic() - begun
    for reader in readers:
        reader.communicate()
    return seconds


def compare(mount: Mount, name: str, size: int, count: int, repetitions: int, table: Table) -> None:
    """The rows of one size."""
    bdi = Path(f"/sys/class/bdi/0:{os.minor(os.stat(mount.point).st_dev)}/read_ahead_kb")
    ways = list(itertools.product(_SHARES, (1, 4), (True, False), _AHEAD_KB))
    rates: dict[Way, list[float]] = {way: [] for way in ways}
    served: dict[Way, float] = {}
    for _ in range(repetitions):
        for share, processes, ahead, kilobytes in ways:
            wanted = int(count * share)
            bdi.write_text(str(kilobytes))
            drop_caches()
            before = mount.stats()["bytes_served"]
            seconds = gets(mount.point / name, processes, ahead, count, wanted)
            way = share, processes, ahead, kilobytes
            rates[way].append(wanted / seconds)
            served[way] = (mount.stats()["bytes_served"] - before) / wanted / size
    for way in ways:
        share, processes, ahead, kilobytes = way
        spread = f"{min(rates[way]):,.0f} - {max(rates[way]):,.0f}"
        table.row(f"{size:,}", f"{share:.0%}", str(processes), "default" if ahead else "random", str(kilobytes),
                  f"{statistics.median(rates[way]):,.0f}", spread, f"{served[way]:.2f}")  # fmt: skip


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, once: only to see that it works")
    parser.add_argument("--repetitions", type=int, help="5")
    wanted = parser.parse_args()
    repetitions = wanted.repetitions or (1 if wanted.quick else 5)
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder:
        root, point = Path(folder, "root"), Path(folder, "mount")
        root.mkdir()
        point.mkdir()
        sizes = {3000: 20_000, 100_000: 1500}
        if wanted.quick:
            sizes = {size: count // 10 for size, count in sizes.items()}
        for size, count in sizes.items():
            make(root / str(size), count, size)
        table = Table("bytes", "of all", "processes", "advice", "read_ahead_kb", "gets/s", "from - to", "served")
        with mounted(root, point, "mpi=off", "cache=400M") as mount:
            for size, count in sizes.items():
                compare(mount, str(size), size, count, repetitions, table)


if __name__ == "__main__":
    main()
