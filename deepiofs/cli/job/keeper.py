"""The keeper: one node's process of a job, which starts the mount, lets its rank find the others, and ends it.

It lives as long as the job's mount. The engine, which is the MPI process, talks PMI to it over a socket pair
(`PMI_FD`), as to Hydra's proxy; the keeper passes the lines on to the first node's, sealed. So nothing that speaks
PMI, which knows no authentication, listens on any network.

A mount that was killed is left as it is until the job ends: `Transport endpoint is not connected` says more to a
program than a directory that is suddenly empty.

**Threading.** The trio thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from deepiofs.cli.job.guard import MARK, clear
from deepiofs.cli.job.meeting import Meeting, Result, attend
from deepiofs.cli.job.sealed import Line, NotOfThisJobError
from deepiofs.errors import EnvironmentFault

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The first node decides at the limit, and its word has to travel.
_GRACE_S = 5.0
# For how long the first node carries PMI for those that are not yet done with MPI.
_OTHERS_S = 5.0
_TAIL_BYTES = 1 << 16
_PART = 1 << 12


@dataclasses.dataclass(frozen=True)
class Task:
    """What one node is to do. rank: its place in `nodes`; limit_s: until the mount must be up; end_s: to end it."""

    job: str
    nodes: Sequence[str]
    rank: int
    source: str
    mountpoint: str
    options: str
    wait_for: str
    limit_s: float
    end_s: float
    ports: Sequence[int]
    secret: bytes
    environment: Mapping[str, str]
    log: str

    @property
    def node(self) -> str:
        """This node's name."""
        return self.nodes[self.rank]

    @property
    def mark(self) -> str:
        """What tells this job's processes on this node from all others."""
        return f"{self.job}.{self.node}"


