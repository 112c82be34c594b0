"""Mounts of object stores: files by name, shuffled, in streams; containers there; what servers do wrong."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.lab import ADDRESSES, HEAD, Lab
from tests.launchers import one_mpi
from tests.mounts import DEEPIOFS, HERE, MODEST, Journal, Place, ending
from tests.s3server import S3Server, upload
from tests.sources.test_hdf5 import by_the_library as hdf5_rows
from tests.sources.test_hdf5 import write as write_hdf5
from tests.sources.trees import below, digests, digests_below
from tests.webserver import WebServer

pytestmark = pytest.mark.mounted


FILES: Mapping[bytes, bytes] = {
    **{f"class{i % 3}/{i:03d} ü&%+.jpg".encode(): os.urandom(700 + 37 * i) for i in range(90)},
    b"empty": b"",
    b"large.bin": os.urandom((9 << 20) + 17),
}


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A bucket of those files."""
    name = uuid.uuid4().hex
    upload(s3.client, name, FILES)
    return name


@pytest.fixture
def there(s3: S3Server) -> Place:
    """Where programs know the server."""
    return Place(environment=s3.environment)


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server of those files."""
    with WebServer(FILES) as server:
        yield server


def url(name: str) -> Path:
    """A source that is no path; what makes mounts only prints it."""
    return _Url(name)  # type: ignore[return-value]


class _Url(str):
    __slots__ = ()


def mount_fails(source: str, point: Path, place: Place = HERE) -> tuple[int, str]:
    """Exit code and what is said of a mount that fails, in one line."""
    point.mkdir()
    done = place.deepiofs("mount", source, str(point), "-o", ",".join(MODEST))
    assert done.stderr.count("\n") == 1, done
    return done.returncode, done.stderr


def test_files_by_name_and_in_streams(mount: MountFactory, bucket: str, there: Place) -> None:
    view = mount(url(f"s3://{bucket}"), place=there)
    assert below(view.point) == FILES
    assert below(view.point / ".deepiofs/exact") == FILES
    served = view.stats()["served"]
    assert (served["source"], served["local"] > 0) == (0, True)
    stream = (view.point / ".deepiofs/stream/tar/epoch-0/0-of-1.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert {member.name.encode(): tar.extractfile(member).read() for member in tar} == FILES  # type: ignore[union-attr]
    checked = there.deepiofs("check", str(view.point))
    assert checked.returncode == 0, checked
    found = (view.point / "large.bin").stat()
    assert (found.st_mode & 0o777, found.st_uid) == (0o444, os.getuid())
    assert abs(found.st_mtime - time.time()) < 600


@pytest.mark.parametrize("option", ["shuffle=all", "shuffle=re:^class([0-9])"])
def test_in_a_pass_each_file_is_served_once(mount: MountFactory, bucket: str, there: Place, option: str) -> None:
    view = mount(url(f"s3://{bucket}"), option, "exclude=empty:large.bin", place=there)
    read = below(view.point)
    assert Counter(read.values()) == Counter(data for path, data in FILES.items() if path.startswith(b"class"))
    assert any(read[path] != FILES[path] for path in read)
    if option != "shuffle=all":
        labelled = Counter((path[:6], data) for path, data in FILES.items() if path.startswith(b"class"))
        assert Counter((path[:6], data) for path, data in read.items()) == labelled


def test_without_memory_files_come_from_the_store(mount: MountFactory, bucket: str, there: Place) -> None:
    assert below(mount(url(f"s3://{bucket}/class1"), "cache=0", place=there).point) == {
        path[7:]: data for path, data in FILES.items() if path.startswith(b"class1/")
    }


def test_one_object_is_a_tree_of_one_file(mount: MountFactory, bucket: str, there: Place) -> None:
    view = mount(url(f"s3://{bucket}/large.bin"), place=there)
    assert below(view.point) == {b"large.bin": FILES[b"large.bin"]}


def test_an_index_file_holds_until_an_object_changes(
    mount: MountFactory, s3: S3Server, bucket: str, there: Place, tmp_path: Path, journal: Journal
) -> None:
    index = f"index={tmp_path}/index"
    with ending(there.start([DEEPIOFS, "index", f"s3://{bucket}", "-o", index])) as process:
        assert process.wait(60) == 0
    before = (tmp_path / "index").stat().st_mtime_ns
    view = mount(url(f"s3://{bucket}"), index, place=there)
    assert below(view.point) == FILES
    view.umount()
    assert (tmp_path / "index").stat().st_mtime_ns == before
    s3.client.put_object(Bucket=bucket, Key="more", Body=b"more")
    journal.expect("more: added since; it is built anew")
    (tmp_path / "again").mkdir()
    assert (mount(url(f"s3://{bucket}"), index, at=tmp_path / "again", place=there).point / "more").read_bytes()


def test_an_archive_in_the_store(mount: MountFactory, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in FILES.items():
            archive.writestr(path.decode(), data)
    assert below(mount(url(f"zip://class1::file://{tmp_path}/a.zip")).point) == {
        path[7:]: data for path, data in FILES.items() if path.startswith(b"class1/")
    }


def test_the_web(mount: MountFactory, web: WebServer) -> None:
    assert below(mount(url(web.url + "/")).point) == FILES


@pytest.mark.parametrize("name", ["x-{000..002}.tar", "x-*.tar"])
def test_tars_in_the_store(mount: MountFactory, s3: S3Server, there: Place, name: str) -> None:
    bucket = uuid.uuid4().hex
    parts: list[dict[bytes, bytes]] = [{}, {}, {}]
    for i, (path, data) in enumerate(FILES.items()):
        parts[i % 3][path] = data
    upload(s3.client, bucket, {f"x-00{i}.tar".encode(): tar_of(part) for i, part in enumerate(parts)})
    view = mount(url(f"tar:s3://{bucket}/{name}"), place=there)
    assert below(view.point) == FILES


def test_tars_of_a_web_server_without_listings(mount: MountFactory) -> None:
    with WebServer({b"x-0.tar": tar_of(FILES), b"x-1.tar": tar_of({b"other": b"1"})}) as server:
        server.listings = False
        assert below(mount(url(f"tar:{server.url}/x-{{0..1}}.tar")).point) == {**FILES, b"other": b"1"}


def test_hdf5_in_the_store(mount: MountFactory, s3: S3Server, there: Place, tmp_path: Path, journal: Journal) -> None:
    journal.allow("has not answered for 10 s")  # on a busy machine a process that loads h5py and s3fs takes its time
    write_hdf5(tmp_path / "file.h5")
    bucket = uuid.uuid4().hex
    upload(s3.client, bucket, {b"train/file.h5": (tmp_path / "file.h5").read_bytes()})
    view = mount(url(f"hdf5:s3://{bucket}/train/file.h5"), place=there)
    assert below(view.point) == hdf5_rows(tmp_path / "file.h5")


def tar_of(files: Mapping[bytes, bytes]) -> bytes:
    """A tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path.decode())
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


