"""Object stores and whatever else fsspec reads: the files below a URL.

The index keeps 64 bits that say which version of each object was indexed (`facts.digest_of`), in the column
`source_at`. They are compared with each read (`reads`), and when a file is opened.

**Threading.** All methods may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, Selection, SourceFile, Team, retry
from deepiofs.dataset.sources.containers import Container
from deepiofs.dataset.sources.recordtree import Found, columns_of_records
from deepiofs.dataset.sources.stores.facts import mtime_ns_of, size_of
from deepiofs.dataset.sources.stores.filesystems import Range, Store, unreadable
from deepiofs.dataset.sources.stores.tree import list_tree, relative_path, store_path
from deepiofs.dataset.sources.team import fails_for_all, told_by_first
from deepiofs.errors import DeepiofsError, SourceError


class RemoteSource:
    """The files below a URL, or the one file that it names. Files are for all to read, and the mounting user's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = Store(name)

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        found, alone = self._find(team)
        made = None
        with fails_for_all(team):
            if found is not None:
                _check_ranges(self._store, found, alone)
                all_of_it = Container(self.name, 0, 0, 0o444, os.getuid(), os.getgid())
                made = columns_of_records([all_of_it], [found], selection)
                # They are files, not records: nothing says in which order they are best read.
                del made[0]["containers"]
                made[0]["details"] = [alone]
        return made

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """Lists the store anew: a listing brings a thousand files with each request, looking at a few one."""
        given = manifest.meta["selection"]
        selection = Selection(tuple(given["include"]), tuple(given["exclude"]), given["links"])
        made = self.scan(selection, team)
        found: str | None = team.bcast(_difference(manifest, Manifest(*made)) if made else None)
        return found

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        path, digest = self._place(manifest, row)
        self._store.check(path, digest)
        return RemoteFile(self._store, path, digest, manifest.size_of[row])

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[OSError | DeepiofsError | None]:
        """Side by side, one request each (or some, of more than 4 MiB). What is empty is not asked for."""
        try:
            ranges = []
            for piece in pieces:
                path, digest = self._place(manifest, piece.row)
                ranges.append(Range(path, piece.at, piece.buffer, digest))
            return self._store.read(ranges)
        except (OSError, DeepiofsError) as error:
            return [error] * len(pieces)

    def close(self) -> None:
        self._store.close()

    def _find(self, team: Team) -> tuple[Found | None, bool]:
        """**Collective.** What there is, on rank 0, and whether the URL names one file. SourceError on all ranks."""
        alone: Found | None = told_by_first(team, lambda: _alone(self._store))
        if alone is not None:
            return (alone if team.rank == 0 else None), True
        return list_tree(self._store, team), False

    def _place(self, manifest: Manifest, row: int) -> tuple[str, int]:
        (alone,) = manifest.meta["details"]
        path = self._store.path if alone else store_path(self._store, self._store.path, manifest.path(row))
        return path, int(manifest.columns["source_at"][row])


class RemoteFile:
    """An object that is read at places, as long as it is the one that was indexed."""

    def __init__(self, store: Store, path: str, digest: int, size: int) -> None:
        self._store, self._path, self._digest, self._size = store, path, digest, size
        self._closed = False

    def read_into(self, buffer: memoryview, at: int) -> int:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        n = max(0, min(len(buffer), self._size - at))
        if n:
            _one(self._store, Range(self._path, at, buffer[:n], self._digest))
        else:
            self._store.check(self._path, self._digest)
        return n

    def close(self) -> None:
        self._closed = True


def _alone(store: Store) -> Found | None:
    """The one file that a URL names; None if it names a directory. SourceError if it is not there."""
    try:
        path = store.path
        if path.strip("/") == "" or store.url.partition("::")[0].endswith("/"):
            return None
        info = retry.until_it_passes(lambda: store.info(path))
        digest = store.digest(info)
    except OSError as error:
        raise unreadable(store.url, error) from None
    # A web server sends who asks for a directory to its name with a slash.
    if info["type"] != "file" or (store.is_http and str(info.get("url", "")).endswith("/")):
        return None
    size = size_of(info)
    name = relative_path(store, posixpath.dirname(path.rstrip("/")), path)
    if size is None or name is None:
        raise SourceError(f"source {store.url}: {'its size' if name else 'a name for it'} cannot be told from the URL")
    return Found([name], np.array([size]), np.array([digest]), np.array([mtime_ns_of(info)]))


def _check_ranges(store: Store, found: Found, alone: bool) -> None:
    """A web server without listings has no files, one without ranges does not give a part of a large one."""
    if not store.is_http:
        return
    if not found.paths and not found.left_out:
        raise SourceError(f"source {store.url}: the page has no links to files below it; a server has to list them")
    row = int(np.argmax(found.size)) if found.paths else -1
    if row < 0 or found.size[row] < 2:
        return
    path = store.path if alone else store_path(store, store.path, found.paths[row])
    try:
        retry.until_it_passes(lambda: _one(store, Range(path, 1, memoryview(bytearray(1)), int(found.at[row]))))
    except OSError as error:
        raise unreadable(path, error) from None


def _one(store: Store, one: Range) -> None:
    """Read one range, or raise why not."""
    (outcome,) = store.read([one])
    if outcome:
        raise outcome


def _difference(was: Manifest, now: Manifest) -> str | None:
    """The first difference of two scans, in words."""
    compared = ("name_at", "names", "parent", "size", "source_at")
    if was.n_rows == now.n_rows and all(np.array_equal(was.columns[one], now.columns[one]) for one in compared):
        return None
    for row in range(now.n_rows):
        path = now.path(row)
        other = was.find(path)
        if other is None:
            return f"{os.fsdecode(path)}: added since"
        if _facts(was, other) != _facts(now, row):
            return f"{os.fsdecode(path)}: changed since"
    missing = next(path for path in map(was.path, range(was.n_rows)) if now.find(path) is None)
    return f"{os.fsdecode(missing)}: removed since"


def _facts(manifest: Manifest, row: int) -> tuple[int, int]:
    return manifest.size_of[row], int(manifest.columns["source_at"][row])
