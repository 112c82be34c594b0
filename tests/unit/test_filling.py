"""From a directory into a store, by each of the ways that bytes take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Posix, Selection, Solo, Source, open_source
from deepiofs.engine.filling import Filling, Outcome
from deepiofs.errors import SourceChangedError
from deepiofs.memory.placement import EXTENT_BYTES, Units
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import EMPTY, LOADED, UNITS_AT, Store, genuine, span

_SIZES = {"a": 1, "b": 12 << 10, "c": 100_000, "d": 1 << 20, "e": (1 << 20) + 1, "f": 2 * EXTENT_BYTES + 100_000}


class Filled:
    """A directory of files of many sizes, and a store."""

    def __init__(self, root: Path) -> None:
        self.data = {name: os.urandom(size) for name, size in _SIZES.items()}
        for name, data in self.data.items():
            (root / name).write_bytes(data)
        self.root = root
        self.source: Source = open_source(str(root))
        self.manifest = Manifest(*self.source.scan(Selection(), Solo()) or ())
        self.units = Units.of(self.manifest)
        self.at = [UNITS_AT]
        for size in self.units.size.tolist():
            self.at.append(self.at[-1] + span(size))
        self.store = Store(Segment.create("store", self.at[-1]))

    def fill(self, fresh: bool) -> list[Outcome]:
        """Read all units."""
        said: list[Outcome] = []
        filling = Filling(self.units, self.manifest, self.source, self.store, self.at, fresh)
        filling.read(iter(range(len(self.units.size))), said.append)
        return said

    def row(self, name: str) -> int:
        row = self.manifest.find(name.encode())
        assert row is not None
        return row

    def units_of(self, name: str) -> range:
        first = self.units.first
        return range(int(first[self.row(name)]), int(first[self.row(name) + 1]))


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    filled = Filled(tmp_path)
    yield filled
    filled.source.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_units_of_all_sizes_are_whole_and_genuine(filled: Filled, fresh: bool) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    assert filled.fill(fresh) == [(unit, None) for unit in range(len(filled.units.size))]
    for unit, (size, at) in enumerate(zip(filled.units.size.tolist(), filled.at, strict=False)):
        row, begin = filled.units.place_in_file(unit)
        name = os.fsdecode(filled.manifest.path(row))
        assert filled.store.data(at, size) == filled.data[name][begin : begin + size]
        assert filled.store.state(at) == LOADED
        assert genuine(filled.store.unit(at, size))
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize("name", ["a", "c", "e", "f"])
def test_what_has_changed_is_not_loaded_and_the_rest_is(filled: Filled, name: str) -> None:
    (filled.root / name).write_bytes(bytes(_SIZES[name]))
    os.utime(filled.root / name, ns=(0, 0))
    changed = filled.units_of(name)
    for unit, error in filled.fill(fresh=True):
        assert isinstance(error, SourceChangedError) == (unit in changed)
        assert filled.store.state(filled.at[unit]) == (EMPTY if unit in changed else LOADED)


def test_what_is_a_directory_or_missing_now_is_told_by_its_cause(filled: Filled) -> None:
    source = filled.source
    assert isinstance(source, Posix)
    (filled.root / "c").unlink()
    with pytest.raises(FileNotFoundError):
        source.read_file(filled.manifest, filled.row("c"), memoryview(bytearray(_SIZES["c"])))
    (filled.root / "c").mkdir()
    with pytest.raises(SourceChangedError):
        source.read_file(filled.manifest, filled.row("c"), memoryview(bytearray(_SIZES["c"])))
