"""The contract of a source, and the choice of one for what the user named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from deepiofs.dataset.manifest import Manifest


class Team(Protocol):
    """The ranks that scan together. **Collective.** Every method is called by all ranks in the same order."""

    rank: int
    size: int

    def scatter(self, parts: list[Any] | None) -> Any:
        """Rank r gets parts[r]; only rank 0 gives them."""

    def gather(self, part: Any) -> list[Any] | None:
        """Rank 0 gets the parts of all ranks in order, the others None."""

    def bcast(self, value: Any) -> Any:
        """All ranks get rank 0's value."""


class Solo:
    """A team of one."""

    rank = 0
    size = 1

    def scatter(self, parts: list[Any] | None) -> Any:
        assert parts is not None
        return parts[0]

    def gather(self, part: Any) -> list[Any] | None:
        return [part]

    def bcast(self, value: Any) -> Any:
        return value


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
    """Where the dataset lies."""

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """**Collective.** `meta` and the manifest's columns on rank 0, None elsewhere. SourceError if unreadable."""

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        """**Collective.** None if the manifest still describes the source, else the first difference in words."""

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        """Open the file of a row. SourceChangedError if it is not what the manifest says; OSError otherwise."""

    def close(self) -> None:
        """Give back what the source holds."""


def open_source(name: str) -> Source:
    """The source that the user named. SourceError, with the cause, if it is missing or unreadable."""
    from deepiofs.dataset.sources.directory import DirectorySource

    opener: Callable[[str], Source] = DirectorySource
    return opener(name)
