"""A directory of any POSIX file system as a source.

**Threading.** All methods may be called from any thread; each opened file is its own descriptor.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

import numpy as np

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.scan import scan_directory
from deepiofs.dataset.sources import Selection, SourceFile, Team
from deepiofs.errors import SourceChangedError, SourceError

# Below this many files each one is compared when an index is loaded; above, a sample of this size is, and any
# other change is found when the file is opened.
CHECKED_FILES = 65536
# Paths near PATH_MAX (4096) are opened in steps.
_STEP_BYTES = 3500


class DirectorySource:
    """The files below a directory. Symbolic links, if followed, may lead out of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._root = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise SourceError(f"source {name}: no such directory; check the path on this node") from None
        except OSError as error:
            raise SourceError(f"source {name}: {error.strerror}") from None

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return scan_directory(self._open_directory, selection, team)

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """Compares all directories (names added, removed, renamed) and files (see CHECKED_FILES); each rank a share."""
        rows = _rows_to_check(manifest)[team.rank :: team.size]
        found = next((text for row in rows.tolist() if (text := self._difference(manifest, row))), None)
        every = team.gather(found)
        first: str | None = team.bcast(next(filter(None, every), None) if every is not None else None)
        return first

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        path = manifest.path(row)
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            file = DirectoryFile(fd, path, manifest.size_of[row], manifest.mtime_ns_of[row])
            file.check_unchanged()
        except BaseException:
            os.close(fd)
            raise
        return file

    def read_file(self, manifest: Manifest, row: int, buffer: memoryview) -> int:
        path = manifest.path(row)
        file = DirectoryFile(
            self._open(path, os.O_RDONLY | os.O_NONBLOCK), path, manifest.size_of[row], manifest.mtime_ns_of[row]
        )
        try:
            return file.read_into(buffer, 0)
        except OSError:
            file.check_unchanged()  # a directory instead of the file, say: that is the cause
            raise
        finally:
            file.close()

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _open_directory(self, path: bytes) -> int:
        """A descriptor of a directory; SourceError if it cannot be listed."""
        try:
            return self._open(path or b".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            where = os.path.join(self.name, os.fsdecode(path))
            raise SourceError(f"cannot list {where}: {error.strerror}; make it readable or exclude it") from None

    def _open(self, path: bytes, flags: int) -> int:
        """Open relative to the root, in steps where the path is longer than one system call takes."""
        base = self._root
        try:
            while len(path) > _STEP_BYTES:
                cut = path.rindex(b"/", 0, _STEP_BYTES)
                step = os.open(path[:cut], os.O_RDONLY | os.O_DIRECTORY, dir_fd=base)
                if base != self._root:
                    os.close(base)
                base, path = step, path[cut + 1 :]
            return os.open(path, flags, dir_fd=base)
        finally:
            if base != self._root:
                os.close(base)

    def _difference(self, manifest: Manifest, row: int) -> str | None:
        """In words, how a row differs from the source now; None if it does not."""
        path = manifest.path(row)
        try:
            fd = self._open(os.path.dirname(path) or b".", os.O_PATH | os.O_DIRECTORY)
            try:
                now = os.stat(os.path.basename(path) or b".", dir_fd=fd)
            finally:
                os.close(fd)
        except OSError as error:
            return f"{os.fsdecode(path)}: {error.strerror}"
        same = now.st_mtime_ns == manifest.mtime_ns_of[row] and now.st_mode == manifest.mode_of[row]
        if same and (now.st_size == manifest.size_of[row] or stat.S_ISDIR(now.st_mode)):
            return None
        return f"{os.fsdecode(path) or '/'}: changed since"


class DirectoryFile:
    """A descriptor that is read at places, as long as the file is the one that was indexed."""

    def __init__(self, fd: int, path: bytes, size: int, mtime_ns: int) -> None:
        self._fd, self._path = fd, path
        self._indexed = (size, mtime_ns)

    def check_unchanged(self) -> None:
        """SourceChangedError if the file is not as it was indexed."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != self._indexed:
            raise SourceChangedError(
                f"{os.fsdecode(self._path)}: changed in the source since it was indexed; mount again"
            )

    def read_into(self, buffer: memoryview, at: int) -> int:
        done = 0
        while done < len(buffer):
            n = os.preadv(self._fd, [buffer[done:]], at + done)
            if n == 0:
                break
            done += n
        # After the bytes: a file that is written to while it is open would be a mixture. 1.5 us, on a local file.
        self.check_unchanged()
        return done

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # what a network file system says here is of no use to a reader
                os.close(fd)


def _rows_to_check(manifest: Manifest) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All directories, and all files or CHECKED_FILES of them, drawn anew at each call."""
    files = manifest.is_regular
    rows = np.flatnonzero(files)
    if len(rows) > CHECKED_FILES:
        rows = np.sort(np.random.default_rng().choice(rows, CHECKED_FILES, replace=False))
    return np.concatenate((np.flatnonzero(~files), rows))
