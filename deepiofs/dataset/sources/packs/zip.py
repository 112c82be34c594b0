"""Members of zip files as files: `zip:PATH`, a directory of zips, or a pattern. Many zips are one tree.

The library's zipfile reads the directory at the end (zip64 too). A stored member is a range of the container; one that
is deflated is unpacked, see `inflating`. Both have a CRC-32, which is looked at when they are read.

**Threading.** All of it may be used from any thread.
"""

from __future__ import annotations

import errno
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, SourceFile
from deepiofs.dataset.sources.containers import Container, ContainerFile, OpenContainer, OpenShards
from deepiofs.dataset.sources.packs.inflating import RAW, InflatedContainer
from deepiofs.dataset.sources.packs.zipmembers import STORED, Members, decoded
from deepiofs.dataset.sources.records import Layout, Outcome, Place, RecordSource
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.errors import CorruptRecordError, DeepiofsError, SourceError

# Large members that are unpacked part by part, of which the state is kept.
_MOST_INFLATED = 8
_CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 64 << 10


class ZipSource(RecordSource):
    """Members, stored or deflated, and symbolic links to them."""

    kind = "zip"
    suffixes = (".zip",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._members: MemberTable | None = None

    def index(self, container: Container, opened: OpenContainer) -> Found:
        file = io.BufferedReader(ContainerFile(opened, container.size), _BUFFER_BYTES)
        try:
            archive = zipfile.ZipFile(file)
        except (OSError, DeepiofsError):
            raise
        except Exception as error:  # zipfile lets through what its parsing meets: struct.error, ValueError ...
            raise SourceError(f"{container.name}: byte {container.size}: no end of a zip there: {error}") from None
        with archive:
            members = Members(container, archive, opened)
            members.read()
            return members.found(self.links == "follow")

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        table = self._table(manifest)
        table.layout.check(table.layout.place(row)[0])  # SourceChangedError now
        return MemberFile(table, row)

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[Outcome]:
        table = self._table(manifest)
        outcomes: list[Outcome] = [None] * len(pieces)
        whole: list[Place] = []
        members: dict[int, Member] = {}
        for i, piece in enumerate(pieces):
            member = table.member(piece.row)
            if len(piece.buffer) != member.size:
                outcomes[i] = self.read_alone(manifest, piece)
                continue
            members[i] = member
            packed = piece.buffer if member.is_stored else memoryview(bytearray(member.packed))
            whole.append(Place(member.number, member.at, packed, i))

        def unpack(place: Place) -> Outcome:
            return _unpacked(members[place.i], place.buffer, pieces[place.i].buffer)

        for i, outcome in self.read_together(manifest, pieces, whole, unpack):
            outcomes[i] = outcome
        return outcomes

    def _table(self, manifest: Manifest) -> MemberTable:
        layout = self.layout(manifest)
        table = self._members
        if table is None or table.layout is not layout:
            table = self._members = MemberTable(layout)
        return table


class Member(NamedTuple):
    """Where it lies and what it is. packed: bytes, STORED if as many as it has."""

    number: int
    at: int
    size: int
    packed: int
    crc: int
    where: str

    @property
    def is_stored(self) -> bool:
        return self.packed == STORED


class MemberTable:
    """The members of one manifest, and of the large ones that are read in parts how far they are unpacked."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._columns = [decoded(details) for details in layout.details]
        self.inflated = OpenShards(self._open_inflated, _MOST_INFLATED)

    def member(self, row: int) -> Member:
        """The facts of a row."""
        number, at = self.layout.place(row)
        columns = self._columns[number]
        i = int(columns["at"].searchsorted(at))
        packed, crc = int(columns["packed"][i]), int(columns["crc"][i])
        return Member(number, at, self.layout.manifest.size_of[row], packed, crc, self.layout.where(number, at))

    def _open_inflated(self, row: int) -> OpenContainer:
        member = self.member(row)
        packed = self.layout.opened.get(member.number)
        return InflatedContainer(packed, member.where, RAW, member.at, member.at + member.packed)


class MemberFile:
    """One member, open; before a part of it is given, all of it is checked."""

    def __init__(self, table: MemberTable, row: int) -> None:
        self._table, self._row = table, row
        self._member = table.member(row)
        self._verified = row in table.layout.verified
        self._closed = False

    def read_into(self, buffer: memoryview, at: int) -> int:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        n = max(0, min(len(buffer), self._member.size - at))
        if not self._verified:
            self._verify()
        return self._read(buffer[:n], at)

    def close(self) -> None:
        self._closed = True

    def _read(self, buffer: memoryview, at: int) -> int:
        if self._member.is_stored:
            return self._table.layout.read(self._member.number, [buffer], self._member.at + at)
        try:
            return self._table.inflated.get(self._row).read_into([buffer], at)
        except OSError:
            self._table.inflated.forget(self._row)
            self._table.layout.opened.forget(self._member.number)
            raise

    def _verify(self) -> None:
        crc = size = 0
        for chunk in self._chunks():
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
        _check(self._member, size, crc)
        self._verified = True
        if size > _CHUNK_BYTES:
            self._table.layout.verified.add(self._row)

    def _chunks(self) -> Iterator[memoryview]:
        """All of it, and what a stream has that goes on for too long."""
        at, size = 0, self._member.size
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, size + 1)))
        while at <= size:
            n = self._read(buffer[: size - at] if self._member.is_stored else buffer, at)
            if not n:
                return
            yield buffer[:n]
            at += n


def _unpacked(member: Member, packed: memoryview, buffer: memoryview) -> Outcome:
    """Bytes of a whole member into their buffer; why not, if they are not what they should be."""
    try:
        if member.is_stored:
            _check(member, len(buffer), zlib.crc32(buffer))
            return None
        data = zlib.decompressobj(RAW).decompress(packed, member.size + 1)
        _check(member, len(data), zlib.crc32(data))
        buffer[:] = data
    except zlib.error as error:
        return CorruptRecordError(f"{member.where}: {error}")
    except DeepiofsError as error:
        return error
    return None


def _check(member: Member, size: int, crc: int) -> None:
    if size != member.size:
        raise CorruptRecordError(f"{member.where}: it has not the {member.size} bytes that the directory says")
    if crc != member.crc:
        raise CorruptRecordError(f"{member.where}: its CRC differs")
