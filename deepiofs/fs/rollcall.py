"""The roll call: the mounts of a job agree who of them is lost, and from which pass on the others do its part.

A pass may be planned without a rank only if no mount has begun it with that rank. So whoever finds one silent asks
the lowest rank that it believes in to coordinate. The coordinator calls the silent one; if its process is gone, or
cannot be reached, it counts how far all others are (they begin no further pass meanwhile), and tells them the first
pass that none of them has begun. It decides nothing unless all that live have answered, nor against a majority
whose end is not proven: what was cut off goes on, but does not share out what the others still serve.

Two coordinators at a time do no harm: of two numbers for one rank the smaller holds, and who has answered both
waits for both.

Everything waits a few `timeout` at most. No read waits for any of it, and no draw of a pass that is begun.

**Threading.** The trio thread. **Invariants.** While a ballot holds this mount, `begun` does not grow.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import trio

from deepiofs.fs.door import Kind, Report, Silence, Word
from deepiofs.order.members import Losses

log = logging.getLogger(__name__)

# In units of `timeout`. A coordinator calls the silent, counts, and tells: each may take one.
_AGREED_WITHIN = 4
# A mount that nobody tells how a ballot ended goes on after this, and has the coordinator judged first.
_HELD_FOR = 6
# For how long a judgement waits at most, whatever happens.
_JUDGED_WITHIN = 10
# For how long a rank that was judged, and is not lost, is not judged again.
_SETTLED_FOR = 1
# Each takes a descriptor.
_CALLS_AT_ONCE = 128


class Call(Protocol):
    """As `door.Door.call`."""

    def __call__(
        self, rank: int, word: Word, timeout_s: float, wait_s: float | None = None, /
    ) -> Awaitable[Report | Silence]: ...


@dataclasses.dataclass
class _Hold:
    """A promise to a coordinator: to begin no pass after `limit` until it is over, or `until`."""

    sender: int
    limit: int
    until: float
    over: trio.Event = dataclasses.field(default_factory=trio.Event)


class RollCall:
    """One mount's part in it, and what it knows."""

    def __init__(self, rank: int, n_ranks: int, call: Call | None = None, timeout_s: float = 5.0) -> None:
        """call: how other ranks are called; None if they cannot be, then nobody is ever lost."""
        self.rank, self._n_ranks, self._call, self._timeout_s = rank, n_ranks, call, timeout_s
        self.losses = Losses()
        # What the shuffled view tells and wants to know.
        self.begun: Callable[[], int] = lambda: -1
        self.has_engine: Callable[[], bool] = lambda: True
        self.on_losses: Callable[[int], None] = lambda number: None
        self.guests: set[int] = set()  # that are out, and have been heard of since
        self.without_engine: set[int] = set()
        self._met: set[int] = set()
        self._settled: dict[int, float] = {}
        self._holds: dict[tuple[int, int], _Hold] = {}
        self._ballots = itertools.count(1)
        self._to_tell: set[int] = set()
        self._tell = trio.Event()
        self._judging, self._agreeing = trio.Lock(), trio.Lock()
        self._lines = trio.CapacityLimiter(_CALLS_AT_ONCE)

    @property
    def members(self) -> list[int]:
        """Ranks that are not out."""
        return [rank for rank in range(self._n_ranks) if rank not in self.losses]

    def may_have(self, rank: int, number: int) -> bool:
        """Whether a rank may have entries of a pass: who is out has none, but what it took since it is back."""
        return rank not in self.losses.out_in(number) or rank in self.guests

    def neighbours(self) -> list[int]:
        """The next member, for whom a mount without an engine looks after: all of them together look after all."""
        others = [rank for rank in self.members if rank != self.rank]
        return [next((rank for rank in others if rank > self.rank), others[0])] if others else []

    # --- Finding out

    async def judge(self, ranks: Iterable[int]) -> None:
        """Have ranks that are silent or have left judged; on return it is known who of them is lost, if it can be."""
        if self._call is None or not self._unsettled(ranks):
            return
        with trio.move_on_after(_JUDGED_WITHIN * self._timeout_s):
            async with self._judging:
                if suspects := self._unsettled(ranks):
                    await self._have_judged(suspects)

    async def _have_judged(self, suspects: set[int]) -> None:
        wanted = frozenset(suspects)
        while candidates := [rank for rank in self.members if rank not in suspects]:
            if candidates[0] == self.rank:
                await self._agree(suspects)
                break
            word = self._word(Kind.LOST, ranks=tuple(sorted(suspects)))
            if isinstance(await self._ask(candidates[0], word, _AGREED_WITHIN), Report):
                break
            suspects = suspects | {candidates[0]}
        self._settle(wanted)

    async def run(self) -> None:
        """Call whom there is something to tell, until cancelled."""
        await self.greet()
        while True:
            while self._to_tell:
                rank = self._to_tell.pop()
                if isinstance(await self._ask(rank, self._word(Kind.HELLO)), Silence):
                    self.guests.discard(rank)
            self._tell = trio.Event()
            await self._tell.wait()

    async def greet(self) -> None:
        """Call the lowest other member once: who has never been met might be behind a wall, not gone."""
        if others := [rank for rank in self.members if rank != self.rank]:
            found = await self._ask(others[0], self._word(Kind.HELLO), _HELD_FOR)
            if isinstance(found, Silence):
                log.warning("rank %d cannot be called (%s); losses may go unnoticed", others[0], found.value)

    async def _agree(self, suspects: set[int]) -> None:
        """As the coordinator."""
        async with self._agreeing:
            suspects = self._unsettled(suspects)
            found = await self._ask_all(suspects, self._word(Kind.HELLO))
            lost = {rank: said for rank, said in found.items() if said in (Silence.GONE, Silence.AWAY)}
            if lost:
                await self._put_out(lost)
            self._settle(suspects)

    async def _put_out(self, lost: Mapping[int, Report | Silence]) -> None:
        """Count all others, and decide from which pass on these are out."""
        ballot = next(self._ballots)
        begun = {self.rank: self._hold(self.rank, ballot)} if self.rank not in self.losses else {}
        others = set(self.members) - lost.keys() - {self.rank}
        found = await self._ask_all(others, self._word(Kind.COUNT, ballot=ballot))
        begun |= {rank: said.begun for rank, said in found.items() if isinstance(said, Report)}
        lost = {**lost} | {rank: said for rank, said in found.items() if said in (Silence.GONE, Silence.AWAY)}
        lost = {rank: said for rank, said in lost.items() if rank not in self.losses}
        if Silence.ALIVE not in found.values() and self._may_decide(begun.keys(), lost):
            self._learn(dict.fromkeys(lost, max(begun.values()) + 1))
        self._release(self.rank, ballot)
        await self._ask_all(begun.keys() - {self.rank}, self._word(Kind.OVER, ballot=ballot))

    def _may_decide(self, counted: Iterable[int], lost: Mapping[int, Report | Silence]) -> bool:
        """Whether those counted are more than those whose end is not proven; of two halves, that of the lowest rank.

        A refusal is a proof only by a host that has been reached before: others' may be a wall's.
        """
        unproven = [rank for rank, said in lost.items() if said is not Silence.GONE or rank not in self._met]
        mine = list(counted)
        return bool(mine) and (len(mine), -min(mine)) > (len(unproven), -min(unproven, default=self._n_ranks))

    # --- Being called

    async def answer(self, word: Word) -> Report:
        """Another mount calls."""
        self._meet(word.sender, word.since)
        match word.kind:
            case Kind.LOST:
                await self._agree({rank for rank in word.ranks if 0 <= rank < self._n_ranks})
            case Kind.COUNT:
                return self._report(self._hold(word.sender, word.ballot))
            case Kind.OVER:
                self._release(word.sender, word.ballot)
        return self._report(self.begun())

    def holds(self, number: int) -> bool:
        """Whether this mount has promised not to begin a pass now."""
        return any(number > hold.limit for hold in self._holds.values())

    async def released(self) -> None:
        """Wait until a promise is over."""
        if not self._holds:
            return
        key, hold = min(self._holds.items(), key=lambda entry: entry[1].until)
        with trio.move_on_at(hold.until):
            await hold.over.wait()
            return
        # How the ballot ended may be known to others.
        await self.judge([hold.sender])
        self._release(*key)

    def _hold(self, sender: int, ballot: int) -> int:
        limit = self.begun()
        self._holds[sender, ballot] = _Hold(sender, limit, trio.current_time() + _HELD_FOR * self._timeout_s)
        return limit

    def _release(self, sender: int, ballot: int) -> None:
        hold = self._holds.pop((sender, ballot), None)
        if hold is not None:
            hold.over.set()

    # --- Calling

    def _word(self, kind: Kind, ranks: tuple[int, ...] = (), ballot: int = 0) -> Word:
        return Word(kind, self.rank, self.losses.since, ranks, ballot)

    def _report(self, begun: int) -> Report:
        return Report(self.rank, self.losses.since, begun, self.has_engine())

    async def _ask(self, rank: int, word: Word, patience: float = 1) -> Report | Silence:
        assert self._call is not None
        said = await self._call(rank, word, self._timeout_s, patience * self._timeout_s)
        if isinstance(said, Report):
            if said.sender != rank:
                return Silence.GONE  # another mount of the job has its port now
            self._meet(rank, said.since)
            if not said.engine:
                self.without_engine.add(rank)
        return said

    async def _ask_all(self, ranks: Iterable[int], word: Word) -> dict[int, Report | Silence]:
        found: dict[int, Report | Silence] = {}

        async def ask(rank: int) -> None:
            async with self._lines:
                found[rank] = await self._ask(rank, word)

        async with trio.open_nursery() as nursery:
            for rank in ranks:
                nursery.start_soon(ask, rank)
        return found

    # --- Knowing

    def heard_of(self, rank: int) -> None:
        """A rank has asked or answered, by whatever way; if it is out it may not know."""
        if rank in self.losses and rank not in self.guests:
            self.guests.add(rank)
            self._to_tell.add(rank)
            self._tell.set()

    def _meet(self, rank: int, since: Mapping[int, int]) -> None:
        self._met.add(rank)
        self._learn(since)
        self.heard_of(rank)

    def _learn(self, facts: Mapping[int, int]) -> None:
        facts = {rank: number for rank, number in facts.items() if 0 <= rank < self._n_ranks}
        first = self.losses.learn(facts)
        if first is not None:
            log.warning(
                "out of the passes: %s", ", ".join(f"rank {r} from {n} on" for r, n in self.losses.since.items())
            )
            self.on_losses(first)
        if self.rank in facts and first is not None:
            # What it takes from one it may have to give to another: they must know that it is there.
            self._to_tell |= set(self.members)
            self._tell.set()

    def _unsettled(self, ranks: Iterable[int]) -> set[int]:
        """Those to be judged: not out, not this one, and not judged just now."""
        now = trio.current_time()
        known = {self.rank, *self.losses.since}
        return {rank for rank in ranks if rank not in known and now >= self._settled.get(rank, now)}

    def _settle(self, ranks: Iterable[int]) -> None:
        until = trio.current_time() + _SETTLED_FOR * self._timeout_s
        self._settled |= dict.fromkeys(ranks, until)
