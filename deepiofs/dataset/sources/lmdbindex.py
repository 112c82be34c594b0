"""Where the records of an LMDB lie: `python -m deepiofs.dataset.sources.lmdbindex`, a process of its own.

The library maps the file and follows what it finds there. A file that is damaged, or cut while it is read, can end the
process that does so; this one may end.

Of values that are left as they are no page is touched, only those that hold keys. To see whether they are Datums the
ends of values are read.

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
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from deepiofs.dataset.sources.keynames import escaped, fitting
from deepiofs.dataset.sources.lmdbmap import MappedFile, place_reached, read_meta
from deepiofs.dataset.sources.lmdbvalues import PLAIN, Records, Values
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.dataset.sources.registry import require
from deepiofs.errors import DeepiofsError, SourceError

_MOST_DATABASES = 1024
_CHUNK = 4096
# MDB_db, which stands for a database in the main one: pad, flags, depth, branch, leaf and overflow pages, entries,
# root.
_DATABASE = struct.Struct("<IHH5Q")
_DATABASE_FLAGS = 0x7E
_DEEPEST = 32


def index(path: str, how: str, progress: mmap.mmap) -> Records:
    """The records of an environment. SourceError, naming file and byte, if they cannot be had."""
    lmdb = require("lmdb", "lmdb")
    file = MappedFile(path, progress)
    before = read_meta(file.read, file.name)
    try:
        with _opened(lmdb, path) as environment, environment.begin(buffers=True) as transaction:
            found = _Indexer(lmdb, environment, transaction, file, how).run()
    except lmdb.Error as error:
        raise SourceError(f"{file.name}: {error}, after what lies at byte {place_reached(progress):,}") from None
    if read_meta(file.read, file.name) != before:
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
        entries = self._entries(database)
        while some := list(itertools.islice(entries, _CHUNK)):
            if inner is not None:
                some = [(key, value) for key, value in some if not self._is_inner(key, value, inner)]
            values.take(some)
        return values.numbered() if several else values.records(list(inner or ()))

    def _entries(self, database: Any) -> Iterator[tuple[bytes, memoryview]]:
        """Keys and values; SourceError if they are not as many as the database says: its pages may go in circles."""
        expected, n = self._transaction.stat(database)["entries"], 0
        for n, (key, value) in enumerate(self._transaction.cursor(database), start=1):
            if n > expected:
                break
            yield bytes(key), value
        if n != expected:
            raise SourceError(f"{self._file.name}: says that it has {expected:,} records, and has {n:,}: damaged")

    def _is_inner(self, key: bytes, value: memoryview, inner: dict[bytes, Any]) -> bool:
        if len(value) != _DATABASE.size:
            return False
        _, flags, depth, *_ = _DATABASE.unpack(value)
        if flags & ~_DATABASE_FLAGS or depth > _DEEPEST or b"\0" in key:
            return False
        try:
            inner[key] = self._environment.open_db(key, txn=self._transaction, create=False)
        except self._lmdb.IncompatibleError:
            return False  # a value like others
        except self._lmdb.DbsFullError:
            raise SourceError(f"{self._file.name}: has more than {_MOST_DATABASES:,} named databases") from None
        return True


def pack(found: Records) -> bytes:
    """Number of records and lengths of paths, uint32; sizes and places, int64; the paths."""
    lengths = np.array([len(found.paths), *map(len, found.paths)], "<u4")
    arrays = (lengths, np.asarray(found.size, "<i8"), np.asarray(found.at, "<i8"))
    return b"".join([*(one.tobytes() for one in arrays), *found.paths])


def unpack(data: bytes) -> Found:
    """The opposite."""
    n = int(np.frombuffer(data, "<u4", 1)[0])
    lengths = np.frombuffer(data, "<u4", n, 4)
    size, at = np.frombuffer(data, "<i8", 2 * n, 4 + 4 * n).reshape(2, n)
    ends = 4 + 20 * n + np.cumsum(lengths, dtype=np.int64)
    paths = [data[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return Found(paths, size, at)


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
