"""Scanning a directory tree in parallel: ranks share the directories, threads share a rank's part.

Level by level: rank 0 deals the directories, each rank lists its own; rank 0 deals the names found, in even
chunks whatever directory they are in (so one huge directory is shared too), each rank stats its own. Only rank 0
holds the result.

Left out, and counted by reason: symbolic links that dangle, that loop (a directory within itself), or all of them
with `links=skip`; FIFOs, sockets and devices; what `include` and `exclude` say.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import ROOT, build_columns
from deepiofs.dataset.selection import Globs
from deepiofs.dataset.sources import Selection
from deepiofs.dataset.sources.team import Team, share
from deepiofs.errors import SourceError

# Metadata servers answer slowly but many at once; more threads than this gain little behind the GIL.
_THREADS = 8
_NAMES_PER_TASK = 512

# What stat says of a name: mode, size, mtime_ns, uid, gid, nlink, device, inode, whether a symbolic link led there.
_FACTS = 9
_MODE, _SIZE, _MTIME, _UID, _GID, _NLINK, _DEV, _INO, _LINKED = range(_FACTS)
# In place of a mode: why a name is left out.
_DANGLING, _LOOPING, _SKIPPED_LINK, _VANISHED, _UNREADABLE = -1, -2, -3, -4, -5
_REASONS = {
    _DANGLING: "dangling",
    _LOOPING: "looping",
    _SKIPPED_LINK: "links",
    _VANISHED: "vanished",
    _UNREADABLE: "unreadable links",
}
_LINK_ERRORS = {errno.ENOENT: _DANGLING, errno.ENOTDIR: _DANGLING, errno.ELOOP: _LOOPING}

OpenDirectory = Callable[[bytes], int]
Chunk = tuple[bytes, list[bytes]]


def scan_directory(
    open_directory: OpenDirectory, selection: Selection, team: Team
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
    """**Collective.** `meta` and columns of the tree on rank 0, None elsewhere.

    open_directory: from a path relative to the root to a descriptor, or SourceError.
    """
    tree = _Tree(selection) if team.rank == 0 else None
    with ThreadPoolExecutor(_THREADS, "scan") as pool:
        follow = selection.links == "follow"
        paths = [b""]
        _level(tree, open_directory, pool, team, [(b"", [b"."])], follow, _Tree.take_root)
        while True:
            listed = share(team, paths if tree else None, lambda path: _names(open_directory, path), pool)
            chunks = tree.choose(listed) if tree and listed is not None else None
            _level(tree, open_directory, pool, team, chunks, follow, _Tree.take_level)
            more = team.bcast(bool(tree and tree.level))
            if not more:
                break
            paths = [tree.path(row) for row in tree.level] if tree else []
    return tree.columns() if tree else None


def _level(
    tree: _Tree | None,
    open_directory: OpenDirectory,
    pool: ThreadPoolExecutor,
    team: Team,
    chunks: list[Chunk] | None,
    follow: bool,
    take: Callable[[_Tree, list[Chunk], list[npt.NDArray[np.int64]]], None],
) -> None:
    """Stat the names of a level over all ranks and hand the facts to the tree."""
    facts = share(team, chunks, lambda chunk: stat_names(open_directory, chunk, follow), pool)
    if tree and facts is not None:
        take(tree, chunks or [], facts)


def _names(open_directory: OpenDirectory, path: bytes) -> list[bytes]:
    """The names in a directory, sorted."""
    fd = open_directory(path)
    try:
        return sorted(map(os.fsencode, os.listdir(fd)))
    except OSError as error:
        raise SourceError(f"cannot list {os.fsdecode(path) or '.'}: {error.strerror}") from None
    finally:
        os.close(fd)


def stat_names(open_directory: OpenDirectory, chunk: Chunk, follow: bool) -> npt.NDArray[np.int64]:
    """Facts of some names of one directory, int64 (n, 9)."""
    directory, names = chunk
    facts = np.zeros((len(names), _FACTS), np.int64)
    fd = open_directory(directory)
    try:
        for i, name in enumerate(names):
            facts[i] = _facts(fd, directory, name, follow)
    finally:
        os.close(fd)
    return facts


def _facts(fd: int, directory: bytes, name: bytes, follow: bool) -> tuple[int, ...]:
    try:
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return (_VANISHED,) + (0,) * (_FACTS - 1)
    except OSError as error:
        where = os.fsdecode(_join(directory, name))
        raise SourceError(f"cannot look at {where}: {error.strerror}; make it readable or exclude it") from None
    linked = stat.S_ISLNK(now.st_mode)
    if linked:
        if not follow:
            return (_SKIPPED_LINK,) + (0,) * (_FACTS - 1)
        try:
            now = os.stat(name, dir_fd=fd)
        except OSError as error:
            why = _LINK_ERRORS.get(error.errno or 0, _UNREADABLE)
            return (why,) + (0,) * (_FACTS - 1)
    return (
        now.st_mode, now.st_size, now.st_mtime_ns, now.st_uid, now.st_gid, now.st_nlink, now.st_dev, now.st_ino, linked
    )  # fmt: skip


@dataclasses.dataclass
class _Row:
    """A directory that has been seen: where it is, and what it is behind its name."""

    parent: int
    name: bytes
    identity: tuple[int, int]


class _Tree:
    """The rows found so far, on rank 0."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._include, self._exclude = Globs(selection.include), Globs(selection.exclude)
        self._names: list[bytes] = []
        self._facts: list[npt.NDArray[np.int64]] = []
        self._parents: list[npt.NDArray[np.int64]] = []
        self._directories: dict[int, _Row] = {}
        self.left_out: collections.Counter[str] = collections.Counter()
        self.level: list[int] = []
        self._chunk_parents: list[int] = []

    def path(self, row: int) -> bytes:
        parts = []
        while row != ROOT:
            parts.append(self._directories[row].name)
            row = self._directories[row].parent
        return b"/".join(reversed(parts))

    def take_root(self, chunks: list[Chunk], facts: list[npt.NDArray[np.int64]]) -> None:
        self._append([b""], facts[0], np.zeros(1, np.int64))

    def choose(self, listed: list[list[bytes]]) -> list[Chunk]:
        """Cut the names of each directory of the level into chunks, without what is excluded."""
        chunks: list[Chunk] = []
        self._chunk_parents = []
        for row, names in zip(self.level, listed, strict=True):
            directory = self.path(row)
            kept = self._not_excluded(directory, names)
            for at in range(0, len(kept), _NAMES_PER_TASK):
                chunks.append((directory, kept[at : at + _NAMES_PER_TASK]))
                self._chunk_parents.append(row)
        return chunks

    def _not_excluded(self, directory: bytes, names: list[bytes]) -> list[bytes]:
        if not self._exclude:
            return names
        kept = [name for name in names if not self._exclude.matches(_join(directory, name))]
        self.left_out["excluded"] += len(names) - len(kept)
        return kept

    def take_level(self, chunks: list[Chunk], facts: list[npt.NDArray[np.int64]]) -> None:
        self.level = []
        for (directory, names), parent, fact in zip(chunks, self._chunk_parents, facts, strict=True):
            keep = [i for i, name in enumerate(names) if self._wanted(directory, name, parent, fact[i])]
            self._append([names[i] for i in keep], fact[keep], np.full(len(keep), parent))

    def _wanted(self, directory: bytes, name: bytes, parent: int, fact: npt.NDArray[np.int64]) -> bool:
        mode = int(fact[_MODE])
        reason = _REASONS.get(mode)
        if reason is None and stat.S_ISDIR(mode):
            reason = "looping" if fact[_LINKED] and self._is_above(parent, fact) else None
        elif reason is None and not stat.S_ISREG(mode):
            reason = "special"
        elif reason is None and self._include and not self._include.cover(_join(directory, name)):
            reason = "not included"
        if reason:
            self.left_out[reason] += 1
        return reason is None

    def _is_above(self, row: int, fact: npt.NDArray[np.int64]) -> bool:
        """Whether a directory is its own ancestor: only then can following links never end."""
        identity = (int(fact[_DEV]), int(fact[_INO]))
        while self._directories[row].identity != identity:
            if row == ROOT:
                return False
            row = self._directories[row].parent
        return True

    def _append(self, names: list[bytes], facts: npt.NDArray[np.int64], parents: npt.NDArray[np.int64]) -> None:
        first = len(self._names)
        self._names += names
        self._facts.append(facts)
        self._parents.append(parents)
        for i in np.flatnonzero((facts[:, _MODE] & 0o170000) == stat.S_IFDIR).tolist():
            identity = (int(facts[i, _DEV]), int(facts[i, _INO]))
            self._directories[first + i] = _Row(int(parents[i]), names[i], identity)
            self.level.append(first + i)

    def columns(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        facts, parents = np.concatenate(self._facts), np.concatenate(self._parents)
        directories = (facts[:, _MODE] & 0o170000) == stat.S_IFDIR
        # A directory's link count says how many directories it holds (find(1) relies on it), and in the view that
        # is not what the source says: links are followed, names are left out.
        below = np.bincount(parents[1:][directories[1:]], minlength=len(facts))
        facts[directories, _NLINK] = 2 + below[directories]
        named = {
            "parent": parents,
            "size": facts[:, _SIZE],
            "mtime_ns": facts[:, _MTIME],
            "mode": facts[:, _MODE],
            "uid": facts[:, _UID],
            "gid": facts[:, _GID],
            "nlink": facts[:, _NLINK],
        }
        meta = {
            "selection": dataclasses.asdict(self._selection),
            "left_out": dict(self.left_out),
            "built_ns": time.time_ns(),
        }
        return meta, build_columns(self._names, named, facts[:, [_DEV, _INO]])


def stem(name: bytes) -> bytes:
    """The name up to the first dot; a leading dot belongs to it."""
    return name[:1] + name[1:].partition(b".")[0]


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
