"""What this process needs to mount, and the one line for each piece that is missing.

root, in a user namespace too, mounts by mount(2) with CAP_SYS_ADMIN; others through fusermount3(1), which must be
set-user-id root. A descriptor of /dev/fuse that a privileged program has mounted already (`/dev/fd/N` as mount point,
mount.fuse3(8)) needs neither.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from pathlib import Path

from deepiofs.errors import FuseUnavailableError, MountPointError
from deepiofs.options import Settings

_DEVICE = "/dev/fuse"
DEVICE_NUMBER = (10, 229)
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_CAP_SYS_ADMIN = 21
_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)")


def check_fuse(settings: Settings) -> None:
    """FuseUnavailableError, with what to do, if this process cannot mount."""
    _check_device()
    if _may_mount():
        return
    if os.geteuid() == 0:
        raise FuseUnavailableError(
            "this root may not mount, it lacks CAP_SYS_ADMIN; give the container that, or mount on the host and bind"
        )
    _check_fusermount(find_fusermount())
    if (settings.allow_other or settings.allow_root) and not _user_allow_other():
        raise FuseUnavailableError("allow_other and allow_root need the line user_allow_other in /etc/fuse.conf")


def find_fusermount() -> str:
    """Where fusermount3(1) is, also under systemd and mount(8), which may give no PATH; FuseUnavailableError."""
    tool = shutil.which("fusermount3") or shutil.which("fusermount3", path=_USUAL_PATH)
    if tool is None:
        raise FuseUnavailableError("fusermount3 is not found; install the package fuse3")
    return tool


def passed_descriptor(mountpoint: str) -> int | None:
    """The N of `/dev/fd/N`; None for all other mount points. MountPointError if it is not an open /dev/fuse."""
    match = _DESCRIPTOR.fullmatch(mountpoint)
    if match is None:
        return None
    try:
        if os.fstat(int(match[1])).st_rdev == os.makedev(*DEVICE_NUMBER):
            return int(match[1])
    except OSError:
        pass
    raise MountPointError(f"mount point {mountpoint} is not a descriptor of {_DEVICE} that this program was given")


def _check_device() -> None:
    try:
        if os.stat(_DEVICE).st_rdev != os.makedev(*DEVICE_NUMBER):
            raise FuseUnavailableError(f"{_DEVICE} is not the FUSE device; make it with mknod {_DEVICE} c 10 229")
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise FuseUnavailableError(
            f"{_DEVICE} is missing; load the fuse module, or pass the device into the container"
        ) from None
    except OSError as error:
        raise FuseUnavailableError(_why_closed(error)) from None


def _why_closed(error: OSError) -> str:
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return f"{_DEVICE} has no driver; load the fuse module (modprobe fuse)"
    if error.errno == errno.EPERM:
        return f"{_DEVICE} is forbidden to this container; start it with --device {_DEVICE}"
    if os.statvfs(_DEVICE).f_flag & os.ST_NODEV:
        return f"{_DEVICE} lies on a file system mounted nodev; bind the host's {_DEVICE} over it"
    return f"{_DEVICE} may not be opened by this user; ask for mode 0666 on it"


def _check_fusermount(tool: str) -> None:
    """FuseUnavailableError if executing it gives no privileges, which the kernel would not say."""
    found = os.stat(tool)
    set_user_id = found.st_mode & stat.S_ISUID and found.st_uid == 0
    if not (set_user_id or _has_capability(tool)):
        raise FuseUnavailableError(
            f"{tool} is not set-user-id root; chmod u+s it as root, or mount below unshare --user --map-root-user -m"
        )
    if os.statvfs(tool).f_flag & os.ST_NOSUID:
        raise FuseUnavailableError(f"{tool} lies on a file system mounted nosuid, so that users cannot mount by it")
    if _status("NoNewPrivs") == "1":
        raise FuseUnavailableError(f"{tool} gets no privileges here (no_new_privs); mount outside of the container")


def _has_capability(tool: str) -> bool:
    try:
        return bool(os.getxattr(tool, "security.capability"))
    except OSError:
        return False


def _may_mount() -> bool:
    """Whether mount(2) is allowed in this user namespace."""
    return bool(int(_status("CapEff") or "0", 16) >> _CAP_SYS_ADMIN & 1)


def _status(name: str) -> str:
    """A field of /proc/self/status, proc(5)."""
    text = Path("/proc/self/status").read_text()
    return next((line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _user_allow_other() -> bool:
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.split("#")[0].strip() == "user_allow_other" for line in lines)
