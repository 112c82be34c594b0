"""The smallest jobs in which a loader, a fetcher, or a mount's reader can be at work."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo
from deepiofs.engine.batches import Batch
from deepiofs.engine.fetcher import Fetcher
from deepiofs.engine.filling import Filling
from deepiofs.engine.loader import Loader, Own
from deepiofs.engine.peers import Note, NoteKind
from deepiofs.engine.stager import SourceRead, Stager
from deepiofs.fs.counts import Counts
from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.fetch import Reader
from deepiofs.memory import columns_segment, wire
from deepiofs.memory.arena import Arena
from deepiofs.memory.board import Board, Counter
from deepiofs.memory.placement import NOWHERE, Placement, Units
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import HEADER_BYTES, UNITS_AT, Store, span
from deepiofs.memory.wire import Channel, Fetch, Hurry, Message, Missed, Pressed, Ready, Release
from tests.doubles import LocalJob, MemorySource

_MARGIN_BYTES = 1 << 16


class Dataset:
    """Files in memory, their manifest and units, and one place for each unit that all stores use."""

    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self.source = MemorySource(files)
        found = self.source.scan(Selection(), Solo())
        assert found is not None
        self.manifest = Manifest(*found)
        self.units = Units.of(self.manifest)
        spans = [span(size) for size in self.units.size.tolist()]
        self.at = [UNITS_AT + begin for begin in itertools.accumulate(spans, initial=0)]
        self.store_bytes = self.at.pop() + _MARGIN_BYTES

    def __len__(self) -> int:
        return len(self.units.row)

    def size(self, unit: int) -> int:
        """Bytes of a unit."""
        return int(self.units.size[unit])

    def data(self, unit: int) -> bytes:
        """The bytes that a unit must have."""
        row, begin = self.units.place_in_file(unit)
        return self.source.files[self.manifest.path(row)][0][begin : begin + self.size(unit)]

    def unit(self, path: bytes) -> int:
        """The first unit of a file."""
        row = self.manifest.find(path)
        assert row is not None
        return int(self.units.first[row])

    def new_store(self) -> Store:
        """An empty store with room for every unit."""
        return Store(Segment.create("store", self.store_bytes))

    def publish(self, store: Store, unit: int) -> None:
        """Put a unit into a store as a loader does."""
        store.data(self.at[unit], self.size(unit))[:] = self.data(unit)
        store.publish(self.at[unit], self.size(unit))

    def placement(self, home: Sequence[int]) -> Placement:
        """All units at their places, with these homes."""
        return Placement(np.array(home, np.int32), np.array(self.at, np.int64), np.array([], np.int64))

    def loader(self, own: Sequence[int], store: Store, board: Board) -> Loader:
        """A loader of these units; its `run` is the caller's to start."""
        places = Own(np.array(list(own), np.int64), self.at)
        return Loader(places, self.units, self.manifest, self.source, store, board)


class InlineStager(Stager):
    """Reads the source in the trio thread, so that a mocked clock does not jump meanwhile.

    `held`: whether reads that are begun hang, until it is taken back and `let_go` called. `batches`: the units that
    were read together, in order.
    """

    def __init__(self, dataset: Dataset, staging: Store, board: Board) -> None:
        super().__init__(dataset.units, dataset.manifest, dataset.source, staging, board)
        self._filling = functools.partial(Filling, dataset.units, dataset.manifest, dataset.source, staging)
        self.held = False
        self.batches: list[list[int]] = []
        self._hanging: list[list[SourceRead]] = []

    async def run(self) -> None:
        while True:
            more = self._more
            while reads := self._next():
                self.batches.append([read.unit for read in reads])
                if self.held:
                    self._hanging.append(reads)
                else:
                    self._end(reads)
            await more.wait()

    def let_go(self) -> None:
        """End the reads that hang."""
        self.held = False
        hanging, self._hanging = self._hanging, []
        for reads in hanging:
            self._end(reads)

    def _end(self, reads: list[SourceRead]) -> None:
        batch = Batch([read.unit for read in reads])
        batch.read(self._filling({read.unit: read.at for read in reads}))
        self._settle(batch, {read.unit: read for read in reads})


