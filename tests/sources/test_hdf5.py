"""Mounts of HDF5 files: rows by name, shuffled, in streams; h5py itself over the mount of their directory."""

from __future__ import annotations

import errno
import io
import os
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.lab import Lab
from tests.launchers import one_mpi
from tests.mounts import HERE, Journal, mounted, no_process_left
from tests.sources.trees import below, by_directory, digests, digests_below

h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.mounted

ONLY = "shuffle_only=features/**"


def write(path: Path) -> None:
    """Contiguous images and labels, and compressed features."""
    rng = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        file["train/images"] = rng.integers(0, 256, (60, 8, 9, 3), np.uint8)
        file["train/labels"] = rng.integers(0, 1000, 60).astype(">i4")
        features = rng.random((90, 50))
        file.create_dataset("features", data=features, chunks=(7, 20), compression="gzip", fletcher32=True)
        file.create_dataset(
            "large", data=rng.integers(0, 9, (2, 3_000_001), np.int16), chunks=(1, 1 << 19), shuffle=True
        )


def by_the_library(path: Path, prefix: str = "") -> dict[bytes, bytes]:
    """What h5py and numpy make of a file."""
    found: dict[bytes, bytes] = {}

    def take(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            rows = thing[:]
            for i in range(len(rows)):
                file = io.BytesIO()
                np.save(file, rows[i, ...])
                found[f"{prefix}{name}/{i:06d}.npy".encode()] = file.getvalue()

    with h5py.File(path) as file:
        file.visititems(take)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of that kind."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data/file.h5")
    return tmp_path / "data/file.h5"


def test_rows_by_name_and_in_streams(mount: MountFactory, data: Path) -> None:
    expected = by_the_library(data)
    view = mount(data)
    assert below(view.point) == expected
    assert below(view.point / ".deepiofs/exact") == expected
    served = view.stats()["served"]
    assert (served["source"], served["local"] > 0) == (0, True)
    stream = (view.point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert {member.name.encode(): tar.extractfile(member).read() for member in tar} == expected  # type: ignore[union-attr]
    checked = HERE.deepiofs("check", str(view.point))
    assert checked.returncode == 0, checked
    with h5py.File(data) as file:
        assert np.array_equal(np.load(view.point / "train/images/000007.npy"), file["train/images"][7])
        assert np.load(view.point / "train/labels/000007.npy", mmap_mode=None) == file["train/labels"][7]


def test_the_directory_has_a_directory_for_each_file(mount: MountFactory, data: Path) -> None:
    write(data.parent / "other.h5")
    view = mount(Path(f"hdf5:{data.parent}"))
    expected = {**by_the_library(data, "file.h5/"), **by_the_library(data.parent / "other.h5", "other.h5/")}
    assert below(view.point) == expected


@pytest.mark.parametrize("options", [("shuffle=all", ONLY), ("shuffle=dir", ONLY), ("shuffle=re:^([^/]*)/",)], ids=str)
def test_in_a_pass_each_row_is_served_once(mount: MountFactory, data: Path, options: tuple[str, ...]) -> None:
    expected = by_the_library(data)
    view = mount(data, *options)
    assert below(view.point / ".deepiofs/exact") == expected
    read = below(view.point)
    assert Counter(read.values()) == Counter(expected.values())
    assert read != expected
    if ONLY in options:
        assert by_directory(read) == by_directory(expected)


def test_images_and_their_labels_are_not_shuffled_apart(tmp_path: Path, data: Path) -> None:
    (tmp_path / "mnt").mkdir()
    done = HERE.deepiofs("mount", str(data), str(tmp_path / "mnt"), "-o", "cache=16M,staging=16M,shuffle=dir")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert "two halves of the same samples" in done.stderr


def test_without_memory_rows_come_from_the_file(mount: MountFactory, data: Path) -> None:
    assert below(mount(data, "cache=0").point) == by_the_library(data)


def test_no_process_is_left(tmp_path: Path, data: Path, journal: Journal) -> None:
    (tmp_path / "mnt").mkdir()
    with no_process_left() as mark:
        place = type(HERE)(environment=mark)
        with mounted(data, tmp_path / "mnt", "cache=0", journal.option(), place=place) as view:
            assert (view.point / "features/000001.npy").stat().st_size > 400
            assert np.load(view.point / "features/000001.npy").shape == (50,)


def test_of_a_damaged_chunk_only_the_rows_fail(mount: MountFactory, data: Path, journal: Journal) -> None:
    expected = by_the_library(data)
    with h5py.File(data) as file:
        at = file["features"].id.get_chunk_info(4).byte_offset + 30
        first = file["features"].id.get_chunk_info(4).chunk_offset[0]
    content = bytearray(data.read_bytes())
    content[at] ^= 0xFF
    data.write_bytes(content)
    bad = {f"features/{i:06d}.npy".encode() for i in range(first, first + 7)}
    for path in bad:
        journal.allow(path.decode())
    journal.expect(r"features/\d+\.npy: .*file\.h5: ")
    view = mount(data)
    for path, right in expected.items():
        if path in bad:
            with pytest.raises(OSError, match="Input/output error") as error:
                (view.point / os.fsdecode(path)).read_bytes()
            assert error.value.errno == errno.EIO
        else:
            assert (view.point / os.fsdecode(path)).read_bytes() == right


def test_a_file_that_cannot_be_indexed_is_one_line_and_exit_code_3(tmp_path: Path, data: Path) -> None:
    os.truncate(data, 3000)
    (tmp_path / "mnt").mkdir()
    done = HERE.deepiofs("mount", str(data), str(tmp_path / "mnt"), "-o", "cache=16M,staging=16M")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done
    assert "file.h5: " in done.stderr
    assert "truncated file" in done.stderr


_READ = """
import sys, h5py, hashlib
with h5py.File(sys.argv[1]) as file:
    for name in ("train/images", "train/labels", "features", "large"):
        print(hashlib.md5(file[name][:].tobytes()).hexdigest())
"""


@pytest.mark.parametrize("locking", [None, "TRUE", "FALSE", "BEST_EFFORT"])
def test_the_library_over_the_mount_of_the_directory(mount: MountFactory, data: Path, locking: str | None) -> None:
    view = mount(data.parent)
    environment = [f"HDF5_USE_FILE_LOCKING={locking}"] if locking else ["-u", "HDF5_USE_FILE_LOCKING"]
    direct, mounted = (
        HERE.output("env", *environment, sys.executable, "-c", _READ, str(path))
        for path in (data, view.point / data.name)
    )
    assert direct == mounted
    assert len(direct.split()) == 4


@one_mpi()
@pytest.mark.mpi
@pytest.mark.lab
def test_both_hosts_see_each_row(mpi_mount: MpiMountFactory, lab: Lab, data: Path) -> None:
    both = mpi_mount(2, data, "shuffle=dir", ONLY, lab=lab)
    expected = digests(by_the_library(data))
    for rank, place in enumerate(both.places):
        assert digests_below(both.mountpoints[rank] / ".deepiofs/exact", place) == expected
        said = both.stats(rank)["served"]
        assert said["source"] < 20  # parts of the large rows, which are wanted before they are here
        assert min(said["local"], said["peer"]) > 20
