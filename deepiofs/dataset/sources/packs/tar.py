"""Members of tar files as files: `tar:PATH`, a directory of tars, or a pattern. Many tars are one tree.

The library's tarfile parses headers (ustar, pax, GNU); a member's bytes are a range of the container. tarfile ends
without a word at a header that it does not understand: what follows the last member has to be the end of the archive.

**Threading.** `index` may be called from several threads at once.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.sources.containers import Container, OpenContainer
from deepiofs.dataset.sources.packs.links import Links
from deepiofs.dataset.sources.packs.skimming import Skimmer
from deepiofs.dataset.sources.records import RecordSource
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.errors import DeepiofsError, SourceError

COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")

_PACKERS = {b"\x1f\x8b": "gzip -d", b"\x28\xb5\x2f\xfd": "zstd -d", b"\xfd7zXZ": "xz -d", b"BZh": "bzip2 -d"}
_CONTINUATION = b"M"
_BLOCK_BYTES = 512
_LOOK_BYTES = 1 << 20
_NEVER = 1 << 62


class TarSource(RecordSource):
    """Regular members, hard links, and symbolic links to members."""

    kind = "tar"
    # With the compressed ones, to refuse them rather than to overlook them.
    suffixes = (".tar", *COMPRESSED)

    def index(self, container: Container, opened: OpenContainer) -> Found:
        members = Members(container.name, Skimmer(opened, container.size), container.size)
        members.read()
        return members.found(follow=self.links == "follow")


class Members:
    """What is in one tar, as `tar -x` would leave it: of one name the last one counts.

    Entries (regular members) are numbered in their order: size, place and time of each are lists of one length.
    """

    def __init__(self, name: str, file: Skimmer, size: int) -> None:
        self._name, self._file, self._size = name, file, size
        self._sizes: list[int] = []
        self._places: list[int] = []
        self._times: list[int] = []
        self._files: dict[bytes, int] = {}
        self._symlinks: dict[bytes, bytes] = {}
        self._hard: dict[bytes, bytes] = {}
        self._left_out: Counter[str] = Counter()
        self._end = 0

    def read(self) -> None:
        """All headers. SourceError with the byte where something is wrong."""
        if not self._size:
            return
        for member in self._members():
            self._take(member)
        self._check_end(self._end)

    def found(self, follow: bool) -> Found:
        """The records: files, and what links lead to."""
        self._follow_hard_links()
        if follow and self._symlinks:
            self._files.update(Links(self._files, self._symlinks).follow(self._left_out))
        elif self._symlinks:
            self._left_out["links"] += len(self._symlinks)
        entries = np.fromiter(self._files.values(), np.int64, len(self._files))
        _, first, back = np.unique(entries, return_index=True, return_inverse=True)
        return Found(
            list(self._files),
            _gathered(self._sizes, entries),
            _gathered(self._places, entries),
            _gathered(self._times, entries),
            first[back.reshape(-1)],
            dict(self._left_out),
        )

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """One by one; `_end` is the byte behind the last."""
        tar: tarfile.TarFile | None = None
        while True:
            try:
                if tar is None:
                    tar = tarfile.TarFile(fileobj=self._file, encoding="utf-8", errors="surrogateescape")
                member = tar.next()
            except (OSError, DeepiofsError):
                raise
            except Exception as error:  # tarfile lets through what its parsing meets: ValueError, IndexError ...
                self._refuse(self._end, f"not a tar header: {error}")
            if member is None:
                return
            # Whatever was read stays in `members` otherwise, about 1 KB each.
            tar.members.clear()  # type: ignore[attr-defined]
            if member.size < 0 or not self._end <= member.offset < member.offset_data <= tar.offset:
                self._refuse(member.offset, f"a member of {member.size} bytes")
            self._end = tar.offset
            yield member

    def _take(self, member: tarfile.TarInfo) -> None:
        path = self._normal(_encoded(member.name), member.offset)
        self._files.pop(path, None)
        self._symlinks.pop(path, None)
        self._hard.pop(path, None)
        if member.issparse():
            self._refuse(member.offset, f"{member.name!r} is sparse; write the tar without --sparse")
        if member.type == _CONTINUATION:
            self._refuse(member.offset, "a part of a tar of several volumes; join them")
        if member.isdir():
            return
        if not path:
            self._refuse(member.offset, f"{member.name!r} cannot be the path of a file")
        if member.issym():
            self._symlinks[path] = _encoded(member.linkname)
        elif member.islnk():
            self._link(path, _encoded(member.linkname))
        elif member.isreg():
            self._put(path, member)
        else:
            self._left_out["special"] += 1

    def _put(self, path: bytes, member: tarfile.TarInfo) -> None:
        if member.offset_data + member.size > self._size:
            self._refuse(member.offset, f"{member.name!r} of {member.size} bytes is cut short")
        self._files[path] = len(self._sizes)
        self._sizes.append(member.size)
        self._places.append(member.offset_data)
        self._times.append(_time_ns(member))

    def _link(self, path: bytes, target: bytes) -> None:
        """A hard link is what the other name means now; or, if that only comes later, in the end."""
        target = _without_dots(target)
        if target in self._files:
            self._files[path] = self._files[target]
        elif target in self._symlinks:
            self._symlinks[path] = _relative(path, target)
        else:
            self._hard[path] = target

    def _follow_hard_links(self) -> None:
        for path, target in self._hard.items():
            seen = {path}
            while target in self._hard and target not in seen:
                seen.add(target)
                target = self._hard[target]
            if target in self._files:
                self._files[path] = self._files[target]
            elif target in self._symlinks:
                self._symlinks[path] = _relative(path, target)
            else:
                self._left_out["dangling"] += 1

    def _check_end(self, at: int) -> None:
        """Two blocks of zeros, or nothing, and then zeros up to the end."""
        self._file.seek(at)
        while at < self._size:
            block = self._file.read(min(_LOOK_BYTES, self._size - at))
            if not block:
                self._refuse(at, "cut short")
            if block.count(0) != len(block):
                at += len(block) - len(block.lstrip(b"\0"))
                self._refuse(at, "neither a member nor the end of the archive (damaged, or several tars in one file?)")
            at += len(block)

    def _normal(self, name: bytes, at: int) -> bytes:
        """The path below the root, as GNU tar extracts it; it may not lead upwards."""
        path = _without_dots(name)
        if b".." in path.split(b"/"):
            self._refuse(at, f"{name!r} leads out of the tar")
        return path

    def _refuse(self, at: int, text: str) -> NoReturn:
        raise SourceError(f"{self._name}: byte {at}: {text}{self._packer()}")

    def _packer(self) -> str:
        """What to do, if the file is no tar because it is compressed."""
        head = bytes(self._file.look(0, 8))
        command = next((command for magic, command in _PACKERS.items() if head.startswith(magic)), None)
        return f" (compressed, which leaves no random access: unpack it with {command} first)" if command else ""


def _without_dots(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _relative(path: bytes, target: bytes) -> bytes:
    """What a symbolic link says that leads from a path to another."""
    return b"../" * path.count(b"/") + target


def _encoded(name: str) -> bytes:
    """The bytes of the header."""
    return name.encode("utf-8", "surrogateescape")


def _time_ns(member: tarfile.TarInfo) -> int:
    """pax has fractions, which a float would round."""
    try:
        time_ns = int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 1_000_000_000)
    except (InvalidOperation, ValueError, OverflowError):
        return 0
    return max(-_NEVER, min(time_ns, _NEVER))


def _gathered(values: list[int], entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)[entries]
