"""Loads asked of other ranks, and by them: a unit is wanted that its home has not loaded yet.

**Threading.** The trio thread. **Invariants.** One question per unit under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from deepiofs.engine.peers import Note, NoteKind, Peers
from deepiofs.memory.board import Board, Counter

# For how long a home that did not load in time is not asked to.
_NO_LOADS_S = 5.0
# In what part of `timeout` a peer that asked for a load is told how that went.
_SAID_WITHIN = 0.8


class _Answer:
    """What a home says of a unit that it was asked to load."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.good = False
        self.waiters = 0


class Loads:
    """The questions of this rank, and what it does about those of others."""

    def __init__(
        self,
        peers: Peers,
        board: Board,
        wake: Callable[[int], None],
        need: Callable[[int], Awaitable[bool]],
        timeout_s: float,
    ) -> None:
        """wake: have a rank poll. need: load a unit of this rank's own now; whether it is there."""
        self._peers, self._board, self._wake, self._need = peers, board, wake, need
        self._timeout_s = timeout_s
        self._asked: dict[int, _Answer] = {}
        self._none_until: dict[int, float] = {}

    async def ask(self, home: int, unit: int) -> bool:
        """Ask the home to load a unit now, and wait until it says how that went.

        One that does not say so in time may only have a source that is slow: gets from it go on, but it is not asked
        to load for a while.
        """
        if trio.current_time() < self._none_until.get(home, 0.0):
            return False
        answer = self._asked.get(unit)
        if answer is None:
            answer = self._asked[unit] = _Answer()
            self._wake(home)
            self._peers.send(home, Note(NoteKind.LOAD, unit))
        answer.waiters += 1
        try:
            with trio.move_on_after(self._timeout_s):
                await answer.event.wait()
        finally:
            answer.waiters -= 1
            if not answer.waiters and self._asked.get(unit) is answer:
                del self._asked[unit]  # the next one asks anew
        if not answer.event.is_set():
            self._board.add(Counter.PEER_TIMEOUTS)
            self._none_until[home] = trio.current_time() + _NO_LOADS_S
        return answer.good

    def answered(self, rank: int, unit: int, good: bool) -> None:
        """A home says how a load went."""
        answer = self._asked.pop(unit, None)
        if answer is not None:
            self._none_until.pop(rank, None)
            answer.good = good
            answer.event.set()

    async def serve(self, rank: int, unit: int) -> None:
        """A peer asked for an own unit: it hears before it would call this rank late."""
        good = False
        with trio.move_on_after(_SAID_WITHIN * self._timeout_s):
            good = await self._need(unit)
        self._peers.send(rank, Note(NoteKind.LOADED, unit, int(good)))
