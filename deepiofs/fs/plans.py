"""The plans of passes, by who takes part in them, and the next queue of a large group before it is needed.

A plan over many millions of samples takes seconds and a queue of a large group more than a moment, so both are made
in worker threads; small ones at once.

**Threading.** The trio thread. What another task has learned while one waits is asked for again: who is out decides
which plan a pass has. **Invariants.** `_computed` has one queue per group at most, of the plan that holds now.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import trio

from deepiofs.fs.rollcall import RollCall
from deepiofs.order.members import without
from deepiofs.order.plan import Plan

# Below this a queue is computed at once (a millisecond); above, in a worker thread.
_INLINE_SAMPLES = 20_000
# How many memberships have a plan at hand: groups may be in passes before and after a loss.
_KEPT = 2


class Plans:
    """Of one mount."""

    def __init__(self, whole: Plan, rank: int, rollcall: RollCall) -> None:
        """whole: the plan over all ranks."""
        self.whole = whole
        self._rank, self._rollcall = rank, rollcall
        self._by_out = {frozenset[int](): whole}
        self._computed: dict[tuple[int, int], npt.NDArray[np.uint32]] = {}
        self._wanted, self._want = 0, trio.Event()

    def has(self, number: int) -> bool:
        """Whether the plan of a pass is at hand; a small one is made at once."""
        out = self._out(number)
        if out not in self._by_out and len(self.whole.membership.group) <= _INLINE_SAMPLES:
            self._keep(out, self._without(out))
        return out in self._by_out

    async def make(self, number: int) -> None:
        """Plan over the ranks that are left in a pass: some seconds for many millions of samples."""
        out = self._out(number)
        self._keep(out, await trio.to_thread.run_sync(self._without, out))

    def want(self, number: int) -> None:
        """Another rank asks for a pass whose plan is not at hand: `make_for_others` makes it."""
        self._wanted = max(self._wanted, number)
        self._want.set()

    async def make_for_others(self) -> None:
        """Have ready what only others ask for, if nobody reads here; runs until cancelled."""
        while True:
            await self._want.wait()
            self._want = trio.Event()
            if not self.has(self._wanted):
                await self.make(self._wanted)

    async def compute(self, group: int, number: int) -> bool:
        """Have a large queue ready before it is needed in the trio thread; whether that took a while."""
        if (group, number) in self._computed or self.whole.group_size(group) <= _INLINE_SAMPLES:
            return False
        out = self._out(number)
        order = await trio.to_thread.run_sync(self._by_out[out].queue, self._rank, group, number)
        if out == self._out(number):
            self._computed = {key: value for key, value in self._computed.items() if key[0] != group}
            self._computed[group, number] = order
        return True

    def queue(self, group: int, number: int) -> npt.NDArray[np.uint32]:
        """This rank's samples of a group in a pass, in order."""
        order = self._computed.get((group, number))
        if order is not None:
            return order
        out = self._out(number)
        return (self._by_out.get(out) or self._without(out)).queue(self._rank, group, number)

    def forget_queues(self) -> None:
        """Another pass begins, or other ranks take part in it."""
        self._computed.clear()

    def _out(self, number: int) -> frozenset[int]:
        return self._rollcall.losses.out_in(number)

    def _without(self, out: frozenset[int]) -> Plan:
        return self.whole.of(without(self.whole.membership, out))

    def _keep(self, out: frozenset[int], plan: Plan) -> None:
        self._by_out[out] = plan
        # The first is never dropped: what is asked of the whole dataset is asked of it.
        for old in list(self._by_out)[1:-_KEPT]:
            del self._by_out[old]
