"""Listing a store in parallel over ranks and threads, and the tree that its keys make.

A key is a path: what has no place in a tree of files is left out and counted (`unusable names`: an empty component,
`.` or `..`, more than 255 bytes; `hidden`: a key that is a prefix of others; `vanished`; of the web also `links` that
have a query or lead elsewhere). Facts leave a listing as arrays at once: 10 million dicts would not fit into memory.

**Collective.** What takes a team.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import html
import os
import urllib.parse
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.sources import retry
from deepiofs.dataset.sources.recordtree import Found
from deepiofs.dataset.sources.stores.facts import Info, digest_of, mtime_ns_of, size_of
from deepiofs.dataset.sources.stores.filesystems import Store, as_errors, unreadable
from deepiofs.dataset.sources.team import Team, share, told_by_first
from deepiofs.errors import SourceError

_THREADS = 8
# From so many directories on, each is listed with all that is below it, where the store can do that in one go.
_WIDE = 64
_DEEPEST = 255
_NAME_MAX = 255
_LOOKS_AT_ONCE = 32
# Of a link: what is quoted in a name, and what is not, differs between servers.
_UNQUOTED = "/~!$&'()*+,;=:@"


@dataclasses.dataclass
class Listed:
    """Files by path below the root, int64 (n,) facts of each, and the directories to list next."""

    paths: list[bytes]
    size: npt.NDArray[np.int64]
    mtime_ns: npt.NDArray[np.int64]
    digest: npt.NDArray[np.int64]
    below: list[str]
    left_out: Counter[str]


def list_tree(store: Store, team: Team) -> Found | None:
    """**Collective.** All files of the store, on rank 0; `at` has the digest of each. SourceError, on all ranks."""
    root: str = told_by_first(team, lambda: _root(store))
    level, levels = [root], 0
    parts: list[Listed] = []
    with ThreadPoolExecutor(_THREADS, "list") as pool:
        while level:
            flat = len(level) >= _WIDE and _lists_flat(store)
            levels += 1
            if levels > _DEEPEST:
                raise SourceError(f"source {store.url}: directories are nested more than {_DEEPEST} deep")
            list_it = functools.partial(list_one, store, root, flat)
            listed = share(team, level if team.rank == 0 else None, list_it, pool)
            parts += listed or []
            level = team.bcast([path for part in listed or [] for path in part.below])
    return _joined(parts) if team.rank == 0 else None


def _root(store: Store) -> str:
    try:
        return store.path
    except OSError as error:
        raise unreadable(store.url, error) from None


def list_one(store: Store, root: str, flat: bool, path: str) -> Listed:
    """One directory, or with `flat` all that is below it. SourceError, naming it, if it cannot be listed."""
    try:
        return retry.until_it_passes(lambda: _list_one(store, root, path, flat))
    except OSError as error:
        raise unreadable(path if store.is_http else f"{store.url} ({path or '/'})", error) from None


def _list_one(store: Store, root: str, path: str, flat: bool) -> Listed:
    with as_errors():
        fs = store.fs
        infos = fs.find(path, detail=True).values() if flat else fs.ls(path, detail=True)
    left_out: Counter[str] = Counter()
    files: list[tuple[bytes, Info]] = []
    below: list[str] = []
    for info in _usable(store, infos, left_out):
        name = info["name"].rstrip("/") if info["type"] == "directory" else info["name"]
        relative = relative_path(store, root, name)
        if info["type"] == "directory":
            if len(name) > len(path.rstrip("/")) and not (info.get("islink") or flat):
                below.append(info["name"])
        elif info["type"] != "file":
            left_out["special"] += 1
        elif relative is not None:
            files.append((relative, info))
        elif not (name.endswith("/") and not info.get("size")):  # a marker of a directory
            left_out["unusable names"] += 1
    return _with_facts(store, files, below, left_out)


def _usable(store: Store, infos: Iterable[Any], left_out: Counter[str]) -> Iterable[dict[str, Any]]:
    """Of a page of links those that may be files below it."""
    for info in infos:
        if not store.is_http:
            yield info
            continue
        name = html.unescape(info["name"])
        parts = name.partition("://")[2].split("/")
        if "?" in name or "#" in name or "." in parts or ".." in parts:
            left_out["links"] += 1
        else:
            yield {**info, "name": name}


def relative_path(store: Store, root: str, name: str) -> bytes | None:
    """The path below the root, as the view has it; None if a tree of files has no place for it."""
    base = root.rstrip("/")
    if base and not name.startswith(base):
        return None
    rest = name[len(base) :]
    rest = rest[1:] if rest.startswith("/") else rest
    if store.is_http:
        rest = urllib.parse.unquote(rest, errors="surrogateescape")
    path = os.fsencode(rest)
    parts = path.split(b"/")
    usable = all(part not in (b"", b".", b"..") and len(part) <= _NAME_MAX for part in parts)
    return path if usable and b"\0" not in path else None


def store_path(store: Store, root: str, path: bytes) -> str:
    """The store's name of a path of the view."""
    rest = os.fsdecode(path)
    if store.is_http:
        rest = urllib.parse.quote(path, safe=_UNQUOTED)
    if not rest:
        return root
    return f"{root.rstrip('/')}/{rest}" if root else rest


