"""Mounts' doors in one process: calls that take a while, and processes that are killed, stopped, or cut off."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import trio

from deepiofs.fs.door import Report, Silence, Word

Answer = Callable[[Word], Awaitable[Report]]


class LocalDoors:
    """The doors of a job; `call_of(rank)` is as `Door.call` of that rank.

    Faults: `dead`, whose processes are gone; `stopped`, who answer nothing; `cut`, who reach none but each other, nor
    are reached. delay: seconds that each way takes. Serve only inside `nursery`: an answer goes on if the caller stops
    waiting.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.cut: set[int] = set()
        self.delay: Callable[[], float] = lambda: 0.0
        self.calls: list[tuple[int, Word]] = []
        self.nursery: trio.Nursery | None = None

    def call_of(self, rank: int) -> Callable[..., Awaitable[Report | Silence]]:
        """How a rank calls others."""
        return functools.partial(self._call, rank)

    def reach(self, a: int, b: int) -> bool:
        """Whether the network carries anything between two ranks."""
        return (a in self.cut) == (b in self.cut)

    async def _call(
        self, caller: int, rank: int, word: Word, timeout_s: float, wait_s: float | None = None
    ) -> Report | Silence:
        self.calls.append((rank, word))
        await trio.sleep(self.delay())
        if not self.reach(caller, rank):
            await trio.sleep(timeout_s)
            return Silence.AWAY
        if rank in self.dead:
            return Silence.GONE
        reports: list[Report] = []
        with trio.move_on_after(wait_s or timeout_s):
            done = trio.Event()
            assert self.nursery is not None
            self.nursery.start_soon(self._answer, caller, rank, word, reports, done)
            await done.wait()
        return reports[0] if reports else Silence.ALIVE

    async def _answer(self, caller: int, rank: int, word: Word, reports: list[Report], done: trio.Event) -> None:
        while rank in self.stopped:
            await trio.sleep(0.5)
        if rank in self.dead:
            return
        report = await self.answers[rank](word)
        await trio.sleep(self.delay())
        if self.reach(caller, rank) and caller not in self.dead and rank not in self.dead:
            reports.append(report)
            done.set()
