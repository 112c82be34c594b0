"""Units got from their homes, each into a place in staging, compared with their digests; completed by callback.

A get costs no task, no event and no cancel scope: who began it is called when it has ended, in whatever way. One task
watches the time for all of them. It is `timeout` for each, so the oldest is late first.

**Threading.** The trio thread. **Invariants.** A get is in `_under_way` from `begin` until its `then` is called, which
happens once, or until it is given up. Its place is the caller's again with GOOD only: else it was given back, or is
lent until MPI is done with it.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable

import trio

from deepiofs.engine.peers import Get, Note, NoteKind, Peers
from deepiofs.engine.room import Room
from deepiofs.engine.suspects import Suspects
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import Placement, Units
from deepiofs.memory.store import BROKEN, EMPTY, HEADER_BYTES, LOADED, genuine, split

log = logging.getLogger(__name__)

_WAKE_EVERY_S = 0.5
_URGENT_EVERY_S = 0.025


class Outcome(enum.Enum):
    """How a get ended."""

    GOOD = enum.auto()
    EMPTY = enum.auto()  # its home has not loaded it yet
    BROKEN = enum.auto()  # nor ever will
    DIFFERS = enum.auto()  # from its digest
    FAILED = enum.auto()  # MPI says so
    LATE = enum.auto()


Then = Callable[[Outcome], None]


class UnderWay:
    """A get that was begun. warm: whether all ranks had loaded when it was."""

    __slots__ = ("at", "deadline", "get", "home", "then", "unit", "warm")

    def __init__(self, home: int, unit: int, at: int, get: Get, deadline: float, warm: bool, then: Then) -> None:
        self.home, self.unit, self.at, self.get = home, unit, at, get
        self.deadline, self.warm, self.then = deadline, warm, then


class Gets:
    """All gets of one rank, and what they tell of the peers."""

    def __init__(
        self,
        units: Units,
        placement: Placement,
        room: Room,
        peers: Peers,
        board: Board,
        *,
        timeout_s: float,
        verify: bool,
    ) -> None:
        self._units, self._at = units, placement.at.data
        self._room, self._peers, self._board = room, peers, board
        self._timeout_s, self._verify = timeout_s, verify
        self.suspects = Suspects()
        self.on_suspect: Callable[[int], None] = lambda rank: None
        self._new_suspects, self._to_probe = trio.open_memory_channel[int](math.inf)
        self._under_way: dict[Get, UnderWay] = {}
        self._begun = trio.Event()
        self._woken: dict[tuple[int, bool], float] = {}

    async def run(self) -> None:
        """Watch the time, and see now and then whether suspects are there again, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            async for rank in self._to_probe:
                nursery.start_soon(self._probe, rank)

    def begin(self, home: int, unit: int, at: int, urgent: bool, then: Then) -> UnderWay:
        """Get a unit, header included, to a place that is the caller's. `then` may be called before this returns."""
        self.wake(home, urgent)
        warm = bool(self._board[Counter.STATE_WARM])
        deadline = trio.current_time() + self._timeout_s
        get = self._peers.get(home, self._at[unit], self._room.unit(at, self._units.size[unit]))
        under_way = self._under_way[get] = UnderWay(home, unit, at, get, deadline, warm, then)
        self._begun.set()
        if get.over:
            self._ended(get)
        else:
            get.when_done = self._ended
        return under_way

    async def get(self, home: int, unit: int, at: int, urgent: bool) -> Outcome:
        """The same, for a task that waits for it. If it is cancelled, the place is not its own any more."""
        outcomes: list[Outcome] = []
        over = trio.Event()

        def then(outcome: Outcome) -> None:
            outcomes.append(outcome)
            over.set()

        under_way = self.begin(home, unit, at, urgent, then)
        try:
            await over.wait()
        except trio.Cancelled:
            if outcomes == [Outcome.GOOD]:
                self._room.give_back(at)
            elif not outcomes:
                self._give_up(under_way)
            raise
        return outcomes[0]

    def wake(self, rank: int, urgent: bool) -> None:
        """Tell a target to poll often, or as often as can be: it cannot see one-sided gets coming."""
        now = trio.current_time()
        if now - self._woken.get((rank, urgent), -_WAKE_EVERY_S) >= (_URGENT_EVERY_S if urgent else _WAKE_EVERY_S):
            self._woken[rank, urgent] = now
            self._peers.send(rank, Note(NoteKind.WAKE, value=int(urgent)))

    def answered(self, rank: int) -> None:
        """A rank is there."""
        if rank in self.suspects:
            self.suspects.answered(rank)
            self._count_suspects()

    def _ended(self, get: Get) -> None:
        """MPI is done with a get that is waited for."""
        under_way = self._under_way.pop(get)
        outcome = self._outcome(under_way)
        if outcome is not Outcome.GOOD:
            self._room.give_back(under_way.at)
        under_way.then(outcome)

    def _outcome(self, ended: UnderWay) -> Outcome:
        if ended.get.error:
            log.warning("MPI failed to get from rank %d: %s", ended.home, ended.get.error)
            self._board.add(Counter.MPI_ERRORS)
            self._suspect(ended.home)
            return Outcome.FAILED
        self._board.add(Counter.GETS)
        self.answered(ended.home)
        whole = self._room.unit(ended.at, self._units.size[ended.unit])
        _, state, _ = split(whole)
        if state == LOADED and ((ended.warm and not self._verify) or genuine(whole)):
            return Outcome.GOOD
        if state in (EMPTY, BROKEN):
            return Outcome.EMPTY if state == EMPTY else Outcome.BROKEN
        self._board.add(Counter.VERIFY_FAILURES)
        log.error("a unit from rank %d does not have its digest; unit %d", ended.home, ended.unit)
        return Outcome.DIFFERS

    async def _watch(self) -> None:
        """Let go what is late."""
        while True:
            oldest = next(iter(self._under_way.values()), None)
            if oldest is None:
                self._begun = trio.Event()
                await self._begun.wait()
            elif oldest.deadline <= trio.current_time():
                self._late(oldest.home)
            else:
                # Nearly always it has ended by then; that it has is not told to this task.
                await trio.sleep_until(oldest.deadline)

    def _late(self, home: int) -> None:
        """A peer did not answer: neither will it in what else is waited for."""
        late = [under_way for under_way in self._under_way.values() if under_way.home == home]
        self._board.add(Counter.PEER_TIMEOUTS, len(late))
        if self._suspect(home):
            log.warning("rank %d did not answer in %g s; reading from the source", home, self._timeout_s)
        for under_way in late:
            self._give_up(under_way)
        for under_way in late:
            under_way.then(Outcome.LATE)

    def _give_up(self, under_way: UnderWay) -> None:
        """Nobody waits for a get any more, but MPI may still write to its place (quarantine)."""
        del self._under_way[under_way.get]
        give_back = self._room.lend(under_way.at)

        def when_done(get: Get) -> None:
            give_back()
            if not get.error:
                self.answered(get.rank)  # late, but there

        under_way.get.when_done = when_done

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
                self.wake(rank, urgent=False)
                over = trio.Event()
                get = self._peers.get(rank, 0, memoryview(bytearray(HEADER_BYTES)))
                get.when_done = lambda get, over=over: over.set()
                if not get.over:
                    await over.wait()
                if not get.error:
                    self.answered(rank)

    def _count_suspects(self) -> None:
        self._board[Counter.PEERS_SUSPECT] = len(self.suspects)
