"""Which source a name means: by its scheme, or by what lies at a path.

`SCHEME:PATH` and any URL name a scheme; a plain path is a directory, or a container that is known by its first bytes.
Other packages add schemes by entry points of the group `deepiofs.sources`: its name is the scheme, its value is
called with what follows the colon (the whole name, if that is a URL) and returns a `Source`.

Nothing is imported before it is asked for: each kind's library is an optional extra.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from collections.abc import Callable
from typing import Any

from deepiofs.dataset.sources import Source
from deepiofs.errors import EnvironmentFault, SourceError

ENTRY_POINTS = "deepiofs.sources"

_HERE = "deepiofs.dataset.sources"
# Scheme -> module and class.
_SCHEMES = {
    "dir": ("directory", "DirectorySource"),
    "lmdb": ("lmdb.source", "LmdbSource"),
    "tfrecord": ("packs.tfrecord", "TFRecordSource"),
    "tar": ("packs.tar", "TarSource"),
    "zip": ("packs.zip", "ZipSource"),
    "hdf5": ("hdf5.source", "Hdf5Source"),
}
_REMOTE = ("stores.source", "RemoteSource")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HEAD_BYTES = 1024


def open_named(name: str) -> Source:
    """The source of a name. SourceError if it is missing or of no known kind, EnvironmentFault without its library."""
    scheme, rest = split(name)
    if scheme is None:
        scheme = "dir" if not os.path.isfile(name) else _sniffed(name)
    if scheme not in _SCHEMES and (opener := _added(scheme)):
        return opener(rest)
    # `zip:PATH` is ours, `zip://INNER::URL` is fsspec's.
    module, kind = _REMOTE if rest == name and is_url(name) else _SCHEMES.get(scheme, _REMOTE)
    source: Source = getattr(importlib.import_module(f"{_HERE}.{module}"), kind)(rest)
    return source


def split(name: str) -> tuple[str | None, str]:
    """(scheme, what the source is called with); the scheme of a plain path is None."""
    match = _SCHEME.match(name)
    if match is None:
        return None, name
    scheme, rest = match[1].lower(), name[match.end() :]
    if rest.startswith(("//", ":")):
        return scheme, name
    if scheme in _SCHEMES or _added(scheme):
        return scheme, rest
    # Any other name with a colon in it is a path.
    return None, name


def absolute(name: str) -> str:
    """The name with an absolute path in it; URLs stay as they are."""
    scheme, rest = split(name)
    if is_url(rest):
        return name
    return f"{scheme}:{os.path.abspath(rest)}" if scheme else os.path.abspath(name)


def is_url(name: str) -> bool:
    """Whether fsspec reads it, rather than the operating system."""
    return "://" in name or "::" in name


def require(module: str, extra: str) -> Any:
    """An optional library. EnvironmentFault, naming the extra that brings it, if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        text = f"this source needs the Python package {module} ({error}): pip install 'deepiofs[{extra}]'"
        raise EnvironmentFault(text) from None


def _added(scheme: str) -> Callable[[str], Source] | None:
    """What another package offers for a scheme; its own trouble is told as such."""
    found = [point for point in importlib.metadata.entry_points(group=ENTRY_POINTS) if point.name == scheme]
    if not found:
        return None
    try:
        opener: Callable[[str], Source] = found[0].load()
    except Exception as error:
        raise EnvironmentFault(f"source {scheme}: {found[0].value} cannot be loaded: {error}") from None
    return opener


def _sniffed(path: str) -> str:
    """The scheme of a file, by what is in it."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise SourceError(f"source {path}: {error.strerror}") from None
    for scheme, looks_so in _LOOKS.items():
        if looks_so(head, path):
            return scheme
    known = ", ".join(f"{scheme}:" for scheme in _LOOKS)
    raise SourceError(f"source {path}: neither a directory nor a container of a known kind; say which ({known}PATH)")


def _tfrecord_like(head: bytes, path: str) -> bool:
    """By name: without its library the checksum that tells is not known."""
    return re.search(r"\.tfrecords?(\.gz)?$|\.tfrecord-\d+-of-\d+$", path) is not None


_LOOKS: dict[str, Callable[[bytes, str], bool]] = {
    "hdf5": lambda head, path: any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512)),
    "zip": lambda head, path: head[:4] in (b"PK\x03\x04", b"PK\x05\x06"),
    # Compressed ones too: TarSource says what to do with them.
    "tar": lambda head, path: (
        head[257:262] == b"ustar" or re.search(r"\.(tar(\.\w+)?|tgz|tzst|txz|tbz2)$", path) is not None
    ),
    "lmdb": lambda head, path: head[16:20] == b"\xde\xc0\xef\xbe" or os.path.basename(path) == "data.mdb",
    "tfrecord": _tfrecord_like,
}
