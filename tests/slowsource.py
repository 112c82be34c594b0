"""A source that is slow: an ext4 of its own, read by the processes of one control group at a given rate.

The file system lies in an image in memory, on a loop device, so that nothing but the throttle (cgroup v1,
blkio.throttle.read_bps_device) makes it slow. Bytes count against the rate when they cross the device: what the page
cache holds is as fast as ever. `SlowSource.evict` takes all of it away, and `SlowSource.device_bytes` tells what has
crossed the device, so that a benchmark can show that no second pass was served by the page cache.

The rate is shared: by all processes that `SlowSource.prefix` starts, and what these start. Compare only what runs
alone. Processes outside are not slowed down, but what they read would be in the page cache for those inside.

Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mounts import wait_until

_CONTROLLER = Path("/sys/fs/cgroup/blkio")
_TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")
_ENTER = 'echo 0 > "$0"/tasks && exec "$@"'
_QUIET_S = 0.3
_RESTLESS_S = 60.0
_REMOVE_S = 10.0
# Metadata of ext4: inodes of 256 bytes, directories, and what mkfs keeps for itself.
_OVERHEAD = 1.15
_LEAST_BYTES = 64 << 20


@dataclass(frozen=True)
class SlowSource:
    """`root` is on the slow file system; what is started with `prefix` reads it slowly."""

    root: Path
    rate: int
    group: Path
    device: str

    @staticmethod
    def unavailable() -> str | None:
        """Why there can be none here, or None."""
        if os.geteuid() != 0:
            return "a slow source needs root"
        if missing := [tool for tool in _TOOLS if not shutil.which(tool)]:
            return f"not installed: {', '.join(missing)}"
        if not (_CONTROLLER / "blkio.throttle.read_bps_device").exists():
            return "no cgroup v1 with blkio.throttle"
        return None if Path("/dev/loop-control").exists() else "no loop devices"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command line: its process, and all that it starts, read at the rate."""
        return ("sh", "-c", _ENTER, str(self.group))

    @property
    def device_bytes(self) -> int:
        """What the processes of the group have read from the device so far, names and inodes included."""
        lines = (self.group / "blkio.throttle.io_service_bytes").read_text().splitlines()
        counts = {tuple(line.split()[:2]): int(line.split()[-1]) for line in lines}
        return counts.get((self.device, "Read"), 0)

    def evict(self) -> None:
        """Empty the kernel's caches of contents, names and inodes, once nobody reads ahead any more.

        Of all file systems: those of the mounts over this one are to be cold, too.
        """
        self.wait_until_quiet()
        _run("sync", "--file-system", str(self.root))  # only what is clean can be dropped; what others write may wait
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def wait_until_quiet(self) -> None:
        """Return when nothing has crossed the device for a while; TimeoutError if it never rests."""
        deadline = time.monotonic() + _RESTLESS_S
        before, since = self.device_bytes, time.monotonic()
        while time.monotonic() - since < _QUIET_S:
            time.sleep(0.05)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the source is read without end, {self.device_bytes:,} bytes so far")
            if (now := self.device_bytes) != before:
                before, since = now, time.monotonic()


@contextlib.contextmanager
def slow_source(rate: int, content_bytes: int, requests: int = 0) -> Iterator[SlowSource]:
    """A `SlowSource` of `rate` bytes/s with room for so many bytes in files of 100 KB and more; empty, and writable.

    requests: how many requests it answers in a second, as a disk does; 0: as many as come.

    Its processes have to end before the block does; one that has not is moved out of the group, and its hold on the
    file system ends with it.
    """
    size = int(content_bytes * _OVERHEAD) + _LEAST_BYTES
    with (
        tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder,
        _mounted(
            ["-t", "tmpfs", "-o", f"size={size + (16 << 20)}", "deepiofs-bench"], Path(folder, "memory")
        ) as memory,
        _loop_device(memory / "image", size) as device,
        _mounted([device], Path(folder, "source")) as root,
        _group() as group,
    ):
        number = os.stat(device).st_rdev
        name = f"{os.major(number)}:{os.minor(number)}"
        (group / "blkio.throttle.read_bps_device").write_text(f"{name} {rate}\n")
        if requests:
            (group / "blkio.throttle.read_iops_device").write_text(f"{name} {requests}\n")
        yield SlowSource(root, rate, group, name)


@contextlib.contextmanager
def _mounted(what: list[str], point: Path) -> Iterator[Path]:
    point.mkdir()
    _run("mount", "-o", "noatime", *what, str(point))
    try:
        yield point
    finally:
        _run("umount", "--lazy", str(point))


@contextlib.contextmanager
def _loop_device(image: Path, size: int) -> Iterator[str]:
    with image.open("wb") as file:
        file.truncate(size)
    # An inode for 64 KB; no journal, whose recovery and commits would be traffic of its own.
    _run(
        "mkfs.ext4", "-q", "-F", "-i", "65536", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", str(image)
    )
    device = _run("losetup", "--find", "--show", str(image)).strip()
    try:
        yield device
    finally:
        # If something holds it still, the kernel detaches it after the last one.
        _run("losetup", "--detach", device)


@contextlib.contextmanager
def _group() -> Iterator[Path]:
    group = Path(tempfile.mkdtemp(prefix="deepiofs-bench-", dir=_CONTROLLER))
    try:
        yield group
    finally:
        wait_until(lambda: _removed(group), f"{group} is empty", _REMOVE_S)


def _removed(group: Path) -> bool:
    # What was killed a moment ago is still in it, and a process may be born while others are moved.
    for process in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (_CONTROLLER / "cgroup.procs").write_text(process)
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
