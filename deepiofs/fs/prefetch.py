"""What is fetched before it is asked for: the samples that this mount's readers will draw next.

`prefetch` draws ahead in all, over all groups. How many of them are of a group is what the last `prefetch` draws
were of it; before the first draw, its share of the samples. Of these, samples that are not in this node's memory are
claimed: the engine fetches them into staging, and they stay there until they are drawn.

Claims take half of staging at most; the rest is for what readers wait for. What is needed first is claimed first:
where there is no room, those behind wait too. A claim is kept, however long its group is not drawn, as long as no
other needs its place more: what was fetched is to be used.

**Threading.** The trio thread. **Invariants.** A sample is claimed once; `claimed_bytes` is the sum over claims.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import trio

from deepiofs.fs.nearby import Nearby
from deepiofs.fs.requests import GRACE_S, Requests
from deepiofs.memory.store import span

# A group drawn so often of late takes the places of claims whose groups were not drawn at all.
_OFTEN = 8


class Queues(Protocol):
    """What this mount serves next."""

    def is_loaded(self, group: int) -> bool:
        """Whether `upcoming` can tell without computing."""

    async def load(self, group: int) -> None:
        """Have the current pass of a group computed."""

    def upcoming(self, group: int, count: int) -> list[int]:
        """The next samples of a group's current pass, in order: `count` or more, less only at its end."""


class _Claim:
    """A sample fetched ahead. missing: units that are still under way."""

    __slots__ = ("group", "missing", "span", "units")

    def __init__(self, group: int, units: dict[int, int]) -> None:
        self.group = group
        self.units = units
        self.missing = set(units)
        self.span = sum(map(span, units.values()))

    def forget_units(self) -> None:
        """It is not fetched after all."""
        self.units, self.missing, self.span = {}, set(), 0


