"""Where the records of an LMDB lie: `python -m deepiofs.dataset.sources.lmdb.index`, a process of its own.

The library maps the file and follows what it finds there. A file that is damaged, or cut while it is read, can end the
process that does so; this one may end.

Pages with keys are read, and the first and last pages of large values: the library touches the first as it walks, and
the ends show whether a value is a Datum. (Of keys with several values all is read: they lie among the keys.)

The command line is the file, how to take values, and a descriptor of 8 bytes where the place of the value that was
found last is left. On standard output come a line of JSON and, without an error, what `pack` makes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from deepiofs.dataset.sources.lmdb.keynames import escaped, fitting
from deepiofs.dataset.sources.lmdb.map import MappedFile, Place, place_reached
from deepiofs.dataset.sources.lmdb.values import PLAIN, Records, Values
from deepiofs.dataset.sources.registry import require
from deepiofs.errors import DeepiofsError, SourceError

_MOST_DATABASES = 1024
_CHUNK = 4096

Walk = Callable[[Any], Iterator[tuple[bytes, Place]]]


def index(path: str, how: str, progress: mmap.mmap) -> Records:
    """The records of an environment. SourceError, naming file and byte, if they cannot be had."""
    lmdb = require("lmdb", "lmdb")
    file = MappedFile(path, progress)
    try:
        with _opened(lmdb, path) as environment, environment.begin(buffers=True) as transaction:
            found = _Indexer(lmdb, environment, transaction, file, how).run()
    except lmdb.Error as error:
        raise SourceError(f"{file.name}: {error}, after what lies at byte {place_reached(progress):,}") from None
    if file.read_meta() != file.meta:
        raise SourceError(f"{file.name}: was written to while it was indexed; try again when it is not")
    _check_apart(found, file.name)
    return found


def _opened(lmdb: Any, path: str) -> Any:
    """Large values lie on pages of their own, which are not wanted; small ones lie among the keys."""
    settings = {"subdir": False, "readonly": True, "lock": False, "max_dbs": _MOST_DATABASES}
    environment = lmdb.open(path, readahead=False, **settings)
    pages = environment.stat()
    if pages["overflow_pages"] >= pages["leaf_pages"]:
        return environment
    environment.close()
    return lmdb.open(path, readahead=True, **settings)


def _check_apart(found: Records, name: str) -> None:
    """SourceError if values share bytes: pages that refer to others than their own."""
    at, size = np.asarray(found.at), np.asarray(found.size)
    order = np.argsort(at[size > 0], kind="stable")
    begins, ends = at[size > 0][order], (at + size)[size > 0][order]
    clash = np.flatnonzero(begins[1:] < ends[:-1])
    if len(clash):
        raise SourceError(f"{name}: byte {begins[1:][clash[0]]:,}: two values share these bytes: damaged")


class _Indexer:
    def __init__(self, lmdb: Any, environment: Any, transaction: Any, file: MappedFile, how: str) -> None:
        self._lmdb, self._environment, self._transaction = lmdb, environment, transaction
        self._file, self._how = file, how

    def run(self) -> Records:
        """The main database, and those that it names, in directories of these names."""
        inner: dict[bytes, Any] = {}
        found = self._database(self._environment.open_db(None, txn=self._transaction), inner)
        for name, database in inner.items():
            found.add(self._database(database, None), fitting(escaped(name)) + b"/")
        return found

    def _database(self, database: Any, inner: dict[bytes, Any] | None) -> Records:
        """Its records. inner: where the databases go that its values stand for; None if they do not."""
        several = bool(database.flags(self._transaction)["dupsort"])
        values = Values(self._file, PLAIN if several else self._how)
        entries = self._entries(database, self._numbered if several else self._single)
        while some := list(itertools.islice(entries, _CHUNK)):
            if inner is not None and not several:
                inner |= {key: self._open(key) for key, place in some if place.database}
            values.take([(key, place) for key, place in some if not place.database])
        return values.numbered() if several else values.records(list(inner or ()))

    def _entries(self, database: Any, walk: Walk) -> Iterator[tuple[bytes, Place]]:
        """Keys and places; SourceError if they are not as many as the database says: its pages may go in circles."""
        expected, n = self._transaction.stat(database)["entries"], 0
        for n, found in enumerate(walk(self._transaction.cursor(database)), start=1):
            if n > expected:
                break
            yield found
        if n != expected:
            raise SourceError(f"{self._file.name}: says that it has {expected:,} records, and has {n:,}: damaged")

    def _single(self, cursor: Any) -> Iterator[tuple[bytes, Place]]:
        """One value for each key. Now and then the library is asked whether it is where it is thought to be."""
        for n, key in enumerate(cursor.iternext(values=False)):
            place = self._file.place_behind(key)
            if n % _CHUNK == 0 and not place.database:
                self._compare(place, self._file.place_of(cursor.value()))
            yield bytes(key), place

    def _compare(self, place: Place, of_library: Place) -> None:
        if place != of_library and place.size + of_library.size:
            text = f"a value of {place.size:,} bytes is expected, the library has {of_library.size:,}"
            raise SourceError(f"{self._file.name}: byte {place.at:,}: {text} at byte {of_library.at:,}")

    def _numbered(self, cursor: Any) -> Iterator[tuple[bytes, Place]]:
        """Many values for a key; they are small."""
        return ((bytes(key), self._file.place_of(value)) for key, value in cursor)

    def _open(self, key: bytes) -> Any:
        try:
            return self._environment.open_db(key, txn=self._transaction, create=False)
        except self._lmdb.DbsFullError:
            raise SourceError(f"{self._file.name}: has more than {_MOST_DATABASES:,} named databases") from None


def pack(found: Records) -> bytes:
    """Number of records and lengths of paths, uint32; sizes and places, int64; the paths."""
    lengths = np.array([len(found.paths), *map(len, found.paths)], "<u4")
    arrays = (lengths, np.asarray(found.size, "<i8"), np.asarray(found.at, "<i8"))
    return b"".join([*(one.tobytes() for one in arrays), *found.paths])


def main() -> None:
    """The program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path, how, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
    progress = mmap.mmap(fd, 0)
    head: dict[str, Any] = {}
    body = b""
    try:
        found = index(path, how, progress)
        head["notes"], body = found.notes, pack(found)
    except OSError as error:
        head = {"code": SourceError.exit_code, "error": f"{os.path.basename(path)}: {error.strerror}"}
    except DeepiofsError as error:
        head = {"code": error.exit_code, "error": str(error)}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
