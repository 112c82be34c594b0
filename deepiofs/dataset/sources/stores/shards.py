"""Containers on an object store: one, those of a directory, or those of a pattern.

A container's time says which version it is: it has the store's seconds, and in place of the nanoseconds 30 bits of
the version's digest.

**Threading.** All of it may be used from any thread.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

import bracex
from wcmatch import glob

from deepiofs.dataset.sources import retry
from deepiofs.dataset.sources.containers import Container, is_meant
from deepiofs.dataset.sources.stores.facts import Info, mtime_ns_of, size_of
from deepiofs.dataset.sources.stores.filesystems import Range, Store, changed, unreadable
from deepiofs.dataset.sources.stores.tree import list_tree, store_path
from deepiofs.dataset.sources.team import Solo
from deepiofs.errors import SourceError

_NS = 1_000_000_000
_WEB = ("http:", "https:")
_MOST_NAMED = 1 << 20
_GLOB = glob.GLOBSTAR | glob.FORCEUNIX | glob.CASE


class RemoteShards:
    """What a URL stands for. Braces need no listing, `*` does."""

    def __init__(self, name: str, suffixes: tuple[str, ...]) -> None:
        self._name, self._suffixes = name, suffixes
        first, chain, rest = name.partition("::")
        try:
            self._urls = bracex.expand(first, limit=_MOST_NAMED)
        except bracex.ExpansionLimitException:
            raise SourceError(f"source {name}: it stands for too many; write it with *") from None
        # In the URL of a web server a question mark is no wildcard.
        self._magic = frozenset("*[") if first.startswith(_WEB) else frozenset("*?[")
        self._is_pattern = any(self._magic & set(url) for url in self._urls)
        # A page of links has a slash at its end, an object none.
        slash = "/" if first.startswith(_WEB) else ""
        several = len(self._urls) > 1 or self._is_pattern
        fixed = self._fixed_part(first) + slash if several else first if slash else first.rstrip("/")
        self.root = fixed + chain + rest
        self._store = Store(self.root)
        self._alone: bool | None = None

    def find(self) -> list[Container]:
        try:
            found = retry.until_it_passes(self._find)
        except OSError as error:
            raise unreadable(self._name, error) from None
        if not found:
            endings = " ".join(self._suffixes)
            raise SourceError(f"source {self._name}: no file that is meant ({endings}); check the URL")
        return sorted(found, key=lambda container: container.name)

    def open(self, container: Container) -> RemoteContainer:
        opened = RemoteContainer(self._store, self._path_of(container), container)
        opened.check()
        return opened

    def _find(self) -> list[Container]:
        store, root = self._store, self._store.path
        if self._is_pattern:
            patterns = [self._below_root(url) for url in self._urls]
            return [one for one in self._below() if glob.globmatch(one.name, patterns, flags=_GLOB)]
        if len(self._urls) > 1:
            names = [self._below_root(url) for url in self._urls]
            return [self._container(name, store.info(store_path(store, root, os.fsencode(name)))) for name in names]
        named = root.strip("/") and not self.root.partition("::")[0].endswith("/")
        info = store.info(root) if named else {"type": "directory"}
        if info["type"] == "file" and not str(info.get("url", "")).endswith("/"):
            return [self._container(posixpath.basename(self.root.partition("::")[0]), info)]
        return [one for one in self._below() if is_meant(one.name, self._suffixes)]

    def _below(self) -> list[Container]:
        found = list_tree(self._store, Solo())
        assert found is not None
        assert found.mtime_ns is not None
        facts = zip(found.paths, found.size.tolist(), found.mtime_ns.tolist(), found.at.tolist(), strict=True)
        return [self._made(os.fsdecode(path), size, _version(mtime, digest)) for path, size, mtime, digest in facts]

    def _container(self, name: str, info: Info) -> Container:
        size = size_of(info)
        if size is None:
            raise SourceError(f"source {self._name}: the server does not say how large {name} is")
        return self._made(name, size, _version(mtime_ns_of(info), self._store.digest(info)))

    def _made(self, name: str, size: int, version: int) -> Container:
        return Container(name, size, version, 0o444, os.getuid(), os.getgid())

    def _path_of(self, container: Container) -> str:
        """The URL itself may be the container: then its name is the root's own."""
        root = self._store.path
        own = self.root.partition("::")[0]
        alone = len(self._urls) == 1 and not self._is_pattern and posixpath.basename(own) == container.name
        if alone and self._is_alone(root):
            return root
        return store_path(self._store, root, os.fsencode(container.name))

    def _is_alone(self, root: str) -> bool:
        if self._alone is None:
            self._alone = self._store.info(root)["type"] == "file"
        return self._alone

    def _below_root(self, url: str) -> str:
        return url[len(self.root.partition("::")[0]) :].lstrip("/")

    def _fixed_part(self, pattern: str) -> str:
        """The directory above the first component with a wildcard or braces in it."""
        scheme, _, rest = pattern.partition("://")
        parts = rest.split("/")
        magic = self._magic | {"{"}
        first = next((i for i, part in enumerate(parts) if magic & set(part)), len(parts) - 1)
        return f"{scheme}://{'/'.join(parts[:first])}"


class RemoteContainer:
    """Ranges of an object, as long as it is the one that was indexed."""

    def __init__(self, store: Store, path: str, container: Container) -> None:
        self._store, self._path, self._container = store, path, container
        self._digest = 0

    def check(self) -> None:
        """SourceChangedError if it is another one now. What is read later is compared with what is found here."""
        info = self._store.info(self._path)
        digest = self._store.digest(info)
        if (size_of(info), _version(mtime_ns_of(info), digest)) != (self._container.size, self._container.mtime_ns):
            raise changed(self._path)
        self._digest = digest

    def read_into(self, buffers: Sequence[memoryview], at: int) -> int:
        """All buffers by one request, or several at once of 4 MiB; with no buffers the object is looked at."""
        wanted = min(sum(map(len, buffers)), max(0, self._container.size - at))
        if not wanted:
            self.check()
            return 0
        if len(buffers) == 1:
            self._read(at, buffers[0][:wanted])
            return wanted
        data = memoryview(bytearray(wanted))
        self._read(at, data)
        for buffer in buffers:
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            data = data[len(part) :]
        return wanted

    def close(self) -> None:
        """There is nothing to give back: connections are the store's."""

    def _read(self, at: int, buffer: memoryview) -> None:
        (outcome,) = self._store.read([Range(self._path, at, buffer, self._digest)])
        if outcome:
            raise outcome


def _version(mtime_ns: int, digest: int) -> int:
    return mtime_ns // _NS * _NS + digest % _NS
