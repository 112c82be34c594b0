"""Does anything grow? `python -m tests.benchmarks.soak [--reads N | --seconds S] [--files F]`.

Exits with 1 if memory does, or if a read brought other bytes than it had to.

Two ranks of one host that take each other for another node (the network between them), `shuffle=dir`, 4,000 files of 4
to 16 KB, of which the two caches together hold two fifths: what peers hold goes through staging all the time. Four
reader processes, two on each mount; three of four reads open a shuffled name and read its file, one reads a piece of a
random exact file. Every byte is compared: a shuffled file has to be one of its directory, whole. Exact reads pass the
page cache (O_DIRECT); shuffled names are never kept by it beyond an open.

The first quarter, but at least 15 s, warms up. Then each figure is sampled every 2 s, and its drift is that of a
straight line through the samples, from first to last.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np

from tests.launchers import installed_launchers
from tests.mounts import MpiMount, mpi_mounted, nothing_left

_DIRECTORIES = 8
_OPTIONS = ("shuffle=dir", "cache=8M", "staging=4M")
# MPICH then takes each rank for a node, and reaches its memory by the network only.
_APART = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
_RANKS, _READERS = 2, 4
_SAMPLE_S = 2.0
_WARM_UP_S = 15.0
_MAY_GROW_MB = 20.0
_MEMORY = ("both, shared once, MB", "mount VmRSS MB", "engine VmRSS MB")


@dataclasses.dataclass(frozen=True)
class Goal:
    """When to stop: after so many reads of all readers, or seconds, whatever is given."""

    reads: int | None
    seconds: float | None

    def share(self, reads: int, seconds: float) -> float:
        """How much of it is done, from 0 to 1."""
        done = (reads / self.reads if self.reads else 0.0, seconds / self.seconds if self.seconds else 0.0)
        return min(max(done), 1.0)


class Shared:
    """What readers and the watcher share: a count for each reader, and when to stop."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.reads: list[Synchronized[int]] = [context.Value("q", 0, lock=False) for _ in range(_READERS)]
        self.wrong: list[Synchronized[int]] = [context.Value("q", 0, lock=False) for _ in range(_READERS)]
        self.over = context.Event()
        self.examples: multiprocessing.Queue[str] = context.Queue()

    @property
    def total(self) -> int:
        return sum(count.value for count in self.reads)


def write(source: Path, files: int) -> dict[str, bytes]:
    """The dataset; its content by name."""
    generator = random.Random(0)
    content = {}
    for i in range(files):
        name = f"d{i % _DIRECTORIES}/{i:05}.bin"
        content[name] = b"%08d" % i + generator.randbytes(generator.randrange(4 << 10, 16 << 10))
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content[name])
    return content


def read(number: int, point: Path, content: dict[str, bytes], shared: Shared) -> None:
    """A reader process."""
    generator = random.Random(number)
    names = list(content)
    by_tag = {(name.partition("/")[0], data[:8]): data for name, data in content.items()}
    while not shared.over.is_set():
        name = generator.choice(names)
        if generator.random() < 0.75:
            data, size = _read(point / name, os.O_RDONLY, 0, 1 << 20)
            right = by_tag.get((name.partition("/")[0], data[:8])) == data
        else:
            at = generator.randrange(len(content[name]))
            data, size = _read(point / ".deepiofs/exact" / name, os.O_RDONLY | os.O_DIRECT, at, 4096)
            right = data == content[name][at : at + 4096]
        shared.reads[number].value += 1
        if not right:
            shared.wrong[number].value += 1
            shared.examples.put(f"reader {number}: {name}, {_compared(data, size, by_tag, name)}")


def _compared(data: bytes, size: int, by_tag: dict[tuple[str, bytes], bytes], name: str) -> str:
    """What is wrong, in words. size: what fstat said after the read."""
    own = by_tag.get((name.partition("/")[0], data[:8]), b"")
    common = next((i for i, (a, b) in enumerate(zip(data, own, strict=False)) if a != b), min(len(data), len(own)))
    rest = "zeros" if not any(data[common:]) else "other bytes"
    return (
        f"{len(data)} bytes, fstat {size}; of sample {data[:8]!r} of {len(own)} bytes the first {common}, then {rest}"
    )


