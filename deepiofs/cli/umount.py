"""`deepiofs umount`: idempotent, and clears a dead mount too."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deepiofs.cli.mountpoints import FSTYPE, is_dead, mounted_at, unmount
from deepiofs.errors import EXIT_OK, DeepiofsError

_END_S = 10.0
_POLL_S = 0.02


def umount(mountpoints: Sequence[str]) -> int:
    """Unmount each; go on with the others where one fails."""
    code = EXIT_OK
    for mountpoint in mountpoints:
        try:
            umount_one(mountpoint)
        except DeepiofsError as error:
            print(f"deepiofs: {error}", file=sys.stderr)
            code = error.exit_code
    return code


def umount_one(mountpoint: str) -> None:
    """Unmount what deepiofs has mounted there, if anything; wait for its process where no peer can keep it."""
    here = mounted_at(mountpoint)
    if here is None:
        return
    if here.fstype != FSTYPE:
        raise DeepiofsError(f"{mountpoint} is a mount of {here.fstype}, not of deepiofs")
    pid = None if is_dead(mountpoint) else _lone_process(mountpoint)
    unmount(mountpoint, lazy=is_dead(mountpoint))
    if pid is not None:
        _wait_until_gone(pid)


def _lone_process(mountpoint: str) -> int | None:
    """The process of a mount of one rank; with more, it lingers for its peers."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        stats = json.loads(Path(mountpoint, ".deepiofs/stats").read_text())
        return int(stats["pid"]) if stats["size"] == 1 else None
    return None


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and _is_running(pid):
        time.sleep(_POLL_S)


def _is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX" and pid != os.getpid()
