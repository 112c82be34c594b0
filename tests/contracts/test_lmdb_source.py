"""LMDBs keep the contract of sources, and what only they have: keys that are no names, Datums, several databases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepiofs.dataset.sources import Piece, Solo, open_source
from deepiofs.dataset.sources.lmdb.keynames import key_of, paths_of
from deepiofs.dataset.sources.lmdb.source import LmdbSource
from deepiofs.errors import SourceError
from tests.contracts.sources import Contender, PackedContract, opened, read, row_of, scan, sizes_of
from tests.sources.lmdbs import datum_of, image, write

_PAGE = 4096


class _Lmdb(Contender):
    def __init__(self, root: Path, files: Mapping[bytes, bytes]) -> None:
        self._root = write(root / "db", files, writemap=True)
        self.source = LmdbSource(str(self._root))

    def disturb(self) -> None:
        write_unseen(self._root)


def write_unseen(root: Path) -> None:
    """As programs do that write through their map: neither size nor time need tell."""
    data = root / "data.mdb"
    before = data.stat()
    write(root, {b"one": b"2"}, writemap=True)
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert data.stat().st_size == before.st_size


class TestLmdbSource(PackedContract):
    files: Mapping[bytes, bytes] = {
        b"a.bin": bytes(range(256)) * 40,
        b"empty": b"",
        b"one": b"1",
        b"class b/x.jpg": b"x" * 1000,
        b"class b/deep/er/y": b"y" * 70_000,
    }

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _Lmdb(tmp_path, files)


def view_of(source: Path | str) -> dict[bytes, bytes]:
    """All files, by path, read together and one by one."""
    made = open_source(str(source))
    assert isinstance(made, LmdbSource)
    manifest = scan(made)
    found = {}
    for path, size in sizes_of(manifest).items():
        with opened(made, manifest, path) as file:
            found[path] = read(file, 0, size)
        assert len(found[path]) == size
    made.close()
    return found


def test_a_plain_path_of_a_data_file_is_known(tmp_path: Path) -> None:
    write(tmp_path / "db", {b"k": b"value"})
    write(tmp_path / "other", {b"k": b"value"}, subdir=False)
    expected = {b"k": b"value"}
    assert view_of(tmp_path / "db/data.mdb") == view_of(tmp_path / "other") == expected
    assert view_of(f"lmdb:{tmp_path}/db") == view_of(f"lmdb:{tmp_path}/other") == expected


def test_several_environments_are_in_directories_of_their_names(tmp_path: Path) -> None:
    for name in ("train", "val", "vault"):
        write(tmp_path / name, {b"k": name.encode()})
    write(tmp_path / "flat.lmdb", {b"k": b"flat"}, subdir=False)
    every = {b"train/k": b"train", b"val/k": b"val", b"vault/k": b"vault", b"flat.lmdb/k": b"flat"}
    assert view_of(f"lmdb:{tmp_path}") == every
    assert view_of(f"lmdb:{tmp_path}/va*") == {b"val/k": b"val", b"vault/k": b"vault"}
    assert view_of(f"lmdb:{tmp_path}/{{train,val}}/data.mdb") == {b"train/k": b"train", b"val/k": b"val"}


@pytest.mark.parametrize(
    ("keys", "paths"),
    [
        ([b"a", b"a/b"], [b"a", b"a%2Fb"]),
        ([b"/a", b"a/", b"a//b", b"x/y"], [b"%2Fa", b"a%2F", b"a%2F%2Fb", b"x/y"]),
        ([b".", b"..", b"a/..", b"..."], [b"%2E", b"%2E%2E", b"a/%2E%2E", b"..."]),
        ([b"a%2Fb", b"50%"], [b"a%252Fb", b"50%25"]),
        ([b"\0\1", b"\xff", "ä".encode(), b"a\n", b" "], [b"%00%01", b"%FF", "ä".encode(), b"a%0A", b" "]),
        ([b"x" * 300], [b"x" * 254 + b"%/" + b"x" * 46]),
    ],
)
def test_keys_become_names(keys: list[bytes], paths: list[bytes]) -> None:
    assert paths_of(keys) == paths


@settings(max_examples=300, deadline=None)
@given(st.sets(st.binary(min_size=1, max_size=511) | st.text("ab/.%", min_size=1).map(str.encode), max_size=30))
def test_any_keys_have_names_of_their_own_that_lead_back(keys: set[bytes]) -> None:
    paths = paths_of(sorted(keys))
    assert [key_of(path) for path in paths] == sorted(keys)
    files = set(paths)
    assert len(files) == len(keys)
    for path in paths:
        parts = path.split(b"/")
        assert all(0 < len(part) <= 255 and part not in (b".", b"..") and b"\0" not in part for part in parts)
        assert not files & {b"/".join(parts[:i]) for i in range(1, len(parts))}


def test_encoded_datums_are_images_in_directories_of_their_labels(tmp_path: Path) -> None:
    values = {
        b"00_a/b.JPEG": datum_of(7, image(0), encoded=True),
        b"01": datum_of(-1, image(1, "PNG"), encoded=True, channels=3),
        b"02.bin": datum_of(0, image(2, "WEBP"), encoded=True),
        b"03": datum_of(7, image(3, "BMP"), encoded=True),
    }
    write(tmp_path / "db", values)
    assert view_of(f"lmdb:{tmp_path}/db") == {
        b"7/00_a%2Fb.JPEG": image(0),
        b"-1/01.png": image(1, "PNG"),
        b"0/02.bin.webp": image(2, "WEBP"),
        b"7/03.bmp": image(3, "BMP"),
    }
    assert view_of(f"lmdb:{tmp_path}/db?plain") == {b"00_a/b.JPEG": values[b"00_a/b.JPEG"]} | {
        key: values[key] for key in (b"01", b"02.bin", b"03")
    }


def test_raw_datums_are_left_whole(tmp_path: Path) -> None:
    values = {b"%d" % i: datum_of(i % 2, os.urandom(12), channels=3, height=2, width=2) for i in range(4)}
    floats = {b"f": datum_of(3, b"", float_data=[1.0, 2.0], channels=2, height=1, width=1)}
    write(tmp_path / "db", values | floats)
    expected = {b"%d/%s" % (int(key) % 2, key): value for key, value in values.items()}
    assert view_of(f"lmdb:{tmp_path}/db") == expected | {b"3/f": floats[b"f"]}


def test_a_datum_whose_fields_come_in_another_order_is_one(tmp_path: Path) -> None:
    data = image(1)
    parts = datum_of(5, b"", encoded=True), datum_of(0, data)
    label_first = b"\x28\x05\x38\x01" + b"\x22" + _varint(len(data)) + data
    assert parts[0].endswith(b"\x38\x01")
    write(tmp_path / "db", {b"k": label_first})
    assert view_of(f"lmdb:{tmp_path}/db") == {b"5/k.jpg": data}


def _varint(number: int) -> bytes:
    return bytes((number & 0x7F | 0x80, number >> 7))


def test_values_that_are_no_datums_are_left_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = {b"1": b"text", b"2": b"\x28\x05", b"3": b"", b"4": datum_of(1, b"abc", height=1, width=1, channels=1)}
    write(tmp_path / "db", plain)
    assert view_of(f"lmdb:{tmp_path}/db") == plain
    assert not caplog.records
    write(tmp_path / "db", {b"0": datum_of(1, image(1), encoded=True)})
    assert view_of(f"lmdb:{tmp_path}/db")[b"1"] == b"text"
    assert "value of key b'1' is no Datum, 1 before it are" in caplog.text
    with pytest.raises(SourceError, match=r"data.mdb: byte [\d,]+: the value of key b'1' is no Datum"):
        view_of(f"lmdb:{tmp_path}/db?datum")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([datum_of(1, b"no image", encoded=True)], "key b'0' says that it is encoded, and is no image"),
        ([datum_of(1, image(0))], "key b'0' is an image, and does not say"),
        (
            [datum_of(1, image(0), encoded=True), datum_of(1, b"x", channels=1, height=1, width=1)],
            "key b'1' is raw, those before it are encoded",
        ),
        (
            [datum_of(1, b"x", channels=1, height=1, width=1), datum_of(1, image(0), encoded=True)],
            "key b'1' is encoded, those before it are raw",
        ),
    ],
)
def test_wrong_and_mixed_encodings_are_refused(tmp_path: Path, values: list[bytes], message: str) -> None:
    write(tmp_path / "db", {b"%d" % i: value for i, value in enumerate(values)})
    with pytest.raises(SourceError, match=rf"data.mdb: byte [\d,]+: the Datum of {message}"):
        view_of(f"lmdb:{tmp_path}/db")


def test_keys_whose_images_would_have_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "db", {key: datum_of(1, image(0), encoded=True) for key in (b"a", b"a.jpg")})
    with pytest.raises(SourceError, match=r"key b'a' and key b'a.jpg' would both be b'1/a.jpg'"):
        view_of(f"lmdb:{tmp_path}/db")


def test_named_databases_are_directories(tmp_path: Path) -> None:
    write(tmp_path / "db", {b"plain": b"value", b"like one": bytes(48), b"in/side": b"slash"})
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 24, max_dbs=8) as environment:
        for name in (b"images", b"in", b"no\ntext"):
            database = environment.open_db(name)
            with environment.begin(write=True, db=database) as transaction:
                transaction.put(b"k/1", name)
        database = environment.open_db(b"datums")
        with environment.begin(write=True, db=database) as transaction:
            transaction.put(b"k", datum_of(4, image(4), encoded=True))
    assert view_of(f"lmdb:{tmp_path}/db") == {
        b"plain": b"value", b"like one": bytes(48), b"in%2Fside": b"slash",
        b"images/k/1": b"images", b"in/k/1": b"in", b"no%0Atext/k/1": b"no\ntext", b"datums/4/k.jpg": image(4),
    }  # fmt: skip


@pytest.mark.parametrize("fixed", [False, True])
def test_keys_of_several_values_are_directories_of_numbers(tmp_path: Path, fixed: bool) -> None:
    pairs = [(b"k/%d" % (i % 3), b"v%04d" % i) for i in range(1000)]
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 24, max_dbs=8) as environment:
        database = environment.open_db(b"many", dupsort=True, dupfixed=fixed)
        with environment.begin(write=True, db=database) as transaction:
            for key, value in pairs:
                transaction.put(key, value)
    expected = {}
    for key in {key for key, _ in pairs}:
        for n, value in enumerate(sorted(value for k, value in pairs if k == key)):
            expected[b"many/%s/%06d" % (key.replace(b"/", b"%2F"), n)] = value
    assert view_of(f"lmdb:{tmp_path}/db") == expected


def test_an_index_holds_until_something_is_written_or_asked_for_otherwise(tmp_path: Path) -> None:
    write(tmp_path / "db", {b"one": b"1"}, writemap=True)
    manifest = scan(LmdbSource(str(tmp_path / "db")))

    def difference(name: str) -> str:
        return LmdbSource(f"{tmp_path}/{name}").unchanged(manifest, Solo()) or ""

    assert difference("db") == ""
    assert "taken as auto" in difference("db?plain")
    write_unseen(tmp_path / "db")
    assert "transaction 2, not 1" in difference("db")


def test_many_small_values_are_read_by_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {b"%05d" % i: b"%d" % i * 600 for i in range(2000)}
    source = LmdbSource(str(write(tmp_path / "db", values)))
    manifest = scan(source)
    buffers = {key: bytearray(len(value)) for key, value in values.items()}
    requests = []
    preadv = os.preadv

    def counted(fd: int, parts: list[memoryview], at: int) -> int:
        requests.append(sum(map(len, parts)))
        return preadv(fd, parts, at)

    monkeypatch.setattr(os, "preadv", counted)
    pieces = [Piece(row_of(manifest, key), 0, memoryview(buffer)) for key, buffer in buffers.items()]
    assert source.read_pieces(manifest, pieces) == [None] * len(pieces)
    assert {key: bytes(buffer) for key, buffer in buffers.items()} == values
    assert len(requests) == 1
    assert requests[0] > 4 << 20
