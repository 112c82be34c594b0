"""Read every file of a dataset through each of its mounts, compare it with the source, and say where it came from.

`read_through.py SOURCE MOUNTPOINT...` exits with 0 only if all bytes are right. It knows nothing of deepiofs but
the file `.deepiofs/stats`: the reads are plain open(2) and read(2), as any framework's are.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ORIGINS = ("local", "node", "peer", "source")


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one mount."""

    mountpoint: Path
    files: int
    size_bytes: int
    took_s: float
    wrong: list[str]
    served: dict[str, int]


def main() -> None:
    """Read, compare, print, exit."""
    source, *mountpoints = map(Path, sys.argv[1:])
    expected = {path.relative_to(source): path.read_bytes() for path in files_below(source)}
    results = [read(mountpoint, expected) for mountpoint in mountpoints]
    Console().print(table(results))
    wrong = [f"{result.mountpoint}/{name}" for result in results for name in result.wrong]
    for name in wrong[:10]:
        print(f"differs from the source: {name}", file=sys.stderr)
    sys.exit(bool(wrong))


def files_below(folder: Path) -> list[Path]:
    """All regular files."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def read(mountpoint: Path, expected: dict[Path, bytes]) -> Result:
    """Read what is listed in a mount, then compare names and bytes."""
    before = stats(mountpoint)
    start = time.perf_counter()
    found = {path.relative_to(mountpoint): path.read_bytes() for path in files_below(mountpoint)}
    took_s = time.perf_counter() - start
    after = stats(mountpoint)
    names = expected.keys() | found.keys()
    wrong = sorted(str(name) for name in names if expected.get(name) != found.get(name))
    served = {origin: after["served"][origin] - before["served"][origin] for origin in ORIGINS}
    return Result(mountpoint, len(found), sum(map(len, found.values())), took_s, wrong, served)


def stats(mountpoint: Path) -> dict[str, Any]:
    """What the mount says of itself."""
    said: dict[str, Any] = json.loads((mountpoint / ".deepiofs/stats").read_text())
    return said


def table(results: list[Result]) -> Table:
    """One row for each mount."""
    shown = Table(title="every file, read through each mount", title_justify="left")
    for heading in ("mount", "files", "files/s", "MB/s", *ORIGINS, "bytes"):
        shown.add_column(heading, justify="left" if heading == "mount" else "right")
    for result in results:
        reads = sum(result.served.values()) or 1
        shown.add_row(
            result.mountpoint.name,
            f"{result.files}",
            f"{result.files / result.took_s:.0f}",
            f"{result.size_bytes / 1e6 / result.took_s:.2f}",
            *(f"{100 * result.served[origin] / reads:.1f} %" for origin in ORIGINS),
            f"[red]{len(result.wrong)} wrong" if result.wrong else "[green]right",
        )
    return shown


if __name__ == "__main__":
    main()
