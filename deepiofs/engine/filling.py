"""Units of a dataset, from the source into their places of a store.

Bytes for the store go through a buffer that the thread keeps: the source fills it, it is digested while the processor
still caches it, and the kernel copies it on. Read straight into memory that nobody has touched, each 4 KiB would cost a
page fault and be zeroed first, which takes half as long again (docs/ARCHITECTURE.md, "What loading costs"). Staging is
used again and again, and read into as it is; so is the store where a unit is only a page or two, or too large for the
buffer and the source has to be asked at once.

**Threading.** `Filling.read` runs in worker threads, several at once; each has its own buffer and its own units.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Packed, Piece, Posix, Source, SourceFile
from deepiofs.errors import DeepiofsError
from deepiofs.memory.placement import Units
from deepiofs.memory.store import Store

# A buffer of a thread; larger files of a POSIX file system come in pieces of this size.
_BUFFER_BYTES = 1 << 20
# Smaller units cost a page fault or two, which is less than the copy and its system call.
_MAPPED_BYTES = 6 << 10

# A unit, and why it could not be read.
Outcome = tuple[int, OSError | DeepiofsError | None]
# By unit: the byte of the store where it goes.
Places = Mapping[int, int] | Sequence[int] | memoryview


class Filling:
    """Reads units of a dataset into their places of a store."""

    def __init__(
        self, units: Units, manifest: Manifest, source: Source, store: Store, place: Places, fresh: bool = False
    ) -> None:
        """fresh: the places have no memory behind them yet."""
        self._units, self._manifest, self._source = units, manifest, source
        self._store, self._place = store, place
        self._packed = source if isinstance(source, Packed) else None
        self._in_pieces = isinstance(source, Posix)
        self._fresh = fresh

    def read(self, units: Iterator[int], say: Callable[[Outcome], None]) -> None:
        """Read and publish: all at once what lies in containers, else file by file."""
        if self._packed:
            self._read_together(self._packed, list(units), say)
        else:
            self._read_each(units, say)

    def _read_together(self, source: Packed, units: list[int], say: Callable[[Outcome], None]) -> None:
        pieces = []
        for unit in units:
            row, begin = self._units.place_in_file(unit)
            pieces.append(Piece(row, begin, self._store.data(self._place[unit], int(self._units.size[unit]))))
        for unit, piece, error in zip(units, pieces, source.read_pieces(self._manifest, pieces), strict=True):
            if error is None:
                self._store.publish(self._place[unit], len(piece.buffer))
            say((unit, error))

    def _read_each(self, units: Iterator[int], say: Callable[[Outcome], None]) -> None:
        files = _Files(self._source, self._manifest)
        for unit in units:
            error: OSError | DeepiofsError | None = None
            try:
                self._fill(files, unit)
            except (OSError, DeepiofsError) as failure:
                error = failure
                files.close()  # after ESTALE only a new descriptor helps
            say((unit, error))
        files.close()

    def _fill(self, files: _Files, unit: int) -> None:
        row, begin = self._units.place_in_file(unit)
        at, size = self._place[unit], int(self._units.size[unit])
        if not self._fresh or size <= _MAPPED_BYTES or (size > _BUFFER_BYTES and not self._in_pieces):
            files.read_into(self._store.data(at, size), row, begin)
            self._store.publish(at, size)
        elif size <= _BUFFER_BYTES:
            buffer = _own.buffer(size)
            files.read_into(buffer, row, begin)
            self._store.write(at, buffer)
        else:
            self._store.write_pieces(at, _pieces(files, row, begin, size))


class _Files:
    """The file that a thread reads. Extents of one file that come together share its descriptor."""

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self._source, self._manifest = source, manifest
        self._posix = source if isinstance(source, Posix) else None
        self._file: SourceFile | None = None
        self._row = -1

    def read_into(self, buffer: memoryview, row: int, begin: int) -> None:
        """Fill a buffer from a byte of a file on."""
        if self._posix and len(buffer) == self._manifest.size_of[row]:
            done = self._posix.read_file(self._manifest, row, buffer)
        else:
            done = self._open(row).read_into(buffer, begin)
        if done != len(buffer):
            # Its size is still the index's, else the source would have said so: a server that lost its end.
            raise OSError(errno.EIO, "shorter than it was when it was indexed")

    def close(self) -> None:
        """Give the file back."""
        file, self._file = self._file, None
        if file:
            file.close()

    def _open(self, row: int) -> SourceFile:
        if self._file is None or row != self._row:
            self.close()
            self._file, self._row = self._source.open(self._manifest, row), row
        return self._file


def _pieces(files: _Files, row: int, begin: int, size: int) -> Iterator[memoryview]:
    """The bytes of an extent, one buffer after the other; each is gone when the next is asked for."""
    for done in range(0, size, _BUFFER_BYTES):
        buffer = _own.buffer(min(_BUFFER_BYTES, size - done))
        files.read_into(buffer, row, begin + done)
        yield buffer


class _Own(threading.local):
    """What each worker thread has for itself, as long as it lives."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")

    def buffer(self, size: int) -> memoryview:
        """Writable, with anything in it.

        It begins a page, as pages of files do: a copy to a place some bytes further into a page than where it comes
        from takes two to three times as long (measured on AMD EPYC: 50 us for 100 KB, not 17).
        """
        if size > len(self._buffer):
            self._buffer = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return self._buffer[:size]


_own = _Own()
