"""A session loop without a pass of the scheduler per request.

pyfuse3 takes a `trio.Lock` and waits in `trio.lowlevel.wait_readable` for every request; together they cost more
than the handlers (measured, 20,000 files of 100 KB, cold, files/s with 1 and 4 readers: 2,720 and 3,397 as it
comes, about 3,800 and 5,500 so). It looks both up through its module attribute `trio`, which its own asyncio
layer replaces too. Here `wait_readable` polls the descriptor first and enters trio only if nothing is there, and at
least every `YIELD_EVERY` requests so that other tasks run; the lock does not yield while it is free.
"""

from __future__ import annotations

import contextlib
import select
import types
from collections.abc import Iterator
from typing import Any

import pyfuse3
import trio

YIELD_EVERY = 16


class FreeLock:
    """A lock for one loop's tasks which, unlike trio.Lock, is no checkpoint while it is free."""

    def __init__(self) -> None:
        self._held = False
        self._lot = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        if self._held:
            await self._lot.park()  # whoever leaves hands it over, still held
        self._held = True

    async def __aexit__(self, *exc: object) -> None:
        if self._lot:
            self._lot.unpark()
        else:
            self._held = False


class _Waiter:
    """`wait_readable` with a poll before it."""

    def __init__(self) -> None:
        self._polls: dict[int, select.poll] = {}
        self._until_yield = YIELD_EVERY

    async def __call__(self, fd: int) -> None:
        poll = self._polls.get(fd)
        if poll is None:
            poll = self._polls[fd] = select.poll()
            poll.register(fd, select.POLLIN)
        self._until_yield -= 1
        if self._until_yield > 0 and poll.poll(0):
            return
        self._until_yield = YIELD_EVERY
        await trio.lowlevel.wait_readable(fd)


@contextlib.contextmanager
def fast_loop() -> Iterator[None]:
    """pyfuse3 with the fast loop, inside the block."""
    lowlevel = types.SimpleNamespace(**{name: getattr(trio.lowlevel, name) for name in trio.lowlevel.__dict__})
    lowlevel.wait_readable = _Waiter()
    names: dict[str, Any] = {name: getattr(trio, name) for name in dir(trio) if not name.startswith("__")}
    shim = types.SimpleNamespace(**{**names, "lowlevel": lowlevel, "Lock": FreeLock})
    module: Any = pyfuse3
    plain, module.trio = module.trio, shim
    try:
        yield
    finally:
        module.trio = plain
