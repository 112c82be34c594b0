"""What a mount asks for and its memory does not hold: from the home of the unit, verified, else from the source.

Each unit asked for ends in `Ready` or `Missed`: if a reader waits, within `timeout` and a little. What MPI or a thread
in the source still writes to after that stays lent by the room until it is done (quarantine).

What a peer is to give, and does, costs no task: the get is begun at once, and when it has ended the mount is told
(measured: 340 us of an engine's processor time per file, 610 to 680 with a task and its scopes). All else is a task's:
where there is no room, or a get did not bring the unit, or it is not a peer's.

**Threading.** The trio thread. **Invariants.** A unit is in `_fetches` until it is answered, and is answered once; it
is in `_staged` exactly while its place is lent and whole. Places of gets under way are `Gets`' until they are GOOD.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable

import trio

from deepiofs.engine.gets import Gets, Outcome
from deepiofs.engine.loader import Loader
from deepiofs.engine.loads import Loads
from deepiofs.engine.peers import Note, NoteKind, Peers
from deepiofs.engine.room import Room, Say
from deepiofs.engine.stager import SourceRead, Stager
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import NOWHERE, Placement, Units
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import LOADED, Store
from deepiofs.memory.wire import IN_NODE, Missed, Ready

# A digest that differs may be the home publishing just now; a second one that differs is a fault.
_TRIES = 2
# A reader is told a little after a peer is given up, so that the source, if it is fast, can still be read here.
_SOURCE_S = 0.25
# Gets at once from one peer for what is fetched ahead: more gain nothing, and what is waited for comes behind them.
_GETS_AHEAD = 32


class _Fetch:
    """A unit under way for the mount. limit: of the task that it is, if it is one."""

    __slots__ = ("deadline", "home", "limit", "unit", "urgent")

    def __init__(self, unit: int, home: int, urgent: bool, deadline: float) -> None:
        self.unit, self.home = unit, home
        self.urgent, self.deadline = urgent, deadline
        self.limit: trio.CancelScope | None = None


class Fetcher:
    """Serves `Fetch` and `Release` of the mount, and the notes of the peers."""

    def __init__(
        self,
        rank: int,
        units: Units,
        placement: Placement,
        stores: dict[int, Store],
        staging: Segment,
        staging_bytes: int,
        loader: Loader,
        stager: Stager,
        peers: Peers,
        board: Board,
        say: Say,
        *,
        timeout_s: float,
        verify: bool,
    ) -> None:
        """say: to the mount, without waiting."""
        self._rank, self._units, self._stores = rank, units, stores
        self._home = placement.home.data
        self._at = placement.at.data
        self._loader, self._stager = loader, stager
        self._board, self._say = board, say
        self._timeout_s = timeout_s
        self.room = Room(staging, staging_bytes, board, say)
        self.gets = Gets(units, placement, self.room, peers, board, timeout_s=timeout_s, verify=verify)
        wake = functools.partial(self.gets.wake, urgent=False)
        self._loads = Loads(peers, board, wake, loader.need, timeout_s)
        self._staged: dict[int, int] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._ahead_of: dict[int, trio.CapacityLimiter] = {}

    def fetch(self, unit: int, urgent: bool, start_soon: Callable[..., None]) -> None:
        """A `Fetch` came: answer it, now or later, by a task if need be."""
        home = self._home[unit]
        fetch = self._fetches[unit] = _Fetch(unit, home, urgent, self._deadline() if urgent else math.inf)
        if not self._is_a_peers(home) or not self._get_at_once(fetch, start_soon):
            start_soon(self._obtain, fetch)

    def hurry(self, unit: int) -> None:
        """A reader waits for what was to be fetched ahead."""
        fetch = self._fetches.get(unit)
        if fetch is None or fetch.urgent:
            return
        fetch.urgent, fetch.deadline = True, self._deadline()
        if fetch.limit is not None:
            fetch.limit.deadline = fetch.deadline
        self._stager.hurry(unit)
        if fetch.home != NOWHERE and fetch.home not in self._stores:
            self.gets.wake(fetch.home, urgent=True)

    def release(self, unit: int) -> None:
        """The mount needs a staged unit no longer."""
        at = self._staged.pop(unit, None)
        if at is not None:
            self.room.give_back(at)

    @contextlib.asynccontextmanager
    async def borrowed(self, unit: int) -> AsyncIterator[memoryview | None]:
        """A unit got from its home, header included, inside the block only; for replicas.

        None if it cannot be had, or not within `timeout` and a little.
        """
        at: int | None = None
        if self._is_a_peers(home := self._home[unit]):
            # A little more than what each wait for the peer has, so that a peer that is late is known as such.
            with trio.move_on_at(self._deadline()):
                at = await self._from_peer(home, unit, urgent=False)
        try:
            yield None if at is None else self.room.unit(at, self._units.size[unit])
        finally:
            if at is not None:
                self.room.give_back(at)

    def on_note(self, rank: int, note: Note, start_soon: Callable[..., None]) -> None:
        """A peer's note arrived."""
        self.gets.answered(rank)
        if note.kind is NoteKind.LOAD:
            start_soon(self._loads.serve, rank, note.unit)
        elif note.kind is NoteKind.LOADED:
            self._loads.answered(rank, note.unit, bool(note.value))

    def _deadline(self) -> float:
        return trio.current_time() + self._timeout_s + _SOURCE_S

    def _is_a_peers(self, home: int) -> bool:
        """Whether a rank of another node, that answers, holds it."""
        return home not in self._stores and home != NOWHERE and home not in self.gets.suspects

    def _limiter(self, home: int) -> trio.CapacityLimiter:
        limiter = self._ahead_of.get(home)
        if limiter is None:
            limiter = self._ahead_of[home] = trio.CapacityLimiter(_GETS_AHEAD)
        return limiter

    def _get_at_once(self, fetch: _Fetch, start_soon: Callable[..., None]) -> bool:
        """Begin the get of a unit, if there is room for it, and nothing to wait for."""
        limiter = None if fetch.urgent else self._limiter(fetch.home)
        if limiter is not None and not limiter.available_tokens:
            return False
        at = self.room.take_nowait(self._units.size[fetch.unit])
        if at is None:
            return False
        if limiter is not None:
            limiter.acquire_on_behalf_of_nowait(fetch)

        def then(outcome: Outcome) -> None:
            if limiter is not None:
                limiter.release_on_behalf_of(fetch)
            if outcome is Outcome.GOOD:
                self._answer(fetch, at)
            else:
                start_soon(self._obtain, fetch, outcome)

        self.gets.begin(fetch.home, fetch.unit, at, fetch.urgent, then)
        return True

    def _answer(self, fetch: _Fetch, at: int | None, from_source: bool = False) -> None:
        """at: where the unit is readable now, IN_NODE or a place in staging; None if it cannot be had."""
        del self._fetches[fetch.unit]
        if at is None:
            self._say(Missed(fetch.unit))
            return
        if at != IN_NODE:
            self._staged[fetch.unit] = at
        self._say(Ready(fetch.unit, at, int(from_source)))

    async def _obtain(self, fetch: _Fetch, outcome: Outcome | None = None) -> None:
        """Answer a fetch that has something to wait for. outcome: of the get that was made for it at once."""
        at: int | None = None
        from_source = False
        with trio.CancelScope(deadline=fetch.deadline) as fetch.limit:
            at = await self._from_memory(fetch, outcome)
            from_source = at is None and fetch.home != self._rank
            if from_source:
                at = await self._from_source(fetch)
        self._answer(fetch, at, from_source)

    async def _from_memory(self, fetch: _Fetch, outcome: Outcome | None) -> int | None:
        unit, home = fetch.unit, fetch.home
        if home == self._rank:
            return IN_NODE if await self._loader.need(unit) else None
        if home in self._stores:
            loaded = self._stores[home].state(self._at[unit]) == LOADED
            return IN_NODE if loaded or await self._loads.ask(home, unit) else None
        if fetch.urgent or outcome is not None:
            return await self._from_peer(home, unit, fetch.urgent, outcome) if self._is_a_peers(home) else None
        async with self._limiter(home):
            return await self._from_peer(home, unit, fetch.urgent) if self._is_a_peers(home) else None

    async def _from_peer(self, home: int, unit: int, urgent: bool, outcome: Outcome | None = None) -> int | None:
        """A place in staging with the whole, genuine unit, lent to the caller. outcome: of a first get."""
        size = self._units.size[unit]
        if not self.room.fits(size):
            return None
        for attempt in range(_TRIES):
            if attempt or outcome is None:
                at = await self.room.take(size)
                outcome = await self.gets.get(home, unit, at, urgent)
                if outcome is Outcome.GOOD:
                    return at
            again = outcome is Outcome.DIFFERS or (outcome is Outcome.EMPTY and await self._loads.ask(home, unit))
            if not again:
                return None
        return None

    async def _from_source(self, fetch: _Fetch) -> int | None:
        """A place in staging with the unit as the source has it."""
        size = int(self._units.size[fetch.unit])
        if not self.room.fits(size):
            return None
        at = await self.room.take(size)
        read = self._stager.start(fetch.unit, at, fetch.urgent)
        try:
            await read.done.wait()
        except trio.Cancelled:
            self._leave_behind(read, at, size)
            raise
        if not read.good:
            self.room.give_back(at)
            return None
        self._board.add(Counter.SOURCE_BYTES, size)
        return at

    def _leave_behind(self, read: SourceRead, at: int, size: int) -> None:
        """Nobody waits for a read of the source any more, but its thread may still write to its place."""
        give_back = self.room.lend(at)

        def when_done() -> None:
            if read.good:
                self._board.add(Counter.SOURCE_BYTES, size)
            give_back()

        self._stager.abandon(read, when_done)
