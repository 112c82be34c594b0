"""Every attempt to change something ends with EROFS, root's too."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import Mount

pytestmark = pytest.mark.mounted

FILE = "plain/4096"
CHANGES: dict[str, Callable[[Path], object]] = {
    "open for writing": lambda top: os.open(top / FILE, os.O_WRONLY),
    "open for both": lambda top: os.open(top / FILE, os.O_RDWR),
    "append": lambda top: os.open(top / FILE, os.O_WRONLY | os.O_APPEND),
    "truncate on opening": lambda top: os.open(top / FILE, os.O_WRONLY | os.O_TRUNC),
    "truncate on opening to read": lambda top: os.open(top / FILE, os.O_RDONLY | os.O_TRUNC),
    "create what is there": lambda top: os.open(top / FILE, os.O_WRONLY | os.O_CREAT),
    "create": lambda top: os.open(top / "plain/new", os.O_WRONLY | os.O_CREAT),
    "create to read": lambda top: os.open(top / "plain/new", os.O_RDONLY | os.O_CREAT),
    "create exclusively": lambda top: os.open(top / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "mkdir": lambda top: os.mkdir(top / "new"),
    "unlink": lambda top: os.unlink(top / FILE),
    "rmdir": lambda top: os.rmdir(top / "empty"),
    "rename": lambda top: os.rename(top / FILE, top / "plain/new"),
    "rename over another": lambda top: os.rename(top / FILE, top / "plain/1"),
    "link": lambda top: os.link(top / FILE, top / "plain/new"),
    "symlink": lambda top: os.symlink("anywhere", top / "plain/new"),
    "mkfifo": lambda top: os.mkfifo(top / "plain/new"),
    "mknod": lambda top: os.mknod(top / "plain/new", stat.S_IFREG | 0o644),
    "chmod": lambda top: os.chmod(top / FILE, 0o777),
    "chmod of a directory": lambda top: os.chmod(top / "plain", 0o777),
    "chown": lambda top: os.chown(top / FILE, 1, 1),
    "utime": lambda top: os.utime(top / FILE),
    "truncate": lambda top: os.truncate(top / FILE, 0),
    "setxattr": lambda top: os.setxattr(top / FILE, "user.name", b"value"),
    "setxattr of our own": lambda top: os.setxattr(top / FILE, "user.deepiofs.sample", b"value"),
    "removexattr": lambda top: os.removexattr(top / FILE, "user.deepiofs.sample"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("below", ["", ".deepiofs/exact"])
def test_nothing_can_be_changed(nasty: Mount, change: str, below: str) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        CHANGES[change](nasty.point / below)


def test_a_reader_who_would_create_what_is_there_may_read(nasty: Mount) -> None:
    os.close(os.open(nasty.point / FILE, os.O_RDONLY | os.O_CREAT))


@pytest.mark.parametrize("name", ["stats", "metrics", "config", "version", "health"])
def test_control_files_cannot_be_written(nasty: Mount, name: str) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        os.open(nasty.point / ".deepiofs" / name, os.O_WRONLY)


def test_nothing_can_be_made_beside_the_control_files(nasty: Mount) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (nasty.point / ".deepiofs/new").touch()


def test_reading_leaves_the_access_time_of_the_view_alone(nasty: Mount) -> None:
    before = os.stat(nasty.point / FILE).st_atime_ns
    (nasty.point / FILE).read_bytes()
    assert os.stat(nasty.point / FILE).st_atime_ns == before
