"""Names for keys: what a key may hold and a file name may not is percent-escaped, so that the key can be had back.

A component keeps what is printable UTF-8; `%`, control characters and bytes that are no text become `%XX`, and so do
the dots of `.` and `..`. A name of more than 255 bytes is cut: the first part, with a `%` at its end, is a directory
that holds the rest. So `key_of`, that is removing each `%/` and decoding each `%XX`, gives the key.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection, Sequence

_NAME_MAX = 255
_DOTS = {b".": b"%2E", b"..": b"%2E%2E"}


def escaped(name: bytes) -> bytes:
    """One component of a path; slashes are escaped, too. As long as it comes out."""
    if name.isascii() and name.isalnum():
        return name
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    kept = text.isprintable() and bool(text)
    return _DOTS.get(name) or b"".join(_escaped_byte(byte, kept) for byte in name)


def key_of(path: bytes) -> bytes:
    """The key that a path stands for, without the directories that its database or its label make."""
    return urllib.parse.unquote_to_bytes(path.replace(b"%/", b""))


def fitting(name: bytes) -> bytes:
    """A component as a path whose components are not too long."""
    parts = []
    while len(name) > _NAME_MAX:
        parts.append(name[: _NAME_MAX - 1] + b"%")
        name = name[_NAME_MAX - 1 :]
    return b"/".join([*parts, _DOTS.get(name, name)])


def paths_of(keys: Sequence[bytes]) -> list[bytes]:
    """A path for each key: its slashes make directories, where all components have a name and no other key has theirs.

    Where not, the slashes of that key are escaped.
    """
    directories = {above for key in keys if b"/" in key for above in _above(key)}
    taken = directories.intersection(keys) if directories else directories
    return [_path(key, taken) if b"/" in key else fitting(escaped(key)) for key in keys]


def _path(key: bytes, taken: Collection[bytes]) -> bytes:
    parts = key.split(b"/")
    if b"" in parts or any(above in taken for above in _above(key)):
        return fitting(escaped(key))
    return b"/".join(fitting(escaped(part)) for part in parts)


def _above(key: bytes) -> list[bytes]:
    """The directories that a key's slashes make."""
    return [key[:at] for at in range(1, len(key)) if key[at] == 0x2F]


def _escaped_byte(byte: int, text: bool) -> bytes:
    printable = 0x20 <= byte < 0x7F or (text and byte >= 0x80)
    return bytes((byte,)) if printable and byte not in b"%/" else b"%%%02X" % byte
