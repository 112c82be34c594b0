"""What does a mount without memory cost? `python -m tests.benchmarks.direct [--quick] [--option OPTION ...]`.

A source of 100 MB/s (`tests.slowsource`); mounts with `cache=0`, so that each byte has to come from it. Four readers,
each name once in random order: through the exact view, through `shuffle=all`, and on the source itself, in turn, all
at the same rate, each while the others rest. Files of 100 KiB, of 1 MiB, and a few of 32 MiB.

Cache policy: before each measurement what was read ahead has come to rest, and the kernel's caches are dropped, those
of the source's file system and of the mounts. MB/s are of the bytes that crossed the device while the readers read,
at most those that they read: what lay in staging before does not count, nor what is read twice. `device` is what
crossed by what was read. Medians; `of direct` is the median of the ratios within each repetition. Target: 0.9.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.measuring import Measured, Table, View, clean_up_on_sigterm, ratio, take_turns
from tests.benchmarks.readers import Seat, make_files
from tests.mounts import Place, mounted
from tests.slowsource import SlowSource, slow_source

_READERS = 4
_SIZES = {"100 KiB": 100 << 10, "1 MiB": 1 << 20, "32 MiB": 32 << 20}


@contextlib.contextmanager
def views_of(slow: SlowSource, source: Path, folder: Path, options: Sequence[str]) -> Iterator[list[View]]:
    """The source itself, and two mounts of it."""
    place = Place(slow.prefix)
    with contextlib.ExitStack() as stack:
        seats = {"direct": [Seat(place, source)] * _READERS}
        for name, shuffle in (("exact", "off"), ("shuffle=all", "all")):
            point = folder / f"{source.name}-{shuffle}"
            point.mkdir()
            chosen = ("mpi=off", "cache=0", "staging=256M", f"shuffle={shuffle}", *options)
            stack.enter_context(mounted(source, point, *chosen, place=place))
            seats[name] = [Seat(Place(), point)] * _READERS
        yield [View(name, each, lambda: {"device": slow.device_bytes}) for name, each in seats.items()]


def compare(slow: SlowSource, views: Sequence[View], names: Sequence[str], repetitions: int) -> Iterator[list[str]]:
    """The rows of one size."""
    measured = take_turns(views, names, repetitions, slow.evict)
    direct = [_rate(one) for one in measured["direct"]]
    for name, each in measured.items():
        rates = [_rate(one) for one in each]
        crossed = statistics.median(one.counted["device"] / one.reading.bytes for one in each)
        yield [name, f"{statistics.median(rates) / 1e6:.1f}", f"{min(rates) / 1e6:.1f} - {max(rates) / 1e6:.1f}",
               f"{ratio(rates, direct):.2f}", f"{crossed:.3f}"]  # fmt: skip


def _rate(one: Measured) -> float:
    return min(one.counted["device"], one.reading.bytes) / one.reading.seconds


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, once: only to see that it works")
    parser.add_argument("--megabytes", type=int, help="of each size; 400")
    parser.add_argument("--rate", type=int, default=100_000_000, help="bytes/s of the source")
    parser.add_argument("--repetitions", type=int, help="5")
    parser.add_argument("--option", action="append", default=[], help="a further option of the mounts")
    wanted = parser.parse_args()
    total = (wanted.megabytes or (24 if wanted.quick else 400)) << 20
    repetitions = wanted.repetitions or (1 if wanted.quick else 5)
    counts = {label: max(_READERS, total // size) for label, size in _SIZES.items()}
    with (
        tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder,
        slow_source(wanted.rate, sum(counts[label] * size for label, size in _SIZES.items())) as slow,
    ):
        print(f"source of {wanted.rate / 1e6:g} MB/s, its page cache and the mounts' dropped; {repetitions} times")
        table = Table("files of", "read through", "MB/s", "from - to", "of direct", "device")
        for label, size in _SIZES.items():
            source = slow.root / str(size)
            names = make_files(source, counts[label], size)
            with views_of(slow, source, Path(folder), wanted.option) as views:
                for row in compare(slow, views, names, repetitions):
                    table.row(label, *row)


if __name__ == "__main__":
    main()
