"""The situation of LMDBIO (HPCC 2017, doi 10.1109/HPCC-SmartCity-DSS.2017.29): `python -m tests.benchmarks.lmdbio`.

Caffe's processes read an LMDB on slow storage in order: of each global batch process r of R takes the r-th part, and
moves its cursor past those of the others. Two hosts (`tests.lab`) with 8 reader processes each; raw Datums of
3 x 256 x 256 pixels, as of ImageNet for Caffe. The storage (`tests.slowsource`) is an ext4 in memory on a loop device
whose reads a control group (cgroup v1, blkio.throttle) holds to a rate of bytes and, with --requests, to a number of
requests per second, as a disk does; both hosts share the device, its rate, and, as they are one kernel, its page cache
(on a cluster each node has its own, and reads by itself what its neighbour has read: that favours the native readers).

native       the library's map of the file on the storage; of a skipped record it touches one page
lmdb:        one rank per host over `lmdb:DIR`, each record a file
directory    one rank per host over the directory, the library's map of the file in the mount

The first pass begins with nothing in memory: just mounted (what that takes is told), or the file just opened. The
page cache is dropped before it, and again before the second pass, also that of the mounts: on a cluster the dataset is
larger than a node's page cache, or the client of the parallel file system gives it up; native readers then have
the storage, and deepiofs its own memory. `warm` is a second native pass with nothing dropped. In turn, with readers
started anew; medians; `factor` is the median of the ratios to native within each repetition. The paper: nearly 20 in
some cases. Targets: 2 in the first pass, 10 in the second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from tests.benchmarks.measuring import Table, clean_up_on_sigterm, ratio
from tests.lab import Lab
from tests.launchers import installed_launchers
from tests.mounts import MpiMount, Place, mpi_mounted, on_host
from tests.slowsource import SlowSource, slow_source
from tests.sources.lmdbs import datum_of

_SHAPE = {"channels": 3, "height": 256, "width": 256}
_PIXELS = 3 * 256 * 256
_LABELS = 100
_READERS = 8
_BATCH = 16
_READER = """
import json, sys, time
how, path, rank, ranks, batch, count, labels = *sys.argv[1:3], *map(int, sys.argv[3:])
mine = [i for i in range(count) if i // batch % ranks == rank]
total = 0
if how == "map":
    import lmdb
    environment = lmdb.open(path, readonly=True, lock=False)
print("ready", flush=True)
sys.stdin.readline()
if how == "map":
    with environment.begin() as transaction:
        cursor, at = transaction.cursor(), -1
        for i in mine:
            while at < i:
                at += cursor.next()
            total += len(cursor.value())
else:
    for i in mine:
        with open(f"{path}/{i % labels}/{i:08}", "rb", buffering=0) as file:
            total += len(file.read())
print(json.dumps([time.monotonic(), total]), flush=True)
"""


@dataclass(frozen=True)
class Pass:
    """seconds; device: bytes that crossed it; setting_up: seconds of mounting before it."""

    seconds: float
    device: int
    setting_up: float = 0.0


@dataclass(frozen=True)
class Scene:
    """All that a measurement needs."""

    slow: SlowSource
    lab: Lab
    folder: Path
    count: int

    @property
    def hosts(self) -> list[Place]:
        return [on_host(self.lab, host) for host in self.lab.hosts]

    def read(self, places: Sequence[Place], paths: Sequence[Path], how: str) -> Pass:
        """One pass of 8 readers at each place."""
        line = [sys.executable, "-c", _READER, how]
        n = _READERS * len(places)
        readers = []
        for rank in range(n):
            seat = rank // _READERS
            numbers = map(str, (rank, n, _BATCH, self.count, _LABELS))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            readers.append(places[seat].start([*line, str(paths[seat]), *numbers], **pipes))
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        before, begun = self.slow.device_bytes, time.monotonic()
        for reader in readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        said = [json.loads(reader.stdout.readline()) for reader in readers]
        device = self.slow.device_bytes - before
        for reader in readers:
            reader.communicate()
        assert sum(total for _, total in said) >= self.count * _PIXELS
        return Pass(max(ended for ended, _ in said) - begun, device)


def native(scene: Scene) -> dict[str, Pass]:
    """First, second, and warm."""
    places = [Place((*scene.slow.prefix, *place.prefix), place.process) for place in scene.hosts]
    found = {}
    for name in ("first", "second", "warm"):
        if name != "warm":
            scene.slow.evict()
        found[name] = scene.read(places, [scene.slow.root / "db"] * 2, "map")
    return found


def through(scene: Scene, source: str, below: str, how: str) -> dict[str, Pass]:
    """First and second pass through a mount."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=scene.folder) as folder:
        scene.slow.evict()
        begun = time.monotonic()
        mount = stack.enter_context(_mount(scene, source, Path(folder)))
        setting_up = time.monotonic() - begun
        paths = [point / below for point in mount.mountpoints]
        first = scene.read(mount.places, paths, how)
        mount.wait("warm")
        scene.slow.evict()
        second = scene.read(mount.places, paths, how)
    return {"first": Pass(first.seconds, first.device, setting_up), "second": second}


def _mount(scene: Scene, source: str, folder: Path) -> contextlib.AbstractContextManager[MpiMount]:
    cache = scene.count * (_PIXELS + 4096) * 3 // 4
    options = (f"cache={cache}", "staging=64M")
    launcher = installed_launchers()[0]
    return mpi_mounted(
        launcher, 2, Path(source), folder, *options, lab=scene.lab, until="mounted", prefix=scene.slow.prefix
    )


WAYS: dict[str, Callable[[Scene], dict[str, Pass]]] = {
    "native": native,
    "lmdb:": lambda scene: through(scene, f"lmdb:{scene.slow.root}/db", "", "files"),
    "directory": lambda scene: through(scene, str(scene.slow.root), "db", "map"),
}


def make(path: Path, count: int) -> None:
    """An LMDB as Caffe's convert_imageset writes it."""
    block = random.Random(0).randbytes(_PIXELS + count)
    room = count * (_PIXELS + 16384) + (1 << 24)
    with lmdb.open(str(path), map_size=room, lock=False) as environment, environment.begin(write=True) as transaction:
        for i in range(count):
            transaction.put(b"%08d" % i, datum_of(i % _LABELS, block[i : i + _PIXELS], **_SHAPE))


@contextlib.contextmanager
def scene(rate: int, requests: int, count: int) -> Iterator[Scene]:
    """The storage, the hosts, and the LMDB on it."""
    with (
        tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder,
        slow_source(rate, count * (_PIXELS + 8192), requests) as slow,
    ):
        make(slow.root / "db", count)
        with Lab() as lab:
            yield Scene(slow, lab, Path(folder), count)


def report(measured: dict[str, list[dict[str, Pass]]], count: int) -> None:
    """The table."""
    table = Table("read through", "pass", "seconds", "from - to", "MB/s", "factor", "device", "mounting s")
    total = count * _PIXELS
    for way, runs in measured.items():
        for name in runs[0]:
            each = [run[name] for run in runs]
            seconds = [one.seconds for one in each]
            against = [run["second" if name == "warm" else name].seconds for run in measured["native"]]
            table.row(way, name, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} - {max(seconds):.2f}",
                      f"{total / statistics.median(seconds) / 1e6:.0f}", f"{ratio(against, seconds):.1f}",
                      f"{statistics.median(one.device for one in each) / total:.2f}",
                      f"{statistics.median(one.setting_up for one in each):.1f}")  # fmt: skip


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, once: only to see that it works")
    parser.add_argument("--records", type=int, help="1536")
    parser.add_argument("--rate", type=int, default=20_000_000, help="bytes/s of the storage; 20,000,000")
    parser.add_argument("--requests", type=int, default=0, help="requests/s of the storage; 0: as many as they like")
    parser.add_argument("--repetitions", type=int, help="3")
    wanted = parser.parse_args()
    count = wanted.records or (512 if wanted.quick else 1536)
    repetitions = wanted.repetitions or (1 if wanted.quick else 3)
    measured: dict[str, list[dict[str, Pass]]] = {way: [] for way in WAYS}
    with scene(wanted.rate, wanted.requests, count) as set_up:
        size = os.path.getsize(set_up.slow.root / "db/data.mdb")
        limit = f" and {wanted.requests} requests/s" if wanted.requests else ""
        print(f"{count:,} records, {size / 1e6:.0f} MB, storage of {wanted.rate / 1e6:g} MB/s{limit}, "
              f"2 hosts of {_READERS} readers, batches of {_BATCH} each; {repetitions} times")  # fmt: skip
        for repetition in range(repetitions):
            first = repetition % len(WAYS)
            for way in (*list(WAYS)[first:], *list(WAYS)[:first]):
                measured[way].append(WAYS[way](set_up))
    report(measured, count)


if __name__ == "__main__":
    main()