class Prefetcher:
    """Decides what to fetch ahead; with a count of 0 it fetches nothing, and nothing is waited for."""

    def __init__(
        self,
        requests: Requests,
        nearby: Nearby,
        count: int,
        staging_bytes: int,
        timeout_s: float,
    ) -> None:
        """count: how many draws ahead. staging_bytes: of the rank."""
        self._requests, self._nearby, self._timeout_s = requests, nearby, timeout_s
        self.window = max(count, 1)
        self._on = count > 0
        self._room_bytes, self._most_bytes = staging_bytes // 2, staging_bytes
        self._queues: Queues | None = None
        self._claims: dict[int, _Claim] = {}
        self.claimed_bytes = 0
        self._recent: collections.deque[int] = collections.deque()
        self._share: collections.Counter[int] = collections.Counter()
        self._looked_at: collections.Counter[int] = collections.Counter()  # how many of a group's next samples
        self._wanting: dict[int, None] = {}  # groups that have something to claim
        self._drawn: dict[int, None] = {}  # groups that were drawn since it was last looked what there is to claim
        # Claiming a few at a time costs less than claiming each by itself.
        self._every, self._since_claiming = max(count // 8, 1), 0
        self._called = trio.Event()
        self._news = trio.Event()

    def begin(self, queues: Queues, sizes: Sequence[int]) -> None:
        """sizes: samples of each group."""
        self._queues = queues
        if self._on and any(sizes):
            self._recent.extend(_proportional(sizes, self.window))
            self._share.update(self._recent)
            self._look_at_all()

    async def run(self) -> None:
        """Fetch ahead, until cancelled."""
        while self._on:
            self._called = trio.Event()
            self._since_claiming = 0
            while self._wanting and await self._claim_some():
                pass
            await self._called.wait()

    def ready(self, sample: int) -> bool:
        """Whether a draw may take a sample without waiting: it is in memory, or cannot be had from there."""
        if not self._on or self._nearby.has_all:
            return True
        claim = self._claims.get(sample)
        return not claim.missing if claim else self._nearby.has(sample)

    def drawn(self, group: int, sample: int) -> None:
        """A sample was drawn, and is read now."""
        if not self._on:
            return
        self._drop(sample, to_be_read=True)
        if self._nearby.has_all:
            return  # whose share it was matters no more
        self._share[group] += 1
        self._recent.append(group)
        if len(self._recent) > self.window:
            self._share[self._recent.popleft()] -= 1
        self._drawn[group] = None
        self._since_claiming += 1
        if self._since_claiming >= min(self._every, len(self._claims) // 4):
            self._since_claiming = 0
            drawn, self._drawn = self._drawn, {}
            for group in drawn:
                self._look(group)

    def taken(self, group: int) -> None:
        """One of the next samples of a group was reserved: those behind it move up."""
        if self._looked_at[group]:
            self._looked_at[group] -= 1

    def returned(self, group: int, sample: int) -> None:
        """A sample is the next of its group again, unused: those behind it move down."""
        if not self._on:
            return
        if sample in self._claims or self._nearby.has(sample):
            self._looked_at[group] += 1
        else:
            self.changed(group)

    def changed(self, group: int) -> None:
        """The next samples of a group are others: something came from another rank, or another pass begins."""
        if self._on:
            self._looked_at[group] = 0
            self._look(group)

    def gone(self, sample: int) -> None:
        """Another rank serves a sample; its place is another's."""
        self._drop(sample)
        if self._wanting:
            self._called.set()

    def restart(self) -> None:
        """All groups begin another pass."""
        for sample in list(self._claims):
            self._drop(sample)
        self._looked_at.clear()
        self._look_at_all()

    async def wait(self, group: int, wanted: int) -> None:
        """None of a group's next samples is ready: return when one may be. `wanted` readers wait for one."""
        assert self._queues is not None
        news = self._news  # what comes while the words are sent is news, too
        for sample in self._queues.upcoming(group, wanted)[:wanted]:
            await self._hurry(group, sample)
        with trio.move_on_after(self._timeout_s + GRACE_S) as limit:
            await news.wait()
        if limit.cancelled_caught:
            self._requests.engine_late()

    def give_up_newest(self) -> bool:
        """Staging has no room for what a reader waits for: let the claim go that is needed last.

        It is claimed again after a further draw: those behind it must not be drawn before it for long.
        """
        sample = next((s for s in reversed(self._claims) if not self._claims[s].missing), None)
        if sample is None:
            return False
        self._looked_at[self._claims[sample].group] = 0
        self._drop(sample)
        return True

    def _look(self, group: int) -> None:
        """See whether something of a group's share is to be claimed; `run` does so."""
        if self._share[group] and self._next_far(group) is not None:
            self._wanting[group] = None
        if self._wanting:
            self._called.set()

    def _look_at_all(self) -> None:
        self._wanting.update(dict.fromkeys(self._share))
        self._called.set()

    def _next_far(self, group: int) -> int | None:
        """The first of a group's share that is neither at hand nor claimed; -1 if that is not known yet."""
        assert self._queues is not None
        if not self._queues.is_loaded(group):
            return -1
        upcoming = self._queues.upcoming(group, self._share[group])
        while (place := self._looked_at[group]) < min(len(upcoming), self._share[group]):
            sample = upcoming[place]
            if sample not in self._claims and not self._nearby.has(sample):
                return sample
            self._looked_at[group] += 1
        return None

    async def _claim_some(self) -> bool:
        """Claim what is wanted, until a queue has to be computed; False if there is no room. Few words say it all."""
        assert self._queues is not None
        await self._queues.load(next(iter(self._wanting)))
        with self._requests.together():
            while self._wanting and self._queues.is_loaded(group := next(iter(self._wanting))):
                if not self._claim_for(group):
                    return False
        return True

    def _claim_for(self, group: int) -> bool:
        """Claim the next of a group's share; False if there is no room."""
        sample = self._next_far(group)
        if sample is None:
            self._wanting.pop(group, None)
            return True
        claim = self._planned(group, dict(self._nearby.lacking(sample)))
        if not self._has_room(claim):
            return False
        self._looked_at[group] += 1
        self._register(sample, claim)
        for unit, size in list(claim.units.items()):
            self._requests.fetch_with_others(unit, size, self._arrived(claim, unit))
        if not claim.missing:
            self._tell()
        return True

    def _has_room(self, claim: _Claim) -> bool:
        often = self._share[claim.group] >= min(_OFTEN, self.window)
        while not self._fits(claim):
            if not often or not self._drop_idle():
                return False
        return True

    def _fits(self, claim: _Claim) -> bool:
        fits = self.claimed_bytes + claim.span <= self._room_bytes or not self._claims
        return len(self._claims) < self.window and fits

    def _drop_idle(self) -> bool:
        """Let a claim go whose group was not drawn of late; False if there is none."""
        idle = next((sample for sample, claim in self._claims.items() if not self._share[claim.group]), None)
        if idle is None:
            return False
        self._looked_at[self._claims[idle].group] = 0
        self._drop(idle)
        return True

    def _planned(self, group: int, units: dict[int, int]) -> _Claim:
        """What to fetch of a sample: nothing where it is larger than staging; its readers get it piece by piece."""
        claim = _Claim(group, units)
        return claim if claim.span <= self._most_bytes else _Claim(group, {})

    def _register(self, sample: int, claim: _Claim) -> None:
        self._claims[sample] = claim
        self.claimed_bytes += claim.span
        for unit in claim.units:
            self._requests.staged.claim(unit)

    async def _claim_now(self, sample: int, claim: _Claim) -> None:
        """Have a sample fetched that a reader waits for."""
        self._register(sample, claim)
        for unit, size in list(claim.units.items()):
            if unit in claim.units:  # not dropped meanwhile
                await self._requests.fetch_ahead(unit, size, self._arrived(claim, unit), urgent=True)
        if not claim.missing:
            self._tell()

    def _arrived(self, claim: _Claim, unit: int) -> Callable[[bool], None]:
        def then(good: bool) -> None:
            claim.missing.discard(unit)
            if not good:
                claim.missing.clear()  # not waited for: its reader asks the source, and gets its errno
                if not self._requests.may_come(unit):
                    self._forget(claim, unit)
            if not claim.missing:
                self._tell()

        return then

    def _forget(self, claim: _Claim, unit: int) -> None:
        """A unit will not come: it takes no room."""
        size = claim.units.pop(unit, None)
        if size is not None:
            claim.span -= span(size)
            self.claimed_bytes -= span(size)
            self._requests.staged.let_go(unit)

    async def _hurry(self, group: int, sample: int) -> None:
        """A reader waits for this sample: it comes before all that is fetched ahead, room or not."""
        claim = self._claims.get(sample)
        if claim is not None:
            for unit in list(claim.missing):
                await self._requests.hurry(unit)
        elif units := dict(self._nearby.lacking(sample)):
            await self._claim_now(sample, self._planned(group, units))

    def _drop(self, sample: int, to_be_read: bool = False) -> None:
        claim = self._claims.pop(sample, None)
        if claim is None:
            return
        self.claimed_bytes -= claim.span
        for unit in claim.units:
            self._requests.staged.let_go(unit, to_be_read)
        claim.forget_units()

    def _tell(self) -> None:
        """Wake who waits for a sample."""
        self._news.set()
        self._news = trio.Event()


def _proportional(sizes: Sequence[int], count: int) -> Iterator[int]:
    """`count` groups, each as often as its share of the samples asks for, spread evenly."""
    total = sum(sizes)
    group, end = 0, sizes[0]
    for i in range(count):
        while (i + 0.5) * total / count > end:
            group += 1
            end += sizes[group]
        yield group
