"""`deepiofs umount`: idempotent, and clears a dead mount too."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deepiofs.cli.inspect import read_stats
from deepiofs.cli.mountpoints import FSTYPE, is_dead, mounted_at, unmount
from deepiofs.errors import EXIT_OK, DeepiofsError, TimedOutError

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
    stats = None
    try:
        stats = read_stats(mountpoint)
    except TimedOutError:  # it hangs
        unmount(mountpoint, lazy=True)
    except DeepiofsError:  # it is dead, or lets this user not look into it
        unmount(mountpoint, lazy=is_dead(mountpoint))
    else:
        unmount(mountpoint)
    if stats and stats["size"] == 1:  # the processes of more linger for their peers
        _wait_until_gone(stats["pid"])


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
