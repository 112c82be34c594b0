"""Is a slow source kept busy? `python -m tests.benchmarks.throttled [--quick] [--option OPTION ...]`.

A source of 100 MB/s (`tests.slowsource`) and a dataset three times as large as the memories of all ranks of a mount
together. What is resident comes from memory; the rest has to cross the device once in each pass, which takes at
least its bytes / 100 MB/s: `of the least` is that time by the time taken. Four readers open names in random order.
One rank, and two ranks on one host, which share the rate; the mounts are alive together and read in turn.

Cache policy: before each pass what was read ahead has come to rest, and the kernel's caches are dropped, those of the
source's file system and of the mounts; in a pass each file is read once, so nothing can be served from them. That is
shown by `device`: the bytes that crossed the device, by those that are not resident. `source` is the same by the
mounts' own counters. Medians. Target: 0.9 of the least, 1.0 each.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.measuring import (
    Counters,
    Measured,
    Table,
    View,
    clean_up_on_sigterm,
    resident_bytes,
    take_turns,
    view_of,
)
from tests.benchmarks.readers import make_files
from tests.launchers import installed_launchers
from tests.mounts import Mount, MpiMount, Place, mounted, mpi_mounted
from tests.slowsource import SlowSource, slow_source

_BYTES, _PER_DIRECTORY, _READERS = 100 << 10, 500, 4
_TIMES_THE_CACHE = 3


@dataclass(frozen=True)
class Case:
    """A mount over the slow source, and what it holds."""

    ranks: int
    shuffle: str
    view: View
    resident: int


@contextlib.contextmanager
def case(slow: SlowSource, folder: Path, ranks: int, shuffle: str, wanted: argparse.Namespace) -> Iterator[Case]:
    """Mounted, and loaded at the source's rate."""
    folder.mkdir()
    cache = wanted.files * _BYTES // _TIMES_THE_CACHE // ranks
    options = (f"shuffle={shuffle}", f"cache={cache}", "staging=256M", *wanted.option)
    with _mount(slow, folder, ranks, options) as mount:
        yield Case(ranks, shuffle, view_of(f"{ranks} {shuffle}", mount, _READERS // ranks), resident_bytes(mount))


def _mount(
    slow: SlowSource, folder: Path, ranks: int, options: Sequence[str]
) -> contextlib.AbstractContextManager[Mount | MpiMount]:
    if ranks == 1:
        return mounted(slow.root, folder, "mpi=off", *options, place=Place(slow.prefix))
    return mpi_mounted(installed_launchers()[0], ranks, slow.root, folder, *options, prefix=slow.prefix)


def run(slow: SlowSource, folder: Path, names: Sequence[str], wanted: argparse.Namespace) -> None:
    """All cases; prints a row for each."""
    with contextlib.ExitStack() as stack:
        cases = {}
        for ranks in wanted.ranks:
            for shuffle in wanted.shuffle:
                made = case(slow, folder / f"{ranks}{shuffle}", ranks, shuffle, wanted)
                cases[f"{ranks} {shuffle}"] = stack.enter_context(made)
        views = [_with_device(each.view, slow) for each in cases.values()]
        measured = take_turns(views, names, wanted.repetitions, slow.evict)
        table = Table("ranks", "shuffle", "resident", "MB/s", "seconds", "least", "of the least", "source", "device")
        for name, each in cases.items():
            table.row(*_cells(each, measured[name], slow.rate))


def _with_device(view: View, slow: SlowSource) -> View:
    def counters() -> Counters:
        return {**view.counters(), "device": slow.device_bytes}

    return View(view.name, view.seats, counters)


def _cells(each: Case, measured: Sequence[Measured], rate: int) -> list[str]:
    total = measured[0].reading.bytes
    elsewhere = total - each.resident
    seconds = statistics.median(one.reading.seconds for one in measured)
    source, device = (statistics.median(one.counted[key] for one in measured) for key in ("source_bytes", "device"))
    least = elsewhere / rate
    return [str(each.ranks), each.shuffle, f"{each.resident / total:.0%}", f"{total / seconds / 1e6:.0f}",
            f"{seconds:.2f}", f"{least:.2f}", f"{least / seconds:.2f}", f"{source / elsewhere:.3f}",
            f"{device / elsewhere:.3f}"]  # fmt: skip


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, once: only to see that it works")
    parser.add_argument("--files", type=int, help="9000")
    parser.add_argument("--rate", type=int, default=100_000_000, help="bytes/s of the source")
    parser.add_argument("--repetitions", type=int, help="passes; 5")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shuffle", nargs="+", choices=["all", "dir"])
    parser.add_argument("--option", action="append", default=[], help="a further option of the mounts")
    wanted = parser.parse_args()
    wanted.files = wanted.files or (900 if wanted.quick else 9000)
    wanted.repetitions = wanted.repetitions or (1 if wanted.quick else 5)
    wanted.shuffle = wanted.shuffle or (["all"] if wanted.quick else ["all", "dir"])
    with (
        tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder,
        slow_source(wanted.rate, wanted.files * _BYTES) as slow,
    ):
        names = make_files(slow.root, wanted.files, _BYTES, _PER_DIRECTORY)
        print(f"{wanted.files:,} files of 100 KiB, source of {wanted.rate / 1e6:g} MB/s, "
              f"all page caches dropped before each of {wanted.repetitions} passes")  # fmt: skip
        run(slow, Path(folder), names, wanted)


if __name__ == "__main__":
    main()
