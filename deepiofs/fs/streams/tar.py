"""Members of a POSIX tar (IEEE 1003.1, pax interchange format), as GNU tar, bsdtar and Python's tarfile read them.

A path of up to 100 bytes stands in the ustar header as it is, whatever its encoding: all three take these bytes.
Longer ones, and numbers that a ustar field cannot hold, go into a pax header. A longer path that is not UTF-8 goes
into a GNU long name (`L`): pax has `hdrcharset=BINARY` for it, which GNU tar complains of, and without that bsdtar
does.

Headers are made here, not by `tarfile.TarInfo.tobuf`: that takes 30 us and more, a quarter of what 100 KB take in
all, and its length is known only when it is made. A test compares the two.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.fs.streams.layout import Ints, Rows
from deepiofs.fs.tree import Attributes, Tree

_BLOCK = 512
_NAME_MAX = 100
_REGULAR, _PAX, _LONG = b"0", b"x", b"L"
_MAGIC = b"ustar\00000"
_TAIL = b"%07o\0%07o\0" % (0, 0) + bytes(155 + 12)  # no device; no prefix
_BEHIND_KIND = bytes(100) + _MAGIC + bytes(64) + _TAIL
_LARGEST_NUMBER = 8**7 - 1
_LARGEST_SIZE = 8**11 - 1
_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class _Record:
    """A number that may need a pax record."""

    key: bytes
    largest: int

    def needed(self, values: Ints) -> npt.NDArray[np.bool_]:
        outside: npt.NDArray[np.bool_] = (values < 0) | (values > self.largest)
        return outside


_UID, _GID = _Record(b"uid", _LARGEST_NUMBER), _Record(b"gid", _LARGEST_NUMBER)
_SIZE, _MTIME = _Record(b"size", _LARGEST_SIZE), _Record(b"mtime", _LARGEST_SIZE)


class Tar:
    """The format `tar`: every file with its true path, mode, owner and time in seconds."""

    name = "tar"
    extension = "tar"
    ending = bytes(2 * _BLOCK)
    has_data = True
    is_summed = False

    def __init__(self, tree: Tree) -> None:
        """tree: what the view says of each file."""
        self._tree = tree
        self._manifest = tree.manifest
        # Datasets have few kinds of owner: the fields are made once.
        self._owners: dict[tuple[int, int, int], tuple[bytes, int] | None] = {}
        self._all_ascii = not bool((tree.manifest.columns["names"] >= 0x80).any())

    def head_lengths(self, rows: Rows) -> Ints:
        """Header blocks; those that need more than one are counted, not rendered."""
        lengths = path_lengths(self._manifest, rows)
        is_long = lengths > _NAME_MAX
        foreign = np.zeros(len(rows), bool)
        if not self._all_ascii:
            for i in np.flatnonzero(is_long).tolist():
                foreign[i] = not _is_utf8(self._manifest.path(int(rows[i])))
        records = np.where(is_long & ~foreign, _record_lengths(b"path", lengths), 0)
        for record, values in self._numbers(rows):
            needed = record.needed(values)
            if needed.any():
                records += np.where(needed, _record_lengths(record.key, _digits(values)), 0)
        extra = np.where(records > 0, _BLOCK + _rounded(records), 0)
        extra += np.where(foreign, _BLOCK + _rounded(lengths + 1), 0)
        return _BLOCK + extra

    def tail_lengths(self, sizes: Ints) -> Ints:
        return -sizes % _BLOCK

    def head(self, row: int) -> bytes:
        """All header blocks of a file."""
        m = self._manifest
        path, size, mtime = m.path(row), m.size_of[row], m.mtime_ns_of[row] // 1_000_000_000
        owner = self._owner(row)
        if len(path) > _NAME_MAX or size > _LARGEST_SIZE or not 0 <= mtime <= _LARGEST_SIZE or owner is None:
            return _extended(path, self._tree.attributes(row + 1), mtime)
        numbers = b"%011o\0%011o\0" % (size, mtime)
        total = sum(path) + owner[1] + sum(numbers) + _REST_SUM
        return b"%b%b%b%06o\0 0%b" % (path.ljust(_NAME_MAX, b"\0"), owner[0], numbers, total, _BEHIND_KIND)

    def tail(self, size: int, checksum: int) -> bytes:
        return bytes(-size % _BLOCK)

    def extend(self, checksum: int, data: memoryview | bytes) -> int:
        return 0

    def _owner(self, row: int) -> tuple[bytes, int] | None:
        """Mode and owner of a file as fields, and the sum of these bytes; None if they do not fit."""
        key = self._manifest.mode_of[row], self._manifest.uid_of[row], self._manifest.gid_of[row]
        if key not in self._owners:
            attributes = self._tree.attributes(row + 1)
            fields = b"%07o\0%07o\0%07o\0" % (attributes.mode & 0o7777, attributes.uid, attributes.gid)
            fits = max(attributes.uid, attributes.gid) <= _LARGEST_NUMBER
            self._owners[key] = (fields, sum(fields)) if fits else None
        return self._owners[key]

    def _numbers(self, rows: Rows) -> list[tuple[_Record, Ints]]:
        columns, tree = self._manifest.columns, self._tree
        owners = [
            (record, np.full(len(rows), fixed) if fixed is not None else columns[name][rows].astype(np.int64))
            for record, name, fixed in ((_UID, "uid", tree.uid), (_GID, "gid", tree.gid))
        ]
        times = columns["mtime_ns"][rows] // 1_000_000_000
        return [*owners, (_SIZE, self._manifest.sizes[rows]), (_MTIME, times)]


def path_lengths(manifest: Manifest, rows: Rows) -> Ints:
    """Bytes of the path of each file, int64."""
    name_at = manifest.columns["name_at"].astype(np.int64, copy=False)
    directories, back = np.unique(manifest.parents[rows], return_inverse=True)
    above = np.fromiter((len(manifest.path(int(d))) + 1 if d else 0 for d in directories), np.int64, len(directories))
    return np.asarray(above[back.reshape(-1)] + name_at[rows.astype(np.int64) + 1] - name_at[rows])


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _extended(path: bytes, attributes: Attributes, mtime: int) -> bytes:
    """Header blocks where the ustar header alone cannot say it; in it what does not fit is cut, or 0."""
    blocks = b""
    records = []
    if len(path) > _NAME_MAX:
        if _is_utf8(path):
            records.append(_record(b"path", path))
        else:
            blocks = _header(b"././@LongLink", 0, 0, 0, len(path) + 1, 0, _LONG) + _padded(path + b"\0")
    numbers = []
    for record, value in ((_UID, attributes.uid), (_GID, attributes.gid), (_SIZE, attributes.size), (_MTIME, mtime)):
        fits = 0 <= value <= record.largest
        numbers.append(value if fits else 0)
        if not fits:
            records.append(_record(record.key, b"%d" % value))
    if records:
        text = b"".join(records)
        blocks += _header(b"././@PaxHeader", 0, 0, 0, len(text), 0, _PAX) + _padded(text)
    uid, gid, size, mtime = numbers
    return blocks + _header(path[:_NAME_MAX], attributes.mode & 0o7777, uid, gid, size, mtime, _REGULAR)


def _header(name: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, kind: bytes) -> bytes:
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, uid, gid, size, mtime)
    first, last = name.ljust(_NAME_MAX, b"\0") + numbers, kind + _BEHIND_KIND
    # The checksum is taken with spaces in its own place.
    total = sum(first) + 8 * 0x20 + kind[0] + _BEHIND_SUM
    return b"%b%06o\0 %b" % (first, total, last)


_BEHIND_SUM = sum(_BEHIND_KIND)
_REST_SUM = _BEHIND_SUM + 8 * 0x20 + _REGULAR[0]


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH key=value\\n`, where the length counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _record_lengths(key: bytes, values: Ints) -> Ints:
    """Bytes of the records with values of these lengths, int64."""
    rest = len(key) + values + 3
    length = rest + _digits(rest)
    return np.asarray(np.where(_digits(length) > _digits(rest), rest + _digits(length), length))


def _digits(values: Ints) -> Ints:
    """Characters of each number in decimal, int64."""
    return np.asarray(np.searchsorted(_POWERS, np.abs(values), "right") + 1 + (values < 0))


def _rounded(lengths: Ints) -> Ints:
    return -(-lengths // _BLOCK) * _BLOCK


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _BLOCK)