def _read(path: Path, flags: int, at: int, size: int) -> tuple[bytes, int]:
    """Bytes, and the size that the open file is said to have."""
    file = os.open(path, flags)
    try:
        return os.pread(file, size, at), os.fstat(file).st_size
    finally:
        os.close(file)


def look(mounted: MpiMount, rank: int) -> dict[str, float]:
    """The figures of a rank, now."""
    said = mounted.stats(rank)
    pids = {"mount": said["pid"], "engine": said["engine_pid"]}
    figures = {_MEMORY[0]: said["rss_bytes"] / 1e6, "staged MB": said["staged_bytes"] / 1e6}
    for name, pid in pids.items():
        status = Path(f"/proc/{pid}/status").read_text()
        figures[f"{name} VmRSS MB"] = int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6
        figures[f"{name} threads"] = int(status.partition("Threads:")[2].split()[0])
        figures[f"{name} descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
    return figures


def watch(mounted: MpiMount, shared: Shared, goal: Goal) -> tuple[list[float], list[list[dict[str, float]]]]:
    """(seconds, figures of each rank) of all samples after the warm-up."""
    started = time.monotonic()
    times: list[float] = []
    samples: list[list[dict[str, float]]] = []
    done = 0.0
    while done < 1:
        time.sleep(_SAMPLE_S)
        seconds = time.monotonic() - started
        done = goal.share(shared.total, seconds)
        if done >= 0.25 and seconds >= _WARM_UP_S:
            times.append(seconds)
            samples.append([look(mounted, rank) for rank in range(_RANKS)])
    shared.over.set()
    return times, samples


def drift(times: Sequence[float], values: Sequence[float]) -> float:
    """Of a straight line through the samples, from the first to the last."""
    if len(times) < 2:
        return 0.0
    slope = np.polyfit(times, values, 1)[0]
    return float(slope) * (times[-1] - times[0])


def soak(mounted: MpiMount, content: dict[str, bytes], goal: Goal) -> bool:
    """Read, watch, print; whether all was well."""
    shared = Shared()
    context = multiprocessing.get_context("fork")
    readers = [
        context.Process(target=read, args=(i, mounted.mountpoints[i % _RANKS], content, shared), daemon=True)
        for i in range(_READERS)
    ]
    started = time.monotonic()
    for reader in readers:
        reader.start()
    try:
        times, samples = watch(mounted, shared, goal)
    finally:
        shared.over.set()
        for reader in readers:
            reader.join(30)
    seconds = time.monotonic() - started
    wrong, ended = sum(count.value for count in shared.wrong), [reader.exitcode for reader in readers]
    print(f"{shared.total:,} reads in {seconds:.0f} s, {wrong} wrong, readers ended with {ended}; {len(times)} samples")
    while not shared.examples.empty():
        print(f"wrong: {shared.examples.get()}")
    for rank in range(_RANKS):
        said = mounted.stats(rank)
        print(f"rank {rank}: pass {said['pass']}, draws {said['draws']:,}, served {said['served']}, {said['errors']}")
    grown = _table(times, samples)
    for complaint in grown:
        print(f"grown: {complaint}")
    return not grown and not wrong and ended == [0] * _READERS


def _table(times: Sequence[float], samples: Sequence[Sequence[dict[str, float]]]) -> list[str]:
    """Print all figures; those of memory that grew too much."""
    print("| rank | | least | most | drift |\n|---|---|---|---|---|")
    grown = []
    for rank in range(_RANKS):
        for name in samples[0][rank] if samples else ():
            values = [sample[rank][name] for sample in samples]
            change = drift(times, values)
            print(f"| {rank} | {name} | {min(values):.1f} | {max(values):.1f} | {change:+.2f} |")
            if name in _MEMORY and change > _MAY_GROW_MB:
                grown.append(f"rank {rank}: {name} by {change:.1f}")
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--reads", type=int)
    how_long.add_argument("--seconds", type=float)
    parser.add_argument("--files", type=int, default=4000, help="fewer: more readers of one name at a time")
    asked = parser.parse_args()
    goal = Goal(asked.reads if asked.reads or asked.seconds else 2_000_000, asked.seconds)
    with nothing_left(), tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:
        folder = Path(name)
        content = write(folder / "source", asked.files)
        launcher = installed_launchers()[0]
        with mpi_mounted(launcher, _RANKS, folder / "source", folder, *_OPTIONS, environment=_APART) as mounted:
            well = soak(mounted, content, goal)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
