"""The manifest of a mount: from the index file if it still matches the source, else by a scan."""

from __future__ import annotations

import dataclasses
import logging

from deepiofs.dataset import columns
from deepiofs.dataset.index_file import load_index, save_index
from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Source, Team
from deepiofs.errors import DeepiofsError, IndexMismatchError
from deepiofs.memory import columns_segment
from deepiofs.memory.segments import Segment

log = logging.getLogger(__name__)


def obtain_manifest(source: Source, selection: Selection, index: str | None, team: Team) -> Segment | None:
    """**Collective.** The manifest's segment on rank 0, None elsewhere. Only rank 0 touches the index file."""
    content = _read(index, selection, team) if index else None
    if content is not None and _still_matches(content, source, team):
        return columns_segment.copy_of("manifest", content) if team.rank == 0 else None
    found = source.scan(selection, team)
    segment = columns_segment.create("manifest", *found) if found else None
    if index:
        _write(index, segment, team)
    return segment


def _read(index: str, selection: Selection, team: Team) -> memoryview | None:
    """**Collective.** The index on all ranks, sent by rank 0, which is the only one to read the file."""
    content: memoryview | None = None
    if team.rank == 0:
        try:
            content = load_index(index)
            if content is not None:
                _same_selection(content, selection)
        except IndexMismatchError as error:
            log.warning("index %s is not used: %s; it is built anew", index, error)
            content = None
        except DeepiofsError as error:
            log.warning("%s; it is built anew", error)
    sent = team.bcast(bytes(content) if content is not None and team.size > 1 else content)
    return None if sent is None else memoryview(sent)


def _same_selection(content: memoryview, selection: Selection) -> None:
    meta, _ = columns.unpack(content)
    wanted = {name: _listed(value) for name, value in dataclasses.asdict(selection).items()}
    if meta["selection"] != wanted:
        raise IndexMismatchError("it was built with other include=, exclude= or links=")


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _still_matches(content: memoryview, source: Source, team: Team) -> bool:
    difference = source.unchanged(Manifest(*columns.unpack(content)), team)
    if difference and team.rank == 0:
        log.warning("the index is not used: %s; it is built anew", difference)
    return difference is None


def _write(index: str, segment: Segment | None, team: Team) -> None:
    """**Collective.** Rank 0 writes; that it could not is an error of all."""
    failure: DeepiofsError | None = None
    if segment is not None:
        try:
            save_index(index, segment.view)
        except DeepiofsError as error:
            failure = error
    failure = team.bcast(failure)
    if failure:
        raise failure
