"""Clearing up what a job's keeper has left on its node, and a guard that does so when the keeper was killed.

A batch script without an administrator has nobody to do it afterwards: a scheduler's SIGKILL would leave a dead mount.
So a small process of its own session waits for the keeper's end. A scheduler that follows processes by control groups
kills it too; then the site's epilog, or the next mount at that place, clears the mount.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from deepiofs.cli.mountpoints import FSTYPE, mounted_at, unmount
from deepiofs.errors import DeepiofsError

# In the environment of the mount and its engine, and of nothing else.
MARK = "DEEPIOFS_KEPT"
_POLL_S = 0.05


def clear(mark: str, mountpoint: str, patience_s: float) -> None:
    """End what bears the mark: by SIGTERM, after patience_s by SIGKILL; then unmount."""
    _signal(mark, signal.SIGTERM if patience_s else signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while _kept(mark) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(mark, signal.SIGKILL)
    here = mounted_at(mountpoint)
    if here and here.fstype == FSTYPE:
        with contextlib.suppress(DeepiofsError):
            unmount(mountpoint, lazy=True)


def forget(state: Path, mountpoint: str) -> None:
    """What an epilog would need to know, which is done now; and the mount point, if it was made for the job."""
    if (state / "made").exists():
        with contextlib.suppress(OSError):
            os.rmdir(mountpoint)
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(state.parent)


def _signal(mark: str, number: signal.Signals) -> None:
    for pid in _kept(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _kept(mark: str) -> list[int]:
    """The processes that bear the mark; of other users none can be seen."""
    word = f"{MARK}={mark}".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


class Guard:
    """Watches over this process from a session of its own. To be made before there are threads."""

    def __init__(self, mark: str, mountpoint: str, state: Path, patience_s: float) -> None:
        reading, self._writing = os.pipe()
        child = os.fork()
        if child:
            os.close(reading)
            os.waitpid(child, 0)
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(self._writing)
        _watch(reading, mark, mountpoint, state, patience_s)
        os._exit(0)

    def dismiss(self) -> None:
        """All is clear."""
        os.write(self._writing, b".")
        os.close(self._writing)


def _watch(reading: int, mark: str, mountpoint: str, state: Path, patience_s: float) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Whoever waits for the end of the job's output must not wait for this.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.chdir("/")
    if not os.read(reading, 1):
        clear(mark, mountpoint, patience_s)
        forget(state, mountpoint)
