"""What needs root on one node: to become the job's user, and to bind a directory for him.

Paths come from the user, and root follows none of them: each is opened with the user's own rights, and what root then
uses is the open directory, whatever the user makes of the path meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import stat
from collections.abc import Callable, Iterator

from deepiofs.errors import DeepiofsError, EnvironmentFault, SourceError, error_for

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096


def find_user(uid: int) -> pwd.struct_passwd:
    """The user's entry; EnvironmentFault if this node does not know him."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise EnvironmentFault(f"this node knows no user of number {uid}") from None


def become(user: pwd.struct_passwd) -> None:
    """For good, with all his groups."""
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


@contextlib.contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """With his rights meanwhile."""
    groups, gid = os.getgroups(), os.getegid()
    os.initgroups(user.pw_name, user.pw_gid)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def environment_of(user: pwd.struct_passwd) -> dict[str, str]:
    """What a process of his gets; nothing of the daemon's that started this one."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "LANG": "C.UTF-8",
    }


def apart(secret: Callable[[], bytes]) -> bytes:
    """What is computed in a process of its own, so that the memory of this one never holds the site's key."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            said, code = secret(), 0
        except DeepiofsError as error:
            said, code = str(error).encode(), error.exit_code
        os.write(writing, said)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise error_for(code, answer.decode() or "the job's secret could not be derived")
    return answer


def bind(user: pwd.struct_passwd, source: str, mountpoint: str) -> None:
    """Show the source at the mount point, read-only; SourceError or DeepiofsError if the user could not do as much.

    The mount point has to be the user's own: else he could have something of his put over the system's.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with acting_as(user):
        try:
            shown = os.open(source, flags)
            os.listdir(shown)
        except OSError as error:
            raise SourceError(f"source {source}: {error.strerror}") from None
        try:
            place = os.open(mountpoint, flags | os.O_NOFOLLOW)
        except OSError as error:
            raise DeepiofsError(f"mount point {mountpoint}: {error.strerror}") from None
    status = os.fstat(place)
    if status.st_uid != user.pw_uid or not status.st_mode & stat.S_IWUSR:
        raise DeepiofsError(f"mount point {mountpoint} does not belong to {user.pw_name}")
    _mount(f"/proc/self/fd/{shown}", f"/proc/self/fd/{place}", _MS_BIND)
    # Opened again, the path is the bind; flags are changed of a mount only.
    with acting_as(user):
        top = os.open(mountpoint, flags | os.O_NOFOLLOW)
    _mount("none", f"/proc/self/fd/{top}", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    for descriptor in (shown, place, top):
        os.close(descriptor)


def _mount(source: str, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, flags, None):
        raise DeepiofsError(f"cannot bind: {os.strerror(ctypes.get_errno())}")
