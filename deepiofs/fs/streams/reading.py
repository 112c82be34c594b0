"""Bytes of an open stream: heads and tails are made, data come as those of any file, and one join puts them together.

**Threading.** The trio thread. A read whose members are all in memory awaits nothing; another copies what it has
before it waits for the next, as staging may be reused meanwhile.
"""

from __future__ import annotations

import trio

from deepiofs.errors import TimedOutError
from deepiofs.fs.counts import Origin
from deepiofs.fs.fetch import REPLY_S, Reader
from deepiofs.fs.openfile import OpenFile
from deepiofs.fs.streams.ahead import Ahead, Lead
from deepiofs.fs.streams.layout import Layout
from deepiofs.memory.placement import EXTENT_BYTES

# Members whose files stay open, for the reads that reach over a border or come out of order.
_FILES_KEPT = 8
# Of larger members each read goes the way that follows how a file is read.
_SUM_BYTES = EXTENT_BYTES

Piece = memoryview | bytes


class OpenStream:
    """One handle of a stream."""

    def __init__(self, name: str, layout: Layout, reader: Reader, ahead: Ahead) -> None:
        """name: for log lines, and in `stats`."""
        self.name, self.layout = name, layout
        self.position = 0
        self.peer_share = ahead.peer_share(layout)
        self._reader, self._ahead = reader, ahead
        self._lead: Lead = ahead.begin(layout)
        self._files: dict[int, OpenFile] = {}
        self._sums: dict[int, int] = {}
        self._to_close: list[OpenFile] = []
        self._waiting = 0  # reads that are waiting for something

    async def read(self, at: int, size: int) -> tuple[Piece, Origin]:
        """The bytes, shorter only at the end, and the farthest place they came from. Errors as of `Reader.read`."""
        end = min(at + size, self.layout.size)
        if at >= end:
            return b"", Origin.LOCAL
        first = self.layout.find(at)
        found = self._at_hand(first, at, end)
        if found is None:
            found = await self._in_time(first, at, end)
        pieces, farthest = found
        self.position = end
        self._ahead.follow(self._lead, first, self.layout.find(end - 1))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), farthest

    async def close(self) -> None:
        """The handle is gone."""
        self._ahead.end(self._lead)
        self._to_close += self._files.values()
        self._files = {}
        await self._close_files()

    def _at_hand(self, index: int, at: int, end: int) -> tuple[list[Piece], Origin] | None:
        """What is there without waiting; None if something is not. This is what a warm stream's speed depends on."""
        layout, form = self.layout, self.layout.form
        offset_of, row_of, resident = layout.offset_of, layout.row_of, self._reader.resident
        pieces: list[Piece] = []
        farthest = Origin.LOCAL
        while at < end:
            if index == len(row_of):
                pieces.append(self._ending(at, end))
                break
            data_at, data_end = layout.data_range(index)
            if at < data_at:
                begin = offset_of[index]
                head = form.head(row_of[index])
                pieces.append(head if at == begin and data_at <= end else head[at - begin : end - begin])
                at = data_at
            if at < data_end and at < end:
                upto = data_end if data_end < end else end
                whole = resident(row_of[index])
                if whole is None:
                    found = self._piece_at_hand(index)
                    if found is None:
                        return None
                    whole, origin = found
                    farthest = max(farthest, origin)
                pieces.append(whole[at - data_at : upto - data_at])
                at = upto
            index += 1
            after = offset_of[index]
            if at < after and at < end:
                checksum = self._sum_at_hand(index - 1, data_end - data_at) if form.is_summed else 0
                if checksum is None:
                    return None
                pieces.append(form.tail(data_end - data_at, checksum)[at - data_end : end - data_end])
                at = after
        return pieces, farthest

    async def _in_time(self, first: int, at: int, end: int) -> tuple[list[Piece], Origin]:
        limit_s = self._reader.timeout_s + REPLY_S
        self._waiting += 1
        try:
            with trio.move_on_after(limit_s) as limit:
                await self._ask_for(first, at, end)
                return await self._gather(first, at, end)
        finally:
            self._waiting -= 1
            # Another read may be at a file that was evicted: the last one closes them.
            if not self._waiting and self._to_close:
                with trio.CancelScope(shield=True):
                    await self._close_files()
        assert limit.cancelled_caught
        raise TimedOutError(f"{self.name}: no answer in {limit_s:g} s")

    async def _ask_for(self, index: int, at: int, end: int) -> None:
        """Have all that is missing fetched at once, or each would be waited for in its turn."""
        layout = self.layout
        missing = []
        while index < len(layout) and layout.offset_of[index] < end:
            data_at, data_end = layout.data_range(index)
            if data_at < end and max(at, data_at) < data_end:
                missing.append((self._file(index), max(at - data_at, 0)))
            index += 1
        if len(missing) > 1:
            for file, begin in missing:
                await self._reader.ask_for(file, begin)

    async def _gather(self, index: int, at: int, end: int) -> tuple[list[Piece], Origin]:
        """As `_at_hand`, but waits, and copies."""
        layout, form = self.layout, self.layout.form
        pieces: list[Piece] = []
        farthest = Origin.LOCAL
        while at < end and index < len(layout):
            data_at, data_end = layout.data_range(index)
            if at < data_at:
                begin = layout.offset_of[index]
                pieces.append(form.head(layout.row_of[index])[at - begin : end - begin])
                at = min(data_at, end)
            while at < data_end and at < end:
                length = min(data_end, end) - at
                piece, origin = await self._reader.read(self._file(index), at - data_at, length)
                pieces.append(bytes(piece))
                farthest = max(farthest, origin)
                at += len(piece)
            index += 1
            after = layout.offset_of[index]
            if at < after and at < end:
                checksum = await self._sum(index - 1, data_end - data_at) if form.is_summed else 0
                pieces.append(form.tail(data_end - data_at, checksum)[at - data_end : end - data_end])
                at = min(after, end)
        if at < end:
            pieces.append(self._ending(at, end))
        return pieces, farthest

    def _piece_at_hand(self, index: int) -> tuple[memoryview, Origin] | None:
        """The data of a member; large ones go the way of `Reader.read`, which follows and reads ahead."""
        file = self._file(index)
        return self._reader.at_hand(file, file.first) if file.size <= EXTENT_BYTES else None

    def _sum_at_hand(self, index: int, size: int) -> int | None:
        """The checksum of a member's data."""
        if index not in self._sums:
            whole: Piece | None = self._reader.resident(self.layout.row_of[index]) if size else b""
            if whole is None:
                found = self._piece_at_hand(index)
                if found is None:
                    return None
                whole = found[0]
            self._sums = {index: self.layout.form.extend(0, whole)}
        return self._sums[index]

    async def _sum(self, index: int, size: int) -> int:
        if (checksum := self._sum_at_hand(index, size)) is None:
            checksum, file = 0, self._file(index)
            for at in range(0, size, _SUM_BYTES):
                data, _ = await self._reader.read(file, at, min(_SUM_BYTES, size - at))
                checksum = self.layout.form.extend(checksum, data)
            self._sums = {index: checksum}
        return checksum

    def _ending(self, at: int, end: int) -> bytes:
        begin = self.layout.offset_of[len(self.layout)]
        return self.layout.form.ending[at - begin : end - begin]

    def _file(self, index: int) -> OpenFile:
        """What to read a member's data through."""
        file = self._files.get(index)
        if file is None:
            file = self._files[index] = self._reader.open(self.layout.row_of[index], whole=True)
            if len(self._files) > _FILES_KEPT:
                self._forget(self._files.pop(next(iter(self._files))))
        return file

    def _forget(self, file: OpenFile) -> None:
        """A file is not needed any more; one of the source is closed by the next read that waits anyway."""
        if file.mark_closed() or file.asked_ahead:
            self._to_close.append(file)

    async def _close_files(self) -> None:
        while self._to_close:
            await self._reader.close(self._to_close.pop())
