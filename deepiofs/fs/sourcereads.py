"""The mount's own reads of the source, in worker threads: what no memory has, or cannot give in time.

A source may hang. A thread in it cannot be ended, so whoever waited leaves it there, and of one file only so many are
left: further readers of that file wait for one of them, until their own time is over, and all other files go on.

**Threading.** The trio thread, but for `SourceHandle.read`, which runs in workers.
"""

from __future__ import annotations

import collections
import errno
import threading

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Source, SourceFile, retry

# Reads of the source at once, by one mount.
_THREADS = 64
# Threads that may hang in one file at once.
_HANGING_OF_FILE = 2


class _Shared:
    """A file that several threads may read at once; the last one closes it, unless it is kept."""

    __slots__ = ("file", "users")

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.users = 1


class SourceHandle:
    """A file of the source as one open file needs it: opened at the first read, by whichever thread comes first."""

    __slots__ = ("_closed", "_kept", "_lock", "row")

    def __init__(self, row: int) -> None:
        self.row = row
        self._kept: _Shared | None = None
        self._closed = False
        self._lock = threading.Lock()  # of the other two, and of users of what is or was kept

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return self._kept is not None

    def read(self, source: Source, manifest: Manifest, at: int, length: int) -> bytes:
        """In a worker thread. What fails for a moment is tried again; OSError, SourceChangedError with the cause."""
        return retry.until_it_passes(lambda: self._try(source, manifest, at, length))

    def mark_closed(self) -> None:
        """Nobody reads any more: a thread that still hangs in the source keeps nothing that it opens later."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """In a worker thread."""
        with self._lock:
            kept, self._kept = self._kept, None
            idle = kept is not None and not kept.users
        if kept is not None and idle:
            kept.file.close()

    def _try(self, source: Source, manifest: Manifest, at: int, length: int) -> bytes:
        shared = self._acquire() or self._share(source.open(manifest, self.row))
        data = bytearray(length)
        try:
            if shared.file.read_into(memoryview(data), at) != length:
                raise OSError(errno.EIO, "shorter than it was when it was indexed")
        except OSError:
            self._forget(shared)  # after ESTALE only a new descriptor helps
            raise
        finally:
            self._release(shared)
        return bytes(data)

    def _acquire(self) -> _Shared | None:
        with self._lock:
            if self._kept is not None:
                self._kept.users += 1
            return self._kept

    def _share(self, file: SourceFile) -> _Shared:
        """Keep it for the next reads, unless another thread was first or the handle is gone."""
        shared = _Shared(file)
        with self._lock:
            if self._kept is None and not self._closed:
                self._kept = shared
        return shared

    def _forget(self, shared: _Shared) -> None:
        with self._lock:
            if self._kept is shared:
                self._kept = None

    def _release(self, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            is_last = not shared.users and self._kept is not shared
        if is_last:
            shared.file.close()


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
        """Bytes of a file, all of them. OSError, SourceChangedError; cancelled from outside when its time is over."""
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
