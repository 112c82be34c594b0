"""Starting the engine, hearing it until all is shared, and its end.

The engine is a child that inherits the environment and descriptors of the launcher (PMI_FD and its like), so that
it, and not the mount, is the MPI rank.

**Threading.** The trio thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import trio

from deepiofs.errors import DeepiofsError, EngineLostError, error_for
from deepiofs.memory.segments import Segment
from deepiofs.memory.wire import Begin, Channel, Failed, Hello, Leave, Message, Share, Started, Verdict, facts, pair

_POLL_S = 0.02
_END_S = 5.0


class StartupFailed(DeepiofsError):
    """Some rank could not start; `speak`: whether this rank is the one to tell the user."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.text)
        self.exit_code = error_for(failed.code, "").exit_code
        self.speak = bool(failed.speak)


@dataclasses.dataclass(frozen=True)
class Shared:
    """What the engine shares: segments by name, stores by world rank, and what was filled in."""

    segments: dict[str, Segment]
    stores: dict[int, Segment]
    filled_in: dict[str, Any]


class EngineProcess:
    """The child, and the mount's end of the socket."""

    def __init__(self, quiet: bool) -> None:
        """quiet: its stdout and stderr go nowhere, so that a background mount keeps no pipe of its caller open."""
        mine, its = pair()
        os.set_inheritable(its.fileno(), True)
        output = subprocess.DEVNULL if quiet else None
        # -P: nothing in the working directory of a job may shadow a module.
        command = [sys.executable, "-P", "-m", "deepiofs.engine", str(its.fileno())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, close_fds=False
        )
        its.close()
        self.channel = Channel(mine)

    async def begin(self, source: str, options: dict[str, str]) -> Hello:
        """Say what to do; who this rank is."""
        await self._tell(Begin(json.dumps({"source": source, "options": options})))
        hello = (await self._expect(Hello))[0]
        assert isinstance(hello, Hello)
        return hello

    async def verdict(self, code: int, text: str, port: int = 0) -> None:
        """Say whether this rank can mount, and where its door is."""
        await self._tell(Verdict(code, port, text))

    async def shared(self) -> Shared:
        """Wait for the segments: until the source is scanned, however long that takes."""
        segments: dict[str, Segment] = {}
        stores: dict[int, Segment] = {}
        while True:
            message, fd = await self._expect(Share, Started)
            if isinstance(message, Started):
                return Shared(segments, stores, facts(message.text))
            assert isinstance(message, Share)
            assert fd is not None
            if message.text == "store":
                stores[message.rank] = Segment.attach(fd)
            else:
                segments[message.text] = Segment.attach(fd)

    async def leave(self, linger_s: float) -> None:
        """The mount is gone: let the engine serve its peers as long as it may, then see that it ends."""
        with contextlib.suppress(EngineLostError):
            await self.channel.send(Leave())
        with trio.move_on_after(linger_s + _END_S):
            while self.process.poll() is None:
                await trio.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """End it now, and reap it."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        # One that hangs in the source dies when that answers; nobody waits for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)

    async def _tell(self, message: Message) -> None:
        with contextlib.suppress(EngineLostError):  # what it has to say about its end is still to be received
            await self.channel.send(message)

    async def _expect(self, *kinds: type) -> tuple[Message, int | None]:
        received = await self.channel.receive()
        if received is None:
            raise EngineLostError(
                f"the engine ended during start-up (exit status {self.process.wait()}); its log= or -f shows why"
            )
        message, fd = received
        if isinstance(message, Failed):
            raise StartupFailed(message)
        assert isinstance(message, kinds)
        return message, fd
