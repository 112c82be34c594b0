"""What a store says of an object: its size, its time, and what tells one version of it from another."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
from collections.abc import Mapping
from typing import Any

import xxhash

# What changes with the bytes, and is the same in a listing as for one object; the first that is there counts.
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "lfs", "blob_id", "sha256", "CRC")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "modified", "last_commit", "created")
_NS = 1_000_000_000

Info = Mapping[str, Any]


def size_of(info: Info) -> int | None:
    """Bytes; None if the store does not say."""
    size = info.get("size")
    return None if size is None else int(size)


def mtime_ns_of(info: Info) -> int:
    """When it was changed; 0 if the store does not say."""
    for name in _TIMES:
        if info.get(name) is not None:
            return _nanoseconds(info[name])
    if info.get("date_time"):  # of a zip member: local time, of no known zone
        with contextlib.suppress(ValueError, TypeError):
            return _nanoseconds(datetime.datetime(*info["date_time"][:6]))
    return 0


def digest_of(info: Info, below: int = 0) -> int:
    """64 bits (signed) that differ when the object does, as far as the store tells.

    By ETag, checksum or generation, and the size; without them by time and size. below: of the archive that holds it.
    """
    version = next((f"{name} {info[name]}" for name in _VERSIONS if info.get(name)), None)
    text = f"{version or mtime_ns_of(info)} {size_of(info)} {below}"
    digest = xxhash.xxh3_64_intdigest(text.encode(errors="surrogateescape"))
    return digest - (1 << 64) if digest >> 63 else digest


def _nanoseconds(value: Any) -> int:
    try:
        if isinstance(value, str):
            value = _parsed(value)
        if isinstance(value, datetime.datetime):
            zoned = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            since = zoned - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return (since.days * 86400 + since.seconds) * _NS + since.microseconds * 1000
        return round(float(value) * 1e6) * 1000  # a float does not hold more
    except (TypeError, ValueError, OverflowError):
        return 0


def _parsed(text: str) -> Any:
    """A date as HTTP or ISO 8601 has it, or a number."""
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text)
    with contextlib.suppress(ValueError):
        return email.utils.parsedate_to_datetime(text)
    return float(text)
