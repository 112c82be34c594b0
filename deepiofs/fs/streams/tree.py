"""Names below `.deepiofs/stream`: FORMAT/epoch-E/PART-of-PARTS.EXT, for any pass and any number of parts.

A listing shows the formats, a few passes from the current one on, and some usual numbers of parts; everything else is
there if it is named. Nodes get their numbers when they are first named.

**Threading.** The trio thread; what takes long is computed in a worker, by one task at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping

import trio

from deepiofs.fs.fetch import Reader
from deepiofs.fs.streams.ahead import Ahead
from deepiofs.fs.streams.layout import Format, Layout
from deepiofs.fs.streams.orders import Orders
from deepiofs.fs.streams.reading import OpenStream
from deepiofs.fs.tree import FOREVER_S, STREAM_BASE, Attributes, Tree

STREAM_NODE = STREAM_BASE
MOST_PARTS = 1 << 20
_PASSES = 1 << 31
_SHOWN_PASSES = 3
_SHOWN_PARTS = (1, 2, 4, 8)
_EPOCH = re.compile(rb"epoch-(0|[1-9]\d{0,9})")
_PART = re.compile(rb"(0|[1-9]\d{0,6})-of-([1-9]\d{0,6})\.([a-z]+)")
# Layouts kept for the next open; 12 bytes per member each.
_KEPT = 16
# Below this all is computed at once (some milliseconds); above, in a worker thread.
_INLINE_ROWS = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A node: the tree's root, a format, a pass of it, or a part of that. depth: which of these."""

    depth: int = 0
    form: str = ""
    number: int = 0
    part: int = 0
    parts: int = 0


class Streams:
    """The stream tree of one mount, and its open streams."""

    def __init__(
        self,
        tree: Tree,
        for_all: bool,
        formats: Mapping[str, Format],
        orders: Callable[[], Orders],
        reader: Reader,
        ahead: Ahead,
        current: Callable[[], int],
    ) -> None:
        """for_all: whether everyone may read every file.

        orders: makes them; called once, when a stream is first asked for. current: the pass of the mount.
        """
        self._manifest, self._formats, self._make_orders = tree.manifest, formats, orders
        self._reader, self.ahead, self._current = reader, ahead, current
        self._places = [Place()]
        self._nodes = {Place(): STREAM_NODE}
        self._layouts: collections.OrderedDict[Place, Layout] = collections.OrderedDict()
        self._computing = trio.Lock()
        self._orders: Orders | None = None
        # A stream has bytes of every file: who may not read each of them must not read it.
        self._read = 0o444 if for_all else 0o400
        self._enter = tree.attributes(1).mode & 0o555
        self._mtime_ns = int(tree.manifest.columns["mtime_ns"].max(initial=0))
        self._open: list[OpenStream] = []

    def child(self, directory: int, name: bytes) -> int | None:
        """The node of a name in a directory of the tree."""
        place = self._places[directory - STREAM_BASE]
        match place.depth:
            case 0:
                form = name.decode("latin-1")
                return self._node(Place(1, form)) if form in self._formats else None
            case 1:
                found = _EPOCH.fullmatch(name)
                number = int(found[1]) if found else _PASSES
                return self._node(Place(2, place.form, number)) if number < _PASSES else None
        return self._part(place, name)

    async def attributes(self, node: int) -> Attributes:
        """Of a directory or a stream; its size needs the order of its pass."""
        place = self._places[node - STREAM_BASE]
        if place.depth < 3:
            return self.directory(node)
        layout = await self._layout(place)
        mode = stat.S_IFREG | self._read
        size = layout.size
        return Attributes(node, mode, 1, os.getuid(), os.getgid(), size, self._mtime_ns, FOREVER_S, FOREVER_S)

    def directory(self, node: int) -> Attributes:
        """Of a directory."""
        below = (len(self._formats), _SHOWN_PASSES, 0)[self._places[node - STREAM_BASE].depth]
        mode = stat.S_IFDIR | self._enter
        return Attributes(node, mode, 2 + below, os.getuid(), os.getgid(), 0, self._mtime_ns, FOREVER_S, FOREVER_S)

    async def listing(self, directory: int) -> list[tuple[bytes, Attributes]]:
        """What is shown of a directory."""
        return [(name, await self.attributes(node)) for name, node in self._shown(directory)]

    async def open(self, node: int) -> OpenStream:
        """A handle for reading."""
        place = self._places[node - STREAM_BASE]
        layout = await self._layout(place)
        stream = OpenStream(self.path(place), layout, self._reader, self.ahead)
        self._open.append(stream)
        return stream

    async def close(self, stream: OpenStream) -> None:
        """A handle is gone."""
        self._open.remove(stream)
        await stream.close()

    def path(self, place: Place) -> str:
        """Of a stream, from the tree's root; for log lines, and in `stats`."""
        extension = self._formats[place.form].extension
        return f"{place.form}/epoch-{place.number}/{place.part}-of-{place.parts}.{extension}"

    def of_open(self, value: Callable[[OpenStream, Orders], float | None]) -> dict[str, float | None]:
        """Something of each open stream, by path; of several handles the last opened."""
        return {stream.name: value(stream, self._orders) for stream in self._open if self._orders}

    def _part(self, place: Place, name: bytes) -> int | None:
        found = _PART.fullmatch(name)
        if not found or found[3].decode() != self._formats[place.form].extension:
            return None
        part, parts = int(found[1]), int(found[2])
        return self._node(Place(3, place.form, place.number, part, parts)) if part < parts <= MOST_PARTS else None

    def _node(self, place: Place) -> int:
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = STREAM_BASE + len(self._places)
            self._places.append(place)
        return node

    def _shown(self, directory: int) -> Iterator[tuple[bytes, int]]:
        place = self._places[directory - STREAM_BASE]
        match place.depth:
            case 0:
                names = [name.encode() for name in self._formats]
            case 1:
                first = self._current()
                names = [b"epoch-%d" % n for n in range(first, min(first + _SHOWN_PASSES, _PASSES))]
            case _:
                extension = self._formats[place.form].extension.encode()
                names = [b"%d-of-%d.%b" % (p, n, extension) for n in _SHOWN_PARTS for p in range(n)]
        for name in names:
            node = self.child(directory, name)
            assert node is not None
            yield name, node

    async def _layout(self, place: Place) -> Layout:
        async with self._computing:
            layout = self._layouts.get(place)
            if layout is None:
                small = self._manifest.n_rows < _INLINE_ROWS
                layout = self._compute(place) if small else await trio.to_thread.run_sync(self._compute, place)
                self._layouts[place] = layout
                if len(self._layouts) > _KEPT:
                    self._layouts.popitem(last=False)
            self._layouts.move_to_end(place)
            return layout

    def _compute(self, place: Place) -> Layout:
        if self._orders is None:
            self._orders = self._make_orders()
        rows = self._orders.rows(place.number, place.part, place.parts)
        return Layout(self._formats[place.form], self._manifest, rows)
