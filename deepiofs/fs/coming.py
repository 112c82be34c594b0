"""A read that a peer was asked for: who reads is answered by whoever has the bytes, and no task waits for them.

**Threading.** The trio thread. **Invariants.** `then` is called once, and nothing is awaited between the view that it
gets and the end of the call.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from deepiofs.fs.openfile import OpenFile


class Coming:
    """Bytes under way. then: set by who reads; gets them, or None if they do not come and the source is to be read."""

    __slots__ = ("at", "file", "since", "size", "then")

    def __init__(self, file: OpenFile, at: int, size: int) -> None:
        self.file, self.at, self.size = file, at, size
        self.since = trio.current_time()
        self.then: Callable[[memoryview | bytes | None], None] = lambda data: None
