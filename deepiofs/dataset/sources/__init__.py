"""The contract of a source, and the choice of one for what the user named."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources.team import Solo, Team
from deepiofs.errors import DeepiofsError

__all__ = [
    "Packed",
    "Piece",
    "Posix",
    "Selection",
    "Solo",
    "Source",
    "SourceFile",
    "Team",
    "absolute_name",
    "open_source",
]


@dataclasses.dataclass(frozen=True)
class Selection:
    """What of a source is in the view: globs as given, and what to do with symbolic links."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    links: str = "follow"


class SourceFile(Protocol):
    """One file of a source, open for reading. **Threading.** Reads may come from several threads at once."""

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill `buffer` from byte `at` on; less only at the end of the file.

        SourceChangedError if the file is no longer what the manifest says; OSError with any other cause.
        """

    def close(self) -> None:
        """Give the file back; idempotent."""


class Source(Protocol):
    """Where the dataset lies. **Threading.** `open` may be called from several threads at once."""

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """**Collective.** `meta` and the manifest's columns on rank 0, None elsewhere. SourceError if unreadable."""

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """**Collective.** None if the manifest still describes the source, else the first difference in words."""

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        """Open the file of a row. SourceChangedError if it is not what the manifest says; OSError otherwise."""

    def close(self) -> None:
        """Give back what the source holds."""


class Piece(NamedTuple):
    """A part of a file that is wanted: bytes from `at` on, as many as the buffer takes."""

    row: int
    at: int
    buffer: memoryview


@runtime_checkable
class Packed(Protocol):
    """A source whose files lie close to each other in containers, and are best read many at once, in their order.

    The manifest's `source_at` tells that order.
    """

    def read_pieces(self, manifest: Manifest, pieces: Sequence[Piece]) -> list[OSError | DeepiofsError | None]:
        """Fill all buffers, with as few and as large reads as can be; for each piece None, or why it is not filled.

        **Threading.** May be called from several threads at once.
        """


@runtime_checkable
class Posix(Protocol):
    """A source whose files are read by system calls: a large one in pieces as cheaply as at once."""

    def read_file(self, manifest: Manifest, row: int, buffer: memoryview) -> int:
        """Open the file of a row, fill `buffer` from its beginning, close it; the errors of all of these.

        **Threading.** May be called from several threads at once.
        """


def open_source(name: str) -> Source:
    """The source that the user named. SourceError, with the cause, if it is missing or unreadable."""
    from deepiofs.dataset.sources.registry import open_named

    return open_named(name)


def absolute_name(name: str) -> str:
    """The name of a source, whatever becomes of the working directory."""
    from deepiofs.dataset.sources.registry import absolute

    return absolute(name)
