"""Which paths are meant by a list of globs: `include`, `exclude`, `replicate`.

A pattern without a slash means a name at any depth, one with a slash in it, or before it, a whole path; `**` crosses
directories, and what matches a directory means all beneath it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wcmatch import glob
from wcmatch._wcparse import PatternLimitException

from deepiofs.errors import UsageError

# FORCEUNIX: one meaning everywhere. DOTGLOB: names with a leading dot are names. BRACE: {a,b}.
_FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE | glob.MATCHBASE | glob.FORCEUNIX | glob.CASE


def _translated(pattern: str) -> list[bytes]:
    """Regular expressions; a leading slash means the root, as with rsync(1), a trailing one nothing."""
    flags = _FLAGS & ~glob.MATCHBASE if pattern.startswith("/") else _FLAGS
    expressions: list[bytes] = glob.translate(pattern.strip("/").encode("utf-8", "surrogateescape"), flags=flags)[0]
    return expressions


class Globs:
    """A list of patterns, matched against paths in bytes."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        expressions: list[bytes] = []
        for pattern in self.patterns:
            try:
                expressions += _translated(pattern)
            except PatternLimitException:
                raise UsageError(f"pattern {pattern} stands for too many; write it with * instead") from None
        self._expressions = [re.compile(expression) for expression in expressions]

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def matches(self, path: bytes) -> bool:
        """Whether the path itself is meant."""
        return any(expression.fullmatch(path) for expression in self._expressions)

    def cover(self, path: bytes) -> bool:
        """Whether the path, or a directory above it, is meant."""
        while path:
            if self.matches(path):
                return True
            path = path.rpartition(b"/")[0]
        return False