def _with_facts(store: Store, files: list[tuple[bytes, Info]], below: list[str], left_out: Counter[str]) -> Listed:
    infos: list[Info | None] = [info for _, info in files]
    if any(info is not None and size_of(info) is None for info in infos):
        infos = _look_at_each(store, [info["name"] for _, info in files])
        left_out["vanished"] += sum(info is None for info in infos)
    known = [(path, info) for (path, _), info in zip(files, infos, strict=True) if info is not None]
    if unknown := [path for path, info in known if size_of(info) is None]:
        where = store.url.rstrip("/") + "/" + os.fsdecode(unknown[0])
        raise SourceError(f"source {where}: the server does not say its size; exclude it, or copy the data")
    within = store.below()
    return Listed(
        [path for path, _ in known],
        np.array([size_of(info) for _, info in known], np.int64),
        np.array([mtime_ns_of(info) for _, info in known], np.int64),
        np.array([digest_of(info, within) for _, info in known], np.int64),
        below,
        left_out,
    )


def _look_at_each(store: Store, paths: list[str]) -> list[Info | None]:
    """Facts of objects whose listing has none, a request each; None of what is not there."""

    async def look() -> list[Any]:
        gate = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def one(path: str) -> Any:
            async with gate:
                return await store.fs._info(path)

        return list(await asyncio.gather(*map(one, paths), return_exceptions=True))

    found: list[Info | None] = []
    for answer in store.run(look):
        try:
            with as_errors():
                if isinstance(answer, BaseException):
                    raise answer
            found.append(answer)
        except FileNotFoundError:
            found.append(None)
    return found


def _lists_flat(store: Store) -> bool:
    """Whether `find` is more than `ls` of each directory."""
    from fsspec.asyn import AsyncFileSystem

    return getattr(type(store.fs), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find


def _joined(parts: list[Listed]) -> Found:
    left_out = sum((part.left_out for part in parts), Counter[str]())
    paths = [path for part in parts for path in part.paths]
    keep = _not_hidden(paths)
    left_out["hidden"] += len(paths) - len(keep)

    def kept(name: str) -> npt.NDArray[np.int64]:
        facts: npt.NDArray[np.int64] = np.concatenate([getattr(part, name) for part in parts])[keep]
        return facts

    return Found(
        [paths[i] for i in keep.tolist()], kept("size"), kept("digest"), kept("mtime_ns"), left_out=dict(+left_out)
    )


def _not_hidden(paths: list[bytes]) -> npt.NDArray[np.int64]:
    """Numbers of the paths that are no directory of another one, each path once; int64."""
    directories: set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in directories:
            directories.add(above)
            above = above.rpartition(b"/")[0]
    first = {path: i for i, path in enumerate(paths) if path not in directories}
    return np.array(sorted(first.values()), np.int64)
