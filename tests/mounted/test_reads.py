"""Every way to read gives the source's bytes: read, pread, mmap, sendfile, direct I/O, and programs as they are."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.mounted import trees
from tests.mounts import HERE, Mount

pytestmark = pytest.mark.mounted

SIZES = (0, 1, 4095, 4096, 4097, 131_073, (4 << 20) - 1, 4 << 20, (4 << 20) + 1)
FIO_BYTES = 32 << 20


@pytest.fixture
def big(nasty: Mount) -> Iterator[tuple[int, int]]:
    """Descriptors of the big file, of the source and of the view."""
    opened = [os.open(side / trees.BIG, os.O_RDONLY) for side in (nasty.source, nasty.point)]
    yield opened[0], opened[1]
    for descriptor in opened:
        os.close(descriptor)


def test_pread_at_random_places(big: tuple[int, int]) -> None:
    source, view = big
    generator = random.Random(3)
    for _ in range(3000):
        at, size = generator.randrange(trees.BIG_BYTES + 10_000), generator.choice((1, 100, 4096, 70_000, 1 << 20))
        assert os.pread(view, size, at) == os.pread(source, size, at)


def test_what_exceeds_the_cache_comes_from_the_source(nasty: Mount, big: tuple[int, int]) -> None:
    before = nasty.stats()["served"]
    os.posix_fadvise(big[1], 0, 0, os.POSIX_FADV_DONTNEED)
    for at in range(0, trees.BIG_BYTES, 4 << 20):
        assert os.pread(big[1], 100, at) == os.pread(big[0], 100, at)
    after = nasty.stats()["served"]
    assert after["source"] > before["source"]
    assert after["local"] > before["local"]


def test_threads_read_one_descriptor_at_once(big: tuple[int, int]) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(300):
            at = generator.randrange(trees.BIG_BYTES)
            if os.pread(big[1], 5000, at) != os.pread(big[0], 5000, at):
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["private", "shared"])
@pytest.mark.parametrize("name", [trees.BIG, "plain/4097", f"plain/{(4 << 20) + 1}"])
def test_mmap(nasty: Mount, name: str, flags: int) -> None:
    with (nasty.source / name).open("rb") as source, (nasty.point / name).open("rb") as view:
        expected, seen = (mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ) for file in (source, view))
        assert seen[-100:] == expected[-100:]
        generator = random.Random(4)
        for at in (generator.randrange(len(expected)) for _ in range(500)):
            assert seen[at : at + 3000] == expected[at : at + 3000]
        seen.close()
        expected.close()


def test_a_private_mapping_may_be_written_to_and_stays_private(nasty: Mount) -> None:
    path = nasty.point / "plain/4097"
    before = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:4] = b"mine"
        assert path.read_bytes() == before


def test_a_mapping_outlives_its_descriptor(nasty: Mount) -> None:
    with (nasty.point / "plain/131073").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert mapped[:] == (nasty.source / "plain/131073").read_bytes()
    mapped.close()


@pytest.mark.parametrize("size", SIZES)
def test_sendfile(nasty: Mount, tmp_path: Path, size: int) -> None:
    with (nasty.point / f"plain/{size}").open("rb") as file, (tmp_path / "copy").open("wb") as copy:
        sent = 0
        while n := os.sendfile(copy.fileno(), file.fileno(), sent, 1 << 30):
            sent += n
    assert (tmp_path / "copy").read_bytes() == (nasty.source / f"plain/{size}").read_bytes()


@pytest.mark.parametrize("size", SIZES)
def test_direct_reads(nasty: Mount, size: int) -> None:
    descriptor = os.open(nasty.point / f"plain/{size}", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 64 << 10)
    found = b""
    try:
        while n := os.preadv(descriptor, [buffer], len(found)):
            found += buffer[:n]
    finally:
        os.close(descriptor)
    assert found == (nasty.source / f"plain/{size}").read_bytes()


def test_lseek(big: tuple[int, int]) -> None:
    _, view = big
    assert os.lseek(view, 1000, os.SEEK_SET) == 1000
    assert os.lseek(view, -500, os.SEEK_CUR) == 500
    assert os.lseek(view, -10, os.SEEK_END) == trees.BIG_BYTES - 10
    assert len(os.read(view, 100)) == 10
    assert os.lseek(view, 10, os.SEEK_END) == trees.BIG_BYTES + 10
    assert os.read(view, 100) == b""
    with pytest.raises(OSError, match="Invalid argument"):
        os.lseek(view, -1, os.SEEK_SET)


def test_a_sparse_file_is_all_data(big: tuple[int, int]) -> None:
    _, view = big
    assert os.lseek(view, 5000, os.SEEK_DATA) == 5000
    assert os.lseek(view, 5000, os.SEEK_HOLE) == trees.BIG_BYTES
    with pytest.raises(OSError, match="No such device or address") as caught:
        os.lseek(view, trees.BIG_BYTES, os.SEEK_DATA)
    assert caught.value.errno == errno.ENXIO


def test_openat_and_the_descriptor_of_a_directory(nasty: Mount) -> None:
    directory = os.open(nasty.point / "plain", os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = os.open("4097", os.O_RDONLY, dir_fd=directory)
        assert os.read(file, 5000) == (nasty.source / "plain/4097").read_bytes()
        os.close(file)
        with pytest.raises(IsADirectoryError):
            os.read(directory, 1)
    finally:
        os.close(directory)


def test_an_open_file_can_be_read_after_its_mount_is_gone_from_the_tree(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    with (view.point / "a/one.jpg").open("rb") as file:
        HERE.output("umount", "-l", str(view.point))
        assert file.read() == (small / "a/one.jpg").read_bytes()


def test_cp_and_tar_copy_the_tree(nasty: Mount, tmp_path: Path) -> None:
    HERE.output("cp", "-a", f"{nasty.point}/names", f"{nasty.point}/hard", str(tmp_path))
    HERE.output("cp", f"{nasty.point}/plain/third", str(tmp_path))
    (tmp_path / "unpacked").mkdir()
    with subprocess.Popen(["tar", "-C", nasty.point, "-cf", "-", "plain", "modes"], stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-C", tmp_path / "unpacked", "-xpf", "-"], stdin=packing.stdout, check=True)
    assert packing.returncode == 0
    for copy, name in ((tmp_path, "names"), (tmp_path, "hard"), (tmp_path / "unpacked", "plain")):
        assert HERE.output("diff", "-r", f"{copy}/{name}", f"{nasty.source}/{name}") == ""
    assert (tmp_path / "third").read_bytes() == b"one file"
    assert os.path.samefile(tmp_path / "hard/first", tmp_path / "hard/second")
    for copied, original in ((tmp_path / "hard/first", "hard/first"), (tmp_path / "unpacked/modes/4755", "modes/4755")):
        assert copied.stat().st_mode == (nasty.source / original).stat().st_mode
        assert int(copied.stat().st_mtime) == int((nasty.source / original).stat().st_mtime)


def test_rsync_finds_nothing_to_do(nasty: Mount) -> None:
    if not shutil.which("rsync"):
        pytest.skip("rsync is not installed")
    for name in ("plain", "names", "modes", "hard"):
        line = [
            "rsync",
            "-rptgoHnc",
            "--itemize-changes",
            "--delete",
            f"{nasty.source}/{name}/",
            f"{nasty.point}/{name}/",
        ]
        assert HERE.output(*line) == ""


def test_find_sees_what_the_source_has(nasty: Mount) -> None:
    def found(top: Path, *tests: str) -> list[str]:
        return sorted(
            HERE.output("find", "-L", f"{top}/names", f"{top}/deep", *tests, "-printf", "%P %s %m\\0").split("\0")
        )

    assert found(nasty.point, "-type", "f") == found(nasty.source, "-type", "f")
    assert len(found(nasty.point, "-name", "file", "-size", "+1k")) > 10
    # find(1) skips the search for directories where the link count says that there are none.
    empty = ["find", str(nasty.point), "-type", "d", "-empty", "-printf", "%P\n"]
    assert {"empty", "plain/folder/of folder", "special", "modes/sticky"} <= set(HERE.output(*empty).splitlines())


@pytest.fixture(scope="module")
def fio(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """`fio(folder, option...)` runs a job on `folder`/data, whose blocks of 4 KiB hold their own CRC."""
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")

    def run(folder: Path, *options: str) -> None:
        common = ["--name=job", f"--filename={folder}/data", f"--size={FIO_BYTES}", "--bs=4k", "--verify=crc32c"]
        HERE.output("fio", "--output=/dev/null", *common, "--verify_fatal=1", *options)

    return run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, fio: Callable[..., None]) -> Path:
    """A dataset of one file, written by fio."""
    folder = tmp_path_factory.mktemp("fio")
    fio(folder, "--rw=write", "--do_verify=0")
    return folder


def test_fio_verifies_what_it_reads(mount: MountFactory, fio: Callable[..., None], written: Path) -> None:
    view = mount(written, "cache=16M")
    for options in (
        ["--rw=read", "--ioengine=psync"],
        ["--rw=randread", "--ioengine=psync", "--numjobs=4"],
        ["--rw=randread", "--ioengine=mmap"],
        ["--rw=randread", "--ioengine=libaio", "--iodepth=16", "--direct=1"],
    ):
        fio(view.point, "--readonly", *options)


def test_fio_notices_a_wrong_byte(fio: Callable[..., None], written: Path, tmp_path: Path) -> None:
    data = bytearray((written / "data").read_bytes())
    data[FIO_BYTES // 2 + 1000] ^= 1
    (tmp_path / "data").write_bytes(data)
    with pytest.raises(AssertionError, match="verify"):
        fio(tmp_path, "--readonly", "--rw=read", "--ioengine=psync")
