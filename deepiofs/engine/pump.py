"""The pump: it completes what this rank asked for, and gives MPI progress for what the peers ask of this one.

A passive target over TCP answers nothing while it sleeps (measured), so an engine polls at three paces: every 50 us
while a reader, here or at a peer, waits for bytes; every millisecond while bytes are only fetched ahead, many at once,
which is as fast over all and leaves the processor to the readers; and 50 times a second when idle, which costs under
1 % of a core.

At the first pace it naps in the trio thread: epoll's timeout has whole milliseconds, and one millisecond between polls
makes a single get over TCP four times as slow (measured: 1,300 against 326 us). A nap ends when another task has
anything to do; a poll that finds nothing costs no pass of trio's scheduler.
"""

from __future__ import annotations

import time

import trio

from deepiofs.engine.peers import Peers
from deepiofs.idling import Idling

_NAP_S = 50e-6
_URGENT_S = 0.05
_CALM_S = 1e-3
_ACTIVE_S = 1.0
_IDLE_S = 0.02


class Pump:
    """Runs until cancelled. `wake` says that there is something to poll for."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._urgent_until = 0.0
        self._active_until = 0.0
        self._called = trio.Event()
        self._idling = Idling()

    def wake(self, urgent: bool) -> None:
        """Poll often from now on; urgent: as often as can be, for a moment."""
        now = time.monotonic()
        self._active_until = now + _ACTIVE_S
        if urgent:
            self._urgent_until = now + _URGENT_S
        self._called.set()

    async def run(self) -> None:
        """Poll for ever."""
        await self._idling.begin()
        try:
            await self._poll()
        finally:
            self._idling.end()

    async def _poll(self) -> None:
        while True:
            moved = self._peers.poll()
            if moved:
                self._active_until = time.monotonic() + _ACTIVE_S
            now = time.monotonic()
            if now < self._urgent_until:
                # Two of three polls find nothing: then no other task has its turn, unless one has anything to do.
                if moved or self._idling.nap(_NAP_S):
                    await trio.lowlevel.checkpoint()
            else:
                await self._rest(_CALM_S if self._peers.busy() or now < self._active_until else _IDLE_S)

    async def _rest(self, seconds: float) -> None:
        """Until there is something to do, at most so long. At the pace of a millisecond only urgency cuts it short."""
        with trio.move_on_after(seconds):
            while True:
                self._called = trio.Event()
                await self._called.wait()
                if seconds != _CALM_S or time.monotonic() < self._urgent_until:
                    return
