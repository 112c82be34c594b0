"""Is the network's latency hidden? `python -m tests.benchmarks.hidden [--quick] [--variant OPTIONS ...]`.

Two hosts with one rank each, MPICH, real TCP; files of 100 KiB in 4 class directories, all in the two memories
together. Two readers per host, all at once, open names in random order, as many as there are in all: one pass. The
mounts to compare, by default without exchange, with a full one, and with a full one that fetches nothing ahead, are
alive together and read in turn. Times are added to the round trip between the hosts, half each way; a program in
Python carries the packets then, and takes its share of the two cores.

Readers that do nothing else take all of both cores, and what carrying bytes between hosts takes of them is missing
elsewhere. Readers with a step sleep after each file, as those of a training job that wait for the accelerator: then it
shows whether the latency is hidden.

Cache policy: memory of the mounts warm, the kernel's caches dropped before each measurement. Medians; `of the first`
is the median of the ratios within each repetition. Target: 0.85 with entropy=1 and prefetch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.measuring import Measured, Table, clean_up_on_sigterm, ratio, take_turns, view_of
from tests.benchmarks.readers import drop_caches, make_files
from tests.lab import Lab
from tests.launchers import installed_launchers
from tests.mounts import mpi_mounted

_BYTES, _CLASSES, _READERS = 100 << 10, 4, 2
_VARIANTS = ["entropy=0", "entropy=1", "entropy=1,prefetch=0"]
# An engine polls for a second after it was last needed, and would take time from the next mount's.
_IDLE_S = 1.2


def compare(
    lab: Lab, source: Path, names: Sequence[str], shuffle: str, wanted: argparse.Namespace
) -> Iterator[list[str]]:
    """The rows of one way to shuffle."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder:
        mounts = []
        for number, variant in enumerate(wanted.variant):
            point = Path(folder, str(number))
            point.mkdir()
            options = (f"cache={len(names) * _BYTES}", "staging=256M", f"shuffle={shuffle}", *variant.split(","))
            mount = mpi_mounted(installed_launchers()[0], 2, source, point, *options, lab=lab)
            mounts.append(stack.enter_context(mount))
        for added_ms, step_ms in itertools.product(wanted.added_ms, wanted.step_ms):
            named = zip(wanted.variant, mounts, strict=True)
            views = [view_of(variant, mount, _READERS, step_ms / 1000) for variant, mount in named]
            with _added(lab, added_ms):
                measured = take_turns(views, names, wanted.repetitions, _rest)
            first = _rates(measured[views[0].name])
            for view in views:
                cells = _cells(view.name, measured[view.name], first)
                yield [shuffle, f"+ {added_ms:g} ms", f"{step_ms:g} ms", *cells]


def _rest() -> None:
    time.sleep(_IDLE_S)
    drop_caches()


@contextlib.contextmanager
def _added(lab: Lab, milliseconds: float) -> Iterator[None]:
    if not milliseconds:
        yield
        return
    lab.delay(lab.hosts[0], milliseconds / 2000)
    try:
        yield
    finally:
        lab.undelay(lab.hosts[0])


def _rates(measured: Sequence[Measured]) -> list[float]:
    return [one.files_per_second for one in measured]


def _cells(name: str, measured: Sequence[Measured], first: Sequence[float]) -> list[str]:
    rates = _rates(measured)
    peers = statistics.median(one.counted["served_bytes.peer"] / one.reading.bytes for one in measured)
    stalls, waited = (statistics.median(one.counted[key] for one in measured) for key in ("stalls", "stall_ms"))
    spread = f"{min(rates):,.0f} - {max(rates):,.0f}"
    return [name, f"{statistics.median(rates):,.0f}", spread, f"{ratio(rates, first):.2f}", f"{peers:.1%}",
            f"{stalls:,.0f}", f"{waited:,.0f}"]  # fmt: skip


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few files, once: only to see that it works")
    parser.add_argument("--files", type=int, help="4000")
    parser.add_argument("--repetitions", type=int, help="5")
    parser.add_argument("--variant", action="append", help=f"options of a mount; default: {' and '.join(_VARIANTS)}")
    parser.add_argument("--added-ms", type=float, nargs="+", help="to the round trip; 0 1 2")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0, 8], help="of each reader after a file; 0 8")
    parser.add_argument("--shuffle", nargs="+", choices=["dir", "all"])
    wanted = parser.parse_args()
    wanted.files = wanted.files or (400 if wanted.quick else 4000)
    wanted.repetitions = wanted.repetitions or (1 if wanted.quick else 5)
    wanted.variant = wanted.variant or _VARIANTS
    wanted.shuffle = wanted.shuffle or (["all"] if wanted.quick else ["dir", "all"])
    wanted.added_ms = wanted.added_ms or ([1] if wanted.quick else [0, 1, 2])
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder, Lab() as lab:
        names = make_files(Path(folder), wanted.files, _BYTES, -(-wanted.files // _CLASSES))
        print(f"{wanted.files:,} files of 100 KiB, memory warm, kernel's caches dropped; {wanted.repetitions} times")
        table = Table("shuffle", "round trip", "step", "mount", "files/s", "from - to", "of the first", "from peers",
                      "stalls", "stall ms")  # fmt: skip
        for shuffle in wanted.shuffle:
            for row in compare(lab, Path(folder), names, shuffle, wanted):
                table.row(*row)


if __name__ == "__main__":
    main()
