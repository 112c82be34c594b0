"""Mounts of tar, TFRecord and zip: records by name, shuffled, in streams; what is damaged, and only that, fails."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.lab import Lab
from tests.launchers import one_mpi
from tests.mounts import DEEPIOFS, HERE, Journal, ending
from tests.packs import KINDS, Dataset, dataset, framed

pytestmark = pytest.mark.mounted


def by_the_library(made: Dataset) -> dict[bytes, bytes]:
    """What tarfile and zipfile find in the containers; of TFRecords what was put into them."""
    found = dict(made.files) if "tfrecord" in made.name else {}
    for path in made.folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            found |= {member.name.encode(): tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    for path in made.folder.glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            found |= {name.encode(): archive.read(name) for name in archive.namelist()}
    return found


def below(root: Path) -> dict[bytes, bytes]:
    """All files of a tree."""
    top = os.fsencode(root)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
    return {os.path.relpath(path, top): Path(os.fsdecode(path)).read_bytes() for path in paths}


@pytest.mark.parametrize("kind", KINDS)
def test_records_by_name_and_in_streams(mount: MountFactory, tmp_path: Path, kind: str) -> None:
    made = dataset(kind, tmp_path / "data")
    expected = by_the_library(made)
    view = mount(Path(made.name))
    assert below(view.point) == expected
    assert below(view.point / ".deepiofs/exact") == expected
    served = view.stats()["served"]
    assert (served["source"], served["local"] > 0) == (0, True)
    stream = (view.point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert {member.name.encode(): tar.extractfile(member).read() for member in tar} == expected  # type: ignore[union-attr]
    checked = HERE.deepiofs("check", str(view.point))
    assert checked.returncode == 0, checked


@pytest.mark.parametrize("kind", ["tar", "gzip"])
def test_without_memory_records_come_from_the_containers(mount: MountFactory, tmp_path: Path, kind: str) -> None:
    made = dataset(kind, tmp_path / "data")
    view = mount(Path(made.name), "cache=0", "shuffle=re:^([^/]*)/", "entropy=0.5")
    read = Counter((path.partition(b"/")[0], data) for path, data in below(view.point).items())
    assert read == Counter((path.partition(b"/")[0], data) for path, data in made.files.items())


@one_mpi()
@pytest.mark.mpi
@pytest.mark.lab
@pytest.mark.parametrize("kind", ["tar", "tfrecord", "zip"])
def test_both_hosts_see_each_record(mpi_mount: MpiMountFactory, lab: Lab, tmp_path: Path, kind: str) -> None:
    made = dataset(kind, tmp_path / "data")
    mounted = mpi_mount(2, Path(made.name), lab=lab)
    program = (
        "import hashlib, json, os, sys; os.chdir(sys.argv[1]); print(json.dumps({os.path.join(d, n)[2:]: "
        "hashlib.md5(open(os.path.join(d, n), 'rb').read()).hexdigest() for d, _, ns in os.walk('.') for n in ns}))"
    )
    expected = {path.decode(): hashlib.md5(data).hexdigest() for path, data in made.files.items()}
    for rank, place in enumerate(mounted.places):
        assert json.loads(place.output(sys.executable, "-c", program, str(mounted.mountpoints[rank]))) == expected
        said = mounted.stats(rank)["served"]
        assert said["source"] == 0
        assert min(said["local"], said["peer"]) > 20


def test_a_record_with_a_wrong_crc_is_an_io_error_and_no_other(
    mount: MountFactory, tmp_path: Path, journal: Journal
) -> None:
    data = bytearray(b"".join(map(framed, (b"zero", b"one", b"two"))))
    data[data.index(b"one")] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    journal.expect(r"a\.tfrecord: record at byte 32: its CRC differs")
    view = mount(Path(f"tfrecord:{tmp_path}/a.tfrecord"))
    folder = view.point / "a.tfrecord"
    assert [(folder / f"00000{i}.rec").read_bytes() for i in (0, 2)] == [b"zero", b"two"]
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as error:
            (folder / "000001.rec").read_bytes()
        assert error.value.errno == errno.EIO
    assert view.stats()["state"] == "warm"


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.tar", b"x" * 2000, "a.tar: byte 0: not a tar header"),
        ("a.tfrecord", framed(b"1") + b"x" * 20, "a.tfrecord: byte 17: not the header of a record"),
        ("a.zip", b"PK\x03\x04", "a.zip: byte 4: no end of a zip there"),
        ("a.what", b"?", "neither a directory nor a container of a known kind"),
    ],
)
def test_what_cannot_be_indexed_is_one_line_and_exit_code_3(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "mnt").mkdir()
    done = HERE.deepiofs("mount", str(tmp_path / name), str(tmp_path / "mnt"), "-o", "cache=16M,staging=16M")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done
    assert text in done.stderr


def test_an_index_file_holds_until_a_container_changes(mount: MountFactory, tmp_path: Path, journal: Journal) -> None:
    made = dataset("zip", tmp_path / "data")
    index = f"index={tmp_path}/index"
    with ending(HERE.start([DEEPIOFS, "index", made.name, "-o", index])) as process:
        assert process.wait(60) == 0
    before = (tmp_path / "index").stat().st_mtime_ns
    view = mount(Path(made.name), index)
    assert below(view.point) == made.files
    view.umount()
    assert (tmp_path / "index").stat().st_mtime_ns == before
    with zipfile.ZipFile(made.folder / "0.zip", "a") as archive:
        archive.writestr("more", b"more")
    journal.expect(r"0\.zip: changed since; it is built anew")
    (tmp_path / "again").mkdir()
    assert (mount(Path(made.name), index, at=tmp_path / "again").point / "more").read_bytes() == b"more"
