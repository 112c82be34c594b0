"""Whether to look again and again for a moment before sleeping: what comes at once is had without waking up.

A processor that has gone to sleep takes 20 to 100 us to come back, and a reader who waits for each answer has both, its
own and this process's, sleep once per request. Looking takes a processor's time, so it is done only where that is of
no use to anybody else: while the last waits were short, and while this thread found a processor free whenever it
wanted one. The kernel's scheduler keeps account of for how long it did not, whoever it was that had it
(Documentation/scheduler/sched-stats.rst of the kernel, `/proc/<pid>/schedstat`).

**Threading.** One thread, that of `begin`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Of the thread that opens it: nanoseconds for which it ran and was delayed, and how often it ran.
DELAYS = Path("/proc/thread-self/schedstat")
MOST_S = 200e-6
# So often the account is read, which takes a microsecond or two.
_WINDOW_S = 0.02
# Of the time since: who waited longer for a processor shares it.
_SHARED = 0.02
# Of the waits that were short, the last ones counting most.
_WORTHWHILE = 0.5
_WEIGHT = 0.1
# Where it is not worthwhile, so many waits go by unmeasured: on a busy machine two looks at the clock are too many.
_UNMEASURED = 50

T = TypeVar("T")


class Spinning:
    """Of one thread."""

    def __init__(self) -> None:
        self._delays = -1
        self._unmeasured = 0
        self._short = 0.0
        self._free = False
        self._read_at = 0.0
        self._delayed_ns = 0

    def begin(self) -> None:
        """Look from now on; where the kernel keeps no account, or there is but one processor, never."""
        if len(os.sched_getaffinity(0)) > 1:
            with contextlib.suppress(OSError):
                self._delays = os.open(DELAYS, os.O_RDONLY | os.O_CLOEXEC)

    def end(self) -> None:
        """Look no more."""
        if self._delays >= 0:
            os.close(self._delays)
            self._delays = -1

    def wait(self, look: Callable[[float], list[T]], milliseconds: float) -> list[T]:
        """What `look` finds within so long, which it may take as the time to sleep until then."""
        if self._unmeasured or self._delays < 0:
            self._unmeasured -= self._unmeasured > 0
            return look(milliseconds)
        begun = now = time.perf_counter()
        until = begun + min(self._worth_s(now), milliseconds / 1000)
        found: list[T] = []
        while now < until and not found:
            found = look(0)
            now = time.perf_counter()
        found = found or look(milliseconds)
        self._short += _WEIGHT * ((time.perf_counter() - begun < MOST_S) - self._short)
        return found

    def _worth_s(self, now: float) -> float:
        """For how long to look."""
        if now - self._read_at > _WINDOW_S:
            self._free = self._was_free(now)
        if self._free and self._short >= _WORTHWHILE:
            return MOST_S
        if not self._free:
            self._unmeasured = _UNMEASURED
        return 0.0

    def _was_free(self, now: float) -> bool:
        """Whether there was always a processor for this thread since this was asked the last time."""
        delayed_ns = int(os.pread(self._delays, 64, 0).split()[1])
        free = delayed_ns - self._delayed_ns <= _SHARED * 1e9 * (now - self._read_at)
        self._read_at, self._delayed_ns = now, delayed_ns
        return free
