"""Containers for tests, as other programs write them, byte by byte where a test wants to spoil one."""

from __future__ import annotations

import tarfile

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
