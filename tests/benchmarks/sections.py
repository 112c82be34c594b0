"""What `tests/benchmarks/run` measures, section by section: rows of rates, of views that took turns."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks.measuring import View, measure, take_turns, view_of
from tests.benchmarks.peers import C_ONE, PEERS, by_c
from tests.benchmarks.readers import Seat, drop_caches, make_files
from tests.benchmarks.rows import SIZES, Row, Rows, Scale
from tests.benchmarks.scaling import mounts
from tests.benchmarks.streams import megabytes_per_second
from tests.lab import Lab
from tests.launchers import installed_launchers
from tests.mounts import HERE, MpiMount, mounted, mpi_mounted

COLD, WARM = "cold", "warm"
_IDLE_S = 1.2
_LOADERS = 8


def opens(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """Open, read to the end, close: each name once, in random order."""
    for label, count in scale.files.items():
        with tempfile.TemporaryDirectory(dir=folder) as name, contextlib.ExitStack() as stack:
            here = Path(name)
            source = here / "source"
            names = make_files(source, count, SIZES[label])
            roots = _served(stack, source, here, count * SIZES[label], say)
            for readers in scale.readers:
                for cache in (COLD, WARM):
                    views = [
                        View(view, [Seat(HERE, root)] * readers)
                        for view, root in roots.items()
                        # A name that stands for another sample each time has no pages to keep.
                        if cache == COLD or view != "deepiofs, shuffled"
                    ]
                    prepare = _drop if cache == COLD else _nothing
                    measured = take_turns(views, names, scale.repetitions, prepare)
                    for view, each in measured.items():
                        rates = [one.files_per_second for one in each]
                        case = f"{label}, {_readers(readers)}, {cache}"
                        yield Row("opens", case, view, "files/s", rates, C_ONE)


def streams(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """One reader, in order, 1 MiB at a time."""
    size = SIZES["100 KB"]
    names = make_files(folder / "source", scale.stream_bytes // size, size)
    point = folder / "mnt"
    point.mkdir()
    content = folder / "content"
    content.mkdir()
    with open(content / "file", "wb") as file:
        for name in names:
            file.write((folder / "source" / name).read_bytes())
    (folder / "large").mkdir()
    cache = f"cache={2 * scale.stream_bytes}"
    with (
        mounted(folder / "source", point, cache, "shuffle=dir") as mount,
        mounted(content, folder / "large", cache) as large,
        by_c(content, folder) as root,
    ):
        ways = {
            "deepiofs, one large file": large.point / "file",
            "deepiofs, tar stream": mount.point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar",
            C_ONE: root / "file",
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(-1, scale.repetitions):
            for way, path in ways.items():
                _drop()
                rate = megabytes_per_second(path)
                if repetition >= 0:
                    rates[way].append(rate)
    for way, measured in rates.items():
        yield Row("streams", "100 KB members, 1 reader, cold", way, "MB/s", measured, C_ONE)


def two_hosts(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """Exact names that lie with this host, with the other, and all; in the two-host lab, over real TCP."""
    if reason := Lab.unavailable():
        say(f"two hosts: {reason}")
        return
    for label, count in scale.files.items():
        # Each host of the lab has a /dev/shm of its own.
        with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name, Lab() as lab:
            here = Path(name)
            names = make_files(here, count, SIZES[label])
            options = (f"cache={2 * count * SIZES[label]}", "staging=32M")
            with (
                tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as points,
                mpi_mounted(installed_launchers()[0], 2, here, Path(points), *options, lab=lab) as mount,
            ):
                yield from _by_origin(scale, label, mount, names)


def _by_origin(scale: Scale, label: str, mount: MpiMount, names: Sequence[str]) -> Rows:
    origins = _origins(mount, names)
    chosen = {"all local": "local", "all remote": "peer"}
    least = min(list(origins.values()).count(origin) for origin in chosen.values())
    sets = {case: [n for n in names if origins[n] == origin][:least] for case, origin in chosen.items()}
    sets["mixed"] = sets["all local"][: least // 2] + sets["all remote"][: least // 2]
    for readers in scale.readers:
        rates: dict[str, list[float]] = {case: [] for case in sets}
        view = View("deepiofs, exact", [Seat(mount.places[0], mount.mountpoints[0])] * readers)
        for repetition in range(-1, scale.repetitions):
            for case, some in sets.items():
                _rest()
                rate = measure(view, some, repetition).files_per_second
                if repetition >= 0:
                    rates[case].append(rate)
        for case, measured in rates.items():
            yield Row("two hosts", f"{label}, {_readers(readers)}, cold", case, "files/s", measured, "all local")


def entropy(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """Shuffled names, both hosts read at once, two readers each, half of the bytes from the other or none."""
    if reason := Lab.unavailable():
        say(f"entropy: {reason}")
        return
    count = scale.files["100 KB"]
    with Lab() as lab, contextlib.ExitStack() as stack:
        source, *points = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deepiofs-bench-"))) for _ in range(3)
        ]
        names = make_files(source, count, SIZES["100 KB"])
        views = []
        for variant, point in zip(("entropy=0", "entropy=1"), points, strict=True):
            options = (f"cache={count * SIZES['100 KB']}", "staging=256M", "shuffle=all", variant)
            mount = mpi_mounted(installed_launchers()[0], 2, source, point, *options, lab=lab)
            views.append(view_of(variant, stack.enter_context(mount), 2))
        measured = take_turns(views, names, scale.repetitions, _rest)
    for view, each in measured.items():
        rates = [one.files_per_second for one in each]
        yield Row("entropy", "100 KB, 2 readers per host, cold", view, "files/s", rates, "entropy=0")


def listing(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """What torchvision's ImageFolder does to find its samples: a thousand names to a class."""
    source = folder / "source"
    make_files(source, scale.names, 1)
    (folder / "mnt").mkdir()
    with mounted(source, folder / "mnt") as mount:
        ways = {"plain directory": source, "deepiofs": mount.point}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(-1, scale.repetitions):
            for way, root in ways.items():
                said = subprocess.run(
                    [sys.executable, "-m", "tests.benchmarks.imagefolder", root],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                seconds, found = said.stdout.split()
                assert int(found) == scale.names
                if repetition >= 0:
                    rates[way].append(scale.names / float(seconds))
    for way, measured in rates.items():
        yield Row("listing", f"{scale.names:,} names, warm", way, "names/s", measured, "plain directory")


def loading(scale: Scale, folder: Path, say: Callable[[str], None]) -> Rows:
    """From the source to memory, as the engine's log has it, beside `cat` to nowhere; on a disk, page cache cold."""
    size = SIZES["100 KB"]
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:  # on a disk, unlike the others
        source = Path(name, "source")
        names = make_files(source, scale.load_files, size)
        Path(name, "mnt").mkdir()
        total = scale.load_files * size
        listed = "".join(f"{source}/{each}\n" for each in names)
        cat = ["xargs", "-n", "64", "-P", str(_LOADERS), "cat"]
        rates: dict[str, list[float]] = {f"cat, {_LOADERS} at a time": [], "deepiofs": []}
        for _ in range(scale.repetitions):
            drop_caches()
            begun = time.perf_counter()
            subprocess.run(cat, input=listed, text=True, stdout=subprocess.DEVNULL, check=True)
            rates[f"cat, {_LOADERS} at a time"].append(total / 1e6 / (time.perf_counter() - begun))
            drop_caches()
            rates["deepiofs"].append(total / 1e6 / _seconds_to_load(source, Path(name), total))
    for way, measured in rates.items():
        yield Row("loading", f"{scale.load_files:,} files of 100 KB, cold", way, "MB/s", measured, "cat, 8 at a time")


def _seconds_to_load(source: Path, folder: Path, total: int) -> float:
    log = folder / "log"
    with mounted(source, folder / "mnt", f"cache={2 * total}", f"log={log}", "loglevel=info"):
        (seconds,) = re.findall(r"loaded its part in ([\d.]+) s", log.read_text())
    log.unlink()
    return max(float(seconds), 1e-3)


SECTIONS = {
    "opens": opens,
    "streams": streams,
    "two hosts": two_hosts,
    "entropy": entropy,
    "mounts": mounts,
    "listing": listing,
    "loading": loading,
}


def _served(
    stack: contextlib.ExitStack, source: Path, folder: Path, total: int, say: Callable[[str], None]
) -> dict[str, Path]:
    """Where the files are served, by view."""
    roots = {}
    for view, shuffle in (("deepiofs, exact", "off"), ("deepiofs, shuffled", "dir")):
        point = folder / shuffle
        point.mkdir()
        stack.enter_context(mounted(source, point, f"cache={2 * total}", f"shuffle={shuffle}"))
        roots[view] = point
    for peer in PEERS:
        if reason := peer.missing():
            say(f"{peer.name}: {reason}")
            continue
        roots[peer.name] = stack.enter_context(peer.serve(source, folder))
    return roots


def _origins(mount: MpiMount, names: Sequence[str]) -> dict[str, str]:
    """Where the bytes of each name lie, seen from rank 0."""
    program = "import os, sys\nfor n in sys.stdin: print(os.getxattr(n[:-1], 'user.deepiofs.origin').decode())"
    root = mount.mountpoints[0]
    reader = mount.places[0].start([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = reader.communicate("".join(f"{root}/{name}\n" for name in names))
    return dict(zip(names, out.split(), strict=True))


def _readers(count: int) -> str:
    return f"{count} reader{'s' if count > 1 else ''}"


def _drop() -> None:
    drop_caches(sync=False)


def _nothing() -> None:
    return


def _rest() -> None:
    """An engine polls for a second after it was last needed, and would take time from what comes next."""
    time.sleep(_IDLE_S)
    _drop()
