"""The values of one database of an LMDB: left as they are, or taken apart as Caffe's Datums."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from deepiofs.dataset.sources.lmdb.datum import Datum, DatumReader, named_as_image
from deepiofs.dataset.sources.lmdb.keynames import escaped, fitting, paths_of
from deepiofs.dataset.sources.lmdb.map import MappedFile, Place
from deepiofs.errors import SourceError

AUTO, PLAIN, DATUM = "auto", "plain", "datum"


@dataclass
class Records:
    """Files: their paths, and sizes and places in the container, int64. notes: what the user should hear of."""

    paths: list[bytes] = field(default_factory=list)
    size: array.array[int] = field(default_factory=lambda: array.array("q"))
    at: array.array[int] = field(default_factory=lambda: array.array("q"))
    notes: list[str] = field(default_factory=list)

    def add(self, other: Records, folder: bytes) -> None:
        """Those of another database, below a directory."""
        self.paths += [folder + path for path in other.paths]
        self.size += other.size
        self.at += other.at
        self.notes += other.notes


class Values:
    """Takes values as they come; how: AUTO, PLAIN or DATUM. SourceError, naming file and key, if they are not DATUM."""

    def __init__(self, file: MappedFile, how: str) -> None:
        self._file, self._how = file, how
        self._reader = None if how == PLAIN else DatumReader()
        self._keys: list[bytes] = []
        self._datums: list[Datum] = []
        self._records = Records()

    def take(self, some: Sequence[tuple[bytes, Place]]) -> None:
        """The next keys, and where their values lie."""
        if self._reader and some:
            self._read(some)
        self._keys += [key for key, _ in some]
        self._records.at.extend(place.at for _, place in some)
        self._records.size.extend(place.size for _, place in some)

    def records(self, others: Sequence[bytes]) -> Records:
        """All that were taken. others: keys that stand for something else, and whose paths are taken, too."""
        found = self._records
        if self._reader and self._datums:
            found.paths = self._paths_by_label()
            for i, datum in enumerate(self._datums):
                if datum.encoded:
                    found.at[i] += datum.at
                    found.size[i] = datum.size
        else:
            found.paths = paths_of([*self._keys, *others])[: len(self._keys)]
        return found

    def numbered(self) -> Records:
        """All that were taken, where a key has several values: a directory for each key, its values by number."""
        n = 0
        for i, key in enumerate(self._keys):
            n = n + 1 if i and key == self._keys[i - 1] else 0
            self._records.paths.append(b"%s/%06d" % (fitting(escaped(key)), n))
        return self._records

    def _read(self, some: Sequence[tuple[bytes, Place]]) -> None:
        for key, place in some:
            datum = self._reader.read(self._file.value(place)) if self._reader else None
            if datum is None:
                self._is_none(key, place.at)
                return
            self._judge(key, datum, place.at)
            self._datums.append(datum)

    def _is_none(self, key: bytes, at: int) -> None:
        where = f"{self._file.name}: byte {at:,}: the value of {shown(key)}"
        if self._how == DATUM:
            raise SourceError(f"{where} is no Datum")
        if self._datums:
            said = f"{where} is no Datum, {len(self._datums):,} before it are: all values are left as they are"
            self._records.notes.append(said)
        self._reader = None

    def _judge(self, key: bytes, datum: Datum, at: int) -> None:
        where = f"{self._file.name}: byte {at:,}: the Datum of {shown(key)}"
        advice = "put ?plain behind the source to have values as they are"
        if datum.encoded and datum.image is None:
            raise SourceError(f"{where} says that it is encoded, and is no image of a known kind; {advice}")
        if not datum.encoded and not datum.raw:
            raise SourceError(f"{where} is an image, and does not say that it is encoded; {advice}")
        if self._datums and self._datums[0].encoded != datum.encoded:
            kinds = ("encoded", "raw") if datum.encoded else ("raw", "encoded")
            raise SourceError(f"{where} is {kinds[0]}, those before it are {kinds[1]}; {advice}")

    def _paths_by_label(self) -> list[bytes]:
        paths = [_named(key, datum) for key, datum in zip(self._keys, self._datums, strict=True)]
        if len(set(paths)) == len(paths):
            return paths
        first: dict[bytes, bytes] = {}
        for key, path in zip(self._keys, paths, strict=True):
            if path in first:
                raise SourceError(f"{self._file.name}: {shown(first[path])} and {shown(key)} would both be {path!r}")
            first[path] = key
        return paths


def shown(key: bytes) -> str:
    """A key, for messages."""
    return f"key {key[:100]!r}"


def _named(key: bytes, datum: Datum) -> bytes:
    suffix = datum.image if datum.encoded and datum.image and not named_as_image(key) else b""
    return b"%d/%s" % (datum.label, fitting(escaped(key) + suffix))
