"""Taking entries from the queues of other ranks, when this one's is drawn (S7).

One task per group asks, the others wait for what it brings. A rank that did not answer counts as empty for a while
without being asked, in each group and pass, unless it is heard of before.

**Threading.** The trio thread. **Invariants.** A group in `_asking` has one task that asks, which takes it out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from deepiofs.errors import TimedOutError
from deepiofs.fs.rollcall import RollCall
from deepiofs.order.queues import Answer, GroupQueues, Reply, victim_order

# For how long a rank that did not answer counts as empty without being asked, unless it is heard of before.
_SILENT_S = 60.0
# Of so many passes in a row a rank that is left alone serves nothing, until it says so: plans differ.
_VAIN_PASSES = 16

Ask = Callable[[int, int, int], Awaitable[Answer | None]]


class Stealing:
    """Whom one mount asks, and who does not answer."""

    def __init__(self, rank: int, n_ranks: int, seed: int, ask: Ask, rollcall: RollCall) -> None:
        """ask: (rank, group, pass) to that rank's answer, None if it does not come in time."""
        self._rank, self._n_ranks, self._seed = rank, n_ranks, seed
        self._ask, self._rollcall = ask, rollcall
        self._asking: dict[int, trio.Event] = {}
        self._silent_until: dict[int, float] = {}

    def heard_of(self, rank: int) -> None:
        """Its engine answers, or asks: it is asked again."""
        self._silent_until.pop(rank, None)

    def ask_all_anew(self) -> None:
        """Whoever was silent may have something after all."""
        self._silent_until.clear()

    def victims(self, queues: GroupQueues) -> list[int]:
        """Whom to ask for a group's current pass, in this order."""
        number = queues.current
        order = victim_order(self._rank, self._n_ranks, number, queues.group, self._seed)
        return queues.victims(rank for rank in order if self._rollcall.may_have(rank, number))

    async def steal(self, queues: GroupQueues, victims: list[int]) -> bool:
        """Ask several at once, or wait for who does. Whether any knew more."""
        group, number = queues.group, queues.current
        if group in self._asking:
            await self._asking[group].wait()
            return True
        event = self._asking[group] = trio.Event()
        replies: list[Reply] = []
        try:
            async with trio.open_nursery() as nursery:
                for rank in victims:
                    nursery.start_soon(self._ask_one, rank, queues, number, replies)
        finally:
            del self._asking[group]
            event.set()
        return any(reply is not Reply.BUSY for reply in replies)

    def refuse_if_in_vain(self, queues: GroupQueues) -> None:
        """TimedOutError if nothing of this group is to be had here, in this pass nor likely in the next.

        So it is with a rank that is out, and serves what the others leave, if none of them answers; and with one that
        is left alone with groups of which the others have everything.
        """
        is_out = self._rank in self._rollcall.losses.out_in(queues.current)
        if queues.in_vain and (is_out or queues.vain_passes >= _VAIN_PASSES):
            # The next who opens a name asks them again.
            queues.ask_anew()
            self.ask_all_anew()
            raise TimedOutError("the ranks that have samples of this group do not answer")

    async def _ask_one(self, rank: int, queues: GroupQueues, number: int, replies: list[Reply]) -> None:
        """An answer is handed to the queue by who receives it, in time or late; here only silence is."""
        answer = None
        if rank not in self._rollcall.without_engine and not self._is_silent(rank):
            answer = await self._ask(rank, queues.group, number)
        if answer is None:
            # One that is gone must not be waited for again in each group and pass.
            if not self._is_silent(rank):
                self._silent_until[rank] = trio.current_time() + _SILENT_S
            # That a mount without an engine hears nothing says nothing of the others.
            missing = self._rollcall.has_engine() or rank in self._rollcall.neighbours()
            queues.give_up(rank, missing=missing)
        replies.append(Reply.EMPTY if answer is None else answer.reply)

    def _is_silent(self, rank: int) -> bool:
        return trio.current_time() < self._silent_until.get(rank, 0.0)
