"""What the sources of records share: containers are indexed once by one rank each, and read in large pieces.

A record is a range of its container's bytes. Records that lie close to each other are read by one system call, each
into its own buffer (preadv(2)), or, if they are small, together; what lies between them is thrown away.

**Threading.** `open` and `read_pieces` may be called from any thread.
"""

from __future__ import annotations

import abc
import bisect
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, Selection, SourceFile
from deepiofs.dataset.sources.containers import Container, OpenContainer, OpenShards, shards_of
from deepiofs.dataset.sources.recordtree import Found, columns_of_records
from deepiofs.dataset.sources.team import Team, fails_for_all, share, told_by_first
from deepiofs.errors import CorruptRecordError, DeepiofsError, SourceError

# Reading on over a gap costs less than another request, up to about here.
_GAP_BYTES = 64 << 10
# More than the engine asks for at once, with the gaps: the last record would need a request of its own.
_RUN_BYTES = 16 << 20
# Below this mean distance records are read as one piece and copied: of 200 bytes in 6.9 us of CPU instead of 10.8.
_COPIED_BYTES = 4 << 10
# So many buffers would need several requests (preadv's limit is 1,024): then, too.
_MOST_TOGETHER = 512
_CHECKED_BYTES = 1 << 20
_THREADS = 4

Outcome = OSError | DeepiofsError | None


