"""Rows of HDF5 files: all types and layouts give what h5py gives; what is damaged is an error, and of its rows only."""

from __future__ import annotations

import io
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Piece, open_source, registry
from deepiofs.dataset.sources.hdf5 import readers as hdf5readers
from deepiofs.dataset.sources.hdf5 import source as hdf5
from deepiofs.dataset.sources.hdf5.source import Block, Dataset, Hdf5Source
from deepiofs.errors import CorruptRecordError, DeepiofsError, EnvironmentFault, SourceError
from tests.contracts.sources import opened, read, row_of, scan, sizes_of

h5py = pytest.importorskip("h5py")

Make = Callable[..., Hdf5Source]
PADDED = np.dtype({"names": ["a", "b"], "formats": ["<i2", ">f8"], "offsets": [0, 8], "itemsize": 24})
NESTED = np.dtype([("at", "<f4", (3,)), ("in", [("name", "S5"), ("flag", "?")])])


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make(fill, **options)`: a source of a file that `fill` writes to."""
    made = []

    def make(fill: Callable[[Any], object], name: str = "file.h5", **options: Any) -> Hdf5Source:
        with h5py.File(tmp_path / name, "w", **options) as file:
            fill(file)
        made.append(Hdf5Source(str(tmp_path / name)))
        return made[-1]

    yield make
    for source in made:
        source.close()


def npy(array: Any) -> bytes:
    """What numpy.save writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def all_rows(source: Hdf5Source, manifest: Manifest) -> dict[bytes, bytes]:
    """Every file of the view, read alone and together with the others."""
    files = {path: bytearray(size) for path, size in sizes_of(manifest).items()}
    pieces = [Piece(row_of(manifest, path), 0, memoryview(data)) for path, data in files.items()]
    assert source.read_pieces(manifest, pieces) == [None] * len(pieces)
    for path, data in files.items():
        with opened(source, manifest, path) as file:
            assert read(file, 0, len(data)) == data
            assert read(file, len(data) // 2, 3) == data[len(data) // 2 :][:3]
    return {path: bytes(data) for path, data in files.items()}


def of_library(source: Hdf5Source, *datasets: str) -> dict[bytes, bytes]:
    """The same from h5py and numpy."""
    with h5py.File(source.name) as file:
        return {
            f"{name}/{i:06d}.npy".encode(): npy(file[name][i : i + 1][0, ...])
            for name in datasets
            for i in range(len(file[name]))
        }


def _bools(shape: tuple[int, ...], dtype: Any) -> Any:
    rng = np.random.default_rng(1)
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1).view(np.uint8) if array.size and not np.dtype(dtype).hasobject else array
    flat[...] = rng.integers(0, 2, flat.shape)
    return array


@pytest.mark.filterwarnings("ignore:metadata on a dtype")
@pytest.mark.parametrize("chunked", [False, True], ids=["contiguous", "compressed"])
def test_every_type_that_npy_has_is_as_the_library_reads_it(make: Make, chunked: bool) -> None:
    types = ["<i4", ">u2", "<f2", ">f8", "?", "<c8", "S7", "V6", PADDED, NESTED, np.dtype(("<f4", (2, 2)))]
    options = {"chunks": (4, 3), "compression": "gzip"} if chunked else {}

    def fill(file: Any) -> None:
        for i, dtype in enumerate(types):
            dataset = file.create_dataset(f"group/rows{i}", (9, 3), dtype, **options)
            dataset[...] = _bools((9, 3), dtype)

    source = make(fill)
    found, expected = all_rows(source, scan(source)), of_library(source, *(f"group/rows{i}" for i in range(len(types))))
    assert found.keys() == expected.keys()
    assert [path for path in found if found[path] != expected[path]] == []


def _fill_layouts(file: Any) -> None:
    file["plain"] = np.arange(24.0).reshape(4, 3, 2)
    file["scalar rows"] = np.arange(5, dtype=">i8")
    file.create_dataset("never written", (3, 4), "<i4", fillvalue=7)
    file.create_dataset("never written chunks", (3, 4), "<i4", chunks=(2, 4), fillvalue=7)
    file.create_dataset("no elements", (3, 0), "<i4")
    file.create_dataset("no rows", (0, 4), "<i4", maxshape=(None, 4), chunks=(1, 4))
    file.create_dataset("shuffled", data=np.arange(90).reshape(30, 3), chunks=(7, 2), shuffle=True, fletcher32=True)
    file.create_dataset("enum", data=[0, 1, 0], dtype=h5py.enum_dtype({"NO": 0, "YES": 1}, "i1"))
    file.create_dataset("utf-8", data=[b"a", b"bc "], dtype=h5py.string_dtype("utf-8", 4))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((2, 3))
    h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I16BE, space, plist))[...] = 5


@pytest.mark.filterwarnings("ignore:metadata on a dtype")
@pytest.mark.parametrize("options", [{}, {"userblock_size": 1024}, {"libver": "latest"}], ids=str)
def test_every_layout_is_as_the_library_reads_it(make: Make, options: dict[str, Any]) -> None:
    source = make(_fill_layouts, **options)
    with h5py.File(source.name) as file:
        names = list(file)
    assert all_rows(source, scan(source)) == of_library(source, *names)
    direct = {path for path, *_, offset in scan(source).meta["details"][0] if offset is not None}
    assert direct >= {"/plain", "/scalar rows"}


def test_rows_that_are_larger_than_a_block_are_read_in_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "_LARGEST_BYTES", 100)
    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", 50)
    data = np.random.default_rng(0).integers(0, 99, (5, 3, 11, 4), np.int16)
    source = make(lambda file: file.create_dataset("d", data=data, chunks=(2, 2, 3, 4), compression="gzip"))
    assert all_rows(source, scan(source)) == of_library(source, "d")


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    chunk=st.integers(1, 6),
    limits=st.tuples(st.integers(1, 40), st.integers(1, 80)),
    fine=st.booleans(),
)
def test_blocks_tile_a_dataset(shape: list[int], chunk: int, limits: tuple[int, int], fine: bool) -> None:
    dataset = Dataset("d", tuple(shape), (chunk,) * len(shape), 2, b"", None)
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "_BLOCK_BYTES", limits[0])
        patch.setattr(hdf5, "_LARGEST_BYTES", limits[1])
        for byte in range(array.nbytes):
            block = Block.at(dataset, byte, fine)
            assert block.begin <= byte < block.begin + block.size
            which = tuple(slice(*one) if isinstance(one, list) else one for one in block.selection)
            assert array[which].tobytes() == array.tobytes()[block.begin : block.begin + block.size]


def test_in_order_each_chunk_is_read_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", 1)
    source = make(lambda file: file.create_dataset("d", data=np.arange(100), chunks=(10,), compression="gzip"))
    manifest = scan(source)
    asked: list[Any] = []
    ask = source._readers.ask
    monkeypatch.setattr(source._readers, "ask", lambda *a, **k: asked.append(k) or ask(*a, **k))
    files = sizes_of(manifest)
    for path, size in sorted(files.items()):
        assert source.read_pieces(manifest, [Piece(row_of(manifest, path), 0, memoryview(bytearray(size)))]) == [None]
    assert len(asked) == 10


def _fill_others(file: Any) -> None:
    file["kept"] = np.arange(3)
    file["scalar"] = 1.0
    file["null"] = h5py.Empty("f4")
    file.create_dataset("texts", data=["a", "b"], dtype=h5py.string_dtype())
    file.create_dataset("jpegs", (5,), h5py.vlen_dtype("u1"))
    file.create_dataset("references", (2,), h5py.ref_dtype)
    file["soft"] = h5py.SoftLink("/group/inner")
    file["dangling"] = h5py.SoftLink("/nowhere")
    file["there"] = h5py.ExternalLink("other.h5", "/kept")
    file.create_group("group/up")["again"] = h5py.SoftLink("/group")
    file["group/round"] = file["group"]
    file["group/inner"] = np.arange(6).reshape(2, 3)
    file["hard"] = file["kept"]
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:3] = h5py.VirtualSource(file["kept"])
    file.create_virtual_dataset("virtual", layout)
    file.create_dataset("outside", (4,), "i8", external=[("raw", 0, 32)])
    file["type"] = np.dtype("f8")


def test_what_is_no_row_of_this_file_is_left_out_and_counted(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(lambda file: file.create_dataset("kept", data=[1, 2]), "other.h5")
    source = make(_fill_others)
    manifest = scan(source)
    names = {path.decode().rpartition("/")[0] for path in sizes_of(manifest)}
    assert names == {"kept", "hard", "soft", "group/inner"}
    assert manifest.meta["left_out"] == {
        "scalars": 1, "empty": 1, "variable-length": 9, "dangling": 1, "external": 9, "looping": 2,
    }  # fmt: skip
    assert "file.h5: /texts is of variable length or of references, which .npy files have not; left out" in caplog.text
    assert all_rows(source, manifest) == of_library(source, *names)


def test_a_dataset_of_two_names_is_held_once(make: Make) -> None:
    source = make(_fill_others)
    manifest = scan(source)
    rows = [row_of(manifest, name) for name in (b"hard/000001.npy", b"kept/000001.npy")]
    assert manifest.content_of[rows[0]] == manifest.content_of[rows[1]]
    assert manifest.nlink_of[rows[0]] == 2


def test_several_files_are_directories_of_their_datasets(make: Make, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.h5", "sub/b.hdf5"):
        make(lambda file: file.create_dataset("d/e", data=[1, 2]), name)
    for several in (tmp_path, tmp_path / "**/*.h*5"):
        source = Hdf5Source(str(several))
        manifest = scan(source)
        assert set(sizes_of(manifest)) == {
            os.fsencode(f"{name}/d/e/{i:06d}.npy") for name in ("a.h5", "sub/b.hdf5") for i in range(2)
        }
        with opened(source, manifest, b"sub/b.hdf5/d/e/000001.npy") as file:
            assert np.load(io.BytesIO(read(file, 0, 1000))) == 2
        source.close()


def test_a_plain_path_is_known_by_what_is_in_it(make: Make, tmp_path: Path) -> None:
    make(lambda file: file.create_dataset("d", data=[1]), "no suffix")
    source = open_source(str(tmp_path / "no suffix"))
    assert isinstance(source, Hdf5Source)
    source.close()


def _fill_checked(file: Any) -> None:
    data = np.random.default_rng(3).integers(0, 1000, (40, 8))
    file.create_dataset("checked", data=data, chunks=(4, 8), fletcher32=True, compression="gzip")
    file["plain"] = data


def test_a_bad_chunk_is_an_error_of_its_rows_only(make: Make) -> None:
    source = make(_fill_checked)
    expected = of_library(source, "checked")
    with h5py.File(source.name) as file:
        at = file["checked"].id.get_chunk_info(3).byte_offset
    flip(Path(source.name), at + 20)
    manifest = scan(source)
    bad = {f"checked/{i:06d}.npy".encode() for i in range(12, 16)}
    for path in expected:
        buffer = bytearray(len(expected[path]))
        (outcome,) = source.read_pieces(manifest, [Piece(row_of(manifest, path), 0, memoryview(buffer))])
        if path in bad:
            assert isinstance(outcome, CorruptRecordError)
            assert "file.h5: " in str(outcome)
        else:
            assert (outcome, bytes(buffer)) == (None, expected[path])


@pytest.mark.parametrize("size", [0, 1, 100, 2000])
def test_a_file_that_is_cut_off_is_named(make: Make, size: int) -> None:
    source = make(_fill_checked)
    os.truncate(source.name, size)
    with pytest.raises(SourceError, match=r"^file\.h5: .*"):
        scan(source)


def test_more_rows_than_a_file_can_hold_are_refused(make: Make) -> None:
    source = make(lambda file: file.create_dataset("d", (1 << 50,), "i8", chunks=(1 << 20,)))
    with pytest.raises(SourceError, match=r"^file\.h5: /d: 1125899906842624 rows in a file of \d+ bytes"):
        scan(source)


def test_a_process_that_is_killed_is_started_again(make: Make) -> None:
    source = make(_fill_checked)
    manifest = scan(source)
    (reader,) = source._readers._idle
    os.kill(reader._process.pid, signal.SIGKILL)
    reader._process.wait()
    with opened(source, manifest, b"checked/000000.npy") as file:
        assert np.load(io.BytesIO(read(file, 0, 1000))).shape == (8,)


def test_a_library_that_crashes_takes_nobody_along(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(_fill_checked)
    manifest = scan(source)
    (reader,) = source._readers._idle
    answers = reader.answers

    def crash(request: Any) -> Any:
        os.kill(reader._process.pid, signal.SIGSEGV)
        reader._process.wait()
        return answers(request)

    monkeypatch.setattr(reader, "answers", crash)
    with opened(source, manifest, b"checked/000000.npy") as file:
        # A block, and the smaller one; the next process does not crash.
        assert np.load(io.BytesIO(read(file, 0, 1000))).shape == (8,)
    source._blocks.clear()
    (reader,) = source._readers._idle
    monkeypatch.setattr(source._readers, "_take", lambda: _crashing(reader))
    crashes = pytest.raises(CorruptRecordError, match=r"^file\.h5: the HDF5 library crashes on it")
    with opened(source, manifest, b"checked/000000.npy") as file, crashes:
        read(file, 0, 1000)


def _crashing(reader: Any) -> Any:
    fresh = type(reader)()
    os.kill(fresh._process.pid, signal.SIGSEGV)
    fresh._process.wait()
    return fresh


def test_a_process_that_does_not_answer_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(_fill_checked)
    manifest = scan(source)
    monkeypatch.setattr(hdf5readers, "SILENT_S", 0.2)
    (reader,) = source._readers._idle
    os.kill(reader._process.pid, signal.SIGSTOP)
    with opened(source, manifest, b"checked/000000.npy") as file:
        with pytest.raises(TimeoutError):
            read(file, 0, 1000)
        monkeypatch.undo()
        assert np.load(io.BytesIO(read(file, 0, 1000))).shape == (8,)
    assert reader._process.returncode == -signal.SIGKILL


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(registry.importlib, "import_module", _no_module)
    with pytest.raises(EnvironmentFault, match=r"pip install 'deepiofs\[hdf5\]'"):
        Hdf5Source(str(tmp_path))


def _no_module(name: str) -> Any:
    raise ImportError(f"No module named {name!r}")


# --- Damaged files ---------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


edit = st.tuples(
    st.sampled_from(["set", "cut", "insert"]), st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)
)


def damaged(data: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """A file with some places set, cut out or inserted."""
    for kind, where, what in edits:
        at = int(where * len(data))
        data = data[:at] + (b"" if kind == "cut" else what) + data[at + (0 if kind == "insert" else len(what)) :]
    return data


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_gives_right_bytes_or_an_error(make: Make, monkeypatch: pytest.MonkeyPatch, libver: str) -> None:
    monkeypatch.setattr(hdf5readers, "SILENT_S", 5.0)
    source = make(_fill_checked, libver=libver)
    path = Path(source.name)
    good = path.read_bytes()
    expected = of_library(source, "checked")

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.lists(edit, min_size=1, max_size=4))
    def try_it(edits: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(damaged(good, edits))
        try:
            manifest = scan(source)
        except (SourceError, OSError):
            return
        sizes = {name: size for name, size in sizes_of(manifest).items() if size < 1 << 20}
        buffers = {name: bytearray(size) for name, size in sizes.items()}
        pieces = [Piece(row_of(manifest, name), 0, memoryview(buffer)) for name, buffer in buffers.items()]
        for (name, buffer), outcome in zip(buffers.items(), source.read_pieces(manifest, pieces), strict=True):
            assert outcome is None or isinstance(outcome, (OSError, DeepiofsError))
            # The latest format has checksums of all that is said of the data, too.
            if outcome is None and libver == "latest" and name in expected:
                assert zlib.crc32(buffer) == zlib.crc32(expected[name])

    try_it()
