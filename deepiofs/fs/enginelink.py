"""The mount's view of its engine: the segments that it shares, and requests for units that are not at hand.

The engine may end, or stop answering, at any moment. Its segments stay mapped, so resident units stay readable;
requests end with None, and the reader asks the source.

**Threading.** The trio thread. `listen` is the only receiver. **Invariants.** One request per unit at a time; a
unit in `_staged` is readable at its place until it is released here.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Iterable

import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.errors import EngineLostError
from deepiofs.fs.counts import Counts
from deepiofs.memory import columns_segment
from deepiofs.memory.board import Board
from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import HEADER_BYTES, LOADED, Store, span
from deepiofs.memory.wire import (
    IN_NODE,
    Answered,
    Asked,
    Channel,
    Fetch,
    Message,
    Missed,
    Out,
    Pressed,
    Ready,
    Release,
    Steal,
    Stolen,
    Suspect,
)
from deepiofs.order.queues import Answer, Reply

log = logging.getLogger(__name__)

# The engine gives up after `timeout` and says so; a mount waits this much longer for its word.
_GRACE_S = 0.5
# For how long an engine that did not answer is left alone.
_PAUSE_S = 5.0


class _Request:
    def __init__(self, size: int) -> None:
        self.size = size
        self.waiters = 0
        self.done = trio.Event()
        self.at: int | None = None


class _Asked:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Answer | None = None


class EngineLink:
    """Where units lie, and how to get those that lie elsewhere."""

    def __init__(
        self, channel: Channel, rank: int, segments: dict[str, Segment], stores: dict[int, Segment], counts: Counts
    ) -> None:
        self._channel, self.rank, self._counts = channel, rank, counts
        self.manifest = Manifest(*columns_segment.read(segments["manifest"]))
        meta, layout = columns_segment.read(segments["layout"])
        self._home, self._at, self.first = layout["home"].data, layout["at"].data, layout["first"].data
        self.resident_units = int((layout["home"] != NOWHERE).sum())
        self.layout = layout
        self.n_samples = int(meta["samples"])
        self.doors = [(addresses, port) for addresses, port in meta.get("doors", ())]
        self.secret = bytes.fromhex(meta.get("secret", ""))
        self.board = Board(segments["board"])
        self._staging = segments["staging"]
        self._stores = {owner: Store(segment) for owner, segment in stores.items()}
        self._requests: dict[int, _Request] = {}
        self._asked: dict[tuple[int, int, int], _Asked] = {}
        self.on_asked: Callable[[int, int, int], Answer] = lambda rank, group, number: Answer(Reply.EMPTY)
        self.on_suspect: Callable[[int], None] = lambda rank: None
        self.on_answer: Callable[[int, int, int, Answer], None] = lambda rank, group, number, answer: None
        self._staged: collections.OrderedDict[int, tuple[int, int]] = collections.OrderedDict()
        self._staged_bytes = 0
        self._unseen: set[int] = set()
        self._paused_until = 0.0
        self.running = True

    def home(self, unit: int) -> int:
        """The rank that holds a unit nearest to here, or NOWHERE."""
        return int(self._home[unit])

    def reachable(self, unit: int) -> bool:
        """Whether a fetch would ask a peer."""
        return self.running and self._home[unit] != NOWHERE and self._home[unit] not in self._stores

    def in_node(self, unit: int, size: int) -> memoryview | None:
        """A unit with its header, if it is in the memory of this node now."""
        store = self._stores.get(self._home[unit])
        if store is None:
            return None
        at = self._at[unit]
        return store.unit(at, size) if store.state(at) == LOADED else None

    def staged(self, unit: int, size: int) -> memoryview | None:
        """A unit with its header, if it was fetched and is still there."""
        place = self._staged.get(unit)
        if place is None:
            return None
        self._staged.move_to_end(unit)
        return self._staging.view[place[0] : place[0] + HEADER_BYTES + size]

    async def fetch(self, unit: int, size: int, timeout_s: float) -> bool:
        """Have a unit brought near; False if it cannot be had within `timeout_s` (and a little)."""
        if unit in self._staged:
            return True
        if not self.running or self._home[unit] == NOWHERE or trio.current_time() < self._paused_until:
            return False
        request = self._requests.get(unit)
        started = trio.current_time()
        with trio.move_on_after(timeout_s + _GRACE_S):
            if request is None:
                request = await self._request(unit, size)
            await self._done(request, unit)
        if request is None or not request.done.is_set():
            self._engine_late()
            return False
        self._counts.fetched_in((trio.current_time() - started) * 1000)
        return request.at is not None

    async def _done(self, request: _Request, unit: int) -> None:
        """Wait for the answer. Who is woken takes the unit before anything else runs; then it may be released."""
        request.waiters += 1
        try:
            await request.done.wait()
        finally:
            request.waiters -= 1
            if not request.waiters:
                self._unseen.discard(unit)

    async def _request(self, unit: int, size: int) -> _Request:
        """Ask the engine; what did not get on the wire was not asked."""
        request = self._requests[unit] = _Request(size)
        try:
            await self._tell(Fetch(unit))
        except trio.Cancelled:
            if self._requests.get(unit) is request:
                self._answer(unit, None)
            raise
        return request

    async def ask(self, rank: int, group: int, number: int, timeout_s: float) -> Answer | None:
        """Ask a rank for an entry of its queue; None if no answer comes within `timeout_s`.

        An answer, in time or late, goes to `on_answer` first: what another gave away must not be lost.
        """
        if not self.running:
            return None
        key = (rank, group, number)
        asked = self._asked.setdefault(key, _Asked())
        with trio.move_on_after(timeout_s):
            await self._tell(Steal(rank, group, number))
            await asked.done.wait()
        return asked.answer

    async def tell_lost(self, ranks: Iterable[int]) -> None:
        """Say whom the engine need not wait for when it leaves."""
        for rank in ranks:
            if self.running:
                await self._tell(Out(rank))

    def _answered(self, rank: int, group: int, number: int, answer: Answer) -> None:
        self.on_answer(rank, group, number, answer)
        asked = self._asked.pop((rank, group, number), None)
        if asked:
            asked.answer = answer
            asked.done.set()

    async def listen(self) -> None:
        """Take the engine's answers until it is gone."""
        while received := await self._channel.receive():
            match received[0]:
                case Ready(unit, at):
                    await self._ready(unit, at)
                case Missed(unit):
                    self._answer(unit, None)
                case Stolen(rank, group, number, reply, value):
                    self._answered(rank, group, number, Answer(Reply(reply), value))
                case Asked(rank, group, number):
                    answer = self.on_asked(rank, group, number)
                    await self._tell(Answered(rank, group, number, answer.reply, answer.value))
                case Suspect(rank):
                    self.on_suspect(rank)
                case Pressed():
                    await self._release_down_to(self._staged_bytes // 2 if len(self._staged) > 1 else 0)
        self._lost()

    async def _ready(self, unit: int, at: int) -> None:
        if at != IN_NODE and unit in self._requests:
            size = span(self._requests[unit].size)
            self._staged[unit] = (at, size)
            self._staged_bytes += size
            if self._requests[unit].waiters:
                self._unseen.add(unit)
        self._answer(unit, at)
        await self._release_down_to(self._staging.size // 2)

    def _answer(self, unit: int, at: int | None) -> None:
        request = self._requests.pop(unit, None)
        if request:
            request.at = at
            request.done.set()

    async def _release_down_to(self, keep_bytes: int) -> None:
        """Give back what was used longest ago, but nothing that was fetched for somebody who has not seen it yet."""
        for unit in list(self._staged):
            if self._staged_bytes <= keep_bytes:
                return
            if unit not in self._unseen and unit in self._staged:
                self._staged_bytes -= self._staged.pop(unit)[1]
                await self._tell(Release(unit))

    async def _tell(self, message: Message) -> bool:
        try:
            await self._channel.send(message)
        except EngineLostError:
            self._lost()
        return self.running

    def _engine_late(self) -> None:
        self._paused_until = trio.current_time() + _PAUSE_S
        self._counts.engine_timeouts += 1
        log.warning("the engine does not answer; reading from the source for %g s", _PAUSE_S)

    def _lost(self) -> None:
        if self.running:
            self.running = False
            log.error("the engine is lost; serving resident memory and the source")
        for unit in list(self._requests):
            self._answer(unit, None)
        for asked in self._asked.values():
            asked.done.set()
        self._asked.clear()
