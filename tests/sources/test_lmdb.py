"""Mounts of LMDBs: names and bytes are what the library gives, shuffled, streamed and exact, on one host and on two."""

from __future__ import annotations

import collections
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.contracts.test_lmdb_source import write_unseen
from tests.lab import Lab
from tests.launchers import one_mpi
from tests.mounts import Journal, ending
from tests.sources.lmdbs import encoded, image, write

pytestmark = pytest.mark.mounted

_COUNT, _LABELS = 90, 3
# Reads all files below a directory; prints a digest of each, and its path.
_READ = """
import os, sys, hashlib
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            print(hashlib.sha256(file.read()).hexdigest(), os.path.relpath(path, sys.argv[1]))
"""


def images(count: int = _COUNT) -> dict[str, bytes]:
    """What the view of `encoded` has."""
    return {f"{i % _LABELS}/{i:08}_class{i % _LABELS}%2Fimg{i}.JPEG": image(i) for i in range(count)}


def files_of(root: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of Caffe's encoded Datums."""
    return f"lmdb:{write(tmp_path_factory.mktemp('lmdb') / 'db', encoded(_COUNT, _LABELS))}"


def test_all_views_have_the_bytes_of_the_library(mount: MountFactory, dataset: str) -> None:
    mounted = mount(dataset)
    assert files_of(mounted.point) == images()
    assert files_of(mounted.point / ".deepiofs/exact") == images()
    with tarfile.open(mounted.point / ".deepiofs/stream/tar/epoch-1/0-of-1.tar") as tar:
        streamed = {member.name: tar.extractfile(member) for member in tar}
        assert {name: file.read() for name, file in streamed.items() if file} == images()
    assert mounted.stats()["served"]["source"] == 0


@pytest.mark.parametrize("shuffle", ["all", "dir", r"re:^(\d)/"])
def test_a_shuffled_pass_serves_each_record_once(mount: MountFactory, dataset: str, shuffle: str) -> None:
    mounted = mount(dataset, f"shuffle={shuffle}")
    for _ in range(2):
        read = {name: (mounted.point / name).read_bytes() for name in images()}
        assert collections.Counter(read.values()) == collections.Counter(images().values())
        assert read != images()
        if shuffle != "all":
            for label in map(str, range(_LABELS)):
                assert {read[name] for name in read if name[0] == label} == {
                    data for name, data in images().items() if name[0] == label
                }
    assert files_of(mounted.point / ".deepiofs/exact") == images()


def test_plain_values_of_all_sizes_are_read_with_and_without_memory(mount: MountFactory, tmp_path: Path) -> None:
    values = {b"%02d/%d" % (n % 5, n): bytes((n % 251,)) * n for n in (0, 1, 2000, 2100, 4080, 5000, 70_000, 9 << 20)}
    values |= {b"key %\n": b"escaped"}
    write(tmp_path / "db", values)
    expected = {key.decode(): data for key, data in values.items() if key != b"key %\n"} | {"key %25%0A": b"escaped"}
    for options in (("cache=64M",), ("cache=0",)):
        assert files_of(mount(f"lmdb:{tmp_path}/db", *options).point) == expected


def test_what_was_written_to_is_not_read(mount: MountFactory, tmp_path: Path, journal: Journal) -> None:
    write(tmp_path / "db", {b"one": b"1", b"other": b"o" * 5000}, writemap=True)
    mounted = mount(f"lmdb:{tmp_path}/db", "warm=demand", until="mounted")
    assert (mounted.point / "one").read_bytes() == b"1"
    write_unseen(tmp_path / "db")
    journal.expect("data.mdb: changed in the source since it was indexed .transaction 2, not 1")
    journal.allow("other")
    with pytest.raises(OSError, match="Input/output error"):
        (mounted.point / "other").read_bytes()
    assert (mounted.point / "one").read_bytes() == b"1"


def test_an_index_file_is_used_again(mount: MountFactory, dataset: str, tmp_path: Path) -> None:
    option = f"index={tmp_path}/index"
    assert files_of(mount(dataset, option).point) == images()
    written = (tmp_path / "index").stat().st_mtime_ns
    assert files_of(mount(dataset, option).point) == images()
    assert (tmp_path / "index").stat().st_mtime_ns == written


@pytest.mark.mpi
@pytest.mark.lab
@one_mpi()
def test_two_hosts_of_two_ranks_share_what_each_read_once(
    mpi_mount: MpiMountFactory, lab: Lab, dataset: str, tmp_path: Path
) -> None:
    mounted = mpi_mount(4, dataset, "cache=8M", "staging=8M", lab=lab)
    expected = {name: digest(data) for name, data in images().items()}
    readers = [
        place.start([sys.executable, "-c", _READ, str(point)], stdout=subprocess.PIPE)
        for place, point in zip(mounted.places, mounted.mountpoints, strict=True)
    ]
    for reader in readers:
        with ending(reader):
            lines = reader.communicate(timeout=120)[0].splitlines()
            assert {line.partition(" ")[2]: line.partition(" ")[0] for line in lines} == expected
    stats = [mounted.stats(rank) for rank in range(4)]
    total = sum(map(len, images().values()))
    assert sum(said["source_bytes"] for said in stats) == total
    assert all(said["served"][origin] > 0 for said in stats for origin in ("local", "node", "peer"))
    assert all(said["served"]["source"] == 0 for said in stats)


def digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
