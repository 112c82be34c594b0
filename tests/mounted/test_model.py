"""Any sequence of calls of a reader has the same outcome on the mount as on the source."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.mounted import trees
from tests.mounts import Mount

pytestmark = pytest.mark.mounted

PATHS = [
    *(f"plain/{size}".encode() for size in (0, 1, 511, 4095, 4096, 4097, 131_071, 131_073, 1 << 20)),
    *(b"names/" + name for name in trees.NASTY_NAMES[:6]),
    *(b"names/below/" + name for name in trees.NASTY_NAMES[:3]),
    *(
        os.fsencode(trees.BIG),
        b"plain",
        b"deep",
        b"deep/file",
        b"deep/level 0/level 1/file",
        b"hard/second",
        b"modes/0000",
        b"",
        b".",
    ),
    *(
        b"nothing",
        b"plain/nothing",
        b"plain/1/below",
        b"plain/1/",
        b"nothing/below",
        b"plain/../hard/first",
        b"plain/folder",
    ),
]
FLAGS = [0, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_NONBLOCK, os.O_NOATIME, os.O_PATH, os.O_CREAT | os.O_EXCL]
SIZES = st.one_of(st.integers(0, 300_000), st.sampled_from([0, 1, 4095, 4096, 4097, 131_072]))
PLACES = st.one_of(st.integers(-10, 400_000), st.integers(0, trees.BIG_BYTES + 10), st.just(1 << 40))
paths = st.sampled_from(PATHS)


class Reader(RuleBasedStateMachine):
    """Does the same on both sides, and compares what came of it."""

    tops: tuple[bytes, bytes]

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[tuple[int, int]] = []

    def same(self, call: Callable[[int, bytes], Any]) -> tuple[Any, Any]:
        """The outcomes of `call(side, top)` on both sides; what they must agree on is compared."""
        outcomes = tuple(outcome(call, side, top) for side, top in enumerate(self.tops))
        assert plain(outcomes[1]) == plain(outcomes[0])
        return outcomes[0], outcomes[1]

    def on_handle(self, index: int, call: Callable[[int], Any]) -> None:
        pair = self.handles[index % len(self.handles)]
        self.same(lambda side, top: call(pair[side]))

    @rule(path=paths, flags=st.sampled_from(FLAGS))
    def open(self, path: bytes, flags: int) -> None:
        # Something that is not there would be created on the source only.
        if flags & os.O_CREAT and not os.path.lexists(os.path.join(self.tops[0], path)):
            return
        source, view = self.same(lambda side, top: Handle(os.open(os.path.join(top, path), flags)))
        if isinstance(source, Handle):
            self.handles.append((source, view))

    @rule(path=paths)
    def stat(self, path: bytes) -> None:
        self.same(lambda side, top: os.stat(os.path.join(top, path)))

    @rule(path=paths)
    def lstat(self, path: bytes) -> None:
        self.same(lambda side, top: os.lstat(os.path.join(top, path)))

    @rule(path=paths)
    def listdir(self, path: bytes) -> None:
        left_out = {b"fifo", b"socket"}
        self.same(lambda side, top: sorted(set(os.listdir(os.path.join(top, path))) - left_out))

    @rule(path=paths)
    def readlink(self, path: bytes) -> None:
        self.same(lambda side, top: os.readlink(os.path.join(top, path)))

    @rule(path=paths, mode=st.sampled_from([os.F_OK, os.R_OK, os.X_OK, os.R_OK | os.X_OK]))
    def access(self, path: bytes, mode: int) -> None:
        self.same(lambda side, top: os.access(os.path.join(top, path), mode))

    @rule(path=paths)
    def statvfs(self, path: bytes) -> None:
        self.same(lambda side, top: os.statvfs(os.path.join(top, path)).f_namemax)

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), size=SIZES)
    def read(self, index: int, size: int) -> None:
        self.on_handle(index, lambda fd: os.read(fd, size))

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), size=SIZES, at=PLACES)
    def pread(self, index: int, size: int, at: int) -> None:
        self.on_handle(index, lambda fd: os.pread(fd, size, at))

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=5))
    def readv(self, index: int, sizes: list[int]) -> None:
        def readv(fd: int) -> tuple[int, list[bytes]]:
            buffers = [bytearray(size) for size in sizes]
            return os.readv(fd, buffers), [bytes(buffer) for buffer in buffers]

        self.on_handle(index, readv)

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), at=PLACES, whence=st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, 99]))
    def lseek(self, index: int, at: int, whence: int) -> None:
        # Where a directory ends is each file system's own affair.
        def lseek(fd: int) -> int | None:
            return None if stat.S_ISDIR(os.fstat(fd).st_mode) else os.lseek(fd, at, whence)

        self.on_handle(index, lseek)

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0))
    def fstat(self, index: int) -> None:
        self.on_handle(index, os.fstat)

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), pages=st.integers(0, 70_000), size=SIZES, shared=st.booleans())
    def mmap(self, index: int, pages: int, size: int, shared: bool) -> None:
        def mapped(fd: int) -> bytes | None:
            at = min(pages * mmap.PAGESIZE, max(0, os.fstat(fd).st_size - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
            length = min(size, os.fstat(fd).st_size - at)
            if length <= 0:
                return None
            with mmap.mmap(fd, length, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE, mmap.PROT_READ, offset=at) as m:
                return m[:]

        self.on_handle(index, mapped)

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0), path=paths)
    def openat(self, index: int, path: bytes) -> None:
        self.on_handle(index, lambda fd: os.stat(path or b".", dir_fd=fd))

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0))
    def close(self, index: int) -> None:
        pair = self.handles.pop(index % len(self.handles))
        self.same(lambda side, top: os.close(pair[side]))

    def teardown(self) -> None:
        for pair in self.handles:
            for fd in pair:
                os.close(fd)


class Handle(int):
    """A descriptor: its number is of no importance."""


def outcome(call: Callable[[int, bytes], Any], side: int, top: bytes) -> Any:
    try:
        return call(side, top)
    except OSError as error:
        return f"{errno.errorcode[error.errno or 0]}"


def plain(result: Any) -> Any:
    """What of an outcome has to be the same on both sides."""
    if isinstance(result, Handle):
        return "a descriptor"
    if isinstance(result, os.stat_result):
        size = (result.st_size, result.st_nlink) if stat.S_ISREG(result.st_mode) else ()
        return (result.st_mode, result.st_uid, result.st_gid, result.st_mtime_ns, *size)
    return result


def test_any_sequence_of_calls_has_the_same_outcome(nasty: Mount) -> None:
    class Here(Reader):
        tops = (os.fsencode(nasty.source), os.fsencode(nasty.point))

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Here, settings=settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=checks)
    )
