"""What the mount looks like: node numbers, attributes, names. No bytes of files, no FUSE, no I/O.

Node numbers are stable and of four spaces: the dataset's rows from 1 on, the same rows again below
`.deepiofs/exact`, the control files, and the streams. Hard links have one number, as have all names of one linked file;
other symbolic links that were followed have their own.

**Threading.** Read-only after construction.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from deepiofs.dataset.manifest import CONTROL_NAME, ROOT, Manifest
from deepiofs.options import Settings

ROOT_NODE = 1
EXACT_BASE = 1 << 40
CONTROL_BASE = 1 << 48
STREAM_BASE = 1 << 52

EXACT_NAME = b"exact"
STREAM_NAME = b"stream"
CONTROL_NODE = CONTROL_BASE
EXACT_NODE = EXACT_BASE + ROOT + 1

# The kernel may keep what cannot change; a year is for ever, and fits every kernel's jiffies.
FOREVER_S = 365 * 86400.0
SIZE_VALID_S = 60.0
BLOCK_BYTES = 128 << 10


class Attributes(NamedTuple):
    """What stat(2) says of a node. A tuple is made in a sixth of a frozen dataclass's time.

    valid_s: how long the kernel may believe it. name_valid_s: how long it may believe the name that led there.
    """

    node: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    valid_s: float
    name_valid_s: float


class Tree:
    """Names and attributes of the dataset, under the root and under `.deepiofs/exact`."""

    def __init__(
        self,
        manifest: Manifest,
        settings: Settings,
        is_shuffled: Callable[[int], bool],
        is_private: Callable[[int], bool] = lambda row: False,
    ) -> None:
        """is_shuffled: whether a row's name outside `.deepiofs/exact` stands for other samples.

        is_private: whether nobody but the user who mounted may read what it stands for.
        """
        self.manifest = manifest
        self._is_shuffled, self._is_private = is_shuffled, is_private
        self.uid, self.gid, self._umask = settings.uid, settings.gid, settings.umask

    def row(self, node: int) -> int:
        """The manifest's row of a dataset node of either space."""
        return (node - EXACT_BASE if node >= EXACT_BASE else node) - 1

    def child(self, directory: int, name: bytes) -> int | None:
        """The node of a name in a dataset directory, in the same space."""
        row = self.manifest.lookup(self.row(directory), name)
        return None if row is None else self._node(row, directory)

    def children(self, directory: int, after: int) -> Iterator[tuple[bytes, int, int]]:
        """(name, node, position) of a directory's entries behind a position; 0 is before the first."""
        rows = self.manifest.children(self.row(directory))
        for row in rows[after:]:
            if directory == ROOT_NODE and self.manifest.name(row) == CONTROL_NAME:
                continue  # the control directory hides it, and a listing must not tell otherwise
            yield self.manifest.name(row), self._node(row, directory), row - rows.start + 1

    def shuffled_row(self, node: int) -> int | None:
        """The row of a node whose name is shuffled; None for all others."""
        row = node - 1
        return row if row < self.manifest.n_rows and self._is_shuffled(row) else None

    def shuffled_attributes(self, node: int, bound: int) -> Attributes:
        """Of a shuffled name: its own, but for the size of the row it stands for, and for who may read it if private.

        The kernel must ask for the name each time: what it stands for may change. The size it may keep, as every
        change is told by a lookup.
        """
        own = self.attributes(node)
        mode, uid, gid = own.mode, own.uid, own.gid
        if self._is_private(self.row(node)):
            mode, uid, gid = stat.S_IFREG | 0o400, os.getuid(), os.getgid()
        return Attributes(node, mode, 1, uid, gid, self.manifest.size_of[bound], own.mtime_ns, SIZE_VALID_S, 0.0)

    def attributes(self, node: int) -> Attributes:
        """Attributes of a dataset node with its own bytes."""
        row, m = self.row(node), self.manifest
        mode = m.mode_of[row]
        if self._umask is not None:
            mode = stat.S_IFMT(mode) | (0o777 & ~self._umask)
        uid = m.uid_of[row] if self.uid is None else self.uid
        gid = m.gid_of[row] if self.gid is None else self.gid
        size, mtime_ns = m.size_of[row], m.mtime_ns_of[row]
        return Attributes(node, mode, m.nlink_of[row], uid, gid, size, mtime_ns, FOREVER_S, FOREVER_S)

    def _node(self, row: int, beside: int) -> int:
        exact = beside >= EXACT_BASE
        linked = self.manifest.nlink_of[row] > 1 and stat.S_ISREG(self.manifest.mode_of[row])
        content = self.manifest.content_of[row]
        if linked and (exact or not (self._is_shuffled(row) or self._is_shuffled(content))):
            row = content
        return row + 1 + (EXACT_BASE if exact else 0)
