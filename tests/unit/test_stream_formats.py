"""Frames of members: lengths are known before anything is made, and other programs read what is made."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.tfrecords import load_crc
from deepiofs.fs.streams.tar import Tar, path_lengths
from deepiofs.fs.tree import Tree
from deepiofs.options import Settings
from tests.unit.jobs import Dataset
from tests.unit.streams import crc32c, with_columns

_NAMES = st.lists(
    st.one_of(st.sampled_from([1, 40, 99, 100, 101, 200, 255]), st.integers(1, 255)).flatmap(
        lambda n: st.sampled_from([b"a" * n, "é".encode() * (n // 2) or b"b", b"\xff" * n])
    ),
    min_size=1,
    max_size=3,
)
_SECOND = 1_000_000_000


def _manifest(*paths: bytes) -> Manifest:
    return Dataset(dict.fromkeys(paths, b"")).manifest


def _parsed(head: bytes) -> tarfile.TarInfo:
    """The one member that header blocks stand for."""
    with tarfile.open(fileobj=io.BytesIO(head + bytes(1024))) as archive:
        (member,) = archive.getmembers()
        return member


def _tar(manifest: Manifest, settings: Settings | None = None) -> Tar:
    return Tar(Tree(manifest, settings or Settings(), lambda row: False))


@given(_NAMES)
def test_any_path_is_read_back_and_its_header_has_the_length_foretold(names: list[bytes]) -> None:
    path = b"/".join(names)
    manifest = _manifest(path)
    row = manifest.find(path)
    assert row is not None
    head = _tar(manifest).head(row)
    assert _tar(manifest).head_lengths(np.array([row], np.uint32)).tolist() == [len(head)]
    assert path_lengths(manifest, np.array([row], np.uint32)).tolist() == [len(path)]
    assert _parsed(head).name.encode("utf-8", "surrogateescape") == path


@given(
    st.booleans(),
    st.sampled_from([0, 1000, 8**7 - 1, 8**7, 2**32 - 2]),
    st.sampled_from([0, 8**7 - 1, 8**7, 2**32 - 2]),
    st.sampled_from([0, 1, -1, -1_000_000, 1_700_000_000, 8**11 - 1]),
    st.sampled_from([0, 8**11 - 1, 8**11, 10**15]),
)
def test_numbers_of_any_size_are_read_back(long: bool, uid: int, gid: int, mtime: int, size: int) -> None:
    path = b"d/" + b"x" * (180 if long else 3)
    plain = _manifest(path)
    ones = np.ones(plain.n_rows)
    facts = {"uid": uid * ones, "gid": gid * ones, "size": [0, 0, size]}
    manifest = with_columns(plain, mtime_ns=np.full(plain.n_rows, min(mtime * _SECOND, 2**63 - 1)), **facts)
    row = manifest.find(path)
    assert row is not None
    head = _tar(manifest).head(row)
    assert _tar(manifest).head_lengths(np.array([row], np.uint32)).tolist() == [len(head)]
    found = tarfile.TarFile.tarinfo
    with tarfile.open(fileobj=io.BytesIO(head)) as archive:
        found = archive.next()
    assert found is not None
    assert (found.uid, found.gid, found.size) == (uid, gid, size)
    assert found.mtime == min(mtime * _SECOND, 2**63 - 1) // _SECOND
    assert found.name == path.decode()


def test_mode_and_owner_are_those_of_the_view() -> None:
    manifest = with_columns(_manifest(b"a.txt"), mode=[0o040755, 0o104640], uid=[1, 2], gid=[3, 4])
    plain = _parsed(_tar(manifest).head(1))
    assert (plain.mode, plain.uid, plain.gid, plain.isreg()) == (0o4640, 2, 4, True)
    changed = _parsed(_tar(manifest, Settings(uid=7, gid=8, umask=0o027)).head(1))
    assert (changed.mode, changed.uid, changed.gid) == (0o750, 7, 8)


def test_a_header_is_what_tarfile_writes_where_it_says_the_same() -> None:
    manifest = with_columns(_manifest(b"some/path.jpg"), mtime_ns=[0, 0, 1_700_000_000 * _SECOND])
    ours = _tar(manifest).head(2)
    theirs = _parsed(ours).tobuf(tarfile.PAX_FORMAT)
    # Python leaves the numbers of a device empty where there is none; both are allowed.
    device, checksum = slice(329, 345), slice(148, 156)
    for place in (device, checksum):
        ours = ours[: place.start] + bytes(place.stop - place.start) + ours[place.stop :]
        theirs = theirs[: place.start] + bytes(place.stop - place.start) + theirs[place.stop :]
    assert ours == theirs


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(32), b"\xff" * 32])
def test_the_library_computes_the_crc_that_is_meant(data: bytes) -> None:
    crc = load_crc()
    assert crc(data, 0) == crc32c(data)
    assert crc(memoryview(data)[3:], crc(data[:3], 0)) == crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4
