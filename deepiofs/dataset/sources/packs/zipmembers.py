"""The directory of a zip: which members are files, where their bytes lie, what is refused.

**Threading.** One thread.
"""

from __future__ import annotations

import base64
import stat
import struct
import zipfile
import zlib
from collections import Counter
from datetime import UTC, datetime
from typing import Any, NoReturn

import numpy as np

from deepiofs.dataset.sources.containers import Container, OpenContainer
from deepiofs.dataset.sources.packs.links import Links
from deepiofs.dataset.sources.packs.skimming import Skimmer
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.errors import SourceError

STORED = -1

_COLUMNS = {"at": "<i8", "packed": "<i8", "crc": "<u4"}

# APPNOTE.TXT 4.3.7: signature, then lengths of name and extra field, which the directory's may differ from.
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1 | 0x40
_PATCH = 0x20
_UTF8 = 0x800
_UNIX = 3
# APPNOTE.TXT 4.6.1 and Info-ZIP's extended timestamp: id, size; flags, seconds.
_EXTRA = struct.Struct("<HH")
_TIME = struct.Struct("<HHBi")
_TIME_ID = 0x5455
# A deflate stream cannot grow more: 258 bytes for 2 bits.
_MOST_GROWTH = 1032
_LONGEST_LINK = 4096


class Members:
    """What is in one zip, by path; of one name the last one counts."""

    def __init__(self, container: Container, archive: zipfile.ZipFile, opened: OpenContainer) -> None:
        self._container, self._archive = container, archive
        self._file = Skimmer(opened, container.size)
        self._files: dict[bytes, int] = {}
        self._symlinks: dict[bytes, bytes] = {}
        self._sizes: list[int] = []
        self._times: list[int] = []
        self._columns: dict[str, list[int]] = {"at": [], "packed": [], "crc": []}
        self._left_out: Counter[str] = Counter()

    def read(self) -> None:
        """All of the directory. SourceError with the byte where something is wrong."""
        infos = self._archive.infolist()
        self._check_places(infos)
        # In the order of the directory, as of one name the last one counts.
        for info in infos:
            self._take(info)

    def found(self, follow: bool) -> Found:
        """The records: files, and what links lead to."""
        if follow and self._symlinks:
            self._files.update(Links(self._files, self._symlinks).follow(self._left_out))
        elif self._symlinks:
            self._left_out["links"] += len(self._symlinks)
        entries = np.fromiter(self._files.values(), np.int64, len(self._files))
        _, first, back = np.unique(entries, return_index=True, return_inverse=True)
        size, at, mtime_ns = (
            np.array(column, np.int64)[entries] for column in (self._sizes, self._columns["at"], self._times)
        )
        return Found(
            list(self._files), size, at, mtime_ns, first[back.reshape(-1)], dict(self._left_out),
            encoded(self._columns),
        )  # fmt: skip

    def _check_places(self, infos: list[zipfile.ZipInfo]) -> None:
        """No member reaches into the next: lengths that lie would do so."""
        in_order = sorted(infos, key=lambda info: info.header_offset)
        ends = [*(info.header_offset for info in in_order[1:]), self._archive.start_dir]
        self._at: dict[int, int] = {}
        for info, end in zip(in_order, ends, strict=False):
            at = self._data_at(info)
            if at + info.compress_size > end:
                self._refuse(info, f"{info.compress_size} bytes that reach beyond byte {end}")
            self._at[info.header_offset] = at

    def _data_at(self, info: zipfile.ZipInfo) -> int:
        """Where the data begin: behind a header, name and extra field of their own."""
        at = info.header_offset
        if not 0 <= at <= self._container.size - _LOCAL.size:
            self._refuse(info, "outside of the file")
        magic, name_bytes, extra_bytes = _LOCAL.unpack(self._file.look(at, _LOCAL.size))
        if magic != _LOCAL_MAGIC:
            self._refuse(info, "no header of a member")
        if bytes(self._file.look(at + _LOCAL.size, name_bytes)) != _raw_name(info):
            self._refuse(info, "another name than in the directory")
        return int(at + _LOCAL.size + name_bytes + extra_bytes)

    def _take(self, info: zipfile.ZipInfo) -> None:
        path = self._normal(info)
        self._files.pop(path, None)
        self._symlinks.pop(path, None)
        mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
        if info.is_dir():
            return
        self._check_kind(info)
        if stat.S_ISLNK(mode):
            self._symlinks[path] = self._target(info)
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            self._put(path, info)
        else:
            self._left_out["special"] += 1

    def _check_kind(self, info: zipfile.ZipInfo) -> None:
        if info.flag_bits & _ENCRYPTED:
            self._refuse(info, "encrypted; unpack it")
        if info.flag_bits & _PATCH or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            name = zipfile.compressor_names.get(info.compress_type, str(info.compress_type))  # type: ignore[attr-defined]
            self._refuse(info, f"compressed by {name}; only stored and deflated members can be read")
        most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else _MOST_GROWTH)
        if info.file_size > most or (info.compress_type == zipfile.ZIP_STORED and info.file_size != most):
            self._refuse(info, f"{info.file_size} bytes cannot be in {info.compress_size}")

    def _put(self, path: bytes, info: zipfile.ZipInfo) -> None:
        self._files[path] = len(self._sizes)
        self._sizes.append(info.file_size)
        self._times.append(_time_ns(info, self._container.mtime_ns))
        self._columns["at"].append(self._at[info.header_offset])
        self._columns["packed"].append(STORED if info.compress_type == zipfile.ZIP_STORED else info.compress_size)
        self._columns["crc"].append(info.CRC)

    def _target(self, info: zipfile.ZipInfo) -> bytes:
        """What a symbolic link says."""
        if info.file_size > _LONGEST_LINK:
            self._refuse(info, f"a symbolic link of {info.file_size} bytes")
        try:
            return self._archive.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            self._refuse(info, str(error))

    def _normal(self, info: zipfile.ZipInfo) -> bytes:
        """The path below the root; it may not lead upwards."""
        parts = [part for part in info.orig_filename.encode().split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            self._refuse(info, "its name leads out of the zip")
        if not parts and not info.is_dir():
            self._refuse(info, "it has no name")
        return b"/".join(parts)

    def _refuse(self, info: zipfile.ZipInfo, text: str) -> NoReturn:
        raise SourceError(f"{self._container.name}: byte {info.header_offset}: {info.orig_filename!r}: {text}")


def encoded(columns: dict[str, list[int]]) -> dict[str, str]:
    """Columns of members as text, for `meta`; by `at`, ascending."""
    order = np.argsort(np.array(columns["at"], np.int64), kind="stable")
    return {
        name: base64.b64encode(np.array(columns[name], np.int64)[order].astype(dtype).tobytes()).decode()
        for name, dtype in _COLUMNS.items()
    }


def decoded(details: dict[str, str]) -> dict[str, Any]:
    """The columns again: int64 `at`, int64 `packed`, uint32 `crc`, each (n,)."""
    return {name: np.frombuffer(base64.b64decode(details[name]), dtype) for name, dtype in _COLUMNS.items()}


def _raw_name(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def _time_ns(info: zipfile.ZipInfo, otherwise: int) -> int:
    """In UTC if the member says so; what MS-DOS has, which knows no zone, is taken as UTC."""
    extra = info.extra
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        if kind == _TIME_ID and at + _TIME.size <= len(extra) and extra[at + _EXTRA.size] & 1:
            return int(_TIME.unpack_from(extra, at)[3]) * 1_000_000_000
        at += _EXTRA.size + size
    try:
        return int(datetime(*info.date_time, tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return otherwise