class Keeper:
    """report: called once, with why each node that failed did; empty if the mount is up on all of them."""

    def __init__(self, task: Task, report: Callable[[Mapping[str, str]], None]) -> None:
        self._task, self._report = task, report
        self._end = trio.Event()
        self._ended = trio.Event()
        self._told: Mapping[str, str] | None = None
        self._outcome = trio.Event()
        self._meeting = Meeting(task.nodes, task.secret, task.limit_s)
        self._pmi: trio.SocketStream | None = None
        self._bringing = trio.CancelScope()
        self._log_begins = 0

    async def run(self) -> int:
        """Mount, report, serve until told to end; the exit code."""
        self._log_begins = _size(self._task.log)
        self._mount = self._start()
        code = 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey)
                nursery.start_soon(self._watch)
                failed = await self._brought_up(nursery)
                self._report(failed)
                if not failed:
                    code = 0
                    await self._served()
                await self._stop()
                nursery.cancel_scope.cancel()
        finally:
            self._mount.poll()
            clear(self._task.mark, self._task.mountpoint, patience_s=0)
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        """The mount. A rank that is alone needs no MPI."""
        task = self._task
        environment = {**task.environment, MARK: task.mark}
        passed: tuple[int, ...] = ()
        if len(task.nodes) > 1:
            mine, its = socket.socketpair()
            self._pmi = trio.SocketStream(trio.socket.from_stdlib_socket(mine))
            passed = (its.fileno(),)
            environment |= {"PMI_FD": str(its.fileno()), "PMI_RANK": str(task.rank), "PMI_SIZE": str(len(task.nodes))}
        options = ["-o", task.options] if task.options else []
        command = _deepiofs("mount", task.source, task.mountpoint, *options, "-f")
        mount = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=passed)
        if passed:
            its.close()
        return mount

    async def _brought_up(self, nursery: trio.Nursery) -> Mapping[str, str]:
        """What came of it on all nodes."""
        first = self._task.nodes[0]
        self._bringing.deadline = trio.current_time() + self._task.limit_s + _GRACE_S
        try:
            with self._bringing:
                if len(self._task.nodes) == 1:
                    result = await self._result()
                    return {} if result.up else {first: result.text}
                if self._task.rank == 0:
                    await nursery.start(self._meeting.hold, self._task.ports)
                await self._meet(nursery)
                await self._outcome.wait()
                assert self._told is not None
                return self._told
        except EnvironmentFault as error:
            return {self._task.node: str(error)}
        if self._end.is_set():
            return {self._task.node: "was told to end before the mount was up"}
        return {self._task.node: f"cannot reach {first}, the first node, on any of ports {self._task.ports}"}

    async def _meet(self, nursery: trio.Nursery) -> None:
        host = "localhost" if self._task.rank == 0 else self._task.nodes[0]
        line = await attend(host, self._task.ports, self._task.secret, self._task.rank)
        nursery.start_soon(self._hear, line)
        nursery.start_soon(self._relay, line)
        nursery.start_soon(self._tell, line)

    async def _tell(self, line: Line) -> None:
        result = await self._result()
        with contextlib.suppress(NotOfThisJobError):  # `_hear` sees it, too
            await line.send("result", dataclasses.asdict(result))

    async def _result(self) -> Result:
        """What came of it here: the mount answers, or it ended, or neither in time."""
        result = Result(False)
        async with trio.open_nursery() as nursery:

            async def ended() -> None:
                nonlocal result
                await self._ended.wait()
                result = self._last_words()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ended)
            waiting = _deepiofs(
                "wait", self._task.mountpoint, "--for", self._task.wait_for, "--timeout", f"{self._task.limit_s}"
            )
            done = await trio.run_process(waiting, check=False, capture_stderr=True, env=dict(self._task.environment))
            result = Result(done.returncode == 0, _said(done.stderr.decode(errors="replace")))
            nursery.cancel_scope.cancel()
        return result

    def _last_words(self) -> Result:
        """Why the mount ended; all ranks fail together, and the one to blame says why."""
        with open(self._task.log, "rb") as log:
            log.seek(max(self._log_begins, _size(self._task.log) - _TAIL_BYTES))
            said = _said(log.read().decode(errors="replace"))
        code = self._mount.returncode
        return Result(False, said or f"the mount ended: {_how(code)}", blame=bool(said) or code < 0)

    async def _hear(self, line: Line) -> None:
        try:
            while True:
                kind, content = await line.receive()
                if kind == "pmi" and self._pmi:
                    await self._pmi.send_all(content.encode() + b"\n")
                elif kind == "outcome":
                    self._told = content
                    self._outcome.set()
        except (NotOfThisJobError, trio.BrokenResourceError, trio.ClosedResourceError, ValueError):
            if not self._outcome.is_set():
                self._told = {self._task.nodes[0]: "its prolog ended, or the network to it failed"}
                self._outcome.set()
            if self._pmi:
                await self._pmi.aclose()

    async def _relay(self, line: Line) -> None:
        """What the rank says in PMI."""
        assert self._pmi is not None
        rest = b""
        try:
            while part := await self._pmi.receive_some(_PART):
                *whole, rest = (rest + part).split(b"\n")
                for each in whole:
                    await line.send("pmi", each.decode())
        except (NotOfThisJobError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the rank, or the first node, has ended

    async def _served(self) -> None:
        """Until told to end, or unmounted; a mount that was killed waits for the job's end."""
        async with trio.open_nursery() as nursery:

            async def unmounted() -> None:
                await self._ended.wait()
                if self._mount.returncode == 0:
                    nursery.cancel_scope.cancel()
                else:
                    print(
                        f"deepiofs: the mount ended with status {self._mount.returncode}", file=sys.stderr, flush=True
                    )

            nursery.start_soon(unmounted)
            await self._end.wait()
            nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        """End the mount in its own way, in bounded time; PMI is carried meanwhile."""
        if not self._ended.is_set():
            self._mount.terminate()
        with trio.move_on_after(self._task.end_s):
            await self._ended.wait()
        if self._task.rank == 0 and self._outcome.is_set():
            with trio.move_on_after(_OTHERS_S):
                await self._meeting.left()

    async def _watch(self) -> None:
        descriptor = os.pidfd_open(self._mount.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        self._mount.wait()
        self._ended.set()

    async def _obey(self) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as received:
            async for _ in received:
                self._end.set()
                self._bringing.cancel()


def _deepiofs(*arguments: str) -> list[str]:
    """The command, by this Python: -P, as nothing in a job's working directory may shadow a module."""
    return [sys.executable, "-P", "-m", "deepiofs.cli.main", *arguments]


def _how(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {-code}"


def _said(text: str) -> str:
    """The last line that deepiofs said of itself."""
    lines = [line for line in text.splitlines() if line.startswith("deepiofs: ")]
    return lines[-1].removeprefix("deepiofs: ") if lines else ""


def _size(path: str) -> int:
    return Path(path).stat().st_size
