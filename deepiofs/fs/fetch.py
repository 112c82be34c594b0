"""From a byte range of a file to its bytes: this node's memory, else a peer's, else the source.

This is the walk of every sample: `at_hand` if it is in memory (no waiting), else `bring` asks the engine, else
the source is read in a worker thread. Nothing that has failed its digest is ever served.

**Threading.** The trio thread; only `_read_source` runs in workers.
"""

from __future__ import annotations

import logging
import os
import threading

import trio

from deepiofs.dataset.sources import Source, SourceFile
from deepiofs.errors import SourceError, TimedOutError
from deepiofs.fs.counts import Counts, Origin
from deepiofs.fs.enginelink import EngineLink
from deepiofs.memory.placement import EXTENT_BYTES
from deepiofs.memory.store import HEADER_BYTES, genuine

log = logging.getLogger(__name__)

# Reads of the source at once, by one mount.
_SOURCE_THREADS = 64
# A request is answered within `timeout` + 2 s, whatever hangs: this leaves half a second for the reply itself.
_REPLY_S = 1.5


class OpenFile:
    """One open file: what is read through one handle."""

    __slots__ = ("checked", "closed", "content", "first", "lock", "opened", "size")

    def __init__(self, content: int, first: int, size: int) -> None:
        self.content = content  # the row whose bytes these are
        self.first = first  # its first unit
        self.size = size
        self.checked: set[int] = set()  # units whose digest was compared through this handle
        self.opened: SourceFile | None = None
        self.closed = False
        self.lock = threading.Lock()  # of `opened` and `closed`, which worker threads see


class Reader:
    """Bytes of files, from the nearest place that has them."""

    def __init__(self, link: EngineLink, source: Source, counts: Counts, *, timeout_s: float, verify: str) -> None:
        self._link, self._source, self._counts = link, source, counts
        self._timeout_s = timeout_s
        self._check_node = verify != "off"
        self._check_local = verify == "always"
        self._bad: set[int] = set()
        self._limiter = trio.CapacityLimiter(_SOURCE_THREADS)

    def open(self, row: int) -> OpenFile:
        """What to read a row's bytes through."""
        manifest = self._link.manifest
        content = manifest.content_of[row]
        return OpenFile(content, self._link.first[content], manifest.size_of[content])

    async def close(self, file: OpenFile) -> None:
        """The handle is gone. A thread that still hangs in the source closes what it opens later."""
        with file.lock:
            file.closed = True
        if file.opened:
            await trio.to_thread.run_sync(file.opened.close)

    async def read(self, file: OpenFile, at: int, size: int) -> tuple[memoryview | bytes, Origin]:
        """The bytes, shorter only at the end of the file, and the farthest place that they came from.

        TimedOutError after `timeout` + 1.5 s; SourceChangedError; OSError of the source.
        """
        size = min(size, file.size - at)
        if size <= 0:
            return b"", Origin.LOCAL
        unit, begin = divmod(at, EXTENT_BYTES)
        if begin + size <= EXTENT_BYTES and (found := self.at_hand(file, file.first + unit)):
            whole, origin = found
            return whole[begin : begin + size], origin
        with trio.move_on_after(self._timeout_s + _REPLY_S) as limit:
            return await self._read_pieces(file, at, size)
        assert limit.cancelled_caught
        raise TimedOutError(f"{self.name(file)}: no answer in {self._timeout_s + _REPLY_S:g} s")

    def at_hand(self, file: OpenFile, unit: int) -> tuple[memoryview, Origin] | None:
        """A unit's bytes if they are in this node's memory, or fetched already, and genuine."""
        link = self._link
        size = min(file.size - (unit - file.first) * EXTENT_BYTES, EXTENT_BYTES)
        if unit in self._bad:
            return None
        whole = link.in_node(unit, size)
        if whole is None:
            whole = link.staged(unit, size)
            return None if whole is None else (whole[HEADER_BYTES:], Origin.PEER)
        local = link.home(unit) == link.rank
        if (self._check_local if local else self._check_node) and not self._genuine(file, unit, whole):
            return None
        return whole[HEADER_BYTES:], Origin.LOCAL if local else Origin.NODE

    def origin(self, file: OpenFile) -> Origin:
        """Where a read of the file's first byte would come from now."""
        if not file.size:
            return Origin.LOCAL
        found = self.at_hand(file, file.first)
        if found:
            return found[1]
        return Origin.PEER if self._link.reachable(file.first) and file.first not in self._bad else Origin.SOURCE

    def name(self, file: OpenFile) -> str:
        """For log lines."""
        return os.fsdecode(self._link.manifest.path(file.content))

    async def _read_pieces(self, file: OpenFile, at: int, size: int) -> tuple[memoryview | bytes, Origin]:
        """A range that is not at hand, or lies in several units."""
        pieces: list[memoryview | bytes] = []
        farthest = Origin.LOCAL
        while size:
            index, begin = divmod(at, EXTENT_BYTES)
            length = min(size, EXTENT_BYTES - begin)
            piece, origin = await self._piece(file, file.first + index, begin, length)
            # A unit may be released while the next one is awaited: what is kept must be a copy then.
            pieces.append(piece if length == size and not pieces else bytes(piece))
            farthest = max(farthest, origin)
            at, size = at + length, size - length
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), farthest

    async def _piece(self, file: OpenFile, unit: int, begin: int, length: int) -> tuple[memoryview | bytes, Origin]:
        found = self.at_hand(file, unit)
        if found is None and await self._bring(file, unit):
            found = self.at_hand(file, unit)
        if found:
            return found[0][begin : begin + length], found[1]
        at = (unit - file.first) * EXTENT_BYTES + begin
        data = await trio.to_thread.run_sync(
            self._read_source, file, at, length, limiter=self._limiter, abandon_on_cancel=True
        )
        self._counts.source_bytes += length
        return data, Origin.SOURCE

    async def _bring(self, file: OpenFile, unit: int) -> bool:
        if unit in self._bad:
            return False
        size = min(file.size - (unit - file.first) * EXTENT_BYTES, EXTENT_BYTES)
        return await self._link.fetch(unit, size, self._timeout_s)

    def _genuine(self, file: OpenFile, unit: int, whole: memoryview) -> bool:
        """Compare the digest once per handle; what differs is not used again."""
        if unit in file.checked:
            return True
        if not genuine(whole):
            self._bad.add(unit)
            self._counts.verify_failures += 1
            log.error("%s: a unit in memory does not have its digest; reading from the source", self.name(file))
            return False
        file.checked.add(unit)
        return True

    def _read_source(self, file: OpenFile, at: int, length: int) -> bytes:
        """In a worker thread. The descriptor is kept for the next read through this handle."""
        opened = file.opened
        kept = opened is not None
        if opened is None:
            opened = self._source.open(self._link.manifest, file.content)
            with file.lock:
                kept = file.opened is None and not file.closed
                if kept:
                    file.opened = opened
        data = bytearray(length)
        try:
            done = opened.read_into(memoryview(data), at)
        finally:
            if not kept:
                opened.close()
        if done != length:
            raise SourceError(f"{self.name(file)}: shorter than it was when it was indexed")
        return bytes(data)
