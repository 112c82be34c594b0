"""The columnar index: what a scan of any tree gives, its packed form, and the index file."""

from __future__ import annotations

import contextlib
import os
import struct
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset import columns, manifest
from deepiofs.dataset.index_file import load_index, save_index
from deepiofs.dataset.manifest import COLUMNS, ROOT, Manifest
from deepiofs.dataset.samples import find_samples, group_samples
from deepiofs.errors import DeepiofsError, IndexMismatchError, UsageError
from deepiofs.memory.placement import Units, deal_samples, place
from tests.doubles import columns_of, manifest_of
from tests.unit.trees import NAMES, TREES, Tree, on_disk, scanned, walk

_META = {"selection": {"include": []}, "left_out": {"dangling": 1}}
_FILES = {b"a/1.jpg": 10, b"a/2.jpg": 20, b"b/c/3": 0, b"z": 1}


def _packed(meta: dict[str, Any] | None = None, arrays: columns.Arrays | None = None) -> bytearray:
    meta, arrays = meta or _META, arrays or manifest_of(_FILES).columns
    buffer = bytearray(columns.packed_size(meta, arrays))
    columns.pack_into(memoryview(buffer), meta, arrays)
    return buffer


# --- Of any tree -----------------------------------------------------------------------------------------------------


@given(TREES)
def test_every_path_of_a_tree_is_found_and_nothing_else(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    expected = dict(walk(tree))
    assert m.n_rows == len(expected) + 1
    assert {m.path(row) for row in range(m.n_rows)} == {b"", *expected}
    for path in expected:
        row = m.find(path)
        assert row is not None
        assert m.path(row) == path
        assert m.name(row) == os.path.basename(path)
        assert m.lookup(m.parent_of[row], m.name(row)) == row


@given(TREES)
def test_children_are_adjacent_sorted_and_complete(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    directories = {b"": tree, **{path: what for path, what in walk(tree) if not isinstance(what, bytes)}}
    for path, below in directories.items():
        row = m.find(path)
        assert row is not None
        assert m.is_directory(row)
        assert [m.name(child) for child in m.children(row)] == sorted(below)


@given(TREES)
def test_sizes_and_modes_are_the_sources(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
        for row in range(m.n_rows):
            now = os.stat(os.path.join(os.fsencode(root), m.path(row)))
            assert (m.mode_of[row], m.mtime_ns_of[row]) == (now.st_mode, now.st_mtime_ns)
            assert (m.uid_of[row], m.gid_of[row], m.size_of[row]) == (now.st_uid, now.st_gid, now.st_size)
    for path, what in walk(tree):
        if isinstance(what, bytes):
            row = m.find(path) or 0
            assert m.size_of[row] == len(what)
            assert m.is_regular[row]


@given(TREES)
def test_a_directory_counts_the_directories_in_it(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    for path, what in [(b"", tree), *walk(tree)]:
        row = m.find(path) or 0
        inner = 0 if isinstance(what, bytes) else sum(not isinstance(below, bytes) for below in what.values())
        assert m.nlink_of[row] == (1 if isinstance(what, bytes) else 2 + inner)


@given(TREES)
def test_rows_are_breadth_first_and_content_points_back(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    assert m.parents[ROOT] == ROOT
    assert (np.diff(m.parents[1:].astype(np.int64)) >= 0).all()
    assert (m.parents[1:] < np.arange(1, m.n_rows)).all()
    assert (m.content <= np.arange(m.n_rows)).all()
    assert (m.content[m.content] == m.content).all()
    assert m.content_rows().tolist() == np.flatnonzero(m.is_regular).tolist()


@given(TREES, NAMES)
def test_a_name_that_is_not_there_is_not_found(tree: Tree, name: bytes) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    assert (m.lookup(ROOT, name) is None) == (name not in tree)
    for path, what in walk(tree):
        row = m.find(path)
        assert row is not None
        below = {} if isinstance(what, bytes) else what
        assert (m.lookup(row, name) is None) == (name not in below)
        assert (m.find(path + b"/" + name) is None) == (name not in below)


@given(TREES)
def test_a_manifest_survives_being_packed(tree: Tree) -> None:
    with on_disk(tree) as root:
        m = scanned(root)
    meta, arrays = columns.unpack(memoryview(_packed(dict(m.meta), m.columns)))
    for name, array in m.columns.items():
        assert arrays[name].dtype == array.dtype == np.dtype(COLUMNS[name])
        assert arrays[name].tobytes() == array.tobytes()
    assert meta["left_out"] == m.meta["left_out"] == {}
    copy = Manifest(meta, arrays)
    assert [copy.path(row) for row in range(copy.n_rows)] == [m.path(row) for row in range(m.n_rows)]


def test_a_path_may_be_written_with_slashes_around_it() -> None:
    m = manifest_of(_FILES)
    assert m.find(b"") == m.find(b"/") == ROOT
    assert m.find(b"/b/c/3") == m.find(b"b//c/3/") == m.find(b"b/c/3")
    assert m.find(b"b/c/3") is not None


def test_names_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = types.SimpleNamespace(xxh3_64_intdigest=lambda data: len(data) % 2)
    monkeypatch.setattr(manifest, "xxhash", weak)
    m = manifest_of({b"%d/%d" % (i, j): 1 for i in range(5) for j in range(5)})
    for row in range(1, m.n_rows):
        assert m.find(m.path(row)) == row
    assert m.find(b"5") is None
    assert m.find(b"1/7") is None


def test_a_row_takes_at_most_100_bytes_beside_its_name() -> None:
    m = manifest_of({b"%04d" % i: 1000 for i in range(1000)})
    units = Units.of(m)
    samples = find_samples(m)
    group = group_samples(m, samples, "off")
    placement = place(m, units, samples, group, deal_samples(m, samples, group, 4), [1 << 30] * 4)
    of_rows = [array for name, array in m.columns.items() if name != "names"]
    per_row = [array.itemsize for array in (*of_rows, units.first, units.row, units.size, placement.home, placement.at)]
    assert sum(per_row) <= 100


def test_the_columns_are_those_of_the_table() -> None:
    found = columns_of({b"a": (1, 2)})
    assert {name: array.dtype.str.replace("|", "") for name, array in found.items()} == dict(COLUMNS)


# --- Packed ----------------------------------------------------------------------------------------------------------

_ARRAYS: st.SearchStrategy[dict[str, npt.NDArray[Any]]] = st.dictionaries(
    st.text(max_size=8),
    st.builds(
        lambda values, dtype: np.array(values, dtype),
        st.lists(st.integers(0, 255), max_size=50),
        st.sampled_from(["u1", "<u4", "<i8", "<u8"]),
    ),
    max_size=5,
)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=4), _ARRAYS)
def test_arrays_survive_being_packed(meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
    buffer = bytearray(columns.packed_size(meta, arrays))
    columns.pack_into(memoryview(buffer), meta, arrays)
    found_meta, found = columns.unpack(memoryview(buffer))
    assert found_meta == meta
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }
    assert columns.intact(memoryview(buffer))


def test_arrays_are_aligned_views_of_the_buffer() -> None:
    buffer = _packed()
    _, arrays = columns.unpack(memoryview(buffer))
    begin = np.frombuffer(buffer, np.uint8).ctypes.data
    for array in arrays.values():
        assert (array.ctypes.data - begin) % 64 == 0
        assert begin <= array.ctypes.data <= begin + len(buffer)


def test_a_longer_buffer_is_cut_to_what_was_written() -> None:
    buffer = _packed()
    longer = memoryview(buffer + bytes(4096))
    assert columns.packed(longer) == buffer
    assert columns.intact(columns.packed(longer))


@given(st.data())
def test_any_flipped_byte_is_noticed(data: st.DataObject) -> None:
    buffer = _packed()
    buffer[data.draw(st.integers(0, len(buffer) - 1))] ^= data.draw(st.integers(1, 255))
    assert not columns.intact(memoryview(buffer))


@given(st.data())
def test_a_damaged_header_is_a_mismatch_and_no_other_error(data: st.DataObject) -> None:
    buffer = _packed()
    length = struct.unpack_from("<I", buffer, 12)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, 24 + length - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(IndexMismatchError):
        columns.unpack(memoryview(buffer))


@given(st.binary(max_size=200))
def test_a_foreign_buffer_is_a_mismatch(data: bytes) -> None:
    with pytest.raises(IndexMismatchError):
        columns.unpack(memoryview(data))
    with pytest.raises(IndexMismatchError):
        columns.packed(memoryview(data))


@given(st.data())
def test_a_buffer_that_is_cut_short_is_a_mismatch(data: st.DataObject) -> None:
    buffer = _packed()
    cut = memoryview(buffer)[: data.draw(st.integers(0, len(buffer) - 1))]
    with pytest.raises(IndexMismatchError, match="cut short"):
        columns.packed(cut)


def test_another_version_is_a_mismatch_that_names_both() -> None:
    buffer = _packed()
    struct.pack_into("<I", buffer, 8, 999)
    with pytest.raises(IndexMismatchError, match=f"999.*{columns.VERSION}"):
        columns.unpack(memoryview(buffer))


# --- The index file --------------------------------------------------------------------------------------------------


def _loaded(path: str) -> bytes:
    content = load_index(path)
    assert content is not None
    return bytes(content)


def test_an_index_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    buffer = _packed()
    path = str(tmp_path / "index")
    save_index(path, memoryview(buffer + bytes(1000)))
    assert _loaded(path) == buffer
    assert os.listdir(tmp_path) == ["index"]


def test_no_index_is_none(tmp_path: Path) -> None:
    assert load_index(str(tmp_path / "index")) is None


def test_an_index_replaces_another_whole(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"an older one, much longer" * 1000)
    save_index(str(path), memoryview(_packed()))
    assert path.read_bytes() == _packed()


def test_a_reader_of_the_old_index_is_not_disturbed(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    save_index(path, memoryview(_packed()))
    old = load_index(path)
    save_index(path, memoryview(_packed({"other": "x" * 5000})))
    assert old is not None
    assert bytes(old) == _packed()
    assert _loaded(path) != _packed()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_an_index_that_is_cut_short_is_a_mismatch(tmp_path: Path, share: float) -> None:
    path = tmp_path / "index"
    buffer = _packed()
    path.write_bytes(buffer[: int(share * len(buffer))])
    with pytest.raises(IndexMismatchError):
        load_index(str(path))


@given(st.data())
def test_a_damaged_index_is_a_mismatch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "index"
    buffer = _packed()
    buffer[data.draw(st.integers(0, len(buffer) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(buffer)
    with pytest.raises(IndexMismatchError):
        load_index(str(path))


def test_a_foreign_file_is_a_mismatch(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"not an index at all" * 100)
    with pytest.raises(IndexMismatchError, match="not a deepiofs index"):
        load_index(str(path))


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "index")
    with pytest.raises(UsageError, match=f"cannot write index {path}: No such file"):
        save_index(path, memoryview(_packed()))


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(UsageError, match="directory"):
        save_index(str(tmp_path / "index"), memoryview(_packed()))
    assert os.listdir(tmp_path) == ["index"]


def test_an_index_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DeepiofsError, match=r"cannot read index .*directory"):
        load_index(str(tmp_path))
