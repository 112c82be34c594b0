"""What it costs to bind the mount to the core of who reads: `python -m tests.benchmarks.binding [REPETITIONS]`.

One mount, warm, of 500 files of 100 KB, and two cores. A reader reads all files in random order; with a *busy*
trainer a third program computes without end where the reader is, as the main process of a training does. In turn:

    unbound     the mount, its engine, reader and trainer may run on either core
    same core   all are bound to the first core, as a scheduler does that gives the job one core
    apart       reader and trainer on the first core, mount and engine on the second

The kernel's caches are dropped before each. Medians of files/s, and of the ratios to *unbound* within one turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.measuring import Table, clean_up_on_sigterm, ratio
from tests.benchmarks.readers import Seat, drop_caches, make_files, read_together
from tests.mounts import Mount, Place, mounted

_FILES, _BYTES = 500, 100_000


@dataclass(frozen=True)
class Binding:
    """Cores of the reader and trainer, and of the mount and its engine."""

    reader: frozenset[int]
    mount: frozenset[int]


def bindings(one: int, other: int) -> dict[str, Binding]:
    """The ways, by name."""
    first, second = frozenset({one}), frozenset({other})
    both = first | second
    return {
        "unbound": Binding(both, both),
        "same core": Binding(first, first),
        "apart": Binding(first, second),
    }


def bind(pid: int, cores: frozenset[int]) -> None:
    """All threads of a process."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cores)


@contextlib.contextmanager
def trainer(cores: frozenset[int], is_busy: bool) -> Iterator[None]:
    """A program that computes on these cores for so long, or none."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([*on_cores(cores), sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


def files_per_second(mount: Mount, names: list[str], how: Binding, is_busy: bool, seed: int) -> float:
    """Of one reader."""
    for pid in mount.processes:
        bind(pid, how.mount)
    drop_caches()
    with trainer(how.reader, is_busy):
        reading = read_together([Seat(Place(on_cores(how.reader)), mount.point)], names, seed)
    return reading.files / reading.seconds


def compare(mount: Mount, names: list[str], repetitions: int) -> None:
    """Print the table."""
    one, other = sorted(os.sched_getaffinity(0))[:2]
    ways = bindings(one, other)
    rates: dict[tuple[str, bool], list[float]] = {(way, busy): [] for busy in (False, True) for way in ways}
    for repetition in range(-1, repetitions):
        for (way, busy), measured in rates.items():
            rate = files_per_second(mount, names, ways[way], busy, repetition + 1)
            if repetition >= 0:
                measured.append(rate)
    table = Table("", "files/s", "of unbound", "files/s, busy trainer", "of unbound")
    for way in ways:
        cells = []
        for busy in (False, True):
            cells.append(f"{statistics.median(rates[way, busy]):,.0f}")
            cells.append(f"{ratio(rates[way, busy], rates['unbound', busy]):.2f}")
        table.row(way, *cells)


def on_cores(cores: Iterable[int]) -> tuple[str, ...]:
    """What a command is to begin with, to run there alone."""
    return ("taskset", "-c", ",".join(map(str, sorted(cores))))


def main() -> None:
    clean_up_on_sigterm()
    repetitions = int(sys.argv[1]) if sys.argv[1:] else 7
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:
        source, point = Path(name, "source"), Path(name, "mnt")
        names = make_files(source, _FILES, _BYTES)
        point.mkdir()
        with mounted(source, point, "cache=1G") as mount:
            compare(mount, names, repetitions)


if __name__ == "__main__":
    main()
