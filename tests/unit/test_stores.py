"""What libraries and servers say, as the sources understand it: errors, facts, names, containers by pattern."""

from __future__ import annotations

import datetime
import errno
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepiofs.dataset.sources import Selection, Solo, open_source, registry
from deepiofs.dataset.sources.stores.errors import as_os_error
from deepiofs.dataset.sources.stores.facts import digest_of, mtime_ns_of
from deepiofs.dataset.sources.stores.filesystems import Store
from deepiofs.dataset.sources.stores.shards import RemoteShards
from deepiofs.dataset.sources.stores.source import RemoteSource
from deepiofs.dataset.sources.stores.tree import relative_path, store_path
from deepiofs.errors import EnvironmentFault, SourceChangedError, SourceError
from tests.contracts.sources import opened, read, scan, sizes_of
from tests.webserver import WebServer


class _WithStatus(Exception):
    def __init__(self, status: int, where: str) -> None:
        super().__init__(f"said {status}")
        if where == "boto":
            self.response: Any = {"ResponseMetadata": {"HTTPStatusCode": status}}
        elif where == "requests":
            self.response = type("Response", (), {"status_code": status})()
        else:
            setattr(self, where, status)


class NoCredentialsError(Exception):
    """Named like botocore's."""


class ReadTimeoutError(Exception):
    """Named like botocore's."""


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        *((_WithStatus(404, where), errno.ENOENT) for where in ("boto", "requests", "status", "status_code", "code")),
        (_WithStatus(403, "status"), errno.EACCES),
        (_WithStatus(503, "boto"), errno.EIO),
        (_WithStatus(504, "boto"), errno.ETIMEDOUT),
        (_caused(FileNotFoundError("http://x"), _WithStatus(503, "status")), errno.EIO),
        (_caused(OSError(errno.EBUSY, "slow down"), _WithStatus(503, "boto")), errno.EIO),
        (FileNotFoundError("no errno"), errno.ENOENT),
        (PermissionError("no errno"), errno.EACCES),
        (TimeoutError(), errno.ETIMEDOUT),
        (ConnectionResetError(), errno.EIO),
        (OSError(errno.ECONNREFUSED, "refused"), errno.EIO),
        (OSError(errno.ESTALE, "stale"), errno.ESTALE),
        (NoCredentialsError("none"), errno.EACCES),
        (ReadTimeoutError("late"), errno.ETIMEDOUT),
        (MemoryError(), errno.ENOMEM),
        (KeyError("Body"), errno.EIO),
    ],
)  # fmt: skip
def test_every_error_has_an_errno_and_a_text(error: Exception, number: int) -> None:
    told = as_os_error(error)
    assert told.errno == number
    assert told.strerror
    assert "\n" not in told.strerror


def test_a_version_is_the_same_in_a_listing_and_alone() -> None:
    listed = {"ETag": '"x"', "size": 3, "LastModified": datetime.datetime(2020, 1, 1, 0, 0, 0, 5, datetime.UTC)}
    alone = {"ETag": '"x"', "size": 3, "LastModified": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "more": 1}
    assert digest_of(listed) == digest_of(alone)
    others = [{**listed, "ETag": '"y"'}, {**listed, "size": 4}]
    assert len({digest_of(info) for info in (listed, *others)} | {digest_of(listed, 1)}) == 4
    assert all(-(1 << 63) <= digest_of({"size": i}) < 1 << 63 for i in range(100))


@pytest.mark.parametrize(
    ("info", "seconds"),
    [
        ({"LastModified": datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)}, 86400),
        ({"updated": "1970-01-02T00:00:00.000Z"}, 86400),
        ({"Last-Modified": "Fri, 02 Jan 1970 00:00:00 GMT"}, 86400),
        ({"mtime": 86400.0}, 86400),
        ({"date_time": (1980, 1, 1, 0, 0, 0)}, 315532800),
        ({"mtime": "never"}, 0),
        ({}, 0),
    ],
)
def test_times_in_all_their_forms(info: dict[str, Any], seconds: int) -> None:
    assert mtime_ns_of(info) == seconds * 10**9


component = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.lists(component.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4))
@pytest.mark.parametrize("url", ["memory://root", "http://host/root/"])
def test_a_path_of_the_view_leads_back_to_its_object(url: str, parts: list[str]) -> None:
    store = Store(url)
    root = "/root" if url.startswith("memory") else url
    path = "/".join(parts).encode()
    if all(len(part.encode()) <= 255 for part in parts):
        assert relative_path(store, root, store_path(store, root, path)) == path


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server."""
    with WebServer({b"a/b.tar": b"0123456789" * 10, b"a/c.tar": b"x", b"d": b"y"}) as server:
        yield server


def test_links_that_lead_elsewhere_are_left_out(web: WebServer) -> None:
    manifest = scan(RemoteSource(web.url + "/"))
    assert set(sizes_of(manifest)) == set(web.files)
    assert manifest.meta["left_out"] == {"links": 2}


def test_a_web_server_that_is_busy_is_asked_again(web: WebServer) -> None:
    source = RemoteSource(web.url + "/")
    web.failing = {503: 1}
    manifest = scan(source)
    with opened(source, manifest, b"a/b.tar") as file:
        web.failing = {502: 1}
        with pytest.raises(OSError, match="502") as error:
            read(file, 3, 4)
        assert error.value.errno == errno.EIO
        assert read(file, 3, 4) == b"3456"


def test_a_web_server_without_tags_is_judged_by_size(web: WebServer) -> None:
    web.tags = False
    source = RemoteSource(web.url + "/")
    manifest = scan(source)
    with opened(source, manifest, b"a/b.tar") as file:
        assert read(file, 3, 4) == b"3456"
        web.files[b"a/b.tar"] += b"."
        with pytest.raises(SourceChangedError):
            read(file, 3, 4)


def test_a_server_that_sends_all_instead_of_a_part_is_not_believed(web: WebServer) -> None:
    source = RemoteSource(web.url + "/")
    manifest = scan(source)
    web.ranges = False
    with opened(source, manifest, b"a/b.tar") as file:
        assert read(file, 0, 100) == web.files[b"a/b.tar"]
        for at, size in ((0, 4), (90, 10), (0, 99)):
            with pytest.raises(OSError, match="does not serve ranges"):
                read(file, at, size)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/a", {"b.tar", "c.tar"}),
        ("/a/b.tar", {"b.tar"}),
        ("/a/{b,c}.tar", {"b.tar", "c.tar"}),
        ("/a/[b]*", {"b.tar"}),
        ("/{a/b.tar,d}", {"a/b.tar", "d"}),
    ],
)
def test_containers_by_pattern(web: WebServer, name: str, found: set[str]) -> None:
    roots: Mapping[str, Any] = {"web": web.url, "memory": f"memory://{uuid.uuid4().hex}"}
    for path, data in web.files.items():
        fsspec.filesystem("memory").pipe_file(f"{roots['memory'].removeprefix('memory:/')}/{path.decode()}", data)
    for kind, root in roots.items():
        url = root + name + ("/" if kind == "web" and name == "/a" else "")
        shards = RemoteShards(url, (".tar",))
        containers = shards.find()
        assert {container.name for container in containers} == found
        for container in containers:
            buffers = [bytearray(1), bytearray(max(0, container.size - 1)), bytearray(5)]
            n = shards.open(container).read_into(list(map(memoryview, buffers)), 0)
            assert b"".join(buffers)[:n] in web.files.values()
            assert n == container.size


def test_a_container_that_is_missing_is_named(web: WebServer) -> None:
    with pytest.raises(SourceError, match=r"source .*/a/\{b,x\}\.tar: .*check the URL"):
        RemoteShards(web.url + "/a/{b,x}.tar", (".tar",)).find()
    with pytest.raises(SourceError, match=r"memory://nowhere.*check the URL"):
        RemoteShards("memory://nowhere/*.tar", (".tar",)).find()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nosuch://x", "fsspec knows no nosuch://"),
        ("simplecache::memory://x", "may give stale bytes"),
        ("zip://x::simplecache::memory://x", "may give stale bytes"),
    ],
)
def test_what_cannot_be_a_source_is_one_line(name: str, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        open_source(name)


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [("memory://x", "fsspec", "fsspec"), ("s3://x", "s3fs", "s3"), ("gs://x", "gcsfs", "gcs")],
)
def test_without_the_library_its_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: str, extra: str
) -> None:
    # What another test has had imported, fsspec keeps.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name.partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvironmentFault, match=rf"pip install 'deepiofs\[{extra}\]'"):
        open_source(name)


def test_schemes_of_ours_and_of_fsspec_are_told_apart() -> None:
    assert registry.split("tar:s3://b/x.tar") == ("tar", "s3://b/x.tar")
    assert registry.split("tar:zip://x.tar::file:///a.zip") == ("tar", "zip://x.tar::file:///a.zip")
    assert registry.split("zip://x::file:///a.zip") == ("zip", "zip://x::file:///a.zip")
    assert registry.split("zip:/a.zip") == ("zip", "/a.zip")
    assert isinstance(open_source("zip://x::file:///a.zip"), RemoteSource)


def test_after_a_fork_the_child_reads_too() -> None:
    """A daemon is the child of who named the source."""
    fs, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    fs.pipe_file(f"{root}/a", b"bytes")
    with WebServer({b"a": b"bytes"}) as server:
        source = RemoteSource(server.url + "/")
        pid = os.fork()
        if pid == 0:
            try:
                found = source.scan(Selection(), Solo())
                os._exit(0 if found else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
