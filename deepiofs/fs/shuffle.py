"""The shuffled view: names in, samples out, each sample once per pass over all mounts (S2 to S7).

Composes the queues and the binder of `order/` with what they leave out: threads of the machine and the clock, plans
made in time (`plans`), and the messages by which a rank whose queue is empty takes from the others (`stealing`).

**Threading.** The trio thread; large queues are computed in a worker. After every await that may take a sample the
binder is asked again: another task may have bound the name meanwhile.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.fs.plans import Plans
from deepiofs.fs.prefetch import Prefetcher
from deepiofs.fs.rollcall import RollCall
from deepiofs.fs.roster import Roster
from deepiofs.fs.stealing import Ask, Stealing
from deepiofs.fs.told import Told
from deepiofs.order.binder import UNKNOWN_THREAD, Binder, Binding
from deepiofs.order.plan import Plan
from deepiofs.order.queues import Answer, Draw, GroupQueues, Reply

log = logging.getLogger(__name__)

# A lookup whose open has not followed within this does not hold up the end of a pass.
_STALE_S = 1.0
_PAUSE_S = 0.05


class Bound(NamedTuple):
    """What an open binds: keep with the handle. row: whose bytes. draws: whether this open is a draw."""

    binding: Binding
    row: int
    draws: bool
    position: int  # of the draw in this mount
    keep_cache: bool
    announced: bool  # whether the kernel is sure to believe this size, which the lookup before told

    @property
    def number(self) -> int:
        """The pass that the sample is drawn in."""
        return self.binding.draw.number


class Shuffle:
    """The remapping of one mount."""

    def __init__(
        self,
        manifest: Manifest,
        roster: Roster,
        plan: Plan,
        ahead: Prefetcher,
        *,
        rank: int,
        n_ranks: int,
        seed: int,
        ask: Ask,
        rollcall: RollCall | None = None,
    ) -> None:
        """ask: (rank, group, pass) to that rank's answer, None if it does not come in time."""
        self.plan = plan
        self._ahead, self._manifest, self._roster = ahead, manifest, roster
        self._rank, self._n_ranks = rank, n_ranks
        self.rollcall = rollcall or RollCall(rank, n_ranks)
        self.rollcall.begun = self._begun
        self.rollcall.on_losses = self._lost
        self.on_losses: Callable[[], None] = lambda: None
        self._plans = Plans(plan, rank, self.rollcall)
        self._stealing = Stealing(rank, n_ranks, seed, ask, self.rollcall)
        self._binder = Binder(self._give_back)
        self._queues: dict[int, GroupQueues] = {}
        self._takers: collections.Counter[int] = collections.Counter()  # tasks that need an entry, by group
        self.told = Told()
        self._changed = trio.Event()
        self._awaited = 0
        self._base = 0
        self.number = 0
        self.draws = 0
        self.steals = 0
        self.stalls = 0
        self.stall_s = 0.0
        ahead.begin(self, [plan.group_size(group) for group in range(plan.n_groups)])

    def covers(self, row: int) -> bool:
        """Whether the name of a row is shuffled."""
        return self._roster.covers(row)

    def peek(self, row: int) -> int:
        """The row whose bytes a name stands for now; its own if it stands for nothing."""
        binding = self._binder.peek(self._roster.sample_of[row])
        return row if binding is None else self._roster.row(binding.draw.sample, self._roster.member_of(row))

    async def look(self, thread: int, row: int) -> int:
        """The row whose bytes an open of this name by this thread would read: reserves, does not draw (S6)."""
        begun = self.told.tells
        binding = self._look(thread, row)
        if binding is None and (draw := self._take_at_hand(self._roster.group_of(row))):
            binding = self._reserve(thread, row, draw)  # nothing was awaited since the look
        while binding is None:
            draw = await self._take(self._roster.group_of(row))
            # Nothing is awaited from here on.
            binding = self._look(thread, row)
            if binding is None:
                binding = self._reserve(thread, row, draw)
            else:
                self._give_back(draw)
        self.told.tell(thread, row, self._manifest.parent_of[row], begun)
        return self._roster.row(binding.draw.sample, self._roster.member_of(row))

    async def open(self, thread: int, row: int) -> Bound:
        """Bind a name for a handle; draws unless the sample was drawn before."""
        name, member = self._roster.sample_of[row], self._roster.member_of(row)
        self.told.heard_of(thread)
        opened = self._binder.open(thread, name, member)
        announced = opened is not None and not self.told.may_have_crossed(row)
        while opened is None:  # revoked between lookup and open, or opened without a lookup
            await self.look(thread, row)
            opened = self._binder.open(thread, name, member)
        binding, draws, known = opened
        if draws:
            self.draws += 1
            self.number = max(self.number, binding.draw.number)
            self._ahead.drawn(binding.draw.group, binding.draw.sample)
            self._change()
        row = self._roster.row(binding.draw.sample, member)
        return Bound(binding, row, draws, self.draws - 1, known, announced)

    def close(self, bound: Bound) -> None:
        """The handle is gone."""
        self._binder.close(bound.binding)

    def asked(self, rank: int, group: int, number: int) -> Answer:
        """Another rank asks for an entry of a pass (S7).

        "Empty" is final, so it is not said while an entry of this pass is out with someone who may give it back. Nor
        is a pass begun for another while this mount has promised not to, or its plan is not computed.
        """
        self._stealing.heard_of(rank)
        self.rollcall.heard_of(rank)
        if not 0 <= group < self.plan.n_groups:
            return Answer(Reply.EMPTY)
        queues = self._queues_of(group)
        if not queues.has(number) and (self.rollcall.holds(number) or not self._plans.has(number)):
            self._plans.want(number)
            return Answer(Reply.BUSY)
        answer = queues.asked(number)
        if answer.reply is not Reply.SAMPLE and self._take_back(group):
            answer = queues.asked(number)
        if answer.reply is Reply.SAMPLE:
            self._ahead.gone(answer.value)
        out = self._binder.reservations(group)
        return Answer(Reply.BUSY) if answer.reply is Reply.EMPTY and out else answer

    def stolen(self, rank: int, group: int, number: int, answer: Answer) -> None:
        """An answer came, in time or late."""
        self._stealing.heard_of(rank)
        if answer.reply is not Reply.LEFT:
            self.rollcall.heard_of(rank)
        if answer.reply is Reply.SAMPLE:
            self.steals += 1
        self._queues_of(group).answered(rank, number, answer)
        if answer.reply is Reply.SAMPLE:
            self._ahead.changed(group)
        self._change()

    def begin(self, number: int) -> None:
        """Start a pass on this mount, in all groups."""
        self._binder.forget_reservations()
        self._plans.forget_queues()
        self._base = self.number = number
        for queues in self._queues.values():
            queues.begin(number)
        self._ahead.restart()
        self._change()

    def is_loaded(self, group: int) -> bool:
        """Whether the current pass of a group is computed."""
        return self._queues_of(group).is_loaded

    def upcoming(self, group: int, count: int) -> list[int]:
        """The next samples that this mount serves of a group, in order: `count` or more, less only at a pass's end."""
        return self._queues_of(group).upcoming(count)

    async def load(self, group: int) -> None:
        """Have the queue of a group's current pass; a large one is computed in a worker thread."""
        queues = self._queues_of(group)
        while not queues.is_loaded and await self._made_ready(group):
            continue  # whatever was true before may not be so now
        queues.load()

    async def plan_for_others(self) -> None:
        """Make the plans that only others ask for, if nobody reads here; runs until cancelled."""
        await self._plans.make_for_others()

    def _look(self, thread: int, row: int) -> Binding | None:
        return self._binder.look(thread, self._roster.sample_of[row], self._roster.member_of(row), trio.current_time())

    def _reserve(self, thread: int, row: int, draw: Draw) -> Binding:
        name = self._roster.sample_of[row]
        return self._binder.reserve(thread, name, draw, self._roster.files(name), trio.current_time())

    def _give_back(self, draw: Draw) -> None:
        queues = self._queues[draw.group]
        queues.give_back(draw)
        if draw.number == queues.current:
            self._ahead.returned(draw.group, draw.sample)
        self._change()

    async def _take(self, group: int) -> Draw:
        """The next sample for this mount: its own queue's, then the others', then the next pass's."""
        queues = self._queues_of(group)
        self._takers[group] += 1
        try:
            return await self._take_slowly(group, queues)
        finally:
            self._takers[group] -= 1

    def _take_at_hand(self, group: int) -> Draw | None:
        """The next sample for this mount, if nothing has to be waited for."""
        queues = self._queues_of(group)
        return self._take_ready(queues) if queues.is_loaded else None

    def _take_ready(self, queues: GroupQueues) -> Draw | None:
        draw = queues.take(self._ahead.window, self._ahead.ready)
        if draw is not None:
            self._ahead.taken(queues.group)
        return draw

    async def _take_slowly(self, group: int, queues: GroupQueues) -> Draw:
        while True:
            await self.load(group)
            draw = self._take_ready(queues)
            if draw:
                return draw
            if queues.remaining:
                await self._stall(group, queues)
            elif victims := self._stealing.victims(queues):
                # No more are asked than are needed: who has said "empty" must not get an entry to spare afterwards.
                if not await self._stealing.steal(queues, victims[: self._takers[group]]):
                    await self._pause()
            elif not self._take_back(group):
                if self._binder.reservations(group):
                    await self._pause()
                elif missing := queues.missing:
                    await self.rollcall.judge(missing)
                    queues.judged(missing)
                else:
                    self._stealing.refuse_if_in_vain(queues)
                    queues.advance()
                    self._ahead.changed(group)

    async def _stall(self, group: int, queues: GroupQueues) -> None:
        """Wait until one of the next samples is fetched."""
        self.stalls += 1
        began, number = trio.current_time(), queues.current
        ahead = self._ahead
        while queues.current == number and queues.remaining and not queues.has_ready(ahead.window, ahead.ready):
            await ahead.wait(group, self._takers[group])
        self.stall_s += trio.current_time() - began

    def _take_back(self, group: int) -> bool:
        """At the end of a pass: what threads have looked up and not opened is part of it still."""
        draws = self._binder.revoke(group, _is_stale)
        for draw in draws:
            self._give_back(draw)
        return bool(draws)

    async def _pause(self) -> None:
        """Until something is drawn, given back, or taken, but not for long: lookups become stale in silence."""
        self._awaited += 1
        try:
            with trio.move_on_after(_PAUSE_S):
                await self._changed.wait()
        finally:
            self._awaited -= 1

    async def _made_ready(self, group: int) -> bool:
        """Do one thing that a group's pass needs before it can begin; whether there was any to wait for."""
        number = self._queues[group].current
        if self.rollcall.holds(number):
            await self.rollcall.released()
            return True
        if not self._plans.has(number):
            await self._plans.make(number)
            return True
        return await self._plans.compute(group, number)

    def _begun(self) -> int:
        """The latest pass that this mount has begun in any group."""
        return max((queues.latest for queues in self._queues.values()), default=-1)

    def _lost(self, number: int) -> None:
        """From pass `number` on others take part than was thought."""
        self._plans.forget_queues()
        self.on_losses()
        late = sum(queues.give_away(number) for queues in self._queues.values())
        if late:
            self._ahead.restart()
            log.warning("pass %d was begun with ranks that are out: %d samples are left to the others", number, late)
        if self._rank in self.rollcall.losses:
            self._stealing.ask_all_anew()
            for queues in self._queues.values():
                queues.ask_anew()
        self._change()

    def _queues_of(self, group: int) -> GroupQueues:
        queues = self._queues.get(group)
        if queues is None:
            queues = GroupQueues(group, self._rank, self._n_ranks, lambda number: self._plans.queue(group, number))
            if self._base:
                queues.begin(self._base)  # a pass that was begun by command, before this group was used
            self._queues[group] = queues
        return queues

    def _change(self) -> None:
        """Wake who waits for the end of a pass; nearly always nobody does."""
        if self._awaited:
            self._changed.set()
            self._changed = trio.Event()


def _is_stale(binding: Binding) -> bool:
    """Looked up a while ago, or by threads that are gone."""
    if trio.current_time() - binding.since > _STALE_S:
        return True
    return UNKNOWN_THREAD not in binding.lookers and not any(map(_lives, binding.lookers))


def _lives(thread: int) -> bool:
    return Path(f"/proc/{thread}").exists()
