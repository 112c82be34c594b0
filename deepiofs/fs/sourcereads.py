"""The mount's own reads of the source, in worker threads: what no memory has, or cannot give in time.

A source may hang. A thread in it cannot be ended, so whoever waited leaves it there, and of one file only so many are
left: further readers of that file wait for one of them, until their own time is over, and all other files go on.

**Threading.** The trio thread, but for `SourceHandle.read`, which runs in workers.
"""

from __future__ import annotations

import collections
import os
import threading

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source, SourceFile
from deepiofs.errors import SourceError

# Reads of the source at once, by one mount.
_THREADS = 64
# Threads that may hang in one file at once.
_HANGING_OF_FILE = 2


class SourceHandle:
    """A file of the source as one open file needs it: opened at the first read, by whichever thread comes first."""

    __slots__ = ("_closed", "_lock", "_opened", "row")

    def __init__(self, row: int) -> None:
        self.row = row
        self._opened: SourceFile | None = None
        self._closed = False
        self._lock = threading.Lock()  # of `_opened` and `_closed`

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return self._opened is not None

    def read(self, source: Source, manifest: Manifest, at: int, length: int) -> bytes:
        """In a worker thread. OSError and SourceError with the cause; SourceError if it is shorter than indexed."""
        opened = self._opened
        kept = opened is not None
        if opened is None:
            opened = source.open(manifest, self.row)
            kept = self._keep(opened)
        data = bytearray(length)
        try:
            done = opened.read_into(memoryview(data), at)
        finally:
            if not kept:
                opened.close()
        if done != length:
            raise SourceError(f"{os.fsdecode(manifest.path(self.row))}: shorter than it was when it was indexed")
        return bytes(data)

    def mark_closed(self) -> None:
        """Nobody reads any more: a thread that still hangs in the source closes what it opens later."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """In a worker thread."""
        if self._opened is not None:
            self._opened.close()

    def _keep(self, opened: SourceFile) -> bool:
        """Keep a descriptor for the next read, unless another thread was first or the handle is gone."""
        with self._lock:
            kept = self._opened is None and not self._closed
            if kept:
                self._opened = opened
        return kept


class _Read:
    """One read in a thread, which its reader may leave behind, or leave before there is a thread for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = False
        self._ended = False
        self._left = False

    def begin(self) -> bool:
        """In the thread: whether its reader still waits."""
        with self._lock:
            self._begun = not self._left
            return self._begun

    def end(self) -> bool:
        """In the thread: it is over. Whether it was left behind."""
        with self._lock:
            self._ended = True
            return self._left

    def leave(self) -> bool:
        """Its reader waits no more. Whether it is under way, and goes on without it."""
        with self._lock:
            self._left = True
            return self._begun and not self._ended


class SourceReads:
    """All reads of one mount."""

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self._source, self._manifest = source, manifest
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._hanging: collections.Counter[int] = collections.Counter()
        self._ended = trio.Event()

    @property
    def hanging(self) -> int:
        """Threads that were left behind in the source."""
        return self._hanging.total()

    async def read(self, handle: SourceHandle, at: int, length: int) -> bytes:
        """Bytes of a file, all of them. OSError, SourceError; cancelled from outside when its time is over."""
        while self._hanging[handle.row] >= _HANGING_OF_FILE:
            await self._ended.wait()
        read, token = _Read(), trio.lowlevel.current_trio_token()

        def in_thread() -> bytes:
            if not read.begin():
                return b""
            try:
                return handle.read(self._source, self._manifest, at, length)
            finally:
                if read.end():
                    token.run_sync_soon(self._one_ended, handle.row)

        try:
            return await trio.to_thread.run_sync(in_thread, limiter=self._limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            if read.leave():
                self._hanging[handle.row] += 1
            raise

    def _one_ended(self, row: int) -> None:
        self._hanging[row] -= 1
        if not self._hanging[row]:
            del self._hanging[row]
        self._ended.set()
        self._ended = trio.Event()
