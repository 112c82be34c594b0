"""What of a TFRecord file becomes files, and what is refused."""

from __future__ import annotations

import gzip
import os
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepiofs.dataset.sources import Packed, Piece, open_source
from deepiofs.dataset.sources.packs import inflating
from deepiofs.errors import CorruptRecordError, DeepiofsError, EnvironmentFault, SourceError
from tests.contracts.sources import opened, read, row_of, scan
from tests.packs import contents, framed, outcomes, scanned
from tests.unit.streams import record


def written(path: Path, *records: bytes, packed: bool = False) -> str:
    """A TFRecord file; its name as a source."""
    data = b"".join(map(framed, records))
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return f"tfrecord:{path}"


def test_the_framing_is_tensorflows() -> None:
    assert framed(b"some data") == record(b"some data")


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_numbered(tmp_path: Path, packed: bool) -> None:
    written(tmp_path / "a.tfrecord", b"0", b"", b"22", packed=packed)
    written(tmp_path / "b.tfrecord-00000-of-00001", b"b", packed=packed)
    written(tmp_path / "no suffix", b"c")
    assert contents(f"tfrecord:{tmp_path}") == {
        b"a.tfrecord/000000.rec": b"0", b"a.tfrecord/000001.rec": b"", b"a.tfrecord/000002.rec": b"22",
        b"b.tfrecord-00000-of-00001/000000.rec": b"b",
    }  # fmt: skip
    assert set(contents(f"tfrecord:{tmp_path}/no*")) == {b"no suffix/000000.rec"}
    assert set(contents(f"{tmp_path}/a.tfrecord")) == {b"a.tfrecord/00000%d.rec" % i for i in range(3)}


def test_a_wrong_crc_of_data_is_that_records_error_alone(tmp_path: Path) -> None:
    name = written(tmp_path / "a.tfrecord", b"zero", b"one", b"two")
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[data.index(b"one")] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    found = outcomes(name)
    assert [found[b"a.tfrecord/00000%d.rec" % i] for i in (0, 2)] == [b"zero", b"two"]
    error = found[b"a.tfrecord/000001.rec"]
    assert isinstance(error, CorruptRecordError)
    assert str(error) == "a.tfrecord: record at byte 32: its CRC differs"
    with pytest.raises(CorruptRecordError):
        contents(name)


def test_a_part_of_a_record_is_checked_with_the_rest(tmp_path: Path) -> None:
    name = written(tmp_path / "a.tfrecord", bytes(3 << 20))
    with (tmp_path / "a.tfrecord").open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"1")
    source = open_source(name)
    manifest = scan(source)
    with opened(source, manifest, b"a.tfrecord/000000.rec") as file, pytest.raises(CorruptRecordError):
        read(file, 0, 10)
    source.close()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (framed(b"abc") + framed(b"def")[:11], "byte 19: the header of a record is cut short"),
        (framed(b"abc") + framed(b"def")[:-1], "byte 19: a record of 3 bytes is cut short"),
        (framed(b"abc") + b"x" + framed(b"def"), "byte 19: not the header of a record"),
        (b"nothing of the kind", "byte 0: not the header of a record"),
    ],
)
def test_what_is_damaged_is_named_with_its_byte(tmp_path: Path, data: bytes, text: str, packed: bool) -> None:
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(SourceError, match=rf"^a\.tfrecord: {text}"):
        contents(f"tfrecord:{tmp_path}")


def test_a_length_that_lies_with_a_right_crc_allocates_nothing(tmp_path: Path) -> None:
    head = (1 << 60).to_bytes(8, "little")
    (tmp_path / "a.tfrecord").write_bytes(head + framed(head)[-4:] + b"data")
    with pytest.raises(SourceError, match=f"a record of {1 << 60} bytes is cut short"):
        contents(f"tfrecord:{tmp_path}")


def test_zlib_compression_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for level in (1, 6, 9):
        (tmp_path / "a.tfrecord").write_bytes(zlib.compress(framed(b"data" * 100), level))
        with pytest.raises(SourceError, match="if it was written with ZLIB compression, write it with GZIP or none"):
            contents(f"tfrecord:{tmp_path}")


def test_without_its_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "crc32c", None)
    with pytest.raises(EnvironmentFault, match=r"deepiofs\[tfrecord\]") as error:
        open_source(written(tmp_path / "a.tfrecord", b"1"))
    assert error.value.exit_code == 4


def test_indexing_does_not_read_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path / "a.tfrecord", *[bytes(1 << 20)] * 20)
    sizes: list[int] = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *how: sizes.append(sum(map(len, how[1]))) or preadv(*how))
    scanned(name)
    assert sum(sizes) < 20 * 40_000


def _large(path: Path) -> tuple[str, list[bytes]]:
    """Records of 100 KB, 24 MB in all, in one gzip file."""
    generator = random.Random(1)
    pieces = [generator.randbytes(1000) for _ in range(100)]
    records = [b"".join(generator.choices(pieces, k=100)) for _ in range(240)]
    return written(path, *records, packed=True), records


