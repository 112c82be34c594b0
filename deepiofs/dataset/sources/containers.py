"""Files that hold records: where they are, and reading ranges of them.

A name stands for one container, a directory of them, or a glob (`*`, `**`, `{a,b}`, `{000..127}`). A container is
known by its path below `Shards.root`, so that an index stays good when the whole dataset is moved.

**Threading.** All of it may be used from any thread.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import io
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import bracex
from wcmatch import glob

from deepiofs.dataset.sources.registry import is_url
from deepiofs.errors import SourceChangedError, SourceError

# preadv(2): IOV_MAX.
_MOST_BUFFERS = 1024
# Containers that braces may stand for.
_MOST_NAMED = 1 << 20
_GLOB = glob.GLOBSTAR | glob.FORCEUNIX | glob.CASE
_MAGIC = frozenset("*?[{")
# The numbers that TensorFlow puts behind a suffix: data.tfrecord-00000-of-00010.
_NUMBERED = re.compile(r"-\d+-of-\d+$")


@dataclasses.dataclass(frozen=True)
class Container:
    """name: path below the root. The rest as stat(2) says it; a store without modes is as this process sees it."""

    name: str
    size: int
    mtime_ns: int
    mode: int = 0
    uid: int = 0
    gid: int = 0


class OpenContainer(Protocol):
    """A container, open for reading."""

    def read_into(self, buffers: Sequence[memoryview], at: int) -> int:
        """Fill the buffers one after the other from byte `at` on; less only at the end of the container.

        SourceChangedError if it is not what was indexed, OSError with any other cause.
        """

    def close(self) -> None:
        """Give it back; idempotent."""


class Shards(Protocol):
    """The containers that a name stands for."""

    root: str

    def find(self) -> list[Container]:
        """All of them, by name. SourceError if there are none, or one cannot be looked at."""

    def open(self, container: Container) -> OpenContainer:
        """SourceChangedError if its size or time is another; OSError otherwise."""


def shards_of(name: str, suffixes: tuple[str, ...]) -> Shards:
    """The containers of a path, glob or URL. suffixes: which files of a directory are meant."""
    if is_url(name):
        from deepiofs.dataset.sources.stores.shards import RemoteShards

        return RemoteShards(name, suffixes)
    return LocalShards(name, suffixes)


def is_meant(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file of a directory is a container, by its name."""
    return _NUMBERED.sub("", name).endswith(suffixes)


class LocalShards:
    """Containers on a file system."""

    def __init__(self, name: str, suffixes: tuple[str, ...]) -> None:
        self._name, self._suffixes = name, suffixes
        if os.path.isdir(name):
            self.root = name
        elif os.path.exists(name):
            self.root = os.path.dirname(name)
        else:
            self.root = _fixed_part(name)

    def find(self) -> list[Container]:
        found = [self._look(name) for name in sorted(set(self._names()))]
        if not found and os.path.isdir(self._name):
            endings = " ".join(self._suffixes)
            raise SourceError(f"source {self._name}: no file in it ends with {endings}; name them by a pattern")
        if not found:
            raise SourceError(f"source {self._name}: no such file, and no file like it; check the path on this node")
        return found

    def open(self, container: Container) -> OpenContainer:
        return LocalContainer(os.path.join(self.root, container.name), container)

    def _names(self) -> Iterator[str]:
        for path in [self._name] if os.path.exists(self._name) else self._paths_like():
            if os.path.isdir(path):
                yield from self._names_below(path)
            else:
                yield os.path.relpath(path, self.root)

    def _names_below(self, directory: str) -> Iterator[str]:
        for folder, folders, names in os.walk(directory, onerror=_refuse, followlinks=True):
            # A link to a directory above would be walked for ever.
            here = os.path.realpath(folder) + "/"
            folders[:] = [
                one for one in folders if not here.startswith(os.path.realpath(os.path.join(folder, one)) + "/")
            ]
            for name in names:
                if is_meant(name, self._suffixes):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    def _paths_like(self) -> Iterator[str]:
        """What braces name has to be there: a shard that is missing must not go unnoticed."""
        try:
            patterns = bracex.expand(self._name, keep_escapes=True, limit=_MOST_NAMED)
        except bracex.ExpansionLimitException:
            raise SourceError(f"source {self._name}: it stands for too many; write it with *") from None
        for pattern in patterns:
            if _MAGIC & set(pattern):
                yield from glob.glob(pattern, flags=_GLOB)
            elif os.path.exists(pattern) or len(patterns) > 1:
                yield pattern

    def _look(self, name: str) -> Container:
        path = os.path.join(self.root, name)
        try:
            now = os.stat(path)
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise SourceError(f"source {path}: {error.strerror}") from None
        return Container(name, now.st_size, now.st_mtime_ns, stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid)


def _refuse(error: OSError) -> None:
    raise SourceError(f"cannot list {error.filename}: {error.strerror}; make it readable") from None


def _fixed_part(pattern: str) -> str:
    """The directory above the first component with a wildcard in it."""
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC & set(part)), len(parts) - 1)
    return "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")


class LocalContainer:
    """A descriptor that is read at places, as long as the file is the one that was indexed."""

    def __init__(self, path: str, container: Container) -> None:
        self._path, self._container = path, container
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self._check_unchanged()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._fd

    def read_into(self, buffers: Sequence[memoryview], at: int) -> int:
        done = 0
        for some in _not_too_many(buffers):
            wanted = sum(map(len, some))
            n = self._fill(some, at + done)
            done += n
            if n < wanted:
                break
        # After the bytes: a file that is written to while it is open would be a mixture.
        self._check_unchanged()
        return done

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _fill(self, buffers: list[memoryview], at: int) -> int:
        done = 0
        while buffers:
            n = os.preadv(self._fd, buffers, at + done)
            if n == 0:
                break
            done += n
            buffers = _behind(buffers, n)
        return done

    def _check_unchanged(self) -> None:
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._container.size, self._container.mtime_ns):
            raise SourceChangedError(f"{self._path}: changed in the source since it was indexed; mount again")


def _not_too_many(buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    for first in range(0, len(buffers), _MOST_BUFFERS):
        yield list(buffers[first : first + _MOST_BUFFERS])


def _behind(buffers: list[memoryview], n: int) -> list[memoryview]:
    """What is left of the buffers when n bytes are in them."""
    for i, buffer in enumerate(buffers):
        if n < len(buffer):
            return [buffer[n:], *buffers[i + 1 :]]
        n -= len(buffer)
    return []


class OpenShards:
    """The open containers of a source, by number; those least used are given back when there are many.

    One that is given back while another thread reads it is closed with its last reference.
    """

    def __init__(self, open_one: Callable[[int], OpenContainer], most: int) -> None:
        self._open_one, self._most = open_one, most
        self._open: collections.OrderedDict[int, OpenContainer] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> OpenContainer:
        with self._lock:
            if container := self._open.get(number):
                self._open.move_to_end(number)
                return container
        container = self._open_one(number)
        with self._lock:
            container = self._open.setdefault(number, container)
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return container

    def forget(self, number: int) -> None:
        """After an error: only a new descriptor helps with ESTALE."""
        with self._lock:
            self._open.pop(number, None)

    def close(self) -> None:
        with self._lock:
            self._open.clear()


class ContainerFile(io.RawIOBase):
    """A container as the binary file that parsing libraries read; give it to io.BufferedReader."""

    def __init__(self, container: OpenContainer, size: int) -> None:
        self._container, self._size = container, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        n = self._container.read_into([memoryview(buffer).cast("B")], self._at)
        self._at += n
        return n
