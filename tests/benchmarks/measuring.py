"""What the benchmarks of several views share: taking turns, differences of counters, medians, a table."""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.readers import Reading, Seat, read_together
from tests.mounts import Mount, MpiMount, Place

Counters = Mapping[str, float]


@dataclass(frozen=True)
class View:
    """A way to read a dataset: the readers' seats, and the counters of what serves them."""

    name: str
    seats: Sequence[Seat]
    counters: Callable[[], Counters] = dict


@dataclass(frozen=True)
class Measured:
    """One reading, and by how much the counters went up meanwhile."""

    reading: Reading
    counted: Counters

    @property
    def files_per_second(self) -> float:
        return self.reading.files / self.reading.seconds


def measure(view: View, names: Sequence[str], seed: int) -> Measured:
    """Read all names through a view."""
    before = view.counters()
    reading = read_together(view.seats, names, seed)
    after = view.counters()
    return Measured(reading, {name: after[name] - before[name] for name in after})


def take_turns(
    views: Sequence[View], names: Sequence[str], repetitions: int, prepare: Callable[[], None]
) -> dict[str, list[Measured]]:
    """All names through each view, once per repetition, with another view first each time: drift meets all alike.

    `prepare` comes before each. One more reading of each is not counted: the first finds programs cold.
    """
    measured: dict[str, list[Measured]] = {view.name: [] for view in views}
    for repetition in range(-1, repetitions):
        first = repetition % len(views)
        for view in (*views[first:], *views[:first]):
            prepare()
            one = measure(view, names, repetition)
            if repetition >= 0:
                measured[view.name].append(one)
    return measured


def view_of(name: str, mount: Mount | MpiMount, readers_per_rank: int, step_s: float = 0.0) -> View:
    """Readers where the ranks are, through their mounts."""
    if isinstance(mount, Mount):
        return View(name, [Seat(Place(), mount.point, step_s)] * readers_per_rank, lambda: _added([mount.stats()]))
    ranks = range(len(mount.mountpoints))
    seats = [
        Seat(mount.places[rank], mount.mountpoints[rank], step_s) for rank in ranks for _ in range(readers_per_rank)
    ]
    return View(name, seats, lambda: _added([mount.stats(rank) for rank in ranks]))


def resident_bytes(mount: Mount | MpiMount) -> int:
    """In the stores of all ranks."""
    stats = [mount.stats()] if isinstance(mount, Mount) else map(mount.stats, range(len(mount.mountpoints)))
    return sum(said["resident_bytes"] for said in stats)


def _added(stats: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The counters of all ranks, those by origin as `served.peer` and so on."""
    total: dict[str, float] = {}
    for said in stats:
        for name in ("source_bytes", "stalls", "stall_ms", "steals"):
            total[name] = total.get(name, 0) + said[name]
        for origin, count in said["served_bytes"].items():
            total[f"served_bytes.{origin}"] = total.get(f"served_bytes.{origin}", 0) + count
    return total


def ratio(values: Sequence[float], reference: Sequence[float]) -> float:
    """The median of the ratios within each repetition, which hold better than those of the medians."""
    return statistics.median(a / b for a, b in zip(values, reference, strict=True))


def clean_up_on_sigterm() -> None:
    """Leave as after an error: mounts, loop devices and control groups would outlive this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class Table:
    """A Markdown table, printed line by line as the numbers come."""

    def __init__(self, *columns: str) -> None:
        self.row(*columns)
        self.row(*["---"] * len(columns))

    def row(self, *cells: object) -> None:
        print("|", " | ".join(map(str, cells)), "|", flush=True)
