"""Which paths are meant by a list of globs: `include`, `exclude`, `replicate`.

A pattern without a slash means a name at any depth, one with a slash a whole path from the root; `**` crosses
directories, and what matches a directory means all beneath it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wcmatch import glob

# FORCEUNIX: one meaning everywhere. DOTGLOB: names with a leading dot are names. BRACE: {a,b}.
_FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE | glob.MATCHBASE | glob.FORCEUNIX | glob.CASE


class Globs:
    """A list of patterns, matched against paths in bytes."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        expressions: list[bytes] = []
        for pattern in self.patterns:
            expressions += glob.translate(pattern.encode("utf-8", "surrogateescape"), flags=_FLAGS)[0]
        self._expressions = [re.compile(expression) for expression in expressions]

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def matches(self, path: bytes) -> bool:
        """Whether the path itself is meant."""
        return any(expression.match(path) for expression in self._expressions)

    def cover(self, path: bytes) -> bool:
        """Whether the path, or a directory above it, is meant."""
        while path:
            if self.matches(path):
                return True
            path = path.rpartition(b"/")[0]
        return False
