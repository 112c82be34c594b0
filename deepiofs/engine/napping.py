"""Waiting between two polls of MPI: a nap in the trio thread that ends when there is something to do.

MPI over TCP watches its sockets by an epoll of its own, whose descriptor is readable when a poll would find something
(UCX has one for each network). No MPI promises that, and over InfiniBand or shared memory there is none that tells. So
descriptors that came with MPI are watched, and believed only where what polls find was announced by them.

Also the words of the mount are taken in here, without a pass of trio's scheduler.

**Threading.** The trio thread. **Invariants.** A nap does not outlast what trio waits for.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deepiofs.idling import Idling

_FOLDER = Path("/proc/self/fd")
# So many finds in a row that nobody announced: a note may come between a nap and the poll behind it, once.
_ENOUGH = 4
# So many alarms in a row for nothing, and for how long none is heeded then.
_STUCK = 1024
_STUCK_S = 1.0
# So often in a row words are taken before other tasks have their turn.
_IN_A_ROW = 16


def epolls() -> frozenset[int]:
    """The descriptors of all epolls of this process."""
    return frozenset(int(entry.name) for entry in os.scandir(_FOLDER) if _is_epoll(entry.path))


def _is_epoll(path: str) -> bool:
    try:
        return os.readlink(path) == "anon_inode:[eventpoll]"
    except OSError:
        return False


class Napping(Idling):
    """Of the pump."""

    def __init__(self, arrivals: Sequence[int] = ()) -> None:
        """arrivals: descriptors that may tell that something came for MPI."""
        super().__init__()
        self._arrivals = list(arrivals)
        self._words: list[int] = []
        self._take_words: Callable[[], None] = lambda: None
        self._alarms = 0  # in a row, of which each ended a nap and none had anything found
        self._stuck_until = 0.0
        self._taken = 0
        self._heeded = False
        # Before the last poll, and before the one to come: what a poll took from a socket the next one may find.
        self._announced = (False, False)
        # Finds in a row that were not announced; nothing is believed before the first that was.
        self._surprises = _ENOUGH

    @property
    def works(self) -> bool:
        """Whether it is known what trio waits for; else nobody may nap for long."""
        return self._works

    @property
    def tells(self) -> bool:
        """Whether a nap ends when something comes for MPI."""
        return self._works and self._surprises < _ENOUGH and self._alarms < _STUCK

    def take_words(self, descriptor: int, take: Callable[[], None]) -> None:
        """`take` is called in a nap when this is readable, and takes what is there, or a part of it."""
        self._words, self._take_words = [descriptor], take

    def polled(self, found: bool) -> None:
        """A poll is over. Was what it found announced?"""
        if found:
            self._alarms = 0
            if self._heeded:
                self._surprises = 0 if any(self._announced) else min(self._surprises + 1, _ENOUGH)

    def nap(self, seconds: float, heed: bool = True) -> bool:
        """Sleep so long, or until another task has anything to do; whether one has (it need not have).

        heed: whether what comes for MPI, too, ends the nap.
        """
        left_s = self._left_s()
        if left_s <= 0:
            if not self._works:
                time.sleep(seconds)
            return True
        self._heeded = heed and bool(self._arrivals) and not self._is_stuck()
        watched = [*self._epoll, *self._words, *(self._arrivals if self._heeded else ())]
        ready = select.select(watched, (), (), min(seconds, left_s))[0]
        self._note_arrivals(ready)
        if self._words and self._words[0] in ready and self._taken < _IN_A_ROW:
            # trio's epoll is readable for their sake, too, until they are taken: the next nap will tell.
            self._taken += 1
            self._take_words()
            return False
        self._taken = 0
        return self._epoll[0] in ready

    def _note_arrivals(self, ready: list[int]) -> None:
        arrived = any(descriptor in self._arrivals for descriptor in ready)
        self._announced = (self._announced[1], arrived)
        if arrived:
            self._alarms += 1
            if self._alarms == _STUCK:
                self._stuck_until = time.monotonic() + _STUCK_S
        elif self._heeded and not ready:
            self._alarms = 0

    def _is_stuck(self) -> bool:
        """Whether a descriptor stays readable, as a socket does whose other end is gone: it would keep a core busy."""
        if self._alarms >= _STUCK and time.monotonic() >= self._stuck_until:
            self._alarms = 0
        return self._alarms >= _STUCK
