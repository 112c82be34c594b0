"""Mount points: what is mounted where, what may be mounted on, and how a mount is taken away.

What is mounted is read from /proc/self/mountinfo (proc(5)) and not asked of the path: root gets EACCES on a user's
mount, and a dead mount answers every call with ENOTCONN.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import errno
import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from deepiofs.errors import DeepiofsError, MountPointError
from deepiofs.fuse.requirements import find_fusermount

FSTYPE = "fuse.deepiofs"
_MNT_FORCE, _MNT_DETACH = 1, 2
_FUSERMOUNT_S = 10
_ANSWER_S = 5.0
T = TypeVar("T")
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclasses.dataclass(frozen=True)
class Mounted:
    """A line of mountinfo."""

    mountpoint: str
    fstype: str
    source: str
    device_minor: int


def mounted_at(path: str) -> Mounted | None:
    """What is on top at a path; None if nothing is mounted there. Never asks the mount itself, which may hang."""
    parent, name = os.path.split(os.path.abspath(path))
    place = os.path.join(os.path.realpath(parent), name)
    return _topmost(place) or (_topmost(os.path.realpath(place)) if os.path.islink(place) else None)


def canonical(path: str) -> str:
    """Absolute and without links; the path of the mount itself where something is mounted."""
    here = mounted_at(path)
    return here.mountpoint if here else os.path.realpath(path)


def is_mounted(mount: Mounted) -> bool:
    """Whether that very mount is still there, be it beneath another."""
    return any(one.device_minor == mount.device_minor and one.fstype == mount.fstype for one in _all_mounted())


def _topmost(place: str) -> Mounted | None:
    return next((one for one in reversed(list(_all_mounted())) if one.mountpoint == place), None)


def _all_mounted() -> Iterator[Mounted]:
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        fields, (fstype, source, *_) = before.split(b" "), after.split(b" ")
        minor = int(fields[2].split(b":")[1])
        yield Mounted(_unescaped(fields[4]), fstype.decode(), _unescaped(source), minor)


def is_dead(path: str) -> bool:
    """Whether the process behind a FUSE mount is gone; one that hangs is not.

    Asked by statvfs(3): the kernel answers stat(2) of the root by itself, as it may keep those attributes.
    """
    try:
        within(_ANSWER_S, lambda: os.statvfs(path))
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call on a mount that may hang returns; TimeoutError (an OSError) if it does not in time.

    It runs in a thread that is left behind then: a reader in the kernel cannot be interrupted.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def expand(template: str, rank: int, local_rank: int, host: str) -> str:
    """`%r`, `%l` and `%h` of a mount point."""
    return template.replace("%r", str(rank)).replace("%l", str(local_rank)).replace("%h", host)


def prepare_mountpoint(path: str) -> str:
    """The canonical path, if it may be mounted on; a dead deepiofs mount is cleared first.

    MountPointError says what is wrong with it.
    """
    here = mounted_at(path)
    if here and here.fstype == FSTYPE:
        if not is_dead(path):
            raise MountPointError(f"{path} is mounted already; deepiofs umount {path} first")
        unmount(path, lazy=True)
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise MountPointError(f"mount point {path} is not a directory")
        if os.listdir(path):
            raise MountPointError(f"mount point {path} is not empty; give an empty directory")
    except FileNotFoundError:
        raise MountPointError(f"mount point {path} does not exist; create it first") from None
    except OSError as error:
        raise MountPointError(f"mount point {path}: {error.strerror}") from None
    return canonical(path)


def unmount(path: str, lazy: bool = False) -> None:
    """Take the topmost mount at a path away; root by umount2(2), others by fusermount3(1).

    lazy: also while files are open, and by force: readers of a process that hangs get ENOTCONN. DeepiofsError if it
    is busy or may not be unmounted.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(canonical(path)), _MNT_FORCE | _MNT_DETACH if lazy else 0) != 0:
            number = ctypes.get_errno()
            busy = "; programs have files or their working directory there" if number == errno.EBUSY else ""
            raise DeepiofsError(f"cannot unmount {path}: {os.strerror(number)}{busy}")
        return
    command = [find_fusermount(), "-u", *(["-z"] if lazy else []), "--", canonical(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FUSERMOUNT_S, check=False)
    if done.returncode:
        raise DeepiofsError(f"cannot unmount {path}: {done.stderr.strip()}")


def _unescaped(field: bytes) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