# --- Faults ----------------------------------------------------------------------------------------------------------


def test_what_fails_for_a_moment_is_tried_again(mount: MountFactory, s3: S3Server, bucket: str, there: Place) -> None:
    view = mount(url(f"s3://{bucket}"), "warm=demand", place=there, until="mounted")
    for folder, kind in (("class0", 503), ("class1", "drop")):
        s3.fail(kind, 2)
        expected = {path[7:]: data for path, data in FILES.items() if path.startswith(folder.encode())}
        assert below(view.point / folder) == expected
    assert view.stats()["errors"] == {}


def test_an_object_that_is_replaced_is_an_error_and_no_other(
    mount: MountFactory, s3: S3Server, bucket: str, there: Place, journal: Journal
) -> None:
    view = mount(url(f"s3://{bucket}"), "warm=demand", place=there, until="mounted")
    path = b"class0/000 \xc3\xbc&%+.jpg"
    s3.client.put_object(Bucket=bucket, Key=path.decode(), Body=FILES[path][::-1])
    journal.expect("class0/000.*changed in the source since it was indexed")
    for name, data in FILES.items():
        if name != path:
            assert (view.point / os.fsdecode(name)).read_bytes() == data
    with pytest.raises(OSError, match="Input/output error") as error:
        (view.point / os.fsdecode(path)).read_bytes()
    assert error.value.errno == errno.EIO


