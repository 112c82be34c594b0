"""From the paths of records to the rows of a manifest: the directories that they imply, breadth-first, sorted."""

from __future__ import annotations

import dataclasses
import itertools
import stat
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import build_columns
from deepiofs.dataset.selection import Globs
from deepiofs.dataset.sources import Selection
from deepiofs.dataset.sources.containers import Container
from deepiofs.errors import SourceError

Ints = npt.NDArray[np.int64]
_NAME_MAX = 255


@dataclasses.dataclass
class Found:
    """The records of one container, in its order.

    paths: without leading slash. size: int64 (n,), bytes. at: int64 (n,), byte of the container. mtime_ns: int64 (n,),
    or None for the container's own. same: int64 (n,), the record of this container with whose bytes each shares
    its own (a hard link), or None. left_out: counts by reason. details: for `meta`, what the source needs to read it.
    span: how many bytes `at` counts in, if not those of the container (of what is unpacked).
    """

    paths: list[bytes]
    size: Ints
    at: Ints
    mtime_ns: Ints | None = None
    same: Ints | None = None
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    details: Any = None
    span: int | None = None


def columns_of_records(
    containers: Sequence[Container], found: Sequence[Found], selection: Selection
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """`meta` and the columns of a manifest. SourceError if two records, or a record and a directory, share a path.

    Files have the permissions and the owner of their container: who cannot read that must not read these. `source_at`
    counts from the first byte of the first container to the last of the last, as if they were one.
    """
    tree = _Tree(containers, found, selection)
    meta = {
        "selection": dataclasses.asdict(selection),
        "left_out": dict(sum((Counter(part.left_out) for part in found), tree.left_out)),
        "built_ns": time.time_ns(),
        "containers": [[one.name, one.size, one.mtime_ns] for one in containers],
        "details": [part.details for part in found],
        "spans": _spans(containers, found),
    }
    return meta, tree.columns()


class _Tree:
    """Records are numbered through all containers; a directory is known by its path."""

    def __init__(self, containers: Sequence[Container], found: Sequence[Found], selection: Selection) -> None:
        self._containers = containers
        counts = [len(part.paths) for part in found]
        self._first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self._container = np.repeat(np.arange(len(found)), counts)
        self._size = _joined([part.size for part in found])
        starts = np.concatenate(([0], np.cumsum(_spans(containers, found)))).astype(np.int64)
        self._at = _joined([part.at + start for part, start in zip(found, starts, strict=False)])
        self._mtime = _joined([
            np.full(len(part.paths), one.mtime_ns) if part.mtime_ns is None else part.mtime_ns
            for part, one in zip(found, containers, strict=True)
        ])  # fmt: skip
        self._same = _joined([
            first + (np.arange(len(part.paths)) if part.same is None else part.same)
            for part, first in zip(found, self._first, strict=False)
        ])  # fmt: skip
        self.left_out: Counter[str] = Counter()
        self._names: list[bytes] = [b""] * int(self._first[-1])
        self._files: dict[bytes, list[int]] = {b"": []}
        self._below: dict[bytes, set[bytes]] = {b"": set()}
        self._take(found, selection)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Level by level: a directory's entries by name, files and directories together."""
        names, parents, records = [b""], [0], [-1]
        level = [(b"", 0)]
        while level:
            deeper = []
            for directory, row in level:
                for name, record in self._entries(directory):
                    if record < 0:
                        deeper.append((_join(directory, name), len(names)))
                    names.append(name)
                    parents.append(row)
                    records.append(record)
            level = deeper
        facts, identity = self._facts(np.array(records), np.array(parents))
        return build_columns(names, facts, identity)

    def _take(self, found: Sequence[Found], selection: Selection) -> None:
        include, exclude = Globs(selection.include), Globs(selection.exclude)
        record = 0
        for part in found:
            for path in part.paths:
                if exclude and exclude.cover(path):
                    self.left_out["excluded"] += 1
                elif include and not include.cover(path):
                    self.left_out["not included"] += 1
                else:
                    self._put(path, record)
                record += 1

    def _put(self, path: bytes, record: int) -> None:
        directory, _, name = path.rpartition(b"/")
        if not name or len(name) > _NAME_MAX or b"\0" in path or name in (b".", b".."):
            raise SourceError(f"{self._where(record)}: {path!r} cannot be the path of a file")
        files = self._files.get(directory)
        if files is None:
            files = self._make(directory, record)
        files.append(record)
        self._names[record] = name

    def _make(self, directory: bytes, record: int) -> list[int]:
        """A directory, and those above it."""
        above, _, name = directory.rpartition(b"/")
        if not name or len(name) > _NAME_MAX or name in (b".", b".."):
            raise SourceError(f"{self._where(record)}: {directory!r} cannot be the path of a directory")
        if above not in self._files:
            self._make(above, record)
        self._below[above].add(name)
        self._below[directory] = set()
        return self._files.setdefault(directory, [])

    def _entries(self, directory: bytes) -> list[tuple[bytes, int]]:
        """Names, and the record of each, -1 for directories; sorted."""
        entries = [(self._names[record], record) for record in self._files[directory]]
        entries += [(name, -1) for name in self._below[directory]]
        entries.sort()
        for (name, first), (other, second) in itertools.pairwise(entries):
            if name == other:
                self._refuse(_join(directory, name), first, second)
        return entries

    def _refuse(self, path: bytes, first: int, second: int) -> None:
        text = path.decode(errors="backslashreplace")
        if first < 0:
            raise SourceError(f"{self._where(second)}: {text} is a record, and a directory of others; exclude one")
        places = f"{self._where(first)} and {self._where(second)}"
        raise SourceError(f"{text} is in {places}; mount them one by one, or the directory that holds them")

    def _where(self, record: int) -> str:
        return self._containers[int(self._container[record])].name

    def _facts(self, records: Ints, parents: Ints) -> tuple[dict[str, npt.NDArray[Any]], Ints]:
        """The facts that `build_columns` takes, and the identity of each row."""
        files = np.flatnonzero(records >= 0)
        record = records[files]
        container = self._container[record]
        directory = _directory_facts(self._containers)
        facts: dict[str, npt.NDArray[Any]] = {"parent": parents}
        for name, of_container in _owners(self._containers).items():
            facts[name] = np.full(len(records), directory[name], np.int64)
            facts[name][files] = of_container[container]
        for name, of_record in (("size", self._size), ("mtime_ns", self._mtime), ("source_at", self._at)):
            facts[name] = np.full(len(records), directory[name], np.int64)
            facts[name][files] = of_record[record]
        identity = np.zeros((len(records), 2), np.int64)
        identity[files, 1] = self._same[record]
        facts["nlink"] = self._link_counts(records, parents, identity[:, 1])
        return facts, identity

    def _link_counts(self, records: Ints, parents: Ints, same: Ints) -> Ints:
        is_file = records >= 0
        counts = np.zeros(len(records), np.int64)
        counts[is_file] = np.bincount(same[is_file], minlength=len(self._same) + 1)[same[is_file]]
        below = np.bincount(parents[1:][~is_file[1:]], minlength=len(records))
        counts[~is_file] = 2 + below[~is_file]
        return counts


def _directory_facts(containers: Sequence[Container]) -> dict[str, int]:
    """Directories are open to those who may read the first container."""
    first = containers[0]
    readable = first.mode & 0o444
    return {
        "mode": stat.S_IFDIR | readable | readable >> 2,
        "uid": first.uid,
        "gid": first.gid,
        "size": 0,
        "mtime_ns": max(one.mtime_ns for one in containers),
        "source_at": 0,
    }


def _owners(containers: Sequence[Container]) -> dict[str, Ints]:
    return {
        "mode": np.array([stat.S_IFREG | one.mode & 0o444 for one in containers], np.int64),
        "uid": np.array([one.uid for one in containers], np.int64),
        "gid": np.array([one.gid for one in containers], np.int64),
    }


def _spans(containers: Sequence[Container], found: Sequence[Found]) -> list[int]:
    """What `source_at` counts of each container."""
    return [one.size if part.span is None else part.span for one, part in zip(containers, found, strict=True)]


def _joined(parts: list[Any]) -> Ints:
    return np.concatenate([np.asarray(part, np.int64) for part in parts]) if parts else np.zeros(0, np.int64)


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
