"""Streams of tar through real mounts: what the usual programs make of them, and that nothing is lost or repeated."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.launchers import installed_launchers, mpis_in_turn
from tests.streams.conftest import STREAM, parts, quiet

pytestmark = [pytest.mark.mounted]


Extract = Callable[[Path, Path], list[str]]


def _same_trees(source: Path, extracted: Path) -> None:
    assert quiet("diff", "-r", str(source), str(extracted)) == ""


def _by_program(tool: str) -> Extract:
    def extract(part: Path, into: Path) -> list[str]:
        quiet(tool, "-xf", str(part), "-C", str(into))
        return quiet(tool, "-tf", str(part)).splitlines()

    return extract


def _by_tarfile(part: Path, into: Path) -> list[str]:
    with tarfile.open(part) as archive:
        archive.extractall(into, filter="fully_trusted")
        return archive.getnames()


_EXTRACTS = {
    "tarfile": _by_tarfile,
    **{tool: _by_program(tool) for tool in ("tar", "bsdtar") if shutil.which(tool) is not None},
}


@pytest.mark.parametrize("tool", ["tar", "bsdtar", "tarfile"])
def test_every_part_is_listed_and_extracted_without_complaint(
    mount: MountFactory, varied: Path, tmp_path: Path, tool: str
) -> None:
    if tool not in _EXTRACTS:
        pytest.skip(f"{tool} is not installed")
    view = mount(varied)
    for count in (1, 3, 8):
        extracted = tmp_path / f"extracted{count}"
        extracted.mkdir()
        for part in parts([view.point], "tar", count, count):
            assert _EXTRACTS[tool](part, extracted)
        _same_trees(varied, extracted)
        for path in varied.rglob("*.jpg"):
            mine = (extracted / path.relative_to(varied)).stat()
            assert (mine.st_mode, int(mine.st_mtime)) == (path.stat().st_mode, int(path.stat().st_mtime))


def test_tarfile_reads_a_part_as_a_pipe(mount: MountFactory, varied: Path) -> None:
    view = mount(varied)
    for part in parts([view.point], "tar", 0, 2):
        with tarfile.open(part, "r|") as archive:
            assert sum(member.size for member in archive) > 0


@pytest.mark.mpi
@mpis_in_turn("ranks", [2, 3, 4])
def test_parts_of_all_ranks_together_are_the_source(
    mpi_mount: MpiMountFactory, varied: Path, tmp_path: Path, ranks: int
) -> None:
    mounted = mpi_mount(ranks, varied, "entropy=1")
    for count, (tool, extract) in itertools.product((1, 3, 8), _EXTRACTS.items()):
        extracted = tmp_path / f"{tool}{count}"
        extracted.mkdir()
        listed: list[str] = []
        for part in parts(mounted.mountpoints, "tar", 7, count):
            listed += extract(part, extracted)
        if tool == "tarfile":  # the others' lists quote names in ways of their own
            assert len(listed) == len(set(listed))
        _same_trees(varied, extracted)


def test_members_of_a_sample_are_adjacent_in_the_order_of_their_suffixes(mount: MountFactory, varied: Path) -> None:
    view = mount(varied)
    with tarfile.open(parts([view.point], "tar", 0, 1)[0]) as archive:
        names = archive.getnames()
    stems = [os.path.join(os.path.dirname(name), os.path.basename(name).split(".")[0]) for name in names]
    changes = sum(a != b for a, b in itertools.pairwise(stems))
    assert changes == len(set(stems)) - 1
    at = names.index("class2/00002.jpg")
    assert names[at : at + 3] == ["class2/00002.jpg", "class2/00002.json", "class2/00002.seg.png"]


def test_a_read_from_the_middle_is_that_from_the_start(mount: MountFactory, varied: Path) -> None:
    view = mount(varied, "staging=8M", "cache=4M")
    for form in ("tar", "tfrecord", "list"):
        path = parts([view.point], form, 1, 1)[0]
        whole = path.read_bytes()
        assert len(whole) == path.stat().st_size
        generator = random.Random(1)
        with path.open("rb", buffering=0) as file:
            for _ in range(200):
                at, size = generator.randrange(len(whole)), generator.randrange(1, 70_000)
                assert os.pread(file.fileno(), size, at) == whole[at : at + size]
        command = ["dd", f"if={path}", "bs=4096", "skip=100", "iflag=direct", "status=none"]
        if form != "list":
            assert subprocess.run(command, capture_output=True, check=True).stdout == whole[409_600:]


def _digests(view_point: Path, number: int) -> list[str]:
    return [
        hashlib.md5(p.read_bytes()).hexdigest() for f in ("tar", "tfrecord") for p in parts([view_point], f, number, 2)
    ]


def test_two_runs_are_alike_to_the_byte_and_passes_and_seeds_differ(mount: MountFactory, varied: Path) -> None:
    found = []
    for seed in (1, 1, 2):
        view = mount(varied, f"seed={seed}", "batch=16")
        found.append([_digests(view.point, number) for number in (4, 5)])
        view.umount()
    assert found[0] == found[1]
    flat = [digest for digests in (*found[0], *found[2]) for digest in digests]
    assert len(set(flat)) == len(flat)


def test_streams_are_the_same_with_any_shuffle(mount: MountFactory, varied: Path) -> None:
    orders = []
    for shuffle in ("off", "all", "dir"):
        view = mount(varied, f"shuffle={shuffle}", "shuffle_only=class*/**")
        orders.append(parts([view.point], "list", 2, 1)[0].read_bytes())
        view.umount()
    assert set(orders[0].splitlines()) == {
        os.fsencode(p.relative_to(varied)) for p in varied.glob("class*/*") if p.is_file()
    }
    assert orders[0] == orders[1]
    # With `dir` other ranks may own other samples; on one rank the order is the same set.
    assert sorted(orders[2].splitlines()) == sorted(orders[0].splitlines())


def test_the_tree_of_streams(mount: MountFactory, varied: Path) -> None:
    view = mount(varied)
    root = view.point / STREAM
    assert "stream" in os.listdir(view.point / ".deepiofs")
    assert sorted(os.listdir(root)) == ["list", "tar", "tfrecord"]
    assert os.listdir(root / "tar") == ["epoch-0", "epoch-1", "epoch-2"]
    shown = os.listdir(root / "tar/epoch-0")
    assert {"0-of-1.tar", "1-of-2.tar", "7-of-8.tar"} <= set(shown)
    assert (root / "tar/epoch-2147483647/99-of-100.tar").is_file()
    assert (root / "list/epoch-0/4-of-5.txt").stat().st_size > 0
    for name in ("epoch-2147483648", "epoch-01", "epoch--1", "epoch-x", "tar"):
        assert not (root / "tar" / name).exists(), name
    for name in ("1-of-1.tar", "0-of-0.tar", "0-of-1.txt", "0-of-1", "00-of-1.tar", "0-of-1048577.tar"):
        assert not (root / "tar/epoch-0" / name).exists(), name
    assert not (root / "zip").exists()
    stat = (root / "tar/epoch-0/0-of-1.tar").stat()
    assert stat.st_mode & 0o777 == 0o444
    with pytest.raises(OSError, match="Read-only"):
        (root / "tar/epoch-0/0-of-1.tar").open("r+b")
    with pytest.raises(OSError, match="Read-only"):
        (root / "tar/epoch-0/new.tar").write_bytes(b"")


def test_a_stream_may_be_read_by_those_only_who_may_read_all_of_it(mount: MountFactory, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    source.chmod(0o755)
    (source / "open").write_bytes(b"1")
    (source / "closed").write_bytes(b"2")
    (source / "closed").chmod(0o600)
    path = f"{STREAM}/tar/epoch-0/0-of-1.tar"
    assert (mount(source).point / path).stat().st_mode & 0o777 == 0o400
    assert (mount(source, "umask=022").point / path).stat().st_mode & 0o777 == 0o444


def test_a_dataset_without_files_has_empty_streams(mount: MountFactory, tmp_path: Path) -> None:
    (tmp_path / "source/empty").mkdir(parents=True)
    view = mount(tmp_path / "source")
    with tarfile.open(parts([view.point], "tar", 0, 3)[2]) as archive:
        assert archive.getmembers() == []
    assert parts([view.point], "list", 0, 1)[0].read_bytes() == b""


@pytest.mark.mpi
@pytest.mark.skipif(not installed_launchers(), reason="no MPI is installed")
@mpis_in_turn("even,batch", [("drop", 16), ("pad", 0)])
def test_even_parts_have_as_many_samples_on_all_ranks(
    mpi_mount: MpiMountFactory, tmp_path: Path, even: str, batch: int
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = [f"{i:03}.txt" for i in range(101)]
    for name in names:
        (source / name).write_text(name)
    mounted = mpi_mount(3, source, f"even={even}", f"batch={batch}")
    for count in (1, 4):
        lists = [part.read_text().splitlines() for part in parts(mounted.mountpoints, "list", 1, count)]
        size = 33 // count if even == "drop" else -(-34 // count)
        assert [len(names) for names in lists] == [size] * (3 * count)
        served = [name for names in lists for name in names]
        if even == "drop":
            assert len(set(served)) == len(served)
        else:
            assert sorted(set(served)) == names


def test_stats_show_the_open_streams(mount: MountFactory, varied: Path) -> None:
    view = mount(varied, "batch=16")
    name = "tar/epoch-0/0-of-2.tar"
    assert view.stats()["stream_position"] == {}
    with (view.point / STREAM / name).open("rb", buffering=0) as file:
        file.read(100)
        stats = view.stats()
        assert stats["stream_position"][name] >= 100
        assert stats["stream_batch_entropy"] == {name: 1.0}
        assert stats["stream_peer_share"] == {name: 0.0}
        assert stats["stream_entropy"] == {name: 1.0}
        assert f'deepiofs_stream_position{{stream="{name}"}}' in view.control("metrics")
    assert view.stats()["stream_position"] == {}


def test_opens_with_a_batch_are_drawn_in_the_order_of_the_streams(mount: MountFactory, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = [f"{i:03}.txt" for i in range(100)]
    for name in names:
        (source / name).write_text(name)
    view = mount(source, "shuffle=all", "batch=16")
    drawn = [(view.point / name).read_text() for name in names]
    assert drawn == parts([view.point], "list", 0, 1)[0].read_text().splitlines()
    stats = view.stats()
    assert (stats["entropy"]["planned"], stats["entropy"]["batch"]) == (1.0, 1.0)
