"""The manifest of a mount: from the index file while it matches, else by a scan, and then written."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo, Team
from deepiofs.dataset.sources.directory import DirectorySource
from deepiofs.engine.indexing import obtain_manifest
from deepiofs.errors import DeepiofsError, UsageError
from deepiofs.memory import columns_segment
from tests.doubles import as_team
from tests.unit.trees import paths, write


class _Spy(DirectorySource):
    """Counts its scans."""

    scans = 0

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        self.scans += team.rank == 0
        return super().scan(selection, team)


@pytest.fixture
def source(tmp_path: Path) -> _Spy:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", {b"a": {b"1.jpg": b"one"}, b"b": b"bee"})
    return _Spy(str(tmp_path / "data"))


@pytest.fixture
def index(tmp_path: Path) -> str:
    return str(tmp_path / "index")


def _obtain(source: _Spy, index: str | None, selection: Selection | None = None) -> Manifest:
    segment = obtain_manifest(source, selection or Selection(), index, Solo())
    assert segment is not None
    return Manifest(*columns_segment.read(segment))


def test_without_an_index_the_source_is_scanned(source: _Spy) -> None:
    assert paths(_obtain(source, None)) == {b"a", b"a/1.jpg", b"b"}


def test_an_index_is_written_and_then_used(source: _Spy, index: str) -> None:
    first = _obtain(source, index)
    second = _obtain(source, index)
    assert source.scans == 1
    assert paths(first) == paths(second) == {b"a", b"a/1.jpg", b"b"}
    assert second.meta["built_ns"] == first.meta["built_ns"]


def test_an_index_of_a_source_that_changed_is_built_anew(
    source: _Spy, index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _obtain(source, index)
    (tmp_path / "data" / "new").write_bytes(b"")
    os.utime(tmp_path / "data", ns=(1, 1))
    with caplog.at_level(logging.WARNING):
        assert b"new" in paths(_obtain(source, index))
    assert source.scans == 2
    assert "built anew" in caplog.text
    assert b"new" in paths(_obtain(source, index))
    assert source.scans == 2


@pytest.mark.parametrize(
    "selection", [Selection(include=("*.jpg",)), Selection(exclude=("b",)), Selection(links="skip")], ids=repr
)
def test_an_index_of_another_selection_is_built_anew(
    source: _Spy, index: str, selection: Selection, caplog: pytest.LogCaptureFixture
) -> None:
    _obtain(source, index)
    with caplog.at_level(logging.WARNING):
        _obtain(source, index, selection)
    assert source.scans == 2
    assert "other include=, exclude= or links=" in caplog.text
    _obtain(source, index, selection)
    assert source.scans == 2


@pytest.mark.parametrize("damage", [b"", b"not an index", b"deepiofs" + bytes(1000)])
def test_a_damaged_index_is_built_anew(
    source: _Spy, index: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    Path(index).write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert paths(_obtain(source, index)) == {b"a", b"a/1.jpg", b"b"}
    assert "built anew" in caplog.text
    _obtain(source, index)
    assert source.scans == 1


def test_a_place_where_no_index_can_be_written_is_an_error_of_all_ranks(source: _Spy, tmp_path: Path) -> None:
    index = str(tmp_path / "missing" / "index")
    found = as_team(3, lambda team: obtain_manifest(source, Selection(), index, team))
    assert [type(error) for error in found] == [UsageError] * 3
    assert isinstance(found[0], DeepiofsError)


def test_only_rank_0_of_a_team_touches_the_index_and_has_the_manifest(source: _Spy, index: str) -> None:
    for scans in (1, 1):
        found = as_team(3, lambda team: obtain_manifest(source, Selection(), index, team))
        assert found[1:] == [None, None]
        assert source.scans == scans
