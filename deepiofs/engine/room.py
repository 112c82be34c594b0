"""Room in staging: places for what is brought, lent until they are given back.

**Threading.** The engine's trio thread. **Invariants.** A place that MPI or a thread may still write to is not given
back: it is lent to it (`lend`), whoever has lost interest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from deepiofs.memory.arena import Arena
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import HEADER_BYTES, span
from deepiofs.memory.wire import Message, Pressed

Say = Callable[[Message], None]

_PRESS_EVERY_S = 0.05


class Room:
    """The places of one rank's staging."""

    def __init__(self, staging: Segment, staging_bytes: int, board: Board, say: Say) -> None:
        """say: to the mount, without waiting."""
        self.arena = Arena(staging_bytes)
        self._view = staging.view
        self._board, self._say = board, say
        self._returned = trio.Event()
        self._awaited = 0
        self._press_again_at = -math.inf

    def fits(self, size: int) -> bool:
        """Whether a unit of so many bytes could ever be here."""
        return span(size) <= self.arena.size

    def unit(self, at: int, size: int) -> memoryview:
        """The place of a unit, its header included."""
        return self._view[at : at + HEADER_BYTES + size]

    def take_nowait(self, size: int) -> int | None:
        """A place for a unit of so many bytes, or None while there is no room."""
        at = self.arena.take(span(size))
        if at is not None:
            self._board[Counter.STAGED_BYTES] = self.arena.used
        return at

    async def take(self, size: int) -> int:
        """A place for a unit; waits for room, and has the mount release some."""
        self._awaited += 1
        try:
            while (at := self.take_nowait(size)) is None:
                returned = self._returned
                if trio.current_time() >= self._press_again_at:
                    self._press_again_at = trio.current_time() + _PRESS_EVERY_S
                    self._say(Pressed())
                # Again and again: what the mount had not seen yet when it was pressed, it can release a little later.
                with trio.move_on_after(_PRESS_EVERY_S):
                    await returned.wait()
        finally:
            self._awaited -= 1
        return at

    def give_back(self, at: int) -> None:
        """A place that was taken is free."""
        self.arena.give_back(at)
        self._board[Counter.STAGED_BYTES] = self.arena.used
        if self._awaited:
            self._returned.set()
            self._returned = trio.Event()

    def lend(self, at: int) -> Callable[[], None]:
        """Count a place as lent to whom nobody waits for (quarantine); what is returned gives it back."""
        size = self.arena.size_of(at)
        self._board.add(Counter.QUARANTINED_BYTES, size)

        def give_back() -> None:
            self._board.add(Counter.QUARANTINED_BYTES, -size)
            self.give_back(at)

        return give_back