class RecordSource(abc.ABC):
    """Records that lie as they are in their containers.

    kind: the scheme. suffixes: which files of a directory are containers. after_bytes: how many bytes behind each
    record belong to its check. most_open: containers that are kept open.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    after_bytes: ClassVar[int] = 0
    most_open: ClassVar[int] = 128

    def __init__(self, name: str) -> None:
        self.name = name
        self.shards = shards_of(name, self.suffixes)
        # The option, as `scan` is told; `index` may look at it.
        self.links = "follow"
        self._layout: Layout | None = None

    @abc.abstractmethod
    def index(self, container: Container, opened: OpenContainer) -> Found:
        """The records of a container. SourceError, naming it and the byte, if it is not what it should be."""

    def open_container(self, container: Container, details: Any) -> OpenContainer:
        """A container that was indexed. details: its `Found.details`. SourceChangedError, OSError as `Shards.open`."""
        return self.shards.open(container)

    def verify(self, chunks: Iterable[memoryview], after: memoryview, where: str) -> None:
        """CorruptRecordError if a record, given in consecutive chunks, is not what the bytes after it say."""
        raise NotImplementedError

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        self.links = selection.links
        containers: list[Container] = told_by_first(team, self.shards.find)
        with ThreadPoolExecutor(_THREADS, "scan") as pool:
            found = share(team, containers if team.rank == 0 else None, self._index, pool)
        made = None
        with fails_for_all(team):
            if found is not None:
                made = columns_of_records(containers, found, selection)
                made[0]["kind"] = self.kind
        return made

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """Compares the containers: their names, sizes and times."""
        first: str | None = told_by_first(team, lambda: self._difference(manifest))
        return first

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        layout = self.layout(manifest)
        layout.check(layout.place(row)[0])  # SourceChangedError now, rather than at the first read
        return RecordFile(self, layout, row, manifest.size_of[row])

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[Outcome]:
        layout = self.layout(manifest)
        outcomes: list[Outcome] = [None] * len(pieces)
        whole: list[Place] = []
        for i, piece in enumerate(pieces):
            if self.after_bytes and len(piece.buffer) != manifest.size_of[piece.row]:
                outcomes[i] = self.read_alone(manifest, piece)  # a part cannot be checked without the rest
            else:
                number, at = layout.place(piece.row)
                whole.append(Place(number, at + piece.at, piece.buffer, i))
        for i, outcome in self.read_together(manifest, pieces, whole):
            outcomes[i] = outcome
        return outcomes

    def read_together(
        self,
        manifest: Manifest,
        pieces: Sequence[Piece],
        places: list[Place],
        unpack: Callable[[Place], Outcome] = lambda place: None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Read places by as few requests as can be; (number of its piece, outcome) of each.

        What fails in company is read again by itself. unpack: from a place's buffer, once that is filled, to its piece.
        """
        layout = self.layout(manifest)
        for run in _runs(places, self.after_bytes):
            for place, outcome in zip(run, self._read_run(layout, run), strict=True):
                again = isinstance(outcome, OSError | CorruptRecordError) and len(run) > 1
                yield place.i, self.read_alone(manifest, pieces[place.i]) if again else outcome or unpack(place)

    def close(self) -> None:
        if self._layout:
            self._layout.opened.close()

    def layout(self, manifest: Manifest) -> Layout:
        """Where the records of a manifest lie."""
        layout = self._layout
        if layout is None or layout.manifest is not manifest:
            layout = self._layout = Layout(manifest, self)
        return layout

    def _index(self, container: Container) -> Found:
        try:
            opened = self.shards.open(container)
            try:
                return self.index(container, opened)
            finally:
                opened.close()
        except OSError as error:
            raise SourceError(f"{container.name}: {error.strerror or error}") from None

    def _difference(self, manifest: Manifest) -> str | None:
        if manifest.meta.get("kind") != self.kind:
            return "it is of another kind of source"
        try:
            now = {one.name: (one.size, one.mtime_ns) for one in self.shards.find()}
        except SourceError as error:
            return str(error)
        was = {name: (size, mtime_ns) for name, size, mtime_ns in manifest.meta["containers"]}
        different = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        return f"{different[0]}: changed since" if different else None

    def read_alone(self, manifest: Manifest, piece: Piece) -> Outcome:
        """A piece by itself: a part, or what could not be read together with others."""
        try:
            file = self.open(manifest, piece.row)
            try:
                if file.read_into(piece.buffer, piece.at) != len(piece.buffer):
                    return OSError(errno.EIO, "shorter than it was when it was indexed")
            finally:
                file.close()
        except (OSError, DeepiofsError) as error:
            return error
        return None

    def _read_run(self, layout: Layout, run: list[Place]) -> list[Outcome]:
        """One request for records of one container that lie close to each other."""
        begin = run[0].at
        end = run[-1].at + len(run[-1].buffer) + self.after_bytes
        small = end - begin < len(run) * _COPIED_BYTES or len(run) > _MOST_TOGETHER
        try:
            filled = self._copy_run(layout, run, end) if small else self._fill_run(layout, run, end)
        except (OSError, DeepiofsError) as error:
            return [error] * len(run)
        if filled is None:
            return [OSError(errno.EIO, "shorter than it was when it was indexed")] * len(run)
        if not self.after_bytes:
            return [None] * len(run)
        return [self._judge(layout, place, after) for place, after in zip(run, filled, strict=True)]

    def _fill_run(self, layout: Layout, run: list[Place], end: int) -> list[memoryview] | None:
        """Straight into the buffers; what is behind each, None if the container has less."""
        buffers: list[memoryview] = []
        afters = [memoryview(bytearray(self.after_bytes)) for _ in run]
        at = run[0].at
        for place, after in zip(run, afters, strict=True):
            buffers += (memoryview(bytearray(place.at - at)), place.buffer, after)
            at = place.at + len(place.buffer) + len(after)
        n = layout.read(run[0].number, [buffer for buffer in buffers if len(buffer)], run[0].at)
        return afters if n == end - run[0].at else None

    def _copy_run(self, layout: Layout, run: list[Place], end: int) -> list[memoryview] | None:
        """Of small records, for which a copy costs less than a buffer of a request."""
        begin = run[0].at
        data = memoryview(bytearray(end - begin))
        if layout.read(run[0].number, [data], begin) != len(data):
            return None
        afters = []
        for _, at, buffer, _ in run:
            behind = at - begin + len(buffer)
            buffer[:] = data[at - begin : behind]
            afters.append(data[behind : behind + self.after_bytes])
        return afters

    def _judge(self, layout: Layout, place: Place, after: memoryview) -> Outcome:
        try:
            self.verify([place.buffer], after, layout.where(place.number, place.at))
        except DeepiofsError as error:
            return error
        return None


