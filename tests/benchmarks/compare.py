"""deepiofs beside the kernel's limit and its peers: `tests/benchmarks/run [--quick] [--section NAME ...]`.

Everything that is compared is alive at the same time and takes turns, several times, in another order each time; one
more turn of each is not counted. Rates are medians; ratios are medians of the ratios within one turn. Readers are
processes of `readers.py`: open, read to the end, close.

Cache policy: what all of them serve from lies in memory (the files, archives and images on tmpfs; deepiofs warm), so
nobody waits for a disk. `cold`: the kernel's caches (pages, names, inodes) are dropped before each turn. `warm`: they
hold everything from the turn before. `loading` alone reads a disk, cold.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import clean_up_on_sigterm
from tests.benchmarks.readers import drop_caches
from tests.benchmarks.rows import FULL, QUICK, Row
from tests.benchmarks.sections import SECTIONS
from tests.benchmarks.written import markdown, read, write

_IN_MEMORY = Path("/dev/shm")
_DOCS = Path(__file__).parents[2] / "docs/benchmarks"


def about(quick: bool, folder: str, missing: list[str]) -> dict[str, Any]:
    """Where and how it was measured."""
    return {
        "taken": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, kernel {platform.release()}, "
        f"Python {platform.python_version()}",
        "busy": f"load averages before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}",
        "served from": folder,
        "page cache": "dropped before each turn (cold) or kept (warm)"
        if drop_caches()
        else "as it is: this user may not drop it",
        "scale": "quick: to see that it works" if quick else "full",
        "missing": missing,
    }


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little, twice: to see that it works")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this; may be repeated")
    parser.add_argument("--repetitions", type=int, help="of each turn; 7, with --quick 2")
    parser.add_argument("--output", type=Path, help=f"folder for what is written; {_DOCS}, with --quick none")
    parser.add_argument("--name", default="opens", help="of the files that are written")
    parser.add_argument("--again", type=Path, metavar="JSON", help="measure nothing: write what this file says")
    wanted = parser.parse_args()
    if wanted.again:
        said, rows = read(wanted.again)
        _write(wanted, said, rows)
        return
    missing: list[str] = []
    root = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    said = about(wanted.quick, str(root), missing)
    rows = measure(wanted, root, missing)
    _write(wanted, said, rows)


def measure(wanted: argparse.Namespace, root: Path, missing: list[str]) -> list[Row]:
    """All rows of the sections that are wanted. missing: grows by what could not be measured."""
    scale = QUICK if wanted.quick else FULL
    if wanted.repetitions:
        scale = dataclasses.replace(scale, repetitions=wanted.repetitions)
    rows: list[Row] = []

    def say(line: str) -> None:
        if line not in missing:
            missing.append(line)
            print(f"left out: {line}", file=sys.stderr)

    for section in wanted.section or SECTIONS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="deepiofs-bench-", dir=root) as folder:
            rows += SECTIONS[section](scale, Path(folder), say)
        print(f"{section}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return rows


def _write(wanted: argparse.Namespace, said: dict[str, Any], rows: list[Row]) -> None:
    folder = wanted.output or (None if wanted.quick else _DOCS)
    print(markdown(said, rows))
    for path in write(folder, wanted.name, said, rows) if folder else ():
        print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