def test_when_the_server_dies_what_is_loaded_goes_on(mount: MountFactory, journal: Journal) -> None:
    with S3Server() as server:
        upload(server.client, "data", FILES)
        there = Place(environment=server.environment)
        view = mount(url("s3://data"), "warm=demand", "timeout=3", place=there, until="mounted")
        loaded = [path for path in FILES if path.startswith(b"class1")]
        for path in loaded:
            assert (view.point / os.fsdecode(path)).read_bytes() == FILES[path]
        server.kill()
        journal.allow(".")  # each file that is asked for now
        for path in loaded:
            assert (view.point / ".deepiofs/exact" / os.fsdecode(path)).read_bytes() == FILES[path]
        for path in (b"class0/000 \xc3\xbc&%+.jpg", b"large.bin"):
            begun = time.monotonic()
            with pytest.raises(OSError) as error:  # noqa: PT011
                (view.point / os.fsdecode(path)).read_bytes()
            # Timed out, if this machine is too busy to be refused three times within the time.
            assert error.value.errno in (errno.EIO, errno.ETIMEDOUT)
            # The kernel may ask twice.
            assert time.monotonic() - begun < 2 * (3 + 2) + 1


def test_what_is_not_there_or_closed_is_one_line_and_exit_code_3(s3: S3Server, there: Place, tmp_path: Path) -> None:
    code, said = mount_fails("s3://no-such-bucket-here/x", tmp_path / "bucket", there)
    assert code == 3
    assert "s3://no-such-bucket-here/x: " in said
    nobody = Place(environment={**s3.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    code, said = mount_fails("s3://bucket", tmp_path / "network", nobody)
    assert (code, "Could not connect" in said) == (3, True), said


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_is_one_line_and_exit_code_3(web: WebServer, tmp_path: Path, status: int) -> None:
    web.failing = {status: 1000}
    code, said = mount_fails(f"{web.url}/", tmp_path / "mnt")
    assert (code, "check the credentials" in said) == (3, True), said


def test_a_web_server_without_ranges_or_listings_says_so(web: WebServer, tmp_path: Path) -> None:
    web.ranges = False
    code, said = mount_fails(f"{web.url}/", tmp_path / "ranges")
    assert (code, "the server does not serve ranges" in said) == (3, True), said
    web.listings = False
    code, said = mount_fails(f"{web.url}/", tmp_path / "listings")
    assert code == 3
    assert "check the URL" in said


@one_mpi()
@pytest.mark.mpi
@pytest.mark.lab
def test_both_hosts_see_each_object(mpi_mount: MpiMountFactory, lab: Lab, tmp_path: Path) -> None:
    for path, data in FILES.items():
        file = tmp_path / "data" / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    with S3Server(ADDRESSES[HEAD], lab.on_head([]), tmp_path / "data") as server:
        both = mpi_mount(2, url("s3://data"), lab=lab, environment=server.environment)
        for rank, place in enumerate(both.places):
            assert digests_below(both.mountpoints[rank], place) == digests(FILES)
            assert min(both.stats(rank)["served"][where] for where in ("local", "peer")) > 20
        assert sum(both.stats(rank)["source_bytes"] for rank in range(2)) == sum(map(len, FILES.values()))
        both.umount()
        both.ended()
