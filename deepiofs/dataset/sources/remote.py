"""Object stores and whatever else fsspec reads: the files below a URL, and containers that lie there.

The index keeps 64 bits that say which version of each object was indexed (`storefacts.digest_of`), in the column
`source_at`. They are compared with each read (`storereads`), and when a file is opened.

**Threading.** All methods may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from typing import Any

import bracex
import numpy as np
from wcmatch import glob

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, Selection, SourceFile, Team, retry
from deepiofs.dataset.sources.containers import Container
from deepiofs.dataset.sources.recordtree import Found, columns_of_records
from deepiofs.dataset.sources.remotetree import list_tree, relative_path, store_path
from deepiofs.dataset.sources.storefacts import Info, digest_of, mtime_ns_of, size_of
from deepiofs.dataset.sources.stores import Range, Store, changed, unreadable
from deepiofs.dataset.sources.team import Solo, fails_for_all, told_by_first
from deepiofs.errors import DeepiofsError, SourceError

_NS = 1_000_000_000
_GLOB = glob.GLOBSTAR | glob.FORCEUNIX | glob.CASE
_CUT_SHORT = "shorter than it was when it was indexed"


class RemoteSource:
    """The files below a URL, or the one file that it names. Files are for all to read, and the mounting user's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = Store(name)
        self._root: str | None = None

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        found = self._find(team)
        made = None
        with fails_for_all(team):
            if found is not None:
                made = columns_of_records([Container(self.name, 0, 0, 0o444, os.getuid(), os.getgid())], [found], selection)
                # They are files, not records: nothing says in which order they are best read.
                for name in ("containers", "details"):
                    del made[0][name]
        return made

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """Lists the store anew: a listing brings a thousand files with each request, looking at a few one."""
        selection = Selection(**{
            name: tuple(value) if isinstance(value, list) else value for name, value in manifest.meta["selection"].items()
        })  # fmt: skip
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


class RemoteShards:
    """Containers on a store: one, those of a directory, or those of a pattern.

    A container's time holds its version, where local ones have a fraction of a second: the nanoseconds are a digest.
    """

    def __init__(self, name: str, suffixes: tuple[str, ...]) -> None:
        self._name, self._suffixes = name, suffixes
        names = bracex.expand(name) if "{" in name else [name]
        self._patterns = [one for one in names if set(one) & (set("*[") if is_web(one) else set("*?["))]
        self._literal = [] if self._patterns else names
        self.root = _fixed_part(name) if self._patterns or len(names) > 1 else posixpath.dirname(name)
        self._store = Store(names[0] if self._literal else self.root)

    def find(self) -> list[Container]:
        try:
            found = retry.until_it_passes(self._find)
        except OSError as error:
            raise unreadable(self._name, error) from None
        if not found:
            raise SourceError(f"source {self._name}: no such file, and no file like it; check the URL")
        return sorted(found, key=lambda container: container.name)

    def open(self, container: Container) -> RemoteContainer:
        opened = RemoteContainer(self._store, self._path_of(container.name), container)
        opened.check()
        return opened
