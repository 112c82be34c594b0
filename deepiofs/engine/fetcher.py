"""What a mount asks for and its memory does not hold: from the home of the unit, into staging, verified.

Per unit one task. It ends in `Ready` or `Missed`, within `timeout`; what MPI still writes to after that stays lent
by the arena until MPI is done with it (quarantine).

**Threading.** The trio thread. **Invariants.** A unit is in `_staged` exactly while its place is lent and whole;
places of gets under way belong to their task, or after it to the get's `when_done`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import numpy as np
import numpy.typing as npt
import trio

from deepiofs.engine.loader import Loader
from deepiofs.engine.peers import Get, Note, NoteKind, Peers
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
_PRESS_EVERY_S = 0.05


class _Answer:
    """What a home says of a unit that it was asked to load."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.good = False
        self.waiters = 0


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
        self._loader, self._peers, self._board, self._send = loader, peers, board, send
        self._timeout_s, self._verify = timeout_s, verify
        self.suspects = Suspects(trio.current_time)
        self.on_suspect: Callable[[int], None] = lambda rank: None
        self._staged: dict[int, int] = {}
        self._room = trio.Event()
        self._asked: dict[int, _Answer] = {}
        self._woken: dict[int, float] = {}
        self._at_peer: set[int] = set()  # what a peer is to answer for now

    async def fetch(self, unit: int) -> None:
        """Answer one `Fetch`."""
        at: int | None = None
        with self._in_time(unit):
            at = await self.obtain(unit)
        await self._send(Missed(unit) if at is None else Ready(unit, at))

    @contextlib.contextmanager
    def _in_time(self, unit: int) -> Iterator[None]:
        """Give up after `timeout`; if it was the peer that was waited for, it is late."""
        with trio.move_on_after(self._timeout_s) as limit:
            yield
        if limit.cancelled_caught and unit in self._at_peer:
            self._at_peer.discard(unit)
            self._late(self._home[unit])

    async def obtain(self, unit: int) -> int | None:
        """Where the unit is readable now, IN_NODE or a place in staging; None if memory does not have it."""
        if unit in self._staged:
            return self._staged[unit]
        home = self._home[unit]
        if home == NOWHERE:
            return None
        if home == self._rank:
            return IN_NODE if await self._loader.need(unit) else None
        if home in self._stores and self._stores[home].state(self._at[unit]) == LOADED:
            return IN_NODE
        if not self.suspects.may_ask(home):
            return None
        if home in self._stores:
            return IN_NODE if await self._have_loaded(home, unit) else None
        at = await self._from_peer(home, unit)
        if at is not None:
            self._staged[unit] = at
        return at

    def release(self, unit: int) -> None:
        """The mount needs a staged unit no longer."""
        at = self._staged.pop(unit, None)
        if at is not None:
            self._give_back(at)

    @contextlib.asynccontextmanager
    async def borrowed(self, unit: int) -> AsyncIterator[memoryview | None]:
        """A unit got from its home, header included, inside the block only; for replicas.

        None if it cannot be had, or not within `timeout`.
        """
        home = self._home[unit]
        at: int | None = None
        with self._in_time(unit):
            if home != NOWHERE and self.suspects.may_ask(home):
                at = await self._from_peer(home, unit)
        try:
            size = int(self._units.size[unit])
            yield None if at is None else self._staging.view[at : at + HEADER_BYTES + size]
        finally:
            if at is not None:
                self._give_back(at)

    def on_note(self, rank: int, note: Note, start_soon: Callable[..., None]) -> None:
        """A peer's note arrived."""
        self.suspects.answered(rank)
        if note.kind is NoteKind.LOAD:
            start_soon(self._load_for, rank, note.unit)
        elif note.kind is NoteKind.LOADED and (answer := self._asked.pop(note.unit, None)):
            answer.good = bool(note.value)
            answer.event.set()
        self._count_suspects()

    async def _from_peer(self, home: int, unit: int) -> int | None:
        """A place in staging with the whole, genuine unit, lent to the caller."""
        size = int(self._units.size[unit])
        if span(size) > self._arena.size:
            return None
        for _ in range(_TRIES):
            at = await self._take(span(size))
            view = self._staging.view[at : at + HEADER_BYTES + size]
            warm = bool(self._board[Counter.STATE_WARM])
            if not await self._get(home, unit, at, view):
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

    async def _get(self, home: int, unit: int, at: int, view: memoryview) -> bool:
        """One get into `view`; False if MPI failed. If cancelled, the place stays lent until MPI is done."""
        self._wake(home)
        get = self._peers.get(home, self._at[unit], view)
        self._at_peer.add(unit)
        try:
            await get.done.wait()
        except trio.Cancelled:
            self._quarantine(get, at)
            raise
        self._at_peer.discard(unit)
        if get.error:
            log.warning("MPI failed to get from rank %d: %s", home, get.error)
            self._board.add(Counter.MPI_ERRORS)
            self._give_back(at)
            self.suspects.failed(home)
            self.on_suspect(home)
            self._count_suspects()
            return False
        self._board.add(Counter.GETS)
        self.suspects.answered(home)
        self._count_suspects()
        return True

    def _quarantine(self, get: Get, at: int) -> None:
        if get.done.is_set():
            self._give_back(at)
        else:
            get.when_done = lambda: self._give_back(at)

    async def _have_loaded(self, home: int, unit: int) -> bool:
        """Ask the home to load a unit now, and wait until it says how that went."""
        answer = self._asked.get(unit)
        if answer is None:
            answer = self._asked[unit] = _Answer()
            self._wake(home)
            self._peers.send(home, Note(NoteKind.LOAD, unit))
        self._at_peer.add(unit)
        answer.waiters += 1
        try:
            await answer.event.wait()
        finally:
            answer.waiters -= 1
            if not answer.waiters and self._asked.get(unit) is answer:
                del self._asked[unit]  # the next one asks anew
        self._at_peer.discard(unit)
        return answer.good

    async def _load_for(self, rank: int, unit: int) -> None:
        """A peer asked for an own unit."""
        good = await self._loader.need(unit)
        self._peers.send(rank, Note(NoteKind.LOADED, unit, int(good)))

    def _wake(self, rank: int) -> None:
        """Tell an idle target to poll often: it cannot see one-sided gets coming."""
        now = trio.current_time()
        if now - self._woken.get(rank, -_WAKE_EVERY_S) >= _WAKE_EVERY_S:
            self._woken[rank] = now
            self._peers.send(rank, Note(NoteKind.WAKE))

    async def _take(self, size: int) -> int:
        """A place in staging; waits for room, and has the mount release some."""
        while True:
            room = self._room  # taken before the attempt, so that no return in between is missed
            at = self._arena.take(size)
            if at is not None:
                break
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
        if home in (NOWHERE, self._rank):
            return
        self._board.add(Counter.PEER_TIMEOUTS)
        self.suspects.failed(home)
        self.on_suspect(home)
        self._count_suspects()
        log.warning("rank %d did not answer in %g s; reading from the source", home, self._timeout_s)

    def _count_suspects(self) -> None:
        self._board[Counter.PEERS_SUSPECT] = len(self.suspects)


def own_units(home: npt.NDArray[np.int32], rank: int) -> list[int]:
    """The units of a rank, ascending."""
    found: list[int] = np.flatnonzero(home == rank).tolist()
    return found
