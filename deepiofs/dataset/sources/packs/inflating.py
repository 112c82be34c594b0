"""Reading compressed bytes (deflate: zip, gzip) at any place, although they can only be unpacked from the front.

A decompressor that goes forward leaves copies of itself behind (zlib's `copy`, about 40 KB each): who wants to go back
begins at the nearest. So what is read in order is unpacked once, and what is read nearly in order a little more.
(The library indexed_gzip does this for gzip, but not for the members of a zip.)

**Threading.** Any thread; one at a time unpacks one stream.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deepiofs.dataset.sources.containers import OpenContainer
from deepiofs.errors import CorruptRecordError

GZIP = 16 + zlib.MAX_WBITS
RAW = -zlib.MAX_WBITS

# Parts of files are asked for at multiples of this.
_SPACING_BYTES = 4 << 20
_MOST_POINTS = 64
# Readers of one stream that go forward side by side.
_CURSORS = 4
_INPUT_BYTES = 64 << 10
_OUTPUT_BYTES = 1 << 20
_NO_END = 1 << 62


@dataclasses.dataclass
class _Cursor:
    """A decompressor: how many bytes it has given, and from which byte of the input it goes on; `left` comes first."""

    at: int
    place: int
    inflater: Any
    left: bytes = b""
    ended: bool = False

    def copy(self) -> _Cursor:
        return dataclasses.replace(self, inflater=self.inflater.copy(), place=self.place - len(self.left), left=b"")


class _Turns:
    """One thread at a time, of those that wait the one that reads farthest in front.

    Who overtakes another unpacks what that one wants, and that one has to do it again: of a file that 8 threads load
    in order, 1.6 times its bytes were unpacked with a plain lock.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._taken = False

    @contextlib.contextmanager
    def take(self, at: int) -> Iterator[None]:
        """Have a turn, to read from a place on."""
        with self._free:
            mine = (at, next(self._numbers))
            self._waiting.append(mine)
            self._free.wait_for(lambda: not self._taken and min(self._waiting) == mine)
            self._waiting.remove(mine)
            self._taken = True
        try:
            yield
        finally:
            with self._free:
                self._taken = False
                self._free.notify_all()


class Inflated:
    """Unpacked bytes.

    read: so many bytes of the input from a place, less only at its end. kind: GZIP (of any number of members) or RAW.
    where: for messages. Errors of `read`, and CorruptRecordError, reach the reader.
    """

    def __init__(self, read: Callable[[int, int], bytes], kind: int, where: str) -> None:
        self._read, self._kind, self._where = read, kind, where
        self._turns = _Turns()
        self._cursors: list[_Cursor] = []  # that used last comes last
        self._points = [_Cursor(0, 0, zlib.decompressobj(kind))]  # by place; never used, only copied
        self._spacing = _SPACING_BYTES
        self.unpacked_bytes = 0

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer from byte `at` on; less only at the end."""
        done = 0
        with self._turns.take(at):
            cursor = self._cursor(at)
            try:
                while cursor.at < at and self._step(cursor, at - cursor.at):
                    pass
                while done < len(buffer) and (data := self._step(cursor, len(buffer) - done)):
                    buffer[done : done + len(data)] = data
                    done += len(data)
            except BaseException:
                self._cursors.remove(cursor)
                raise
        return done

    def _cursor(self, at: int) -> _Cursor:
        """The one that is nearest before a place."""
        here = [cursor for cursor in self._cursors if cursor.at <= at]
        best = max(here, key=lambda cursor: cursor.at, default=None)
        point = self._points[bisect.bisect_right(self._points, at, key=lambda point: point.at) - 1]
        if best is None or point.at > best.at:
            best = point.copy()
        else:
            self._cursors.remove(best)
        self._cursors = [*self._cursors[-_CURSORS + 1 :], best]
        return best

    def _step(self, cursor: _Cursor, wanted: int) -> bytes:
        """Some bytes, at most those that are wanted; none at the end."""
        # Up to the next multiple: there a point belongs.
        n = min(wanted, _OUTPUT_BYTES, self._spacing - cursor.at % self._spacing)
        data = b""
        while not data and not cursor.ended:
            data = self._inflate(cursor, n)
        cursor.at += len(data)
        self.unpacked_bytes += len(data)
        if data and cursor.at % self._spacing == 0 and cursor.at > self._points[-1].at:
            self._keep(cursor)
        return data

    def _inflate(self, cursor: _Cursor, n: int) -> bytes:
        if not cursor.left:
            cursor.left = self._read(cursor.place, _INPUT_BYTES)
            cursor.place += len(cursor.left)
        has_input = bool(cursor.left)
        try:
            data: bytes = cursor.inflater.decompress(cursor.left, n)
        except zlib.error as error:
            raise CorruptRecordError(f"{self._where}: before compressed byte {cursor.place}: {error}") from None
        cursor.left = cursor.inflater.unconsumed_tail
        if cursor.inflater.eof:
            self._go_on(cursor)
        elif not data and not has_input:
            raise CorruptRecordError(f"{self._where}: cut short at compressed byte {cursor.place}")
        return data

    def _go_on(self, cursor: _Cursor) -> None:
        """A gzip file may have several members, and zeros behind the last one."""
        cursor.left = cursor.inflater.unused_data
        if self._kind == GZIP:
            while not cursor.left.lstrip(b"\0"):
                cursor.left = self._read(cursor.place, _INPUT_BYTES)
                cursor.place += len(cursor.left)
                if not cursor.left:
                    break
            cursor.left = cursor.left.lstrip(b"\0")
            cursor.inflater = zlib.decompressobj(self._kind)
        cursor.ended = not cursor.left or self._kind != GZIP

    def _keep(self, cursor: _Cursor) -> None:
        if cursor.ended:
            return
        self._points.append(cursor.copy())
        if len(self._points) > _MOST_POINTS:
            self._spacing *= 2
            self._points = [point for point in self._points if point.at % self._spacing == 0]


class InflatedContainer:
    """A container that is one gzip file, or a range of one that is a raw deflate stream, as what is in it."""

    def __init__(self, packed: OpenContainer, where: str, kind: int = GZIP, begin: int = 0, end: int = _NO_END) -> None:
        self._packed, self._begin, self._end = packed, begin, end
        self._inflated = Inflated(self._read, kind, where)

    def read_into(self, buffers: Sequence[memoryview], at: int) -> int:
        self._packed.read_into([], 0)  # whether it has changed, also if nothing more is read
        if len(buffers) == 1:
            return self._inflated.read_into(buffers[0], at)
        # Few large steps: each costs a copy of the input that is left.
        whole = memoryview(bytearray(sum(map(len, buffers))))
        n = self._inflated.read_into(whole, at)
        begin = 0
        for buffer in buffers:
            part = whole[begin : min(begin + len(buffer), n)]
            buffer[: len(part)] = part
            begin += len(buffer)
        return n

    def close(self) -> None:
        """What it reads from is left to whoever opened that."""

    @property
    def unpacked_bytes(self) -> int:
        """What was unpacked so far, all repetitions counted."""
        return self._inflated.unpacked_bytes

    def _read(self, place: int, size: int) -> bytes:
        buffer = bytearray(max(0, min(size, self._end - self._begin - place)))
        return bytes(buffer[: self._packed.read_into([memoryview(buffer)], self._begin + place)])
