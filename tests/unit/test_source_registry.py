"""Which source a name means."""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepiofs.dataset.sources import absolute_name, open_source
from deepiofs.dataset.sources.directory import DirectorySource
from deepiofs.dataset.sources.packs.tar import TarSource
from deepiofs.dataset.sources.packs.zip import ZipSource
from deepiofs.dataset.sources.registry import split
from deepiofs.errors import EnvironmentFault, SourceError
from tests.mounts import HERE, Place, mounted
from tests.packs import contents, framed, tar_member

_DOCS = Path(__file__).parents[2] / "docs/SOURCES.md"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/data/a:b", (None, "/data/a:b")),
        ("a:b", (None, "a:b")),
        ("tar:a:b", ("tar", "a:b")),
        ("TAR:/a", ("tar", "/a")),
        ("dir:tar:a", ("dir", "tar:a")),
        ("tar:s3://bucket/a.tar", ("tar", "s3://bucket/a.tar")),
        ("s3://bucket/a", ("s3", "s3://bucket/a")),
        ("zip::s3://bucket/a.zip", ("zip", "zip::s3://bucket/a.zip")),
    ],
)
def test_a_colon_makes_a_scheme_only_if_there_is_such_a_kind(name: str, expected: tuple[str | None, str]) -> None:
    assert split(name) == expected


def test_names_become_absolute_and_urls_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_name("a:b") == f"{tmp_path}/a:b"
    assert absolute_name("tar:x/../a-{1..3}.tar") == f"tar:{tmp_path}/a-{{1..3}}.tar"
    assert absolute_name("tar:s3://bucket/a.tar") == "tar:s3://bucket/a.tar"
    assert absolute_name("s3://bucket/a") == "s3://bucket/a"


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "odd:name").mkdir()
    assert isinstance(open_source(f"{tmp_path}/odd:name"), DirectorySource)


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "without suffix", "w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    (tmp_path / "empty.tar").write_bytes(bytes(10_240))
    (tmp_path / "a zip").write_bytes(b"PK\x05\x06" + bytes(18))
    for name, kind in (("without suffix", TarSource), ("empty.tar", TarSource), ("a zip", ZipSource)):
        assert isinstance(open_source(str(tmp_path / name)), kind)


@pytest.mark.parametrize("data", [b"", b"some text", b"\x89PNG\r\n\x1a\n" + bytes(600)])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(SourceError, match=r"neither a directory nor a container of a known kind; say which \(.*tar:"):
        open_source(str(tmp_path / "file"))


def test_a_scheme_that_there_is_not_is_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"what:/a: no such directory"):
        open_source("what:/a")


def test_a_missing_library_is_exit_code_4_and_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text("raise ImportError('not here')")
    (tmp_path / "a.tfrecord").write_bytes(framed(b"1"))
    (tmp_path / "mnt").mkdir()
    place = Place(environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    for line in (["mount", str(tmp_path / "a.tfrecord"), str(tmp_path / "mnt"), "-o", "cache=16M,staging=16M"],
                 ["index", str(tmp_path / "a.tfrecord"), "-o", f"index={tmp_path}/index"]):  # fmt: skip
        done = place.deepiofs(*line)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done
        assert "pip install 'deepiofs[tfrecord]'" in done.stderr


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example of docs/SOURCES.md, as pip would leave it, and a broken one."""
    code, points = re.findall(r"```(?:python|ini)\n(.*?)```", _DOCS.read_text(), re.DOTALL)[:2]
    folder = tmp_path / "site"
    (folder / "lines-1.0.dist-info").mkdir(parents=True)
    (folder / "lines.py").write_text(code)
    (folder / "lines-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (folder / "lines-1.0.dist-info/entry_points.txt").write_text(points + "broken = nowhere:Nothing\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("lines", None)


def test_another_package_adds_a_source(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_bytes(b'{"x": 1}\n{"x": 2}\n')
    expected = {b"a.jsonl/000000.json": b'{"x": 1}\n', b"a.jsonl/000001.json": b'{"x": 2}\n'}
    assert contents(f"lines:{tmp_path}/data") == expected
    assert absolute_name(f"lines:{tmp_path}/x/../data") == f"lines:{tmp_path}/data"


@pytest.mark.mounted
def test_a_mount_finds_the_source_of_another_package(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"1\n22\n")
    (tmp_path / "mnt").mkdir()
    place = Place(environment={"PYTHONPATH": f"{installed}:{os.environ.get('PYTHONPATH', '')}"})
    with mounted(Path(f"lines:{tmp_path}/a.jsonl"), tmp_path / "mnt", "mpi=off", place=place) as view:
        assert HERE.output("cat", f"{view.point}/a.jsonl/000001.json") == "22\n"


def test_a_source_of_another_package_that_cannot_be_loaded_says_why(installed: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"source broken: nowhere:Nothing cannot be loaded: No module"):
        open_source("broken:/a")


def test_a_record_and_a_directory_cannot_share_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_member("x/y", b"1") + bytes(1024))
    (tmp_path / "b.tar").write_bytes(tar_member("x", b"1") + bytes(1024))
    with pytest.raises(SourceError, match=r"b\.tar: x is a record, and a directory of others; exclude one"):
        contents(f"tar:{tmp_path}")


@pytest.mark.parametrize("name", ["x" * 256, "d" * 256 + "/x"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_member(name, b"1") + bytes(1024))
    with pytest.raises(SourceError, match=r"a\.tar: .* cannot be the path of a"):
        contents(f"tar:{tmp_path}")


def test_records_have_the_permissions_of_their_container(tmp_path: Path) -> None:
    from tests.packs import scanned

    for name, mode in (("a", 0o640), ("b", 0o604)):
        (tmp_path / f"{name}.tar").write_bytes(tar_member(f"d/{name}", b"1") + bytes(1024))
        (tmp_path / f"{name}.tar").chmod(mode)
    manifest = scanned(f"tar:{tmp_path}")
    modes = {manifest.path(row): manifest.mode_of[row] & 0o7777 for row in range(manifest.n_rows)}
    assert modes == {b"": 0o550, b"d": 0o550, b"d/a": 0o440, b"d/b": 0o404}


def test_links_among_folders_of_containers_end(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.tar").write_bytes(tar_member("a", b"1") + bytes(1024))
    (tmp_path / "d/up").symlink_to(tmp_path)
    (tmp_path / "d/here").symlink_to(".")
    assert contents(f"tar:{tmp_path}") == {b"a": b"1"}
