"""The kernel's words, as far as this program reads and writes them itself: linux/fuse.h, protocol 7.12 and later.

Native byte order, no alignment beyond that of the fields. A request or reply is one packet: a header and a body.
"""

from __future__ import annotations

import contextlib
import enum
import resource
import struct
from pathlib import Path

from deepiofs.fs.tree import BLOCK_BYTES, Attributes


class Opcode(enum.IntEnum):
    """What a request asks for; what has no name here is pyfuse3's."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    BATCH_FORGET = 42
    READDIRPLUS = 44


IN_HEADER = struct.Struct("=IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, padding
OUT_HEADER = struct.Struct("=IiQ")  # length, negative errno, unique

SETATTR_IN = struct.Struct("=I")  # what is to be set; values follow
OPEN_IN = struct.Struct("=I")  # flags of open(2)
OPENED = struct.Struct("=QII")  # handle, flags, padding
READ_IN = struct.Struct("=QQI")  # handle, byte, bytes; lock owner and flags follow
WRITE_IN = struct.Struct("=QQIIQII")  # handle, byte, bytes, flags, lock owner, flags, padding
WRITTEN = struct.Struct("=II")  # bytes, padding
RELEASE_IN = struct.Struct("=Q")  # handle; flags and lock owner follow
# A notification that a node's attributes are out of date: header (no request is 0), node, no bytes of it.
_OUTDATED = struct.Struct("=IiQ" + "Qqq")
_NOTIFY_INVALIDATE = 2

# Of OPENED
DIRECT_IO, KEEP_CACHE, CACHE_DIRECTORY = 1 << 0, 1 << 1, 1 << 3
# Of SETATTR
SET_MODE, SET_UID, SET_GID, SET_SIZE = 1 << 0, 1 << 1, 1 << 2, 1 << 3

# The pages of the largest write there is, unless the system's administrator allows more; headers take another page.
_MOST_PAGES = 256
_PAGES_ALLOWED = Path("/proc/sys/fs/fuse/max_pages_limit")

_ATTRIBUTES = "QQQqqqIIIIIIIIII"  # struct fuse_attr; times may lie before 1970
_ENTRY = struct.Struct("=QQQQII" + _ATTRIBUTES)  # node, generation, seconds and nanoseconds that both are valid
_DESCRIBED = struct.Struct("=QII" + _ATTRIBUTES)  # seconds and nanoseconds that they are valid, padding
_LISTED = struct.Struct(_ENTRY.format + "QQII")  # as an entry; node, position, length of the name, type
_STAT_BLOCK = 512
_NS = 10**9
_TYPE_SHIFT = 12


def most_bytes() -> int:
    """Of a packet, as libfuse may have agreed with the kernel on; it gives nothing to who has less room."""
    allowed = 0
    with contextlib.suppress(OSError, ValueError):
        allowed = int(_PAGES_ALLOWED.read_text())
    return (max(allowed, _MOST_PAGES) + 1) * resource.getpagesize()


def entry(a: Attributes) -> bytes:
    """The answer to LOOKUP. What is valid is so for whole seconds."""
    seconds, nanoseconds = divmod(a.mtime_ns, _NS)
    return _ENTRY.pack(
        a.node, 0, int(a.name_valid_s), int(a.valid_s), 0, 0,
        a.node, a.size, -(-a.size // _STAT_BLOCK), seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds,
        a.mode, a.nlink, a.uid, a.gid, 0, BLOCK_BYTES, 0,
    )  # fmt: skip


def described(a: Attributes) -> bytes:
    """The answer to GETATTR."""
    seconds, nanoseconds = divmod(a.mtime_ns, _NS)
    return _DESCRIBED.pack(
        int(a.valid_s), 0, 0,
        a.node, a.size, -(-a.size // _STAT_BLOCK), seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds,
        a.mode, a.nlink, a.uid, a.gid, 0, BLOCK_BYTES, 0,
    )  # fmt: skip


def listed(name: bytes, a: Attributes, position: int) -> bytes:
    """One entry of the answer to READDIRPLUS. position: of the entry behind it."""
    seconds, nanoseconds = divmod(a.mtime_ns, _NS)
    padding = bytes(-len(name) % 8)
    return _LISTED.pack(
        a.node, 0, int(a.name_valid_s), int(a.valid_s), 0, 0,
        a.node, a.size, -(-a.size // _STAT_BLOCK), seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds,
        a.mode, a.nlink, a.uid, a.gid, 0, BLOCK_BYTES, 0,
        a.node, position, len(name), a.mode >> _TYPE_SHIFT,
    ) + name + padding  # fmt: skip


def outdated(node: int) -> bytes:
    """Have the kernel ask for a node's attributes before it uses them again; its pages stay."""
    return _OUTDATED.pack(_OUTDATED.size, _NOTIFY_INVALIDATE, 0, node, -1, 0)
