"""Waiting without a pass of trio's scheduler: for the FUSE device, and between two polls of MPI.

A pass, and two changes of what epoll watches, cost more than a request, and with one reader there was one for each
request (measured on a busy machine: a median of 118 us of processor time per open, read and close of a cached file,
71 so). So who finds the device empty, and sees that no other task can run, waits in poll(2) for it *and* for whatever
trio waits for: trio's epoll descriptor is readable when any of that is. trio does not show that descriptor; where it is
not found, all waiting is trio's.

**Threading.** The trio thread. **Invariants.** `_runnable` has each task that trio will run without waiting, be it in
its queue or in what it took from it already: nobody is kept from running by a wait here.
"""

from __future__ import annotations

import select
import time
from typing import Any

import trio

from deepiofs.spinning import Spinning

_MOST_S = 1.0
# So often trio has its turn before it waits for the device as well: to be told of it and not takes two system calls.
_ROUNDS = 64


class Idling(trio.abc.Instrument):
    """Of one task at a time."""

    def __init__(self, device: int = -1) -> None:
        """device: what `wait` waits for."""
        self._device = device
        self._epoll: list[int] = []
        self._runnable: set[trio.lowlevel.Task] = set()
        self._deadline: float | None = None
        self._both, self._others = select.poll(), select.poll()
        self._spinning = Spinning()
        self._works = False

    async def begin(self) -> None:
        """Watch which tasks can run, from now on."""
        descriptor = _epoll()
        if descriptor is None:
            return
        self._epoll = [descriptor]
        if self._device >= 0:
            self._both.register(self._device, select.POLLIN)
            self._spinning.begin()
        self._both.register(descriptor, select.POLLIN)
        self._others.register(descriptor, select.POLLIN)
        trio.lowlevel.add_instrument(self)
        # What could run before is not known: it is what trio took from its queue, and then what is left there.
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        self._works = True

    def end(self) -> None:
        """Watch no more."""
        if self._works:
            self._works = False
            self._spinning.end()
            trio.lowlevel.remove_instrument(self)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """For trio."""
        self._runnable.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """For trio. A step may bring deadlines."""
        self._runnable.discard(task)
        self._deadline = None

    async def wait(self) -> None:
        """Until there is something to read; other tasks have their turn as soon as they have anything to do."""
        for _ in range(_ROUNDS if self._works else 0):
            left_s = max(self._left_s(), 0.0)
            ready = self._spinning.wait(self._both.poll, left_s * 1000)
            if any(descriptor == self._device for descriptor, _ in ready):
                return
            if ready or not left_s:
                await trio.lowlevel.checkpoint()
        await trio.lowlevel.wait_readable(self._device)

    def nap(self, seconds: float) -> bool:
        """Sleep so long, or until another task has anything to do; whether one has (it need not have)."""
        if self._left_s() <= 0:
            if not self._works:
                time.sleep(seconds)
            return True
        return bool(select.select(self._epoll, (), (), seconds)[0])

    async def give_way(self) -> None:
        """Let other tasks have their turn, if one has anything to do."""
        if self._left_s() <= 0 or self._others.poll(0):
            await trio.lowlevel.checkpoint()

    def _left_s(self) -> float:
        """For how long trio has nothing to do, unless something comes for it."""
        if self._runnable or not self._works:
            return 0.0
        now = trio.current_time()
        if self._deadline is None:
            self._deadline = now + trio.lowlevel.current_statistics().seconds_to_next_deadline
        return min(self._deadline - now, _MOST_S)


def _epoll() -> int | None:
    """The descriptor of what trio waits for, if it is where it is known to be."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        manager: Any = GLOBAL_RUN_CONTEXT.runner.io_manager
        descriptor: int = manager._epoll.fileno()
    except (ImportError, AttributeError):
        return None
    return descriptor