def test_loading_a_compressed_file_unpacks_it_once(tmp_path: Path) -> None:
    name, records = _large(tmp_path / "a.tfrecord.gz")
    source = open_source(name)
    assert isinstance(source, Packed)
    manifest = scan(source)
    rows = [row_of(manifest, b"a.tfrecord.gz/%06d.rec" % i) for i in range(len(records))]
    for at in range(0, len(rows), 80):
        pieces = [Piece(row, 0, memoryview(bytearray(100_000))) for row in rows[at : at + 80]]
        assert source.read_pieces(manifest, pieces) == [None] * len(pieces)
        assert [bytes(piece.buffer) for piece in pieces] == records[at : at + 80]
    unpacked = source.layout(manifest).opened.get(0).unpacked_bytes  # type: ignore[attr-defined]
    assert unpacked < 1.01 * sum(map(len, records))
    source.close()


def test_threads_that_load_a_compressed_file_together_unpack_it_hardly_more_than_once(tmp_path: Path) -> None:
    name, records = _large(tmp_path / "a.tfrecord.gz")
    source = open_source(name)
    assert isinstance(source, Packed)
    manifest = scan(source)
    rows = [row_of(manifest, b"a.tfrecord.gz/%06d.rec" % i) for i in range(len(records))]

    def load(at: int) -> list[bytes]:
        pieces = [Piece(row, 0, memoryview(bytearray(100_000))) for row in rows[at : at + 10]]
        assert source.read_pieces(manifest, pieces) == [None] * 10  # type: ignore[attr-defined]
        return [bytes(piece.buffer) for piece in pieces]

    with ThreadPoolExecutor(8) as pool:
        assert [data for batch in pool.map(load, range(0, len(rows), 10)) for data in batch] == records
    unpacked = source.layout(manifest).opened.get(0).unpacked_bytes  # type: ignore[attr-defined]
    assert unpacked < 2 * sum(map(len, records))
    source.close()


def test_a_compressed_file_is_read_at_random_from_where_it_was_before(tmp_path: Path) -> None:
    name, records = _large(tmp_path / "a.tfrecord.gz")
    source = open_source(name)
    manifest = scan(source)
    order = random.Random(2).sample(range(240), 60)
    for i in order:
        with opened(source, manifest, b"a.tfrecord.gz/%06d.rec" % i) as file:
            assert read(file, 0, 100_000) == records[i]
    unpacked = source.layout(manifest).opened.get(0).unpacked_bytes  # type: ignore[attr-defined]
    assert unpacked < 24_000_000 + 60 * (inflating._SPACING_BYTES + 200_000)
    source.close()


def test_points_become_fewer_rather_than_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "_SPACING_BYTES", 1000)
    monkeypatch.setattr(inflating, "_MOST_POINTS", 8)
    data = random.Random(1).randbytes(100_003)
    packed = zlib.compress(data)[2:-4]
    stream = inflating.Inflated(lambda place, size: packed[place : place + size], inflating.RAW, "stream")
    for at in (99_000, 5, 50_000, 99_999, 16_000, 0, 70_001):
        buffer = bytearray(3000)
        n = stream.read_into(memoryview(buffer), at)
        assert bytes(buffer[:n]) == data[at : at + 3000]
        assert len(stream._points) <= 8


def test_a_gzip_file_may_have_members_and_padding(tmp_path: Path) -> None:
    parts = [gzip.compress(framed(b"1")), gzip.compress(b""), gzip.compress(framed(b"2")), bytes(300_000)]
    (tmp_path / "a.tfrecord.gz").write_bytes(b"".join(parts))
    assert list(contents(f"tfrecord:{tmp_path}").values()) == [b"1", b"2"]
    (tmp_path / "a.tfrecord.gz").write_bytes(parts[0] + b"garbage")
    with pytest.raises(SourceError, match=r"a\.tfrecord\.gz: before compressed byte \d+"):
        contents(f"tfrecord:{tmp_path}")


_RECORDS = [random.Random(i).randbytes(i * 37) for i in range(12)]
_PLAIN = b"".join(map(framed, _RECORDS))
_PACKED = gzip.compress(_PLAIN)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_done_to_a_file_no_wrong_byte_is_read(tmp_path: Path, data: st.DataObject) -> None:
    valid = data.draw(st.sampled_from([_PLAIN, _PACKED]))
    spoilt = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        at, n = data.draw(st.integers(0, len(valid) - 1)), data.draw(st.integers(1, 20))
        match data.draw(st.sampled_from(["flip", "insert", "cut", "end"])):
            case "flip":
                spoilt[at : at + 1] = bytes([spoilt[at % max(len(spoilt), 1)] ^ 1 << n % 8]) if spoilt else b""
            case "insert":
                spoilt[at:at] = data.draw(st.binary(min_size=n, max_size=n))
            case "cut":
                del spoilt[at : at + n]
            case "end":
                del spoilt[at:]
    (tmp_path / "a.tfrecord").write_bytes(spoilt)
    try:
        found = outcomes(f"tfrecord:{tmp_path}/a.tfrecord")
    except (DeepiofsError, OSError):
        return
    for said in found.values():
        assert said in _RECORDS or isinstance(said, DeepiofsError | OSError)
