"""LMDBs as sources: keys become names, values bytes; values that are Caffe's Datums are taken apart.

LMDBIO's scheme (HPCC 2017, doi 10.1109/HPCC-SmartCity-DSS.2017.29): one reader looks where the values lie; they are
then read in the order of their pages, in pieces of some MiB, not through page faults, and shared with the node's other
processes. A name may be followed by `?plain`, to have values as they are, or `?datum`, to refuse what is no Datum.

**Threading.** As for all sources of records.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import signal
import subprocess
import sys

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources.containers import Container, LocalContainer, OpenContainer
from deepiofs.dataset.sources.lmdb.map import Meta, check_length, place_reached, read_meta, shortage
from deepiofs.dataset.sources.lmdb.values import AUTO, DATUM, PLAIN
from deepiofs.dataset.sources.records import RecordSource
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.dataset.sources.registry import is_url
from deepiofs.errors import SourceChangedError, SourceError, error_for

log = logging.getLogger(__name__)

_DATA = "data.mdb"


class LmdbSource(RecordSource):
    """One environment, or several in directories of their names."""

    kind = "lmdb"
    suffixes = (_DATA, ".lmdb")  # lock.mdb has the same magic

    def __init__(self, name: str) -> None:
        path, _, how = name.rpartition("?")
        self._how = how if how in (PLAIN, DATUM) and path else AUTO
        if self._how == AUTO:
            path = name
        if is_url(path):
            raise SourceError(f"source {path}: an LMDB is mapped, and has to lie on a file system")
        self._is_file = os.path.isfile(path)
        super().__init__(path)

    def index(self, container: Container, opened: OpenContainer) -> Found:
        path = os.path.join(self.shards.root, container.name)
        meta = _meta_of(opened, container.name)
        check_length(meta, container.size, container.name)
        found = _found_by_child(path, self._how, f"{container.name}: {shortage(meta, container.size)}")
        folder = self._folder(container)
        if folder:
            found.paths = [folder + path for path in found.paths]
        found.details = [meta.transaction, self._how]
        return found

    def open_container(self, container: Container, details: list[int | str]) -> OpenContainer:
        return _LmdbContainer(os.path.join(self.shards.root, container.name), container, int(details[0]))

    def _folder(self, container: Container) -> bytes:
        """Of several environments each has its own: that of its data file, or of the file's name."""
        if self._is_file:
            return b""
        folder, name = os.path.split(os.fsencode(container.name))
        return b"".join(part + b"/" for part in (folder, name) if part not in (b"", os.fsencode(_DATA)))

    def _difference(self, manifest: Manifest) -> str | None:
        if text := super()._difference(manifest):
            return text
        for facts, details in zip(manifest.meta["containers"], manifest.meta["details"], strict=True):
            if details[1] != self._how:
                return f"its values were taken as {details[1]}"
            try:
                self.open_container(Container(*facts), details).close()
            except (OSError, SourceError) as error:
                return str(error)
        return None


class _LmdbContainer(LocalContainer):
    """A data file; what is written through a map does not always change its time, but the number of its transaction."""

    def __init__(self, path: str, container: Container, transaction: int) -> None:
        self._transaction = transaction
        super().__init__(path, container)

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        try:
            now = read_meta(lambda at, size: os.pread(self._fd, size, at), self._path)
        except SourceError as error:
            raise SourceChangedError(f"{error}; changed since it was indexed; mount again") from None
        if now.transaction != self._transaction:
            text = f"{self._path}: changed in the source since it was indexed"
            raise SourceChangedError(f"{text} (transaction {now.transaction}, not {self._transaction}); mount again")


def _meta_of(opened: OpenContainer, name: str) -> Meta:
    def read(at: int, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: opened.read_into([memoryview(buffer)], at)])

    return read_meta(read, name)


def _found_by_child(path: str, how: str, short: str) -> Found:
    """What another process finds. SourceError, also if it crashes. short: what is known of the file's length."""
    fd = os.memfd_create("deepiofs-index")
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        # -P: nothing in the working directory of a job may shadow a module.
        command = [sys.executable, "-P", "-m", "deepiofs.dataset.sources.lmdb.index", path, how, str(fd)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=(fd,), check=False)
        with mmap.mmap(fd, mmap.PAGESIZE) as progress:
            reached = place_reached(progress)
    finally:
        os.close(fd)
    if done.returncode:
        raise SourceError(f"{short}; {_end(done)}, after what lies at byte {reached:,}: truncated or damaged")
    line, _, body = done.stdout.partition(b"\n")
    head = json.loads(line)
    if "error" in head:
        raise error_for(head["code"], head["error"])
    for note in head["notes"]:
        log.warning("%s", note)
    return _unpacked(body)


def _end(done: subprocess.CompletedProcess[bytes]) -> str:
    """How a process ended that should not have."""
    if done.returncode < 0:
        return f"reading it ended with {signal.Signals(-done.returncode).name}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"reading it failed ({said[-1] if said else done.returncode})"


def _unpacked(data: bytes) -> Found:
    """What `index.pack` has packed."""
    n = int(np.frombuffer(data, "<u4", 1)[0])
    lengths = np.frombuffer(data, "<u4", n, 4)
    size, at = np.frombuffer(data, "<i8", 2 * n, 4 + 4 * n).reshape(2, n)
    ends = 4 + 20 * n + np.cumsum(lengths, dtype=np.int64)
    paths = [data[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return Found(paths, size, at)
