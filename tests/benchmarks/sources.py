"""How fast are containers indexed and loaded? `python -m tests.benchmarks.sources [--quick] [--kind KIND ...]`.

The same records in a directory, a tar, TFRecords plain and compressed, and zips stored and deflated; each is one
container. Their bytes are words at random, which deflate to about half.

*Index*: a scan in this process. *Load*: what the engine of a mount of one rank does, in this process: its loader
reads all records into a store of new memory and makes their digests. *cat*: the container's bytes by the time of `cat`
(of all files, for the directory). Cold: the pages of the containers are dropped (posix_fadvise) before each of the
three; warm: nothing is. The device behind is not slowed down. Kinds take turns; medians. CPU is of loading, of all
threads.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import statistics
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo, open_source
from deepiofs.engine.loader import Loader, Own
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Units
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import UNITS_AT, Store, span
from tests.benchmarks.measuring import Table, clean_up_on_sigterm
from tests.packs import framed, tar_member

_SHAPES = {"100 KiB": 100 << 10, "1 KiB": 1 << 10}


@dataclass(frozen=True)
class Packed:
    """A source, and the files that hold its bytes."""

    name: str
    paths: Sequence[Path]

    def drop(self) -> None:
        """Nothing of it is in the page cache; what was just written is on the disk first."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def make_all(folder: Path, count: int, size: int, with_files: bool) -> dict[str, Packed]:
    """Each kind, of the same records."""
    generator = random.Random(1)
    words = [generator.randbytes(16) for _ in range(4096)]
    records = [b"".join(generator.choices(words, k=size // 16)) for _ in range(count)]
    names = [f"c{i % 100:02}/{i:07}.bin" for i in range(count)]
    for name, data in zip(names, records, strict=True) if with_files else ():
        (folder / "dir" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "dir" / name).write_bytes(data)
    with (folder / "a.tar").open("wb") as file:
        for name, data in zip(names, records, strict=True):
            file.write(tar_member(name, data))
        file.write(bytes(1024))
    with (folder / "a.tfrecord").open("wb") as file, gzip.open(folder / "a.tfrecord.gz", "wb", 1) as packed:
        for data in records:
            file.write(framed(data))
            packed.write(framed(data))
    for kind, method in (("zip", zipfile.ZIP_STORED), ("deflated zip", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(folder / f"{kind}.zip", "w", method, compresslevel=1) as archive:
            for name, data in zip(names, records, strict=True):
                archive.writestr(name, data)
    found = {"dir": Packed(str(folder / "dir"), [folder / "dir" / name for name in names])}
    files = {"tar": "a.tar", "tfrecord": "a.tfrecord", "tfrecord, gzip": "a.tfrecord.gz", "zip": "zip.zip",
             "zip, deflated": "deflated zip.zip"}  # fmt: skip
    return found | {kind: Packed(str(folder / file), [folder / file]) for kind, file in files.items()}


def index_s(source: Packed) -> float:
    """Seconds of a scan."""
    opened = open_source(source.name)
    begun = time.perf_counter()
    opened.scan(Selection(), Solo())
    taken = time.perf_counter() - begun
    opened.close()
    return taken


def cat_s(source: Packed) -> float:
    """Seconds of reading its files one after the other."""
    begun = time.perf_counter()
    names = "\0".join(map(str, source.paths)).encode()
    subprocess.run(["xargs", "-0", "cat"], input=names, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def load_s(source: Packed, prepare: Callable[[], None]) -> tuple[float, float]:
    """Seconds of loading all of it, and seconds of CPU."""
    opened = open_source(source.name)
    found = opened.scan(Selection(), Solo())
    assert found is not None
    manifest = Manifest(*found)
    units = Units.of(manifest)
    own = units.in_source_order(manifest, np.arange(len(units.row)))
    places = np.cumsum([UNITS_AT, *map(span, units.size[own].tolist())])
    store = Store(Segment.create("store", int(places[-1]) + UNITS_AT))
    board = Board.create()
    loader = Loader(Own(own.tolist(), places[:-1].tolist()), units, manifest, opened, store, board)

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loader.run)
            await loader.load_all()
            nursery.cancel_scope.cancel()

    prepare()
    begun, cpu = time.perf_counter(), time.process_time()
    trio.run(load)
    taken = time.perf_counter() - begun, time.process_time() - cpu
    assert board[Counter.LOADED_UNITS] == len(own)
    opened.close()
    return taken


def measure(kinds: dict[str, Packed], repetitions: int, cold: bool) -> dict[str, dict[str, list[float]]]:
    """Seconds of everything."""
    names = ("index", "cat", "load", "cpu")
    found: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in names} for kind in kinds}
    for repetition in range(-1, repetitions):
        for kind, source in kinds.items():
            prepare: Callable[[], None] = source.drop if cold else (lambda: None)
            prepare()
            index = index_s(source)
            load, cpu = load_s(source, prepare)
            prepare()
            taken = (index, cat_s(source), load, cpu)
            if repetition >= 0:  # the first finds programs cold
                for name, seconds in zip(names, taken, strict=True):
                    found[kind][name].append(seconds)
    return found


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, once: only to see that it works")
    parser.add_argument("--megabytes", type=int, help="of records of each size; 1000 and 100")
    parser.add_argument("--repetitions", type=int, help="3")
    parser.add_argument("--kind", action="append", help="only these")
    wanted = parser.parse_args()
    repetitions = wanted.repetitions or (1 if wanted.quick else 3)
    table = Table(
        "records of",
        "kind",
        "pages",
        "index, us a record",
        "load, MB/s",
        "cat, MB/s",
        "load by cat",
        "CPU, us a record",
    )
    for label, size in _SHAPES.items():
        megabytes = wanted.megabytes or (10 if wanted.quick else 1000 if size > 10_000 else 100)
        count = megabytes * 1_000_000 // size
        with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:
            made = make_all(Path(name), count, size, not wanted.kind or "dir" in wanted.kind)
            kinds = {kind: source for kind, source in made.items() if not wanted.kind or kind in wanted.kind}
            for pages in ("cold", "warm"):
                for kind, said in measure(kinds, repetitions, pages == "cold").items():
                    stored = sum(path.stat().st_size for path in kinds[kind].paths)
                    seconds = {what: statistics.median(each) for what, each in said.items()}
                    load, cat = count * size / seconds["load"] / 1e6, stored / seconds["cat"] / 1e6
                    by_cat = statistics.median(b / a for a, b in zip(said["load"], said["cat"], strict=True))
                    table.row(label, kind, pages, f"{seconds['index'] / count * 1e6:.1f}", f"{load:.0f}",
                              f"{cat:.0f}", f"{by_cat:.2f}", f"{seconds['cpu'] / count * 1e6:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
