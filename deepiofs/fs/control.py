"""The control files of `.deepiofs`: one table, rendered when they are opened.

The directory is reachable by name but not listed at the root, so that no scanner takes it for a class.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from collections.abc import Callable, Iterator

from deepiofs.fs.tree import CONTROL_BASE, CONTROL_NODE, EXACT_NAME, EXACT_NODE, STREAM_BASE, STREAM_NAME, Attributes


@dataclasses.dataclass(frozen=True)
class ControlFile:
    """A name, what it says now, and what writing to it does (ValueError for a text that means nothing)."""

    name: bytes
    render: Callable[[], str]
    write: Callable[[str], None] | None = None


class ControlTree:
    """Nodes from CONTROL_BASE on: the directory, then its files in the table's order."""

    def __init__(self, files: tuple[ControlFile, ...], mode: int) -> None:
        """mode: permission bits of the dataset's root: who may enter it may read these."""
        self._files = files
        self._read = mode & 0o444
        self._enter = mode & 0o555
        self._born_ns = time.time_ns()

    def child(self, name: bytes) -> int | None:
        """The node of a name in `.deepiofs`."""
        return next((node for known, node in self._names() if known == name), None)

    def children(self, after: int) -> Iterator[tuple[bytes, int, int]]:
        """(name, node, position) behind a position."""
        for position, (name, node) in enumerate(self._names(), 1):
            if position > after:
                yield name, node, position

    def text(self, node: int) -> bytes:
        """What the file says now."""
        return self._files[node - CONTROL_BASE - 1].render().encode("utf-8", "surrogateescape")

    def writer(self, node: int) -> Callable[[str], None] | None:
        """What writing to a node does; None if it may not be written."""
        return self._files[node - CONTROL_BASE - 1].write if node > CONTROL_NODE else None

    def attributes(self, node: int) -> Attributes:
        """The size is that of the text now; the kernel may not keep it."""
        directory = node == CONTROL_NODE
        mode = stat.S_IFDIR | self._enter if directory else stat.S_IFREG | self._read
        if self.writer(node):
            mode |= stat.S_IWUSR
        size = 0 if directory else len(self.text(node))
        mtime_ns = self._born_ns if directory else time.time_ns()
        return Attributes(node, mode, 4 if directory else 1, os.getuid(), os.getgid(), size, mtime_ns, 0.0, 0.0)

    def _names(self) -> Iterator[tuple[bytes, int]]:
        for i, file in enumerate(self._files, 1):
            yield file.name, CONTROL_BASE + i
        yield EXACT_NAME, EXACT_NODE
        yield STREAM_NAME, STREAM_BASE
