"""What fsspec reads keeps the contract of sources: a local file system, one in memory, the web, S3, an archive."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Packed, Piece, Selection, Solo
from deepiofs.dataset.sources.packs.tar import TarSource
from deepiofs.dataset.sources.stores import tree as remotetree
from deepiofs.dataset.sources.stores.source import RemoteSource
from deepiofs.errors import SourceChangedError
from tests.contracts.sources import (
    FILES,
    Contender,
    FileContender,
    FilesContract,
    PackedContract,
    opened,
    read,
    row_of,
    scan,
    sizes_of,
)
from tests.s3server import S3Server, upload
from tests.webserver import WebServer

# Keys are text; and a test that reads the largest in pieces of 64 bytes should end.
KEYS: Mapping[bytes, bytes] = {
    path.replace(b"\xff\n", "ä #1%20&+;=?".encode()): data[:7_000] for path, data in FILES.items()
}


class RemoteContract(FilesContract):
    """An object that is gone is gone, also for who has it open; and many are read at once."""

    files = KEYS

    def test_a_file_that_is_removed_while_it_is_open_keeps_its_bytes(
        self, contender: FileContender, manifest: Manifest
    ) -> None:
        with opened(contender.source, manifest, b"a.bin") as file:
            contender.remove(b"a.bin")
            with pytest.raises(FileNotFoundError):
                read(file, 0, 10_240)

    def test_many_are_read_at_once_and_what_changed_is_not(self, contender: FileContender, manifest: Manifest) -> None:
        assert isinstance(contender.source, Packed)
        contender.change(b"one", b"2")
        buffers = {path: bytearray(len(data)) for path, data in self.files.items()}
        pieces = [Piece(row_of(manifest, path), 0, memoryview(buffer)) for path, buffer in buffers.items()]
        outcomes = dict(zip(buffers, contender.source.read_pieces(manifest, pieces), strict=True))
        assert isinstance(outcomes.pop(b"one"), SourceChangedError)
        assert set(outcomes.values()) == {None}
        assert {path: bytes(buffers[path]) for path in outcomes} == {path: self.files[path] for path in outcomes}

    def test_a_large_one_is_read_by_several_requests(self, tmp_path: Path) -> None:
        data = os.urandom(9 << 20)
        contender = self.make(tmp_path, {b"large": data})
        found = contender.source.scan(Selection(), Solo())
        assert found is not None
        with opened(contender.source, Manifest(*found), b"large") as file:
            assert read(file, 5, len(data)) == data[5:]
        contender.source.close()


class _Local(FileContender):
    def __init__(self, root: Path, files: Mapping[bytes, bytes]) -> None:
        self._root = os.fsencode(root)
        for path, data in files.items():
            os.makedirs(os.path.dirname(self._at(path)), exist_ok=True)
            self.add(path, data)
        self.source = RemoteSource(f"file://{root}")

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def change(self, path: bytes, data: bytes) -> None:
        before = os.stat(self._at(path)).st_mtime
        self.add(path, data)
        os.utime(self._at(path), (before + 1, before + 1))

    def remove(self, path: bytes) -> None:
        os.unlink(self._at(path))

    def add(self, path: bytes, data: bytes) -> None:
        with open(self._at(path), "wb") as file:
            file.write(data)


class TestLocal(RemoteContract):
    files = FILES

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        root = tmp_path / uuid.uuid4().hex
        root.mkdir()
        return _Local(root, files)


class _Memory(FileContender):
    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self._fs = fsspec.filesystem("memory")
        self._root = f"/{uuid.uuid4().hex}"
        self._fs.mkdir(self._root)
        for path, data in files.items():
            self.change(path, data)
        self.source = RemoteSource(f"memory:/{self._root}")

    def change(self, path: bytes, data: bytes) -> None:
        self._fs.pipe_file(posixpath.join(self._root, os.fsdecode(path)), data)

    add = change

    def remove(self, path: bytes) -> None:
        self._fs.rm_file(posixpath.join(self._root, os.fsdecode(path)))


class TestMemory(RemoteContract):
    files = FILES

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        return _Memory(files)


class _Web(FileContender):
    def __init__(self, server: WebServer) -> None:
        self._server = server
        self.source = RemoteSource(server.url + "/")

    def change(self, path: bytes, data: bytes) -> None:
        self._server.files[path] = data

    add = change

    def remove(self, path: bytes) -> None:
        del self._server.files[path]


class TestWeb(RemoteContract):
    @pytest.fixture(autouse=True)
    def servers(self) -> Iterator[None]:
        self._servers: list[WebServer] = []
        yield
        for server in self._servers:
            server.__exit__()

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        self._servers.append(WebServer(files).__enter__())
        return _Web(self._servers[-1])


class _S3(FileContender):
    def __init__(self, client: Any, files: Mapping[bytes, bytes]) -> None:
        self._client, self._bucket = client, uuid.uuid4().hex
        upload(client, self._bucket, files)
        self.source = RemoteSource(f"s3://{self._bucket}")

    def change(self, path: bytes, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=path.decode(), Body=data)

    add = change

    def remove(self, path: bytes) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=path.decode())


class TestS3(RemoteContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        self._client = s3.client

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> FileContender:
        return _S3(self._client, files)

    @pytest.mark.parametrize("wide", [64, 1], ids=["by directories", "flat"])
    def test_keys_that_are_no_paths_are_left_out_and_counted(self, monkeypatch: pytest.MonkeyPatch, wide: int) -> None:
        monkeypatch.setattr(remotetree, "_WIDE", wide)
        bucket = uuid.uuid4().hex
        keys = ["a", "b", "b/c", "b/d/e", "marker/", "x/" + "long" * 64, "x/ok"]
        upload(self._client, bucket, {key.encode(): b"" if key.endswith("/") else b"1" for key in keys})
        source = RemoteSource(f"s3://{bucket}")
        manifest = scan(source)
        assert set(sizes_of(manifest)) == {b"a", b"b/c", b"b/d/e", b"x/ok"}
        assert manifest.meta["left_out"] == {"unusable names": 1, "hidden": 1}
        source.close()


class _Zip(Contender):
    def __init__(self, path: Path, files: Mapping[bytes, bytes]) -> None:
        self._path, self._files = path, files
        self._write(b"")
        self.source = RemoteSource(f"zip://::file://{path}")

    def _write(self, more: bytes) -> None:
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in self._files.items():
                archive.writestr(path.decode(), data)
            archive.comment = more

    def disturb(self) -> None:
        self._write(b"another")


class TestZip(PackedContract):
    files = KEYS

    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _Zip(tmp_path / f"{uuid.uuid4().hex}.zip", files)


class _Tar(Contender):
    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self._fs, self._files = fsspec.filesystem("memory"), files
        self._path = f"/{uuid.uuid4().hex}/a.tar"
        self._write(b"")
        self.source = TarSource(f"memory:/{self._path}")

    def _write(self, more: bytes) -> None:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for path, data in self._files.items():
                member = tarfile.TarInfo(os.fsdecode(path))
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        self._fs.pipe_file(self._path, file.getvalue() + more)

    def disturb(self) -> None:
        self._write(b"")


class TestTarInAStore(PackedContract):
    def make(self, tmp_path: Path, files: Mapping[bytes, bytes]) -> Contender:
        return _Tar(files)
