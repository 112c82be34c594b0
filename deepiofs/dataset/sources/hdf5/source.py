"""Rows of the datasets of HDF5 files as `.npy` files: `hdf5:PATH`, a directory of them, or a pattern.

Of each dataset of at least one dimension, `DATASET/PATH/000042.npy` is what `numpy.save` writes of
`dataset[42, ...]`; of several files, `FILE/DATASET/PATH/000042.npy`. Rows that lie in the file as numpy has them are
read as ranges of its bytes behind a header that is known; others (chunked, compressed, of types that have to be
converted) are read by h5py in blocks of whole chunks, in processes of its own (`hdf5.child`).

**Threading.** `open` and `read_pieces` may be called from any thread.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import itertools
import logging
import math
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, SourceFile
from deepiofs.dataset.sources.containers import Container, OpenContainer
from deepiofs.dataset.sources.hdf5.readers import Readers
from deepiofs.dataset.sources.records import Layout, Outcome, Place, RecordSource
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.dataset.sources.registry import require
from deepiofs.errors import CorruptRecordError, DeepiofsError, SourceError

log = logging.getLogger(__name__)

_DIGITS = 6
# What a read of a few small chunks takes at once, and the most of large ones.
_BLOCK_BYTES = 2 << 20
_LARGEST_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20
# A compressed row may take less than a byte of the file, but not of any number of rows.
_ROWS_BESIDE_BYTES = 10_000_000
_ELSEWHERE = {
    "external": "is in another file; mount that",
    "filters": "is compressed by a filter that is not installed here; try: pip install hdf5plugin",
    "types": "has a type that .npy files have not",
    "variable-length": "is of variable length or of references, which .npy files have not",
}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """path: in the HDF5 file. header: of each row's .npy. offset: of the first row in the file, None if h5py reads."""

    path: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    itemsize: int
    header: bytes
    offset: int | None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.itemsize

    @property
    def digits(self) -> int:
        return max(_DIGITS, len(str(self.shape[0] - 1)))