class Fetching:
    """Rank 0's fetcher, with rank 1 at the other end: on another node, or on this one if `mates`.

    `on_load`: what rank 1 does when it is asked to load a unit; its word is sent back, None is no answer.
    """

    def __init__(
        self,
        files: Mapping[bytes, bytes],
        *,
        home: int = 1,
        staging_bytes: int = 1 << 20,
        timeout_s: float = 5.0,
        verify: bool = True,
        mates: bool = False,
    ) -> None:
        self.dataset = Dataset(files)
        self.board = Board.create()
        self.stores = [self.dataset.new_store() for _ in range(2)]
        self.job = LocalJob([store.segment for store in self.stores])
        self.peers = self.job.peers[0]
        self.sent: list[Message] = []
        self.start_soon: Callable[..., None] | None = None
        self.on_say: Callable[[Message], None] = lambda message: None
        self._said = trio.Event()
        self.on_load: Callable[[int], bool | None] = self.load
        self.staging = Segment.create("staging", staging_bytes)
        own = range(len(self.dataset)) if home == 0 else []
        self.loader = self.dataset.loader(own, self.stores[0], self.board)
        self.stager = InlineStager(self.dataset, Store(self.staging), self.board)
        self.fetcher = Fetcher(
            0,
            self.dataset.units,
            self.dataset.placement([home] * len(self.dataset)),
            {0: self.stores[0], **({1: self.stores[1]} if mates else {})},
            self.staging,
            staging_bytes,
            self.loader,
            self.stager,
            self.peers,
            self.board,
            self._say,
            timeout_s=timeout_s,
            verify=verify,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """With notes and gets under way."""
        async with trio.open_nursery() as nursery:
            self.start_soon = nursery.start_soon
            self.peers.on_note = lambda rank, note: self.fetcher.on_note(rank, note, nursery.start_soon)
            self.job.peers[1].on_note = self._home_hears
            nursery.start_soon(self.job.pump)
            nursery.start_soon(self.loader.run)
            nursery.start_soon(self.stager.run)
            nursery.start_soon(self.fetcher.gets.run)
            await trio.testing.wait_all_tasks_blocked()
            yield nursery
            nursery.cancel_scope.cancel()

    def load(self, unit: int) -> bool:
        """Publish a unit at its home."""
        self.dataset.publish(self.stores[1], unit)
        return True

    def load_all(self) -> None:
        """Publish all units at their home."""
        for unit in range(len(self.dataset)):
            self.load(unit)

    async def fetch(self, unit: int, *, urgent: bool = True) -> Message:
        """What the mount is told of a unit."""
        begun = len(self.sent)
        await self.obtain(unit, urgent=urgent)
        answers = [message for message in self.sent[begun:] if message in self.answers_for(unit)]
        assert len(answers) == 1
        return answers[0]

    async def obtain(self, unit: int, *, urgent: bool = True) -> None:
        """What the engine does for a `Fetch`; the answer is in `sent`."""
        answered = len(self.answers_for(unit))
        assert self.start_soon is not None
        self.fetcher.fetch(unit, urgent, self.start_soon)
        while len(self.answers_for(unit)) == answered:
            await self._said.wait()
        await trio.lowlevel.checkpoint()

    def answers_for(self, unit: int) -> list[Message]:
        """All that the mount was told of a unit so far."""
        return [message for message in self.sent if isinstance(message, Ready | Missed) and message.unit == unit]

    def staged(self, answer: Message) -> bytes:
        """The bytes that the mount would read where it is told to."""
        assert isinstance(answer, Ready)
        begin = answer.at + HEADER_BYTES
        return bytes(self.staging.view[begin : begin + self.dataset.size(answer.unit)])

    @property
    def lent(self) -> int:
        """Bytes of staging that are lent."""
        self.fetcher.room.arena.check_invariants()
        assert self.board[Counter.STAGED_BYTES] == self.fetcher.room.arena.used
        return self.board[Counter.STAGED_BYTES]

    def asked_to_load(self) -> list[int]:
        """Units that rank 0 asked rank 1 to load."""
        return [note.unit for _, note in self.peers.sent if note.kind is NoteKind.LOAD]

    def _say(self, message: Message) -> None:
        self.sent.append(message)
        self.on_say(message)
        self._said.set()
        self._said = trio.Event()

    def _home_hears(self, rank: int, note: Note) -> None:
        if note.kind is NoteKind.LOAD:
            good = self.on_load(note.unit)
            if good is not None:
                self.job.peers[1].send(rank, Note(NoteKind.LOADED, note.unit, int(good)))


class EngineDouble:
    """The engine's end of a wire: stages what it is asked for, unless it is told otherwise.

    `missing`: units that it says it cannot have. `mute`: whether it leaves requests unanswered. `on_fetch`: in place
    of all that. `from_source`: units that no peer has.
    """

    def __init__(self, channel: Channel, dataset: Dataset, staging: Segment, from_source: Collection[int] = ()) -> None:
        self.channel = channel
        self.from_source = from_source
        self.heard: list[Message] = []
        self.missing: set[int] = set()
        self.mute = False
        self.on_fetch: Callable[[int], Message] | None = None
        self.arena = Arena(staging.size)
        self._places: dict[int, int] = {}
        self._dataset, self._staging = dataset, staging
        self._waiting: list[int] = []
        self._answered: list[int] = []

    @property
    def fetches(self) -> list[int]:
        """Units that were asked for, in order."""
        return [message.unit for message in self.heard if isinstance(message, Fetch)]

    @property
    def urgent(self) -> list[int]:
        """Units that were asked for because a reader waits, in order."""
        return [message.unit for message in self.heard if isinstance(message, Fetch) and message.urgent]

    @property
    def hurries(self) -> list[int]:
        """Units that somebody waits for now, in order."""
        return [message.unit for message in self.heard if isinstance(message, Hurry)]

    @property
    def unanswered(self) -> list[int]:
        """Units that were asked for and not answered yet, in order."""
        return [unit for unit in self.fetches if self.fetches.count(unit) > self._answered.count(unit)]

    @property
    def releases(self) -> list[int]:
        """Units that were released, in order."""
        return [message.unit for message in self.heard if isinstance(message, Release)]

    async def serve(self) -> None:
        """Answer until an end is gone."""
        with contextlib.suppress(trio.ClosedResourceError):
            await self._serve()

    async def _serve(self) -> None:
        while received := await self.channel.receive():
            message = received[0]
            self.heard.append(message)
            if isinstance(message, Release):
                self.arena.give_back(self._places.pop(message.unit))
                waiting, self._waiting = self._waiting, []
                for unit in waiting:
                    await self.answer(unit)
            elif isinstance(message, Fetch) and not self.mute:
                await self.answer(message.unit)

    async def answer(self, unit: int) -> None:
        """Answer a request, now or when there is room."""
        if self.on_fetch:
            answer = self.on_fetch(unit)
        elif unit in self.missing:
            answer = Missed(unit)
        elif (at := self.stage(unit)) is not None:
            answer = Ready(unit, at, int(unit in self.from_source))
        else:
            self._waiting.append(unit)
            await self._press(unit)
            return
        self._answered.append(unit)
        await self.channel.send(answer)

    async def _press(self, unit: int) -> None:
        """Now, and if need be once more: as often as it takes until what was spared goes, too."""
        await self.channel.send(Pressed())
        if unit in self._waiting:
            await self.channel.send(Pressed())

    def stage(self, unit: int) -> int | None:
        """Where a unit now lies in staging; None without room."""
        size = self._dataset.size(unit)
        at = self.arena.take(span(size))
        if at is not None:
            self._places[unit] = at
            self._staging.view[at + HEADER_BYTES : at + HEADER_BYTES + size] = self._dataset.data(unit)
        return at


class Mounted:
    """Rank 0's mount: its link and reader, the stores of ranks 0 and 1 on its node, and an engine double.

    home: the home of each unit; rank 2 is on another node.
    """

    def __init__(
        self,
        files: Mapping[bytes, bytes],
        home: Callable[[int], int] = lambda unit: 2,
        *,
        staging_bytes: int = 1 << 20,
        staging: Segment | None = None,
        timeout_s: float = 5.0,
        verify: str = "fetch",
    ) -> None:
        self.dataset = Dataset(files)
        self.source = self.dataset.source
        self.timeout_s = timeout_s
        self.counts = Counts()
        self.stores = [self.dataset.new_store() for _ in range(2)]
        placement = self.dataset.placement([home(unit) for unit in range(len(self.dataset))])
        layout: dict[str, npt.NDArray[Any]] = {"home": placement.home, "at": placement.at}
        layout["first"] = self.dataset.units.first
        segments = {
            "manifest": columns_segment.create("manifest", {}, self.dataset.manifest.columns),
            "layout": columns_segment.create("layout", {"samples": len(files)}, layout),
            "board": Board.create().segment,
            "staging": staging or Segment.create("staging", staging_bytes),
        }
        self.end, self.engine_end = wire.pair()
        nowhere = np.flatnonzero(placement.home == NOWHERE).tolist()
        self.engine = EngineDouble(Channel(self.engine_end), self.dataset, segments["staging"], nowhere)
        stores = {rank: store.segment for rank, store in enumerate(self.stores)}
        self.link = EngineLink(Channel(self.end), 0, segments, stores, self.counts)
        self.reader = Reader(
            self.link, self.source, self.counts,
            timeout_s=timeout_s, verify=verify, staging_bytes=segments["staging"].size,
        )  # fmt: skip
        for unit in range(len(self.dataset)):
            if home(unit) in (0, 1):
                self.dataset.publish(self.stores[home(unit)], unit)

    @contextlib.asynccontextmanager
    async def running(self, *, serving: bool = True) -> AsyncIterator[trio.Nursery]:
        """With the mount listening, and the engine serving unless it is said to be stuck."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.listen)
            if serving:
                nursery.start_soon(self.engine.serve)
            await trio.testing.wait_all_tasks_blocked()
            yield nursery
            nursery.cancel_scope.cancel()
        self.end.close()
        self.engine_end.close()

    def kill_engine(self) -> None:
        """Close the engine's end, as the kernel does when the process is gone."""
        trio.lowlevel.notify_closing(self.engine_end)
        self.engine_end.close()

    async def fetch(self, unit: int) -> bool:
        """Have a unit brought near."""
        return await self.link.requests.fetch(unit, self.dataset.size(unit), self.timeout_s)

    async def fetch_ahead(self, unit: int, then: Callable[[bool], None] = lambda good: None) -> None:
        """Have a unit brought near that nobody waits for yet."""
        await self.link.requests.fetch_ahead(unit, self.dataset.size(unit), then)

    def staged(self, unit: int) -> bytes | None:
        """The bytes of a unit that was fetched and is still there."""
        found = self.link.staged(unit, self.dataset.size(unit))
        return None if found is None else bytes(found[0][HEADER_BYTES:])

    def fill_the_wire(self) -> None:
        """Leave no room on the wire for a further word of the mount."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.end.send(wire.encode(Release(0)))

    def empty_the_wire(self) -> None:
        """Take all words of the mount off the wire, unheard."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.engine_end.recv(1 << 16)
