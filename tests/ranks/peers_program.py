"""The contract of peers, kept over MPI: `python -m tests.ranks.peers_program` under a launcher.

Rank 0 walks the scenarios and prints the name of each that it has passed. Rank 1 is the rank at the other end: it
takes orders over a communicator that the peers know nothing of. Further ranks enter both barriers and only poll.
From `MpiWorld.peers` to `MpiWorld.leave` no call of MPI blocks. A rank that has left in order says so: `leave` ends
with status 0 in any case, also when MPI_Finalize had to be given up.

One rank alone goes no scenario: it has nobody to tell, passes both barriers, and leaves.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from deepiofs.engine.mpi import MpiWorld  # before mpi4py.MPI: it says how MPI is started
from deepiofs.engine.peers import Barrier, Note, Peers
from deepiofs.memory.segments import Segment
from tests.contracts.peers import SCENARIOS, STORE_BYTES, poll_until

from mpi4py import MPI  # isort: skip

# What a rank waits for and has not come by then does not come.
_HUNG_S = 10.0
# A rank that hangs, be it within MPI, ends by itself and tells where it was. Less than the tests' limit.
_LIMIT_S = 50.0
# As the engine's pump does: several ranks share two cores.
_NAP_S = 50e-6
_WALKER, _OTHER = 0, 1
_END = ("end",)


class _Post:
    """Objects to and from other ranks; nothing blocks, both methods give MPI progress."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._sends: list[MPI.Request] = []
        self._receive: MPI.Request | None = None  # begun, once there is something

    def send(self, rank: int, thing: tuple[Any, ...]) -> None:
        """Send, in order."""
        self._sends.append(self._comm.isend(thing, rank))

    def sent(self) -> bool:
        """Whether all that was sent has gone."""
        self._sends = [request for request in self._sends if not request.Test()]
        return not self._sends

    def receive_nowait(self) -> tuple[Any, ...] | None:
        """What has come, or None."""
        self.sent()
        if self._receive is None:
            if (message := self._comm.improbe()) is None:
                return None
            self._receive = message.irecv()
        received: tuple[bool, tuple[Any, ...] | None] = self._receive.test()
        over, thing = received
        if over:
            self._receive = None
        return thing


class _Other:
    """The walker's view of the rank at the other end. It leaves polling the walker's peers to the scenario."""

    rank, asker = _OTHER, _WALKER

    def __init__(self, post: _Post) -> None:
        self._post = post

    async def write(self, at: int, data: bytes) -> None:
        await self._order("write", at, data)

    async def tell(self, notes: list[Note]) -> None:
        await self._order("tell", notes)

    async def heard(self, count: int) -> list[tuple[int, Note]]:
        notes: list[tuple[int, Note]] = await self._order("heard", count)
        return notes

    async def enter(self, name: str) -> None:
        await self._order("enter", name)

    async def begin_anew(self) -> list[tuple[int, Note]]:
        """Its store is zero and it has heard nothing; what it had heard and nobody asked about."""
        notes: list[tuple[int, Note]] = await self._order("begin_anew")
        return notes

    async def _order(self, *order: Any) -> Any:
        self._post.send(self.rank, order)
        with trio.fail_after(_HUNG_S):
            while (answer := self._post.receive_nowait()) is None:
                await trio.lowlevel.checkpoint()
        return answer[0]


class _Obedient:
    """A rank that does as it is told, and polls. Its methods are the orders."""

    def __init__(self, peers: Peers, store: Segment, post: _Post) -> None:
        self._peers, self._store, self._post = peers, store, post
        self._heard: list[tuple[int, Note]] = []
        self._barriers: list[Barrier] = []
        peers.on_note = lambda rank, note: self._heard.append((rank, note))

    def obey(self) -> None:
        """Until the order to end: then all that was begun ends well."""
        while (order := self._next()) != _END:
            name, *arguments = order
            self._post.send(_WALKER, (getattr(self, name)(*arguments),))
        self._poll_until(lambda: self._post.sent() and not self._peers.busy())
        self._poll_until(lambda: all(barrier.passed() for barrier in self._barriers))
        assert not self._heard, f"notes that nobody sent: {self._heard}"

    def write(self, at: int, data: bytes) -> None:
        self._store.view[at : at + len(data)] = data

    def tell(self, notes: list[Note]) -> None:
        for note in notes:
            self._peers.send(_WALKER, note)

    def heard(self, count: int) -> list[tuple[int, Note]]:
        self._poll_until(lambda: len(self._heard) >= count)
        heard, self._heard = self._heard, []
        return heard

    def enter(self, name: str) -> None:
        self._barriers.append(self._peers.enter_warm() if name == "warm" else self._peers.enter_leave())

    def begin_anew(self) -> list[tuple[int, Note]]:
        self.write(0, bytes(STORE_BYTES))
        return self.heard(0)

    def _next(self) -> tuple[Any, ...]:
        while (order := self._post.receive_nowait()) is None:
            self._peers.poll()
            time.sleep(_NAP_S)
        return order

    def _poll_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _HUNG_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self._peers.poll()
            time.sleep(_NAP_S)


async def _walk(peers: Peers, other: _Other) -> None:
    for name, scenario in SCENARIOS.items():
        peers.on_note = lambda rank, note: None
        await scenario(peers, other)
        await poll_until(peers, lambda: not peers.busy())
        assert not await other.begin_anew()
        _say(name)


def _stay_alone(peers: Peers) -> None:
    assert not peers.poll()
    assert not peers.busy()
    for barrier in (peers.enter_leave(), peers.enter_warm()):
        trio.run(poll_until, peers, barrier.passed)


def main() -> None:
    """**Collective.** Play this rank's part, and leave; status 1 if it went wrong."""
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    world = MpiWorld()
    post = _Post(MPI.COMM_WORLD.Dup())
    store = Segment.create("store", STORE_BYTES)
    peers = world.peers(store)
    with _failing_together(post, world):
        if world.size == 1:
            _stay_alone(peers)
        elif world.rank == _WALKER:
            trio.run(_walk, peers, _Other(post))
        else:
            obedient = _Obedient(peers, store, post)
            for name in ("warm", "leave") if world.rank > _OTHER else ():
                obedient.enter(name)
            obedient.obey()
    faulthandler.cancel_dump_traceback_later()
    _say_when_leaving()
    world.leave(in_time=True)


@contextmanager
def _failing_together(post: _Post, world: MpiWorld) -> Iterator[None]:
    """At the end of the walk, good or bad, all ranks end; none waits for one that has failed."""
    failed = False
    try:
        yield
    except BaseException:
        failed = True
        traceback.print_exc()
    if world.rank == _WALKER:
        for rank in range(1, world.size):
            post.send(rank, _END)
        deadline = time.monotonic() + _HUNG_S
        while not post.sent() and time.monotonic() < deadline:
            time.sleep(_NAP_S)
    if failed:
        os._exit(1)


def _say_when_leaving() -> None:
    """Write so in libc's exit handlers, which only an end in order comes to."""
    handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: _say("left in order"))
    ctypes.CDLL(None).__cxa_atexit(handler, None, None)
    _kept.append(handler)  # libc calls it when this function is long over


_kept: list[object] = []


def _say(line: str) -> None:
    # In one write: the launcher mixes what the ranks say as it comes.
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
