"""What a mount asks for and its memory does not hold: from the home of the unit, verified, else from the source.

Per unit one task. It ends in `Ready` or `Missed`: if a reader waits, within `timeout` and a little. What MPI or a
thread in the source still writes to after that stays lent by the arena until it is done (quarantine).

**Threading.** The trio thread. **Invariants.** A unit is in `_staged` exactly while its place is lent and whole;
places of gets under way belong to their task, or after it to the get's `when_done`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from deepiofs.engine.loader import Loader
from deepiofs.engine.peers import Get, Note, NoteKind, Peers
from deepiofs.engine.stager import SourceRead, Stager
from deepiofs.engine.suspects import Suspects
from deepiofs.memory.arena import Arena
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import NOWHERE, Placement, Units
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import BROKEN, EMPTY, HEADER_BYTES, LOADED, Store, genuine, span, split
from deepiofs.memory.wire import IN_NODE, Message, Missed, Pressed, Ready

log = logging.getLogger(__name__)

Send = Callable[[Message], Awaitable[None]]

# A digest that differs may be the home publishing just now; a second one that differs is a fault.
_TRIES = 2
_WAKE_EVERY_S = 0.5
_URGENT_EVERY_S = 0.025
_PRESS_EVERY_S = 0.05
# A reader is told a little after a peer is given up, so that the source, if it is fast, can still be read here.
_SOURCE_S = 0.25
# For how long a home that did not load in time is not asked to.
_NO_LOADS_S = 5.0
# In what part of `timeout` a peer that asked for a load is told how that went.
_SAID_WITHIN = 0.8
# Gets at once from one peer for what is fetched ahead: more gain nothing, and what is waited for comes behind them.
_GETS_AHEAD = 32


class _Answer:
    """What a home says of a unit that it was asked to load."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.good = False
        self.waiters = 0


