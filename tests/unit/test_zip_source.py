"""What of a zip becomes files, and what is refused."""

from __future__ import annotations

import io
import random
import stat
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepiofs.dataset.sources import Packed, Piece, open_source
from deepiofs.dataset.sources.packs import inflating
from deepiofs.errors import CorruptRecordError, DeepiofsError, SourceError
from tests.contracts.sources import opened, read, row_of, scan
from tests.packs import contents, left_out, outcomes, scanned

DEFLATED, STORED = zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED


def written(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes], method: int = DEFLATED) -> str:
    """A zip of these; its name as a source."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return f"zip:{path}"


def linked(name: str, mode: int) -> zipfile.ZipInfo:
    """A member with a mode of Unix."""
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def spoil(path: Path, old: bytes, new: bytes, which: int = 0) -> None:
    """Put other bytes in place of some."""
    parts = path.read_bytes().split(old)
    path.write_bytes(old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :]))


def test_names_are_what_the_library_makes_of_them(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("plain", "日本/語", "./d//x", "/absolute"):
            archive.writestr(name, name)
    spoil(tmp_path / "a.zip", b"plain", b"pl\x82in")
    spoil(tmp_path / "a.zip", b"plain", b"pl\x82in", which=1)
    assert set(contents(f"zip:{tmp_path}/a.zip")) == {
        "pléin".encode(), "日本/語".encode(), b"d/x", b"absolute",
    }  # fmt: skip


def test_of_a_name_that_comes_twice_the_last_one_counts(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        name = written(tmp_path / "a.zip", ("a", b"one"), ("a", b"two"))
    assert contents(name) == {b"a": b"two"}


def test_many_zips_are_one_tree(tmp_path: Path) -> None:
    written(tmp_path / "a.zip", ("d/1", b"one"))
    written(tmp_path / "b.zip", ("d/2", b""), ("d/e/", b""), method=STORED)
    assert contents(f"zip:{tmp_path}") == {b"d/1": b"one", b"d/2": b""}
    assert contents(f"{tmp_path}/a.zip") == {b"d/1": b"one"}
    written(tmp_path / "c.zip", ("d/1", b"one"))
    with pytest.raises(SourceError, match=r"d/1 is in a\.zip and c\.zip"):
        contents(f"zip:{tmp_path}")


def test_as_info_zip_writes_it_with_links_and_times(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/text").write_bytes(b"text " * 1000)
    (folder / "link").symlink_to("sub")
    if subprocess.run(["which", "zip"], capture_output=True, check=False).returncode:
        pytest.skip("no zip")
    subprocess.run(["zip", "-qry", tmp_path / "a.zip", "."], cwd=folder, check=True)
    assert contents(f"zip:{tmp_path}/a.zip") == dict.fromkeys((b"sub/text", b"link/text"), b"text " * 1000)
    manifest = scanned(f"zip:{tmp_path}/a.zip")
    assert manifest.mtime_ns_of[row_of(manifest, b"sub/text")] == (
        int((folder / "sub/text").stat().st_mtime) * 1_000_000_000
    )


def test_links_and_what_is_no_file(tmp_path: Path) -> None:
    name = written(
        tmp_path / "a.zip", ("d/a", b"data"), (linked("link", stat.S_IFLNK | 0o777), b"d/a"),
        (linked("nowhere", stat.S_IFLNK | 0o777), b"x"), (linked("pipe", stat.S_IFIFO | 0o644), b""),
    )  # fmt: skip
    assert contents(name) == {b"d/a": b"data", b"link": b"data"}
    assert left_out(name) == {"special": 1, "dangling": 1}
    assert left_out(name, links="skip") == {"special": 1, "links": 2}


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    name = written(tmp_path / "a.zip", (zipfile.ZipInfo("a", (2020, 2, 3, 4, 5, 6)), b""))
    manifest = scanned(name)
    assert np.datetime64(manifest.mtime_ns_of[1], "ns") == np.datetime64("2020-02-03T04:05:06")


def test_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        zipfile.ZipFile(tmp_path / "a.zip", "w") as archive,
        archive.open("a", "w", force_zip64=True) as member,
    ):
        member.write(b"data")
    # As with more members than 16 bits count.
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    written(tmp_path / "b.zip", ("1", b"one"), ("2", b"two"), ("3", b""))
    assert b"PK\x06\x06" in (tmp_path / "b.zip").read_bytes()
    assert contents(f"zip:{tmp_path}/a.zip") == {b"a": b"data"}
    assert contents(f"zip:{tmp_path}/b.zip") == {b"1": b"one", b"2": b"two", b"3": b""}


def test_what_precedes_a_zip_does_not_matter(tmp_path: Path) -> None:
    written(tmp_path / "a.zip", ("a", b"data"))
    (tmp_path / "b.zip").write_bytes(b"#!/bin/sh\n" + (tmp_path / "a.zip").read_bytes())
    assert contents(f"zip:{tmp_path}/b.zip") == {b"a": b"data"}


@pytest.mark.parametrize("method", [STORED, DEFLATED])
def test_a_wrong_byte_is_that_members_error_alone(tmp_path: Path, method: int) -> None:
    random.seed(1)
    data = {f"{i}": random.randbytes(3000) for i in range(3)}
    name = written(tmp_path / "a.zip", *data.items(), method=method)
    at = (tmp_path / "a.zip").read_bytes().index(data["1"][1000:1100]) if method == STORED else 3000 + 1600
    with (tmp_path / "a.zip").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    found = outcomes(name)
    assert (found[b"0"], found[b"2"]) == (data["0"], data["2"])
    assert isinstance(found[b"1"], CorruptRecordError)
    assert str(found[b"1"]).startswith("a.zip: record at byte 3")
    source = open_source(name)
    manifest = scan(source)
    with opened(source, manifest, b"1") as one, pytest.raises(CorruptRecordError):
        read(one, 2990, 5)
    source.close()


@pytest.mark.parametrize(
    ("method", "text"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")], ids=["bzip2", "lzma"]
)
def test_other_methods_are_refused(tmp_path: Path, method: int, text: str) -> None:
    name = written(tmp_path / "a.zip", ("a", b"data" * 100), method=method)
    with pytest.raises(SourceError, match=rf"^a\.zip: byte 0: 'a': compressed by {text}; only stored and deflated"):
        contents(name)


def _directory_at(path: Path) -> int:
    return path.read_bytes().index(b"PK\x01\x02")


@pytest.mark.parametrize(
    ("at", "new", "text"),
    [
        (8, b"\1\0", "byte 0: 'a': encrypted"),
        (20, struct.pack("<L", 1 << 30), "byte 0: 'a': 1073741824 bytes that reach beyond byte"),
        (24, struct.pack("<L", 1 << 30), "byte 0: 'a': 1073741824 bytes cannot be in"),
        (42, struct.pack("<L", 7), "byte 7: 'a': no header of a member"),
        (42, struct.pack("<L", 1 << 30), "byte 1073741824: 'a': outside of the file"),
        (46, b"b", "byte 0: 'b': another name than in the directory"),
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path: Path, at: int, new: bytes, text: str) -> None:
    name = written(tmp_path / "a.zip", ("a", b"data" * 100))
    place = _directory_at(tmp_path / "a.zip") + at
    with (tmp_path / "a.zip").open("r+b") as file:
        file.seek(place)
        file.write(new)
    with pytest.raises(SourceError, match=rf"^a\.zip: {text}"):
        contents(name)


def test_what_leads_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'\.\./a': its name leads out"):
        contents(written(tmp_path / "a.zip", ("../a", b"")))


def test_what_is_no_zip_or_cut_short(tmp_path: Path) -> None:
    written(tmp_path / "a.zip", ("a", b"data"))
    for data in (b"", b"PK\x03\x04", b"x" * 1000, (tmp_path / "a.zip").read_bytes()[:-30]):
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(SourceError, match=rf"^a\.zip: byte {len(data)}: no end of a zip there"):
            contents(f"zip:{tmp_path}/a.zip")


def test_a_large_deflated_member_is_unpacked_little_more_than_once(tmp_path: Path) -> None:
    generator = random.Random(3)
    pieces = [generator.randbytes(500) for _ in range(64)]
    data = b"".join(generator.choices(pieces, k=60_000))
    name = written(tmp_path / "a.zip", ("a", data))
    source = open_source(name)
    assert isinstance(source, Packed)
    manifest = scan(source)
    row = row_of(manifest, b"a")
    places = list(range(0, len(data), 4 << 20))
    generator.shuffle(places)
    for at in places:
        piece = Piece(row, at, memoryview(bytearray(min(4 << 20, len(data) - at))))
        assert source.read_pieces(manifest, [piece]) == [None]
        assert piece.buffer == data[at : at + (4 << 20)]
    unpacked = source._members.inflated.get(row).unpacked_bytes  # type: ignore[attr-defined]
    # Once to check it, once to give it.
    assert unpacked <= 2 * len(data) + inflating._OUTPUT_BYTES
    source.close()


_GENERATOR = random.Random(4)
_DATA = {f"d{i % 2}/{i}": bytes(_GENERATOR.choices(b"abc", k=i * 90)) for i in range(10)}


def _valid() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", DEFLATED) as archive:
        for i, (name, data) in enumerate(_DATA.items()):
            archive.writestr(name, data, STORED if i % 2 else DEFLATED)
        archive.writestr(linked("link", stat.S_IFLNK | 0o777), "d0/4")
    return file.getvalue()


_VALID = _valid()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_done_to_a_zip_no_wrong_byte_is_read(tmp_path: Path, data: st.DataObject) -> None:
    spoilt = bytearray(_VALID)
    directory = _VALID.index(b"PK\x01\x02")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, len(_VALID) - 1), st.integers(directory, len(_VALID) - 1)))
        new = data.draw(st.binary(min_size=1, max_size=8))
        match data.draw(st.sampled_from(["over", "over", "insert", "cut", "end"])):
            case "over":
                spoilt[at : at + len(new)] = new
            case "insert":
                spoilt[at:at] = new
            case "cut":
                del spoilt[at : at + len(new)]
            case "end":
                del spoilt[at:]
    (tmp_path / "a.zip").write_bytes(spoilt)
    try:
        found = outcomes(f"zip:{tmp_path}/a.zip")
    except (DeepiofsError, OSError):
        return
    sums = {(len(one), zlib.crc32(one)) for one in (*_DATA.values(), b"d0/4")}
    for said in found.values():
        if isinstance(said, bytes):
            # A CRC of the directory that was overwritten may be right for no bytes but these.
            assert (len(said), zlib.crc32(said)) in sums or zlib.crc32(said).to_bytes(4, "little") in bytes(spoilt)
