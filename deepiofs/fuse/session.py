"""One FUSE session: from the mount system call to the unmount.

**Threading.** pyfuse3 has one session per process, and its state is global.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyfuse3
import trio

from deepiofs.errors import FuseUnavailableError
from deepiofs.fuse.express import Express
from deepiofs.fuse.operations import Operations
from deepiofs.fuse.requirements import DEVICE_NUMBER, passed_descriptor
from deepiofs.options import Settings

log = logging.getLogger(__name__)

# What pyfuse3 answers at once: its answers go through a socket that must not be filled.
_MAX_TASKS = 16
# The largest request there is (FUSE_MAX_MAX_PAGES).
_READ_AHEAD_KB = 1024


def fuse_options(settings: Settings, source: str) -> set[str]:
    """What is handed to the kernel and to libfuse (mount.fuse3(8)); `default_permissions` is always on."""
    name = settings.fsname or source
    options = {
        "default_permissions",
        "nosuid",
        "nodev",
        "subtype=deepiofs",
        # pyfuse3 takes ASCII only; a comma or backslash would end the option.
        "fsname=" + re.sub(r"[^ -~]|[,\\]", "?", name),
    }
    if settings.allow_other:
        options.add("allow_other")
    if settings.allow_root:
        options.add("allow_root")
    return options


class Session:
    """A mounted file system."""

    def __init__(self, operations: Operations, mountpoint: str, options: set[str]) -> None:
        """Mount. FuseUnavailableError if the kernel, or fusermount3, refuses."""
        self._filesystem = operations.filesystem
        self._only = frozenset({0, os.getuid()}) if "allow_root" in options else None
        before = _devices()
        with _said() as said:
            try:
                pyfuse3.init(operations, mountpoint, options)
            except RuntimeError as error:
                why = "; ".join(said()) or str(error)
                raise FuseUnavailableError(f"cannot mount at {mountpoint}: {why}") from None
        passed = passed_descriptor(mountpoint)
        (self._descriptor,) = _devices() - before if passed is None else {passed}

    def allow_background(self, connection: int, requests: int) -> None:
        """Let the kernel have this many read-ahead requests under way, where it lets us say so.

        connection: the minor number of the mount's device. libfuse takes this number only from its high-level
        options, so it goes through the control file system (Documentation/filesystems/fuse.rst).
        """
        try:
            Path(f"/sys/fs/fuse/connections/{connection}/max_background").write_text(str(requests))
        except OSError as error:
            log.debug("max_background stays as it is: %s", error)

    def read_ahead(self, connection: int) -> None:
        """Have the kernel ask for more at once where a file is read in order, where it lets us say so (root).

        Its default of 128 KiB costs a stream of 100 KB samples half of its speed: each request costs as much as the
        copying of its bytes.
        """
        try:
            Path(f"/sys/class/bdi/0:{connection}/read_ahead_kb").write_text(str(_READ_AHEAD_KB))
        except OSError as error:
            log.debug("read_ahead_kb stays as it is: %s", error)

    async def serve(self) -> None:
        """Answer requests until the file system is unmounted or this task is cancelled."""
        with self._express() as express:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(functools.partial(pyfuse3.main, max_tasks=_MAX_TASKS))
                await express.run()
                nursery.cancel_scope.cancel()

    @contextlib.contextmanager
    def _express(self) -> Iterator[Express]:
        """The express lane at the device, and one of its sockets where libfuse believes the device to be."""
        device = os.dup(self._descriptor)
        os.set_blocking(device, False)
        express = Express(device, self._filesystem, self._only)
        os.dup2(express.there.fileno(), self._descriptor, inheritable=False)
        try:
            yield express
        finally:
            # libfuse unmounts, and closes what must be the last descriptor of the device by then.
            os.dup2(device, self._descriptor, inheritable=False)
            os.close(device)
            express.close()

    def close(self, unmount: bool) -> None:
        """End the session; open files do not hinder it.

        unmount: whether it still is mounted. If not, libfuse would take away what is mounted there by now.
        """
        pyfuse3.close(unmount=unmount)


def _devices() -> set[int]:
    """The descriptors of the FUSE device that this process has: pyfuse3 does not tell which one is its own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.stat(int(name)).st_rdev == os.makedev(*DEVICE_NUMBER):
                found.add(int(name))
    return found


@contextlib.contextmanager
def _said() -> Iterator[Callable[[], list[str]]]:
    """What libfuse and fusermount3 print on stderr inside the block, for the one line that the user gets."""
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        os.dup2(sink.fileno(), 2)

        def lines() -> list[str]:
            sink.seek(0)
            return sink.read().decode(errors="replace").splitlines()

        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
