"""Several mounts of one node as the way to use more cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.benchmarks.binding import bind, on_cores
from tests.benchmarks.measuring import Measured, View, take_turns, view_of
from tests.benchmarks.readers import Seat, drop_caches, make_files
from tests.benchmarks.rows import SIZES, Row, Rows, Scale
from tests.launchers import installed_launchers
from tests.mounts import Mount, MpiMount, Place, mounted, mpi_mounted

ONE, TWO = "one mount", "two mounts"
_JIFFIES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def mounts(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """One mount and two (`%l`) of one node: a core to each with its two readers, then four readers over all cores.

    Where cores are left a second mount brings another's worth; where readers and one mount leave none idle it cannot.
    """
    count, size = scale.files["100 KB"], SIZES["100 KB"]
    names = make_files(folder / "source", count, size)
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    with (
        mounted(folder / "source", folder / "one", f"cache={2 * count * size}") as one,
        mpi_mounted(installed_launchers()[0], 2, folder / "source", folder / "two", f"cache={count * size}") as two,
    ):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            with _bound(one, cores[:1]), _bound(two, cores[:2]):
                bound = [_on_cores(ONE, one, cores[:1]), _on_cores(TWO, two, cores[:2])]
                measured = take_turns(bound, names, scale.repetitions, _drop)
            yield from _rows("100 KB, 2 readers and a core per mount, cold", measured)
        else:
            say("mounts, a core each: there is but one core")
        free = [view_of(ONE, one, 4), view_of(TWO, two, 2)]
        views = [View(view.name, view.seats, _processors) for view in free]
        measured = take_turns(views, names, scale.repetitions, _drop)
        case = f"100 KB, 4 readers on all {len(cores)} cores, cold"
        yield from _rows(case, measured)
        for view, each in measured.items():
            busy = [100 - 100 * one.counted["idle"] / sum(one.counted.values()) for one in each]
            yield Row("mounts", case, view, "% of the processors busy", busy, ONE)


def _rows(case: str, measured: dict[str, list[Measured]]) -> Iterator[Row]:
    for view, each in measured.items():
        yield Row("mounts", case, view, "files/s", [one.files_per_second for one in each], ONE)


def _on_cores(name: str, mount: Mount | MpiMount, cores: Sequence[int]) -> View:
    """Two readers of each mount on its core."""
    points = [mount.point] if isinstance(mount, Mount) else mount.mountpoints
    return View(
        name,
        [Seat(Place(on_cores({core})), point) for point, core in zip(points, cores, strict=True) for _ in range(2)],
    )


@contextlib.contextmanager
def _bound(mount: Mount | MpiMount, cores: Sequence[int]) -> Iterator[None]:
    """With the processes of each mount on its core."""
    both = [mount.processes] if isinstance(mount, Mount) else [_processes(mount, rank) for rank in range(len(cores))]
    everywhere = frozenset(os.sched_getaffinity(0))
    for processes, core in zip(both, cores, strict=True):
        _bind(processes, frozenset({core}))
    try:
        yield
    finally:
        for processes in both:
            _bind(processes, everywhere)


def _processes(mount: MpiMount, rank: int) -> tuple[int, int]:
    stats = mount.stats(rank)
    return stats["pid"], stats["engine_pid"]


def _bind(processes: Iterable[int], cores: frozenset[int]) -> None:
    for pid in processes:
        bind(pid, cores)


def _processors() -> dict[str, float]:
    """What the processors have done since the machine's start, in jiffies (proc_stat(5))."""
    values = Path("/proc/stat").read_text().split(maxsplit=len(_JIFFIES) + 1)[1:-1]
    return dict(zip(_JIFFIES, map(float, values), strict=True))


def _drop() -> None:
    drop_caches(sync=False)
