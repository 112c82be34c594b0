"""Containers for tests, as other programs write them, byte by byte where a test wants to spoil one."""

from __future__ import annotations

import dataclasses
import gzip
import random
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import crc32c

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, Selection, Solo, open_source
from deepiofs.errors import DeepiofsError
from tests.contracts.sources import opened, read, scan, sizes_of

TAR_BLOCK = 512


def tar_member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", **facts: object) -> bytes:
    """A member as it lies in a tar: header, data, padding. facts: other attributes of TarInfo."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    for fact, value in facts.items():
        setattr(info, fact, value)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + data + bytes(-len(data) % TAR_BLOCK)


def framed(data: bytes) -> bytes:
    """A TFRecord; `tests.unit.streams.record` is the same without a library, and slow."""
    length = len(data).to_bytes(8, "little")
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return ((((crc >> 15 | crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def contents(name: str, **selection: str) -> dict[bytes, bytes]:
    """All files of a source, read one by one."""
    source = open_source(name)
    try:
        manifest = scan(source, Selection(**selection))
        found = {}
        for path, size in sizes_of(manifest).items():
            with opened(source, manifest, path) as file:
                found[path] = read(file, 0, size)
        return found
    finally:
        source.close()


def outcomes(name: str) -> dict[bytes, bytes | DeepiofsError | OSError]:
    """All files of a source, read at once as when they are loaded: the bytes of each, or the error."""
    source = open_source(name)
    try:
        manifest = scan(source)
        sizes = sizes_of(manifest)
        pieces = [Piece(manifest.find(path), 0, memoryview(bytearray(size))) for path, size in sizes.items()]
        said = source.read_pieces(manifest, pieces)
        return {path: bytes(piece.buffer) if error is None else error
                for path, piece, error in zip(sizes, pieces, said, strict=True)}  # fmt: skip
    finally:
        source.close()


def scanned(name: str, **selection: str) -> Manifest:
    """The manifest of a source."""
    source = open_source(name)
    try:
        found = source.scan(Selection(**selection), Solo())
        assert found is not None
        return Manifest(*found)
    finally:
        source.close()


def left_out(name: str, **selection: str) -> dict[str, int]:
    """What a scan leaves out, by reason."""
    counts: dict[str, int] = scanned(name, **selection).meta["left_out"]
    return counts


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A source by name, the folder that holds its containers, and the bytes of each of its files."""

    name: str
    folder: Path
    files: Mapping[bytes, bytes]


KINDS = ("tar", "tfrecord", "gzip", "zip")
_SHARDS = 3


def dataset(kind: str, folder: Path) -> Dataset:
    """Files of all sizes in some containers of a kind; `gzip` are compressed TFRecords."""
    generator = random.Random(8)
    sizes = [0, 1, *(generator.randrange(1, 20_000) for _ in range(100)), (9 << 20) + 5]
    words = [generator.randbytes(40) for _ in range(50)]
    datas = [b"".join(generator.choices(words, k=size // 40 + 1))[:size] for size in sizes]
    folder.mkdir()
    files: dict[bytes, bytes] = {}
    for shard in range(_SHARDS):
        files |= _SHARD_WRITERS[kind](folder, shard, datas[shard::_SHARDS])
    scheme = "tfrecord" if kind == "gzip" else kind
    return Dataset(f"{scheme}:{folder}", folder, files)


def _tar_shard(folder: Path, shard: int, datas: Sequence[bytes]) -> dict[bytes, bytes]:
    named = {f"c{i % 4}/{shard}-{i:03}.bin": data for i, data in enumerate(datas)}
    members = [tar_member(name, data) for name, data in named.items()]
    (folder / f"{shard}.tar").write_bytes(b"".join([*members, bytes(1024)]))
    return {name.encode(): data for name, data in named.items()}


def _tfrecord_shard(folder: Path, shard: int, datas: Sequence[bytes], suffix: str = "") -> dict[bytes, bytes]:
    name = f"{shard}.tfrecord{suffix}"
    data = b"".join(map(framed, datas))
    (folder / name).write_bytes(gzip.compress(data) if suffix else data)
    return {f"{name}/{i:06}.rec".encode(): data for i, data in enumerate(datas)}


def _zip_shard(folder: Path, shard: int, datas: Sequence[bytes]) -> dict[bytes, bytes]:
    named = {f"c{i % 4}/{shard}-{i:03}.bin": data for i, data in enumerate(datas)}
    with zipfile.ZipFile(folder / f"{shard}.zip", "w") as archive:
        for i, (name, data) in enumerate(named.items()):
            archive.writestr(name, data, zipfile.ZIP_STORED if i % 3 else zipfile.ZIP_DEFLATED)
    return {name.encode(): data for name, data in named.items()}


_SHARD_WRITERS: Mapping[str, Callable[[Path, int, Sequence[bytes]], dict[bytes, bytes]]] = {
    "tar": _tar_shard,
    "tfrecord": _tfrecord_shard,
    "gzip": lambda folder, shard, datas: _tfrecord_shard(folder, shard, datas, ".gz"),
    "zip": _zip_shard,
}
