"""Where the ranks of a job meet: the first node's keeper listens, those of all nodes call it.

It carries PMI for the ranks (`pmi.Exchange`), and decides what came of the mount for all nodes together: it is up when
it is up everywhere. So no node trains on a mount that another one lacks, and whoever is told of a failure is told of
every node's.

**Threading.** The trio thread.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from deepiofs.cli.job.pmi import Exchange
from deepiofs.cli.job.sealed import Line, NotOfThisJobError, call, greet
from deepiofs.errors import EnvironmentFault

# All ranks fail together (engine/world.agree), but not in the same instant; the one to blame says why.
_OTHERS_S = 2.0
_AGAIN_S = 0.1


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one node's mount. blame: whether the fault is this node's, as far as it knows."""

    up: bool
    text: str = ""
    blame: bool = True


class Meeting:
    """The first node's part."""

    def __init__(self, nodes: Sequence[str], secret: bytes, limit_s: float) -> None:
        self._nodes, self._secret, self._limit_s = nodes, secret, limit_s
        self._exchange = Exchange(len(nodes))
        self._lines: dict[int, Line] = {}
        self._results: dict[int, Result] = {}
        self._news = trio.Event()
        self._begun = 0.0

    async def hold(self, ports: Sequence[int], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; EnvironmentFault if none of the ports is free."""
        listeners = await _listen(ports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._decide)
            task_status.started()
            await trio.serve_listeners(self._attend, listeners, handler_nursery=nursery)

    async def _attend(self, stream: trio.SocketStream) -> None:
        try:
            line = await greet(stream, self._secret, len(self._nodes))
        except (NotOfThisJobError, ValueError):
            await trio.aclose_forcefully(stream)
            return
        self._lines[line.rank] = line
        try:
            while True:
                await self._hear(line.rank, *await line.receive())
        except (NotOfThisJobError, TypeError, ValueError):
            self._lost(line.rank)
        finally:
            del self._lines[line.rank]
            await line.aclose()
            self._news.set()

    async def _hear(self, rank: int, kind: str, content: Any) -> None:
        if kind == "pmi":
            for each, answer in self._exchange.answer(rank, content):
                await self._tell(each, "pmi", answer)
        else:
            self._result(rank, Result(**content))

    def _lost(self, rank: int) -> None:
        self._result(rank, Result(False, "its prolog ended, or the network between it and the first node failed"))

    def _result(self, rank: int, result: Result) -> None:
        self._results.setdefault(rank, result)
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news = trio.Event()
            await self._news.wait()

    async def left(self) -> None:
        """Return when no other node is connected any more."""
        await self._until(lambda: set(self._lines) <= {0})

    async def _decide(self) -> None:
        """Once all are up, or some are not, or the time is over."""
        self._begun = trio.current_time()
        with trio.move_on_after(self._limit_s):
            await self._until(lambda: self._complete() or not all(result.up for result in self._results.values()))
            with trio.move_on_after(_OTHERS_S):
                await self._until(self._complete)
        failed = self._failures()
        for rank in sorted(self._lines):
            await self._tell(rank, "outcome", failed)

    def _complete(self) -> bool:
        return len(self._results) == len(self._nodes)

    def _failures(self) -> dict[str, str]:
        """By node. Those that wait in MPI for one that failed, or ended because of it, are not to blame."""
        text = f"has not answered after {trio.current_time() - self._begun:.0f} s"
        silent = {rank: text for rank in range(len(self._nodes)) if rank not in self._results}
        failed = {rank: result for rank, result in self._results.items() if not result.up}
        blamed = {rank: result.text for rank, result in failed.items() if result.blame}
        blamed |= {rank: text for rank in silent if rank not in self._lines}
        chosen = blamed or silent | {rank: result.text for rank, result in failed.items()}
        return {self._nodes[rank]: why for rank, why in chosen.items()}

    async def _tell(self, rank: int, kind: str, content: object) -> None:
        try:
            if rank in self._lines:
                await self._lines[rank].send(kind, content)
        except NotOfThisJobError:
            self._lost(rank)


async def _listen(ports: Sequence[int]) -> list[trio.SocketListener]:
    for port in ports:
        try:
            return await trio.open_tcp_listeners(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise EnvironmentFault(f"cannot listen on port {port}: {error.strerror}") from None
    raise EnvironmentFault(
        f"all ports that this job may use are taken: {', '.join(map(str, ports))}; widen DEEPIOFS_PORTS"
    )


async def attend(host: str, ports: Sequence[int], secret: bytes, rank: int) -> Line:
    """A connection to the meeting, once it is there; tries until it is cancelled."""
    while True:
        for port in ports:
            try:
                stream = await trio.open_tcp_stream(host, port)
            except OSError:
                continue
            try:
                return await call(stream, secret, rank)
            except NotOfThisJobError:
                await trio.aclose_forcefully(stream)
        await trio.sleep(_AGAIN_S)


def told(failed: Mapping[str, str]) -> list[str]:
    """One line per node that failed, and why."""
    return [f"{node}: {text}" for node, text in sorted(failed.items())]
