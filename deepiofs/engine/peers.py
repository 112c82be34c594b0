"""What an engine does with its peers: one-sided gets and small notes, started now, completed by polling.

`engine.window` implements it over MPI; the tests have a double in one process that passes the same suite.

**Threading.** One thread. Nothing blocks; `poll` completes what is done and gives MPI progress.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Protocol


class NoteKind(enum.IntEnum):
    """What engines tell each other."""

    WAKE = 0  # gets are coming: poll often
    LOAD = 1  # load this unit of yours now
    LOADED = 2  # the unit is there (value 1), or the source would not give it (value 0)
    STEAL = 3  # is there an entry of this group and pass left
    STOLEN = 4  # the answer: unit is the reply, value what comes with it
    LEFT = 5  # my mount is gone


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """A small message between engines."""

    kind: NoteKind
    unit: int = 0
    value: int = 0
    group: int = 0
    number: int = 0


class Get:
    """A get under way. Its buffer belongs to MPI until it is `over`, whoever has lost interest meanwhile."""

    __slots__ = ("error", "over", "rank", "when_done")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.over = False
        self.error: Exception | None = None
        self.when_done: Callable[[Get], None] | None = None

    def finish(self, error: Exception | None = None) -> None:
        """The buffer is the asker's again."""
        self.error = error
        self.over = True
        if self.when_done:
            self.when_done(self)


class Barrier(Protocol):
    """A collective that all ranks enter when they are so far."""

    def passed(self) -> bool:
        """Whether all ranks have entered; also gives MPI progress."""


class Peers(Protocol):
    """All other ranks."""

    on_note: Callable[[int, Note], None]
    arrivals: Sequence[int]  # descriptors that may be readable when something has come; see `engine.napping`

    def get(self, rank: int, at: int, into: memoryview) -> Get:
        """Start reading `len(into)` bytes from byte `at` of a rank's store."""

    def send(self, rank: int, note: Note) -> None:
        """Send a note; lost if the peer is gone."""

    def poll(self) -> bool:
        """Complete what is complete; whether anything was."""

    def busy(self) -> bool:
        """Whether gets or notes are under way."""

    def enter_warm(self) -> Barrier:
        """**Collective.** This rank has loaded all it holds."""

    def enter_leave(self) -> Barrier:
        """**Collective.** This rank's mount is gone."""


class _Passed:
    def passed(self) -> bool:
        return True


class NoPeers:
    """A world of one has none."""

    def __init__(self) -> None:
        self.on_note: Callable[[int, Note], None] = lambda rank, note: None
        self.arrivals: Sequence[int] = ()

    def get(self, rank: int, at: int, into: memoryview) -> Get:
        raise AssertionError("no peer to get from")

    def send(self, rank: int, note: Note) -> None:
        raise AssertionError("no peer to tell")

    def poll(self) -> bool:
        return False

    def busy(self) -> bool:
        return False

    def enter_warm(self) -> Barrier:
        return _Passed()

    def enter_leave(self) -> Barrier:
        return _Passed()
