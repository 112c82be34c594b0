"""The mount's view of its engine: the segments that it shares, where units lie, and the words to and from it.

The engine may end, or stop answering, at any moment. Its segments stay mapped, so resident units stay readable;
requests (`fs.requests`) then fail, and the reader asks the source.

**Threading.** The trio thread. `listen` is the only receiver.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from deepiofs.dataset.manifest import Manifest
from deepiofs.errors import EngineLostError
from deepiofs.fs.counts import Counts
from deepiofs.fs.requests import Requests
from deepiofs.memory import columns_segment
from deepiofs.memory.board import Board
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import HEADER_BYTES, LOADED, Store
from deepiofs.memory.wire import (
    Answered,
    Asked,
    Channel,
    Message,
    Missed,
    Out,
    Pressed,
    Ready,
    Steal,
    Stolen,
    Suspect,
)
from deepiofs.order.queues import Answer, Reply

log = logging.getLogger(__name__)


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
        self.requests = Requests(self._tell, self._say, self._say_later, self._staging.size, counts)
        self._nursery: trio.Nursery | None = None
        self._asked: dict[tuple[int, int, int], _Asked] = {}
        self.on_asked: Callable[[int, int, int], Answer] = lambda rank, group, number: Answer(Reply.EMPTY)
        self.on_suspect: Callable[[int], None] = lambda rank: None
        self.on_answer: Callable[[int, int, int, Answer], None] = lambda rank, group, number, answer: None
        self.running = True

    def home(self, unit: int) -> int:
        """The rank that holds a unit nearest to here, or NOWHERE."""
        return int(self._home[unit])

    def units(self, row: int) -> Iterator[tuple[int, int]]:
        """(unit, bytes) of what a row's bytes are, in order."""
        content = self.manifest.content_of[row]
        size = self.manifest.size_of[content]
        for i in range(-(-size // EXTENT_BYTES)):
            yield self.first[content] + i, min(size - i * EXTENT_BYTES, EXTENT_BYTES)

    def is_near(self, unit: int) -> bool:
        """Whether a unit is to be held by this node."""
        return self._home[unit] in self._stores

    def are_near(self, units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which units are to be held by this node; bool, as `units`."""
        near: npt.NDArray[np.bool_] = np.isin(self.layout["home"][units], list(self._stores))
        return near

    @functools.cached_property
    def all_near(self) -> bool:
        """Whether everything is to be held by this node."""
        return bool(np.isin(self.layout["home"], list(self._stores)).all())

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

    def own(self, unit: int, size: int) -> memoryview | None:
        """The bytes of a unit, without header, if this rank's own memory holds it now."""
        if self._home[unit] != self.rank:
            return None
        return self._stores[self.rank].loaded(self._at[unit], size)

    def staged(self, unit: int, size: int) -> tuple[memoryview, bool] | None:
        """A unit with its header, and whether it came from the source, if it was fetched and is still there."""
        place = self.requests.staged.find(unit)
        if place is None:
            return None
        return self._staging.view[place.at : place.at + HEADER_BYTES + size], place.from_source

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
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.requests.watch)
            while received := await self._channel.receive():
                self._hear(received[0])
            self._nursery = None
            nursery.cancel_scope.cancel()
        self._lost()

    def fileno(self) -> int:
        """The descriptor that is readable when the engine has said something."""
        return self._channel.fileno()

    def take_words(self) -> bool:
        """What `listen` would take, without waiting; False if the engine is gone, which is `listen`'s to see."""
        try:
            while received := self._channel.receive_nowait():
                self._hear(received[0])
        except BlockingIOError:
            return True
        return False

    def _hear(self, word: Message) -> None:
        match word:
            case Ready(unit, at, from_source):
                self.requests.ready(unit, at, bool(from_source))
            case Missed(unit):
                self.requests.missed(unit)
            case Pressed():
                self.requests.pressed()
            case Stolen(rank, group, number, reply, value):
                self._answered(rank, group, number, Answer(Reply(reply), value))
            case Asked(rank, group, number):
                answer = self.on_asked(rank, group, number)
                self._say_later([Answered(rank, group, number, answer.reply, answer.value)])
            case Suspect(rank):
                self.on_suspect(rank)

    def _say(self, *messages: Message) -> bool:
        """To the engine, without waiting; False if there is no room on the wire, or it is gone."""
        try:
            return self.running and self._channel.send_together(messages)
        except EngineLostError:
            self._lost()
            return False

    def _say_later(self, messages: Sequence[Message]) -> None:
        """To the engine, now or as soon as there is room on the wire."""
        if not self._say(*messages) and self._nursery is not None:
            for message in messages:
                self._nursery.start_soon(self._tell, message)

    async def _tell(self, message: Message) -> bool:
        try:
            await self._channel.send(message)
        except EngineLostError:
            self._lost()
        return self.running

    def _lost(self) -> None:
        if self.running:
            self.running = False
            log.error("the engine is lost; serving resident memory and the source")
        self.requests.lost()
        for asked in self._asked.values():
            asked.done.set()
        self._asked.clear()
