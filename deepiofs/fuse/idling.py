"""Waiting for the device without a pass of trio's scheduler.

A pass takes some 20 us of processor time (measured; as much as a request and a half), and with one reader there was
one for each request. So who finds the device empty waits in poll(2) for it *and* for all that trio waits for: its
epoll descriptor is readable when any of that is. trio does not show it, nor its queue of runnable tasks; where the
names below are not there, all waiting is trio's.

**Threading.** The trio thread.
"""

from __future__ import annotations

import select
from typing import Any

import trio

_MOST_S = 1.0


class Idling:
    """Of one task at a time, at one descriptor."""

    def __init__(self, device: int) -> None:
        """Inside trio.run."""
        self._device = device
        self._runner: Any = _runner()
        self._both, self._others = select.poll(), select.poll()
        self._both.register(device, select.POLLIN)
        if self._runner is not None:
            for poll in (self._both, self._others):
                poll.register(self._runner.io_manager._epoll.fileno(), select.POLLIN)

    async def wait(self) -> None:
        """Until there is something to read; other tasks have their turn meanwhile."""
        while (left_s := self._left_s()) > 0:
            ready = self._both.poll(left_s * 1000)
            if any(descriptor == self._device for descriptor, _ in ready):
                return
            if ready:
                break
        await trio.lowlevel.wait_readable(self._device)

    async def give_way(self) -> None:
        """Let other tasks have their turn, if one has anything to do."""
        if self._left_s() <= 0 or self._others.poll(0):
            await trio.lowlevel.checkpoint()

    def _left_s(self) -> float:
        """For how long trio has nothing to do; of what it may be told meanwhile nothing is known."""
        runner = self._runner
        if runner is None or runner.runq:
            return 0.0
        left_s: float = runner.deadlines.next_deadline() - runner.clock.current_time()
        return min(left_s, _MOST_S)


def _runner() -> Any:
    """What runs this thread's tasks, if it is as it is known here."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        runner: Any = GLOBAL_RUN_CONTEXT.runner
        runner.io_manager._epoll.fileno()
        runner.deadlines.next_deadline()
        len(runner.runq)
    except (ImportError, AttributeError):
        return None
    return runner