class Hdf5Source(RecordSource):
    """Rows of datasets."""

    kind = "hdf5"
    suffixes = (".h5", ".hdf5", ".he5", ".hdf")

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec("h5py") is None:
            require("h5py", "hdf5")
        super().__init__(name)
        self._readers = Readers(name, self.suffixes)
        self._blocks = Blocks()
        self._datasets: tuple[Layout, dict[tuple[int, bytes], Dataset]] | None = None

    def index(self, container: Container, opened: OpenContainer) -> Found:
        rows = _Rows(container, self._prefix(container))
        try:
            for said, _ in self._readers.ask(container, do="index"):
                rows.take(said)
        except CorruptRecordError as error:
            raise SourceError(str(error)) from None
        return rows.found()

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        layout = self.layout(manifest)
        number, dataset, at = self._place(layout, row)
        layout.check(number)  # SourceChangedError now, rather than at the first read
        return _RowFile(self, layout, number, dataset, at)

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[Outcome]:
        layout = self.layout(manifest)
        outcomes: list[Outcome] = [None] * len(pieces)
        direct: list[Place] = []
        blocked: list[tuple[int, str, int, int, memoryview, Dataset]] = []
        for i, (row, at, buffer) in enumerate(pieces):
            number, dataset, begin = self._place(layout, row)
            rest = fill_header(dataset, buffer, at)
            begin += max(0, at - len(dataset.header))
            if dataset.offset is not None and len(rest):
                direct.append(Place(number, dataset.offset + begin, rest, i))
            else:
                blocked.append((number, dataset.path, begin, i, rest, dataset))
        for i, outcome in self.read_together(manifest, pieces, direct):
            outcomes[i] = outcome
        blocked.sort(key=lambda one: one[:4])
        for number, _, begin, i, rest, dataset in blocked:
            outcomes[i] = _outcome(self._fill_blocks, layout, number, dataset, begin, rest)
        for number in {number for number, *_ in blocked}:
            # Once for all of them, after their bytes.
            if failure := _outcome(layout.check, number):
                for other, _, _, i, *_ in blocked:
                    outcomes[i] = failure if other == number else outcomes[i]
        return outcomes

    def fill(self, layout: Layout, number: int, dataset: Dataset, begin: int, buffer: memoryview) -> None:
        """Bytes of a dataset's rows, from byte `begin` of all of them on. The file is looked at after them."""
        if dataset.offset is not None and len(buffer):
            if layout.read(number, [buffer], dataset.offset + begin) != len(buffer):
                raise OSError(errno.EIO, "shorter than it was when it was indexed")
            return
        self._fill_blocks(layout, number, dataset, begin, buffer)
        layout.check(number)

    def _fill_blocks(self, layout: Layout, number: int, dataset: Dataset, begin: int, buffer: memoryview) -> None:
        container = layout.containers[number]
        while len(buffer):
            block = Block.at(dataset, begin)
            try:
                data = self._block(number, container, dataset, block)
            except CorruptRecordError:
                # The others of its chunks may be good.
                block = Block.at(dataset, begin, fine=True)
                data = self._block(number, container, dataset, block)
            part = data[begin - block.begin :][: len(buffer)]
            buffer[: len(part)] = part
            buffer, begin = buffer[len(part) :], begin + len(part)

    def close(self) -> None:
        super().close()
        self._readers.close()
        self._blocks.clear()

    def _block(self, number: int, container: Container, dataset: Dataset, block: Block) -> memoryview:
        def read() -> bytes:
            asked = self._readers.ask(container, do="read", path=dataset.path, selection=block.selection)
            data = b"".join(data for _, data in asked)
            if len(data) != block.size:
                raise CorruptRecordError(
                    f"{container.name}: {dataset.path}: {len(data)} bytes in place of {block.size}"
                )
            return data

        return memoryview(self._blocks.get((number, container.mtime_ns, dataset.path, block.begin, block.size), read))

    def _place(self, layout: Layout, row: int) -> tuple[int, Dataset, int]:
        """The container of a row of the manifest, its dataset, and the byte where the record begins in that."""
        if self._datasets is None or self._datasets[0] is not layout:
            self._datasets = (layout, dict(self._known(layout)))
        number, _ = layout.place(row)
        manifest = layout.manifest
        dataset = self._datasets[1][number, manifest.path(manifest.parent_of[row])]
        return number, dataset, int(manifest.name(row)[: -len(b".npy")]) * dataset.row_bytes

    def _known(self, layout: Layout) -> Iterator[tuple[tuple[int, bytes], Dataset]]:
        for number, (container, details) in enumerate(zip(layout.containers, layout.details, strict=True)):
            for path, shape, chunks, itemsize, header, offset in details:
                dataset = Dataset(
                    path, tuple(shape), tuple(chunks) if chunks else None, itemsize, header.encode("latin-1"), offset
                )
                yield (number, self._prefix(container) + os.fsencode(path.strip("/"))), dataset

    def _prefix(self, container: Container) -> bytes:
        """The directory of a file, if the source is more than one."""
        alone = self.name.rpartition("/")[2] == container.name or self.name.partition("::")[0].endswith(
            "/" + container.name
        )
        return b"" if alone else os.fsencode(container.name) + b"/"


def _outcome(call: Callable[..., Any], *arguments: Any) -> Outcome:
    """What a call fails with."""
    try:
        call(*arguments)
    except (OSError, DeepiofsError) as error:
        return error
    return None


def fill_header(dataset: Dataset, buffer: memoryview, at: int) -> memoryview:
    """Put what of the header lies in a piece of a record into its buffer; what is left of the buffer."""
    part = dataset.header[at : at + len(buffer)]
    buffer[: len(part)] = part
    return buffer[len(part) :]


class _RowFile:
    """One record, open."""

    def __init__(self, source: Hdf5Source, layout: Layout, number: int, dataset: Dataset, begin: int) -> None:
        self._source, self._layout = source, layout
        self._number, self._dataset, self._begin = number, dataset, begin
        self._closed = False

    def read_into(self, buffer: memoryview, at: int) -> int:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        head = len(self._dataset.header)
        n = max(0, min(len(buffer), head + self._dataset.row_bytes - at))
        rest = fill_header(self._dataset, buffer[:n], at)
        begin = self._begin + max(0, at - head)
        self._source.fill(self._layout, self._number, self._dataset, begin, rest)
        return n

    def close(self) -> None:
        self._closed = True