class _Fetch:
    """A unit under way for the mount. `limit`: when its task ends."""

    __slots__ = ("limit", "urgent")

    def __init__(self, urgent: bool) -> None:
        self.urgent = urgent
        self.limit = trio.CancelScope()


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
        send: Send,
        *,
        timeout_s: float,
        verify: bool,
    ) -> None:
        self._rank, self._units, self._stores = rank, units, stores
        self._home = placement.home.data
        self._at = placement.at.data
        self._staging, self._arena = staging, Arena(staging_bytes)
        self._loader, self._stager, self._peers = loader, stager, peers
        self._board, self._send = board, send
        self._timeout_s, self._verify = timeout_s, verify
        self.suspects = Suspects()
        self.on_suspect: Callable[[int], None] = lambda rank: None
        self._new_suspects, self._to_probe = trio.open_memory_channel[int](math.inf)
        self._no_loads_until: dict[int, float] = {}
        self._staged: dict[int, int] = {}
        self._room = trio.Event()
        self._press_again_at = -math.inf
        self._asked: dict[int, _Answer] = {}
        self._woken: dict[tuple[int, bool], float] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._ahead_of: dict[int, trio.CapacityLimiter] = {}
        self._waiting_for: collections.defaultdict[int, set[trio.CancelScope]] = collections.defaultdict(set)

    async def run(self) -> None:
        """See from time to time whether suspects are there again, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for rank in self._to_probe:
                nursery.start_soon(self._probe, rank)

    def begin(self, unit: int, urgent: bool) -> None:
        """A `Fetch` came, and `fetch` will answer it; a `Hurry` may come before that has its turn."""
        fetch = self._fetches[unit] = _Fetch(urgent)
        if urgent:
            fetch.limit.deadline = self._deadline()

    async def fetch(self, unit: int) -> None:
        """Answer one `Fetch`."""
        fetch = self._fetches[unit]
        found: tuple[int, bool] | None = None
        with fetch.limit:
            found = await self._obtain(unit, fetch)
        del self._fetches[unit]
        await self._send(Missed(unit) if found is None else Ready(unit, found[0], int(found[1])))

    def hurry(self, unit: int) -> None:
        """A reader waits for what was to be fetched ahead."""
        fetch = self._fetches.get(unit)
        if fetch is not None and not fetch.urgent:
            fetch.urgent = True
            fetch.limit.deadline = self._deadline()
            self._stager.hurry(unit)
            home = self._home[unit]
            if home != NOWHERE and home not in self._stores:
                self._wake(home, urgent=True)

    def _deadline(self) -> float:
        return trio.current_time() + self._timeout_s + _SOURCE_S

    async def _obtain(self, unit: int, fetch: _Fetch) -> tuple[int, bool] | None:
        """(where the unit is readable now, IN_NODE or a place in staging; whether from the source), or None."""
        home = self._home[unit]
        if home == self._rank:
            return (IN_NODE, False) if await self._loader.need(unit) else None
        at: int | None = None
        if home in self._stores:
            if self._stores[home].state(self._at[unit]) == LOADED or await self._have_loaded(home, unit):
                return IN_NODE, False
        elif home != NOWHERE and home not in self.suspects:
            at = await self._ahead_or_now(home, unit, fetch)
        from_source = at is None
        if at is None:
            at = await self._from_source(unit, fetch)
        if at is None:
            return None
        self._staged[unit] = at
        return at, from_source

    async def _ahead_or_now(self, home: int, unit: int, fetch: _Fetch) -> int | None:
        if fetch.urgent:
            return await self._from_peer(home, unit, urgent=True)
        limiter = self._ahead_of.get(home)
        if limiter is None:
            limiter = self._ahead_of[home] = trio.CapacityLimiter(_GETS_AHEAD)
        async with limiter:
            return await self._from_peer(home, unit, urgent=False)

    async def _from_source(self, unit: int, fetch: _Fetch) -> int | None:
        """A place in staging with the unit as the source has it."""
        size = int(self._units.size[unit])
        if span(size) > self._arena.size:
            return None
        at = await self._take(span(size))
        read = self._stager.start(unit, at, fetch.urgent)
        try:
            await read.done.wait()
        except trio.Cancelled:
            self._leave_behind(read, at, size)
            raise
        if not read.good:
            self._give_back(at)
            return None
        self._board.add(Counter.SOURCE_BYTES, size)
        return at

    def _leave_behind(self, read: SourceRead, at: int, size: int) -> None:
        """Nobody waits for a read of the source any more, but its thread may still write to its place."""
        give_back = self._lend(at)

        def when_done() -> None:
            if read.good:
                self._board.add(Counter.SOURCE_BYTES, size)
            give_back()

        self._stager.abandon(read, when_done)

    def release(self, unit: int) -> None:
        """The mount needs a staged unit no longer."""
        at = self._staged.pop(unit, None)
        if at is not None:
            self._give_back(at)

    @contextlib.asynccontextmanager
    async def borrowed(self, unit: int) -> AsyncIterator[memoryview | None]:
        """A unit got from its home, header included, inside the block only; for replicas.

        None if it cannot be had, or not within `timeout` and a little.
        """
        home = self._home[unit]
        at: int | None = None
        if home != NOWHERE and home not in self.suspects:
            # A little more than what each wait for the peer has, so that a peer that is late is known as such.
            with trio.move_on_at(self._deadline()):
                at = await self._from_peer(home, unit, urgent=False)
        try:
            size = int(self._units.size[unit])
            yield None if at is None else self._staging.view[at : at + HEADER_BYTES + size]
        finally:
            if at is not None:
                self._give_back(at)

    def on_note(self, rank: int, note: Note, start_soon: Callable[..., None]) -> None:
        """A peer's note arrived."""
        self._answered(rank)
        if note.kind is NoteKind.LOAD:
            start_soon(self._load_for, rank, note.unit)
        elif note.kind is NoteKind.LOADED and (answer := self._asked.pop(note.unit, None)):
            self._no_loads_until.pop(rank, None)
            answer.good = bool(note.value)
            answer.event.set()

    async def _from_peer(self, home: int, unit: int, urgent: bool) -> int | None:
        """A place in staging with the whole, genuine unit, lent to the caller."""
        size = int(self._units.size[unit])
        if span(size) > self._arena.size:
            return None
        for _ in range(_TRIES):
            at = await self._take(span(size))
            view = self._staging.view[at : at + HEADER_BYTES + size]
            warm = bool(self._board[Counter.STATE_WARM])
            if not await self._get(home, unit, at, view, urgent):
                return None
            _, state, _ = split(view)
            if state == LOADED and ((warm and not self._verify) or genuine(view)):
                return at
            self._give_back(at)
            if state == BROKEN or (state == EMPTY and not await self._have_loaded(home, unit)):
                return None
            if state == LOADED:
                self._board.add(Counter.VERIFY_FAILURES)
                log.error("a unit from rank %d does not have its digest; unit %d", home, unit)
        return None

    async def _get(self, home: int, unit: int, at: int, view: memoryview, urgent: bool) -> bool:
        """One get into `view`; False if MPI failed or it is late. Then the place stays lent until MPI is done."""
        self._wake(home, urgent)
        get = self._peers.get(home, self._at[unit], view)
        in_time = False
        try:
            in_time = await self._in_time(home, get.done)
        finally:
            if not in_time:
                self._quarantine(get, at)
        if not in_time:
            return False
        if get.error:
            self._failed(get, at)
            return False
        self._board.add(Counter.GETS)
        self._answered(home)
        return True

    async def _in_time(self, home: int, event: trio.Event) -> bool:
        """Wait for a peer: `timeout`, or until it is known from another wait that it does not answer."""
        with trio.move_on_after(self._timeout_s) as limit:
            self._waiting_for[home].add(limit)
            try:
                await event.wait()
            finally:
                self._waiting_for[home].discard(limit)
        if not event.is_set():
            self._late(home)
        return event.is_set()

    def _failed(self, get: Get, at: int) -> None:
        log.warning("MPI failed to get from rank %d: %s", get.rank, get.error)
        self._board.add(Counter.MPI_ERRORS)
        self._give_back(at)
        self._suspect(get.rank)

    def _answered(self, home: int) -> None:
        self.suspects.answered(home)
        self._count_suspects()

    def _quarantine(self, get: Get, at: int) -> None:
        """Nobody waits for a get any more, but MPI may still write to its place."""
        if get.done.is_set():
            self._give_back(at)
            return
        give_back = self._lend(at)

        def when_done() -> None:
            give_back()
            if not get.error:
                self._answered(get.rank)  # late, but there

        get.when_done = when_done

    def _lend(self, at: int) -> Callable[[], None]:
        """Count a place as lent to whom nobody waits for; what is returned gives it back."""
        size = self._arena.size_of(at)
        self._board.add(Counter.QUARANTINED_BYTES, size)

        def give_back() -> None:
            self._board.add(Counter.QUARANTINED_BYTES, -size)
            self._give_back(at)

        return give_back

    async def _have_loaded(self, home: int, unit: int) -> bool:
        """Ask the home to load a unit now, and wait until it says how that went.

        One that does not say so in time may only have a source that is slow: gets from it go on, but it is not asked
        to load for a while.
        """
        if trio.current_time() < self._no_loads_until.get(home, 0.0):
            return False
        answer = self._asked.get(unit)
        if answer is None:
            answer = self._asked[unit] = _Answer()
            self._wake(home, urgent=False)
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
            self._no_loads_until[home] = trio.current_time() + _NO_LOADS_S
        return answer.good

    async def _load_for(self, rank: int, unit: int) -> None:
        """A peer asked for an own unit: it hears before it would call this rank late."""
        good = False
        with trio.move_on_after(_SAID_WITHIN * self._timeout_s):
            good = await self._loader.need(unit)
        self._peers.send(rank, Note(NoteKind.LOADED, unit, int(good)))

    def _wake(self, rank: int, urgent: bool) -> None:
        """Tell a target to poll often, or as often as can be: it cannot see one-sided gets coming."""
        now = trio.current_time()
        if now - self._woken.get((rank, urgent), -_WAKE_EVERY_S) >= (_URGENT_EVERY_S if urgent else _WAKE_EVERY_S):
            self._woken[rank, urgent] = now
            self._peers.send(rank, Note(NoteKind.WAKE, value=int(urgent)))

    async def _take(self, size: int) -> int:
        """A place in staging; waits for room, and has the mount release some."""
        while True:
            room = self._room  # taken before the attempt, so that no return in between is missed
            at = self._arena.take(size)
            if at is not None:
                break
            if trio.current_time() >= self._press_again_at:
                self._press_again_at = trio.current_time() + _PRESS_EVERY_S
                await self._send(Pressed())
            # Again and again: what the mount had not seen yet when it was pressed, it can release a little later.
            with trio.move_on_after(_PRESS_EVERY_S):
                await room.wait()
        self._board[Counter.STAGED_BYTES] = self._arena.used
        return at

    def _give_back(self, at: int) -> None:
        self._arena.give_back(at)
        self._board[Counter.STAGED_BYTES] = self._arena.used
        self._room.set()
        self._room = trio.Event()

    def _late(self, home: int) -> None:
        """A peer did not answer: neither will it in what else is waited for."""
        self._board.add(Counter.PEER_TIMEOUTS)
        if self._suspect(home):
            log.warning("rank %d did not answer in %g s; reading from the source", home, self._timeout_s)
        for limit in self._waiting_for[home]:
            limit.cancel()

    def _suspect(self, home: int) -> bool:
        news = self.suspects.failed(home)
        if news:
            self._new_suspects.send_nowait(home)
            self.on_suspect(home)
            self._count_suspects()
        return news

    async def _probe(self, rank: int) -> None:
        """Get a few bytes from a suspect until it gives them, or has answered otherwise; nobody waits for that."""
        while rank in self.suspects:
            await trio.sleep(self.suspects.next_pause(rank))
            if rank in self.suspects:
                self._wake(rank, urgent=False)
                get = self._peers.get(rank, 0, memoryview(bytearray(HEADER_BYTES)))
                await get.done.wait()
                if not get.error:
                    self._answered(rank)

    def _count_suspects(self) -> None:
        self._board[Counter.PEERS_SUSPECT] = len(self.suspects)
