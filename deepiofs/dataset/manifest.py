"""The columnar index of a dataset: one row per name, directories before what they hold.

Rows are in breadth-first order, the children of a directory adjacent and sorted by name; row 0 is the root.
Besides the names a row takes 68 bytes here and 28 in placement. All arrays may be views of shared memory.

**Invariants.** `parent` does not decrease from row 1 on. `content[r] <= r`, and `content[content[r]] == content[r]`:
it is the first row with the same file behind it (hard links, and symbolic links to files of the dataset), so that
these bytes are held, and read from the source, once.

**Threading.** Read-only after construction, except the cache of directory paths (idempotent; any thread).
"""

from __future__ import annotations

import functools
import stat
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

ROOT = 0
# What a mount has for itself at the root. A source's own entry of this name is seen below `.deepiofs/exact` only.
CONTROL_NAME = b".deepiofs"

# name -> dtype. `name_at` has one entry more than there are rows; `names` is the blob they point into.
COLUMNS: Mapping[str, str] = {
    "name_at": "<u8",
    "names": "u1",
    "parent": "<u4",
    "size": "<i8",
    "mtime_ns": "<i8",
    "mode": "<u4",
    "uid": "<u4",
    "gid": "<u4",
    "nlink": "<u4",
    "content": "<u4",
    "source_at": "<i8",
    "path_hash": "<u8",
    "path_row": "<u4",
}


class Manifest:
    """What the view holds, by row number.

    `meta` is what the index file says of itself: `selection`, `left_out` (counts by reason), `built_ns`; of records
    also `kind` (the scheme of their source), `containers` (name, size, mtime_ns of each), `spans` (how many bytes of
    each `source_at` counts) and `details` (of each, what their source needs).
    """

    def __init__(self, meta: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self.meta = meta
        self.columns = columns
        self.parents = columns["parent"]
        self.sizes = columns["size"]
        self.modes = columns["mode"]
        self.content = columns["content"]
        self.n_rows = len(self.parents)
        # Reading one element through a memoryview takes a third of the time of numpy's scalar indexing.
        self.parent_of = columns["parent"].data
        self.size_of = columns["size"].data
        self.mode_of = columns["mode"].data
        self.mtime_ns_of = columns["mtime_ns"].data
        self.uid_of = columns["uid"].data
        self.gid_of = columns["gid"].data
        self.nlink_of = columns["nlink"].data
        self.content_of = columns["content"].data
        self._name_at = columns["name_at"].data
        self._names = columns["names"].data
        self._hashes = columns["path_hash"]
        self._hash_of = columns["path_hash"].data
        self._hash_row = columns["path_row"].data
        self._directory_path = functools.lru_cache(maxsize=65536)(self._join_path)

    @property
    def is_packed(self) -> bool:
        """Whether the files lie in containers, in the order of `source_at`."""
        return "containers" in self.meta

    @property
    def is_regular(self) -> npt.NDArray[np.bool_]:
        """Which rows are regular files, bool (n_rows,)."""
        return np.asarray((self.modes & 0o170000) == stat.S_IFREG)

    def is_directory(self, row: int) -> bool:
        return stat.S_ISDIR(self.mode_of[row])

    def name(self, row: int) -> bytes:
        """The last component of the row's path; empty for the root."""
        return bytes(self._names[self._name_at[row] : self._name_at[row + 1]])

    def path(self, row: int) -> bytes:
        """The path from the root, without a leading slash; empty for the root."""
        if row == ROOT:
            return b""
        return self._directory_path(self.parent_of[row]) + self.name(row)

    def children(self, directory: int) -> range:
        """The rows of a directory's entries."""
        # The needles in the column's own type: others make numpy convert the whole column at each call.
        first, last = np.searchsorted(self.parents[1:], np.array([directory, directory + 1], self.parents.dtype))
        return range(int(first) + 1, int(last) + 1)

    def lookup(self, directory: int, name: bytes) -> int | None:
        """The row of a name in a directory."""
        digest = xxhash.xxh3_64_intdigest(self._directory_path(directory) + name)
        place = int(self._hashes.searchsorted(np.uint64(digest)))
        while place < self.n_rows and self._hash_of[place] == digest:
            row = self._hash_row[place]
            if self.parent_of[row] == directory and self.name(row) == name:
                return row
            place += 1
        return None

    def find(self, path: bytes) -> int | None:
        """The row of a path from the root."""
        row: int | None = ROOT
        for name in filter(None, path.split(b"/")):
            row = None if row is None else self.lookup(row, name)
        return row

    def content_rows(self) -> npt.NDArray[np.int64]:
        """The rows that stand for the distinct files, ascending, int64."""
        own = self.content == np.arange(self.n_rows, dtype=np.uint32)
        return np.flatnonzero(own & self.is_regular)

    def _join_path(self, directory: int) -> bytes:
        """A directory's path with a slash behind it, or nothing for the root: what its names are appended to."""
        parts: list[bytes] = []
        while directory != ROOT:
            parts.append(self.name(directory))
            directory = self.parent_of[directory]
        return b"".join(part + b"/" for part in reversed(parts))


def build_columns(
    names: list[bytes], facts: Mapping[str, npt.NDArray[Any]], identity: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """The columns of a manifest.

    names: one per row. facts: `parent size mtime_ns mode uid gid nlink`, each (n,). identity: int64 (n, 2), device
    and inode number; rows with equal identity are one file.
    """
    lengths = np.fromiter((len(name) for name in names), np.uint64, len(names))
    columns = {
        "name_at": np.concatenate(([0], np.cumsum(lengths))),
        "names": np.frombuffer(b"".join(names), np.uint8),
        "content": _first_of_each(identity, facts["mode"]),
        "source_at": np.zeros(len(names), np.int64),
        **facts,
    }
    columns["path_hash"], columns["path_row"] = _path_hashes(names, facts["parent"])
    return {name: np.asarray(columns[name]).astype(dtype, copy=False) for name, dtype in COLUMNS.items()}


def _first_of_each(identity: npt.NDArray[np.int64], mode: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each row the first row with the same identity, itself for anything but regular files; int64 (n,)."""
    content = np.arange(len(identity))
    files = np.flatnonzero((mode & 0o170000) == stat.S_IFREG)
    _, first, back = np.unique(identity[files], axis=0, return_index=True, return_inverse=True)
    content[files] = files[first][back.reshape(-1)]
    return content


def _path_hashes(names: list[bytes], parent: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]:
    """xxh3_64 of every path, ascending, and the row of each. The root has the empty path."""
    digest = xxhash.xxh3_64_intdigest
    hashes = np.zeros(len(names), np.uint64)
    hashes[ROOT] = digest(b"")
    prefix, of = b"", ROOT
    prefixes = {ROOT: b""}
    for row, (name, above) in enumerate(zip(names, parent.tolist(), strict=True)):
        if row == ROOT:
            continue
        if above != of:
            of = above
            prefix = prefixes.get(of) or _prefix(of, names, parent, prefixes)
        hashes[row] = digest(prefix + name)
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def _prefix(row: int, names: list[bytes], parent: npt.NDArray[Any], prefixes: dict[int, bytes]) -> bytes:
    """A directory's path and a slash; its parent's is known already, as rows come breadth-first."""
    above = int(parent[row])
    prefixes[row] = (
        (prefixes[above] if above in prefixes else _prefix(above, names, parent, prefixes)) + names[row] + b"/"
    )
    return prefixes[row]