@dataclasses.dataclass(frozen=True)
class Block:
    """What is read of a dataset at once. selection: as `hdf5.child` takes it. begin, size: in the dataset's bytes."""

    selection: list[Any]
    begin: int
    size: int

    @classmethod
    def at(cls, dataset: Dataset, byte: int, fine: bool = False) -> Block:
        """The block around a byte: whole chunks along the first axis whose steps are not too large. fine: one chunk."""
        sizes = _step_bytes(dataset)
        axis = next((i for i, step in enumerate(sizes) if step <= _LARGEST_BYTES), len(sizes) - 1)
        step, length = sizes[axis], dataset.shape[axis]
        first, within = divmod(byte, step * length)
        count = _steps(step, dataset.chunks[axis] if dataset.chunks else 1, fine)
        begin = within // step // count * count
        end = min(begin + count, length)
        outer = [int(i) for i in np.unravel_index(first, dataset.shape[:axis])] if axis else []
        return cls([*outer, [begin, end]], (first * length + begin) * step, (end - begin) * step)


def _step_bytes(dataset: Dataset) -> list[int]:
    """Bytes between neighbours along each axis."""
    inner = list(itertools.accumulate(reversed(dataset.shape[1:]), int.__mul__, initial=dataset.itemsize))
    return inner[::-1]


def _steps(step: int, chunk: int, fine: bool) -> int:
    """How many steps along an axis are read at once."""
    if chunk * step > _LARGEST_BYTES:
        return max(1, _LARGEST_BYTES // step)
    return chunk if fine else chunk * max(1, _BLOCK_BYTES // (chunk * step))


class Blocks:
    """Blocks that were read last: records come in order, and a chunk is decompressed once. One thread reads each."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, bytes] = OrderedDict()
        self._reading: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, read: Callable[[], bytes]) -> bytes:
        with self._lock:
            gate = self._reading.setdefault(key, threading.Lock())
        with gate:
            with self._lock:
                if (data := self._kept.get(key)) is not None:
                    self._kept.move_to_end(key)
                    return data
            try:
                data = read()
            finally:
                with self._lock:
                    self._reading.pop(key, None)
            self._keep(key, data)
        return data

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def _keep(self, key: Any, data: bytes) -> None:
        with self._lock:
            self._kept[key] = data
            size = sum(map(len, self._kept.values()))
            while size > _KEPT_BYTES and len(self._kept) > 1:
                size -= len(self._kept.popitem(last=False)[1])


class _Rows:
    """The records of one file, as the child tells of its datasets."""

    def __init__(self, container: Container, prefix: bytes) -> None:
        self._container, self._prefix = container, prefix
        self._paths: list[bytes] = []
        self._size: list[Any] = []
        self._at: list[Any] = []
        self._same: list[Any] = []
        self._first: dict[int, int] = {}
        self._details: list[Any] = []
        self.left_out: Counter[str] = Counter()

    def take(self, said: dict[str, Any]) -> None:
        if "dataset" in said:
            self._take_dataset(said)
        elif "left_out" in said:
            reason = said["left_out"]
            self.left_out[reason] += said["records"]
            if reason in _ELSEWHERE:
                log.warning("%s: %s %s; left out", self._container.name, said["path"], _ELSEWHERE[reason])

    def found(self) -> Found:
        size, at, same = (
            np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (self._size, self._at, self._same)
        )
        return Found(self._paths, size, at, same=same, left_out=dict(self.left_out), details=self._details)

    def _take_dataset(self, said: dict[str, Any]) -> None:
        dataset = Dataset(
            said["dataset"], tuple(said["shape"]), said["chunks"], said["itemsize"], said["header"].encode("latin-1"),
            said["offset"],
        )  # fmt: skip
        n, size = dataset.shape[0], self._container.size
        if n > size + _ROWS_BESIDE_BYTES:
            raise SourceError(f"{self._container.name}: {dataset.path}: {n} rows in a file of {size} bytes")
        if dataset.offset is not None and dataset.offset + n * dataset.row_bytes > size:
            raise SourceError(f"{self._container.name}: {dataset.path}: ends behind the end of the file, byte {size}")
        first = self._first.setdefault(said["address"], len(self._paths))
        directory = self._prefix + os.fsencode(dataset.path.strip("/"))
        self._paths += [b"%s/%0*d.npy" % (directory, dataset.digits, i) for i in range(n)]
        self._size.append(np.full(n, len(dataset.header) + dataset.row_bytes))
        span = n * dataset.row_bytes if dataset.offset is not None else said["stored"]
        at = said["begin"] + np.arange(n) * (span / max(n, 1))
        self._at.append(np.clip(at.astype(np.int64), 0, max(size - 1, 0)))
        self._same.append(first + np.arange(n))
        facts = (said["dataset"], said["shape"], said["chunks"], said["itemsize"], said["header"], said["offset"])
        self._details.append(list(facts))
