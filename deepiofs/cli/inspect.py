"""`deepiofs wait` and `deepiofs status`: reading what a mount says of itself, without hanging on a mount that hangs."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepiofs.cli.mountpoints import FSTYPE, mounted_at, within
from deepiofs.errors import EXIT_OK, DeepiofsError, TimedOutError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

_POLL_S = 0.05
_ANSWER_S = 5.0


def read_control(mountpoint: str, name: str, within_s: float = _ANSWER_S) -> str:
    """The text of a control file; DeepiofsError with what to do if there is no mount or it does not answer."""
    here = mounted_at(mountpoint)
    if here is None or here.fstype != FSTYPE:
        raise DeepiofsError(f"{mountpoint} is not mounted by deepiofs")
    try:
        return within(within_s, Path(mountpoint, ".deepiofs", name).read_text)
    except TimeoutError:
        raise TimedOutError(f"{mountpoint} does not answer within {within_s:g} s") from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise DeepiofsError(f"the mount at {mountpoint} is dead; deepiofs umount {mountpoint} clears it") from None
        raise DeepiofsError(f"{mountpoint}: {error.strerror}") from None


def read_stats(mountpoint: str, within_s: float = _ANSWER_S) -> dict[str, Any]:
    """The mount's `stats`."""
    stats: dict[str, Any] = json.loads(read_control(mountpoint, "stats", within_s))
    return stats


def wait(mountpoint: str, what: str, timeout_s: float) -> int:
    """Return when the mount answers, or is warm; TimedOutError says what was last seen."""
    if timeout_s < 0:
        raise UsageError("--timeout: expected a number of seconds")
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            stats = read_stats(mountpoint, max(min(left, _ANSWER_S), _POLL_S))
            if what == "mounted" or stats["state"] == "warm":
                return EXIT_OK
            if stats["engine"] == "lost":
                raise UsageError("")
            seen = f"still loading, {stats['resident_bytes']} of {stats['own_bytes']} bytes"
        except UsageError:
            raise DeepiofsError(f"{mountpoint} will not become warm: its engine is lost") from None
        except DeepiofsError as error:
            seen = str(error)
        if left <= 0:
            raise TimedOutError(f"not {what} after {timeout_s:g} s: {seen}")
        time.sleep(min(_POLL_S, left))


def status(mountpoint: str, as_json: bool, watch: bool) -> int:
    """Print what the mount says; every second with `watch`."""
    from rich.console import Console  # not for `wait`, which a prolog starts on each node

    console = Console()
    while True:
        stats = read_stats(mountpoint)
        if as_json:
            print(json.dumps(stats, indent=None if watch else 1), flush=True)
        else:
            if watch and console.is_terminal:
                console.clear()
            console.print(_table(mountpoint, stats, read_control(mountpoint, "health").strip()))
        if not watch:
            return EXIT_OK
        time.sleep(1.0)


def _table(mountpoint: str, stats: dict[str, Any], health: str) -> Table:
    from rich.table import Table

    table = Table(title=os.fspath(mountpoint), show_header=False, title_justify="left")
    served = sum(stats["served"].values())
    shares = [f"{name} {100 * count / served:.1f} %" for name, count in stats["served"].items() if served]
    rows = {
        "health": health,
        "rank": f"{stats['rank']} of {stats['size']}, node {stats['node']} of {stats['nodes']}",
        "state": f"{stats['state']}, {_mb(stats['resident_bytes'])} of {_mb(stats['own_bytes'])} loaded here",
        "dataset": f"{stats['files']} files, {stats['samples']} samples, {_mb(stats['bytes'])}",
        "served": f"{_mb(stats['bytes_served'])} in {stats['reads']} reads, {stats['opens']} opens",
        "from": ", ".join(shares) or "nothing yet",
        "read from source": _mb(stats["source_bytes"]),
        "fetch": f"p50 {stats['fetch_ms']['p50']} ms, p99 {stats['fetch_ms']['p99']} ms",
        "ahead": f"{_mb(stats['staged_bytes'])} staged, {stats['stalls']} draws waited, {stats['stall_ms']} ms in all",
        "memory": _mb(stats["rss_bytes"]),
        "errors": ", ".join(f"{name} {count}" for name, count in stats["errors"].items()) or "none",
        "uptime": f"{stats['uptime_s']:.0f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