class Layout:
    """Where the records of one manifest lie, and the containers that are open."""

    def __init__(self, manifest: Manifest, source: RecordSource) -> None:
        self.manifest = manifest
        self.containers = [Container(*facts) for facts in manifest.meta["containers"]]
        self.details: list[Any] = manifest.meta["details"]
        self.opened = OpenShards(
            lambda number: source.open_container(self.containers[number], self.details[number]), source.most_open
        )
        # Large records that were verified as a whole, so that their parts need not be again.
        self.verified: set[int] = set()
        self._starts = [0]
        for span in manifest.meta["spans"]:
            self._starts.append(self._starts[-1] + span)
        self._source_at = manifest.columns["source_at"].data

    def place(self, row: int) -> tuple[int, int]:
        """The container of a row, by number, and the byte in it."""
        at = self._source_at[row]
        number = bisect.bisect_right(self._starts, at) - 1
        # An empty record may lie at the very end of the last one.
        number = min(number, len(self.containers) - 1)
        return number, at - self._starts[number]

    def where(self, number: int, at: int) -> str:
        """For messages."""
        return f"{self.containers[number].name}: record at byte {at}"

    def check(self, number: int) -> None:
        """SourceChangedError if a container is another one now."""
        self.read(number, [], 0)

    def read(self, number: int, buffers: Sequence[memoryview], at: int) -> int:
        """As `OpenContainer.read_into`; after an error the container is opened anew."""
        try:
            return self.opened.get(number).read_into(buffers, at)
        except OSError:
            self.opened.forget(number)
            raise


class RecordFile:
    """One record, open; with a check behind it, the first read reads it all."""

    def __init__(self, source: RecordSource, layout: Layout, row: int, size: int) -> None:
        self._source, self._layout = source, layout
        self._row, self._size = row, size
        self._number, self._at = layout.place(row)
        self._verified = not source.after_bytes or row in layout.verified
        self._closed = False

    def read_into(self, buffer: memoryview, at: int) -> int:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        n = max(0, min(len(buffer), self._size - at))
        if n == self._size and not self._verified:
            return self._read_all(buffer[:n])
        if not self._verified:
            self._verify()
        return self._layout.read(self._number, [buffer[:n]], self._at + at)

    def close(self) -> None:
        self._closed = True

    def _read_all(self, buffer: memoryview) -> int:
        after = memoryview(bytearray(self._source.after_bytes))
        n = self._layout.read(self._number, [buffer, after], self._at)
        if n != self._size + len(after):
            raise OSError(errno.EIO, "shorter than it was when it was indexed")
        self._source.verify([buffer], after, self._where)
        self._verified = True
        return self._size

    def _verify(self) -> None:
        after = memoryview(bytearray(self._source.after_bytes))
        self._layout.read(self._number, [after], self._at + self._size)
        self._source.verify(self._chunks(), after, self._where)
        self._verified = True
        if self._size > _CHECKED_BYTES:
            self._layout.verified.add(self._row)

    def _chunks(self) -> Iterator[memoryview]:
        for at in range(0, self._size, _CHECKED_BYTES):
            chunk = memoryview(bytearray(min(_CHECKED_BYTES, self._size - at)))
            if self._layout.read(self._number, [chunk], self._at + at) != len(chunk):
                raise OSError(errno.EIO, "shorter than it was when it was indexed")
            yield chunk

    @property
    def _where(self) -> str:
        return self._layout.where(self._number, self._at)


class Place(NamedTuple):
    """A piece: in which container, from which byte of it, and its number among those asked for."""

    number: int
    at: int
    buffer: memoryview
    i: int


def _runs(places: list[Place], after_bytes: int) -> Iterator[list[Place]]:
    """Pieces that one request reads, in the order of the containers' bytes."""
    run: list[Place] = []
    for place in sorted(places, key=lambda place: (place.number, place.at)):
        if run:
            last = run[-1]
            gap = place.at - (last.at + len(last.buffer) + after_bytes)
            span = place.at + len(place.buffer) - run[0].at
            if place.number != last.number or not 0 <= gap <= _GAP_BYTES or span > _RUN_BYTES:
                yield run
                run = []
        run.append(place)
    if run:
        yield run
