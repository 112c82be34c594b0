"""From a byte range of a file to its bytes: this node's memory, else a peer's, else the source.

This is the walk of every sample: `at_hand` if it is in memory (no waiting), else `bring` asks the engine, else
the source is read in a worker thread. Nothing that has failed its digest is ever served.

A file that no memory holds is brought whole into staging where it is read in order, and its next extents before they
are asked for; of one that is read here and there only what is asked for is read.

**Threading.** The trio thread.
"""

from __future__ import annotations

import collections
import logging
import os

import trio

from deepiofs.dataset.sources import Source
from deepiofs.errors import TimedOutError
from deepiofs.fs.coming import Coming
from deepiofs.fs.counts import Counts, Origin
from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.openfile import OpenFile
from deepiofs.fs.sourcereads import SourceReads
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE
from deepiofs.memory.store import HEADER_BYTES, genuine

log = logging.getLogger(__name__)

# A request is answered within `timeout` + 2 s, whatever hangs: this leaves half a second for the reply itself.
REPLY_S = 1.5
# The kernel asks for no more at once: a smaller file is read from the source in one request.
_REQUEST_BYTES = 128 << 10
_AHEAD_UNITS = 2


class Reader:
    """Bytes of files, from the nearest place that has them."""

    def __init__(
        self,
        link: EngineLink,
        source: Source,
        counts: Counts,
        *,
        timeout_s: float,
        verify: str,
        staging_bytes: int,
    ) -> None:
        self.link, self._counts = link, counts
        self.source_reads = SourceReads(source, link.manifest)
        self.timeout_s = timeout_s
        self._check_node = verify != "off"
        self._check_local = verify == "always"
        self._bad: set[int] = set()
        self._ahead: collections.Counter[int] = collections.Counter()  # of how many handles a unit is in `ahead`
        self._most_ahead = staging_bytes // 4 // EXTENT_BYTES

    def open(self, row: int, whole: bool = False) -> OpenFile:
        """What to read a row's bytes through. whole: all of it will be read."""
        manifest = self.link.manifest
        content = manifest.content_of[row]
        return OpenFile(content, self.link.first[content], manifest.size_of[content], whole)

    async def close(self, file: OpenFile) -> None:
        """The handle is gone."""
        if file.ahead:
            for unit in list(file.ahead):
                self._arrived_at(file, unit)
        if file.mark_closed():
            # Nobody waits for it: a source that hangs in close(2) must not keep a mount from ending.
            trio.lowlevel.start_thread_soon(file.source.close, lambda result: None)

    def read_soon(self, file: OpenFile, at: int, size: int) -> tuple[memoryview | bytes, Origin] | Coming | None:
        """The bytes if they are at hand; if a peer has them it is asked, and they come. None: `read` them."""
        size = min(size, file.size - at)
        if file.size > EXTENT_BYTES or size <= 0:
            return None
        unit = file.first
        if found := self.at_hand(file, unit):
            return self._cut(file, 0, at, size, found)
        if unit in self._bad or not self.link.reachable(unit):
            return None
        coming = Coming(file, at, size)
        asked = self.link.requests.ask(unit, file.size, self.timeout_s, lambda good: self._ended(coming, good))
        return coming if asked else None

    async def read_otherwise(self, coming: Coming) -> tuple[memoryview | bytes, Origin]:
        """The bytes of a read that a peer was asked for in vain; errors and time as of `read`."""
        file, at, size = coming.file, coming.at, coming.size
        with trio.move_on_at(coming.since + self.timeout_s + REPLY_S):
            return await self._from_source(file, at, size), Origin.SOURCE
        raise self._timed_out(file)

    async def read(self, file: OpenFile, at: int, size: int) -> tuple[memoryview | bytes, Origin]:
        """The bytes, shorter only at the end of the file, and the farthest place that they came from.

        TimedOutError after `timeout` + 1.5 s; SourceChangedError; OSError of the source.
        """
        size = min(size, file.size - at)
        if size <= 0:
            return b"", Origin.LOCAL
        unit, begin = divmod(at, EXTENT_BYTES)
        if file.size > EXTENT_BYTES:
            file.follow(at, size)
            await self._read_ahead(file, unit)
        if begin + size <= EXTENT_BYTES and (found := self.at_hand(file, file.first + unit)):
            return self._cut(file, unit, begin, size, found)
        with trio.move_on_after(self.timeout_s + REPLY_S):
            return await self._read_pieces(file, at, size)
        raise self._timed_out(file)

    def at_hand(self, file: OpenFile, unit: int) -> tuple[memoryview, Origin] | None:
        """A unit's bytes if they are in this node's memory, or fetched already, and genuine."""
        link = self.link
        size = self._unit_bytes(file, unit)
        if unit in self._bad:
            return None
        whole = link.in_node(unit, size)
        if whole is None:
            staged = link.staged(unit, size)
            return staged and (staged[0][HEADER_BYTES:], Origin.SOURCE if staged[1] else Origin.PEER)
        local = link.home(unit) == link.rank
        if (self._check_local if local else self._check_node) and not self._genuine(file, unit, whole):
            return None
        return whole[HEADER_BYTES:], Origin.LOCAL if local else Origin.NODE

    def resident(self, row: int) -> memoryview | None:
        """A file of one unit, if this rank's own memory holds it and nothing has to be compared."""
        link = self.link
        content = link.manifest.content_of[row]
        unit, size = link.first[content], link.manifest.size_of[content]
        if self._check_local or not 0 < size <= EXTENT_BYTES or unit in self._bad:
            return None
        return link.own(unit, size)

    async def ask_for(self, file: OpenFile, at: int) -> None:
        """Have the unit of a byte fetched, if it is not at hand, without waiting for it."""
        unit = file.first + at // EXTENT_BYTES
        if unit not in self._bad and self.at_hand(file, unit) is None:
            await self.link.requests.fetch_ahead(unit, self._unit_bytes(file, unit), lambda good: None, urgent=True)

    def origin(self, file: OpenFile) -> Origin:
        """Where a read of the file's first byte would come from now."""
        if not file.size:
            return Origin.LOCAL
        found = self.at_hand(file, file.first)
        if found:
            return found[1]
        return Origin.PEER if self.link.reachable(file.first) and file.first not in self._bad else Origin.SOURCE

    def name(self, file: OpenFile) -> str:
        """For log lines."""
        return os.fsdecode(self.link.manifest.path(file.content))

    async def _read_pieces(self, file: OpenFile, at: int, size: int) -> tuple[memoryview | bytes, Origin]:
        """A range that is not at hand, or lies in several units."""
        pieces: list[memoryview | bytes] = []
        farthest = Origin.LOCAL
        while size:
            index, begin = divmod(at, EXTENT_BYTES)
            length = min(size, EXTENT_BYTES - begin)
            piece, origin = await self._piece(file, index, begin, length)
            # A unit may be released while the next one is awaited: what is kept must be a copy then.
            pieces.append(piece if length == size and not pieces else bytes(piece))
            farthest = max(farthest, origin)
            at, size = at + length, size - length
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), farthest

    async def _piece(self, file: OpenFile, index: int, begin: int, length: int) -> tuple[memoryview | bytes, Origin]:
        """A range within the extent of this number."""
        unit = file.first + index
        found = self.at_hand(file, unit)
        if found is None and self._is_worth_bringing(file, unit) and await self._bring(file, unit):
            found = self.at_hand(file, unit)
        if found:
            return self._cut(file, index, begin, length, found)
        return await self._from_source(file, index * EXTENT_BYTES + begin, length), Origin.SOURCE

    async def _from_source(self, file: OpenFile, at: int, size: int) -> bytes:
        data = await self.source_reads.read(file.source, at, size)
        self._counts.source_bytes += size
        return data

    def _ended(self, coming: Coming, good: bool) -> None:
        """The engine has answered, or will not: what waits for it is answered, too."""
        found = self.at_hand(coming.file, coming.file.first) if good else None
        if found is None:
            coming.then(None)
            return
        self._counts.fetched_in((trio.current_time() - coming.since) * 1000)
        data, origin = self._cut(coming.file, 0, coming.at, coming.size, found)
        self._counts.served_from(origin, len(data))
        coming.then(data)

    def _timed_out(self, file: OpenFile) -> TimedOutError:
        return TimedOutError(f"{self.name(file)}: no answer in {self.timeout_s + REPLY_S:g} s")

    def _cut(
        self, file: OpenFile, index: int, begin: int, length: int, found: tuple[memoryview, Origin]
    ) -> tuple[memoryview, Origin]:
        """A range of an extent that is at hand. One that is read to its end is not needed much longer."""
        whole, origin = found
        if begin + length == len(whole) and origin >= Origin.PEER:
            self.link.requests.staged.spend(file.first + index)
        return whole[begin : begin + length], origin

    def _is_worth_bringing(self, file: OpenFile, unit: int) -> bool:
        """Whether to have the whole unit brought for a part of it: not where it is read here and there."""
        if self.link.home(unit) != NOWHERE or file.whole:
            return True
        return file.size > _REQUEST_BYTES and (file.size <= EXTENT_BYTES or file.reads_on)

    async def _bring(self, file: OpenFile, unit: int) -> bool:
        if unit in self._bad:
            return False
        return await self.link.requests.fetch(unit, self._unit_bytes(file, unit), self.timeout_s)

    async def _read_ahead(self, file: OpenFile, index: int) -> None:
        """Have the next extents of a file that is read in order fetched, as far as a part of staging reaches."""
        self._arrived_at(file, file.first + index)
        file.asked_ahead = max(file.asked_ahead, index + 1)
        while file.reads_on and file.asked_ahead < min(index + 1 + _AHEAD_UNITS, file.units):
            unit = file.first + file.asked_ahead
            if unit not in self._ahead and len(self._ahead) >= self._most_ahead:
                return
            file.asked_ahead += 1
            size = self._unit_bytes(file, unit)
            if unit not in self._bad and self.link.in_node(unit, size) is None:
                file.ahead.add(unit)
                self._ahead[unit] += 1
                await self.link.requests.fetch_ahead(unit, size, lambda good: None)

    def _arrived_at(self, file: OpenFile, unit: int) -> None:
        """A handle needs a unit ahead no more: it is read, or never will be through this one."""
        if unit in file.ahead:
            file.ahead.remove(unit)
            self._ahead[unit] -= 1
            if not self._ahead[unit]:
                del self._ahead[unit]

    def _unit_bytes(self, file: OpenFile, unit: int) -> int:
        return min(file.size - (unit - file.first) * EXTENT_BYTES, EXTENT_BYTES)

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
