"""Damaged LMDBs: one line that names the file and a byte, whatever the library does with them; never a crash."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepiofs.dataset.sources import open_source
from deepiofs.errors import SourceError
from tests.contracts.sources import scan
from tests.mounts import HERE
from tests.sources.lmdbs import datum_of, encoded, write

_PAGE = 4096
Edits = list[tuple[str, float, int]]
# Indexes each file that it is told of in a process of its own, and says how that ended.
_INDEXER = """
import json, mmap, os, sys
from deepiofs.dataset.sources.lmdb.index import index
from deepiofs.errors import DeepiofsError
for line in iter(sys.stdin.readline, ""):
    path, how = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        try:
            found = index(path, how, mmap.mmap(-1, 8))
            size = os.stat(path).st_size
            right = all(0 <= at and n >= 0 and at + n <= size for at, n in zip(found.at, found.size, strict=True))
            os._exit(0 if right and len(found.paths) == len(found.at) else 9)
        except (DeepiofsError, OSError):
            os._exit(3)
        except BaseException:
            os._exit(8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Data files of LMDBs with values of all kinds."""
    root = tmp_path_factory.mktemp("sound")
    generator = random.Random(3)
    plain = {b"%04d/%d" % (i % 7, i): generator.randbytes(generator.choice([0, 9, 900, 9000])) for i in range(300)}
    raw = {b"%d" % i: datum_of(i % 3, generator.randbytes(48), channels=3, height=4, width=4) for i in range(200)}
    made = {"plain": plain, "encoded": encoded(60), "raw": raw}
    return {name: (write(root / name, values) / "data.mdb").read_bytes() for name, values in made.items()}


def refused(path: Path, data: bytes) -> str:
    """What is said of a file."""
    path.write_bytes(data)
    with pytest.raises(SourceError) as said:
        scan(open_source(f"lmdb:{path}"))
    assert "\n" not in str(said.value)
    return str(said.value)


def replaced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_what_is_no_lmdb_is_said_to_be_none(sound: dict[str, bytes], tmp_path: Path) -> None:
    data, path = sound["plain"], tmp_path / "x.lmdb"
    assert refused(path, b"") == "x.lmdb: byte 0: the file ends within a meta page: truncated, or no LMDB"
    assert refused(path, data[: _PAGE + 100]).startswith("x.lmdb: byte 4,096: the file ends within a meta page")
    assert refused(path, b"text" * 5000).startswith("x.lmdb: byte 0: is no meta page of an LMDB")
    assert refused(path, replaced(data, _PAGE + 16, b"\0" * 4)).startswith("x.lmdb: byte 4,096: is no meta page")
    assert refused(path, replaced(data, 20, struct.pack("<I", 2))).startswith("x.lmdb: byte 0: data format 2")


@pytest.mark.parametrize("page", [0, 1000, 8192, 1 << 31])
def test_another_page_size_than_it_has_is_noticed(sound: dict[str, bytes], tmp_path: Path, page: int) -> None:
    said = refused(tmp_path / "x.lmdb", replaced(sound["plain"], 40, struct.pack("<I", page)))
    assert said.startswith("x.lmdb: byte ")


@pytest.mark.parametrize("name", ["plain", "encoded", "raw"])
@pytest.mark.parametrize("pages", [2.5, 3, 0.5, 0.9])
def test_a_truncated_file_is_refused(sound: dict[str, bytes], tmp_path: Path, name: str, pages: float) -> None:
    whole = len(sound[name]) // _PAGE
    kept = int((pages if pages > 1 else int(whole * pages)) * _PAGE)
    said = refused(tmp_path / "x.lmdb", sound[name][:kept])
    assert said.startswith("x.lmdb: ")
    assert "truncated" in said
    assert f"{kept:,}" in said


def test_a_length_that_lies_is_noticed(sound: dict[str, bytes], tmp_path: Path) -> None:
    data = sound["plain"]
    # A node: size of its data, in two halves, flags (1: on pages of its own), size of its key, key.
    at = data.index(struct.pack("<HHHH", 9000, 0, 1, 6))
    said = refused(tmp_path / "x.lmdb", replaced(data, at, struct.pack("<HH", 0, 0x7000)))
    assert "claims 1,879,048,192 bytes, the file ends at byte" in said
    said = refused(tmp_path / "x.lmdb", replaced(data, at, struct.pack("<HH", 0, 1)))
    assert "two values share these bytes" in said


def test_a_mount_of_a_damaged_file_ends_with_one_line(sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    path.write_bytes(sound["plain"][: 40 * _PAGE])
    (tmp_path / "mnt").mkdir()
    done = HERE.deepiofs("mount", f"lmdb:{path}", str(tmp_path / "mnt"), "-o", "mpi=off,cache=8M,staging=8M")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "x.lmdb: " in done.stderr
    assert "truncated" in done.stderr


@pytest.fixture(scope="module")
def indexer() -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-c", _INDEXER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


_EDITS = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "word"]), st.floats(0, 1), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: Edits) -> bytes:
    """Changed by edits: kind, place, and a number to draw from."""
    for kind, where, number in edits:
        at = int(where * max(len(data) - 1, 0))
        if kind == "flip":
            data = replaced(data, at, bytes((data[at] ^ (1 << number % 8),))) if data else data
        elif kind == "word":
            data = replaced(data, at // 8 * 8, struct.pack("<Q", number))
        elif kind == "cut":
            data = data[:at] + data[at + number % 5000 :]
        else:
            data = data[:at] + number.to_bytes(4, "little") + data[at:]
    return data


@pytest.mark.parametrize("name", ["plain", "encoded", "raw"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=_EDITS)
def test_whatever_is_damaged_it_is_records_or_an_error(
    indexer: subprocess.Popen[str],
    sound: dict[str, bytes],
    tmp_path: Path,
    name: str,
    edits: list[tuple[str, float, int]],
) -> None:
    path = tmp_path / "x.lmdb"
    path.write_bytes(edited(sound[name], edits))
    assert indexer.stdin
    assert indexer.stdout
    indexer.stdin.write(json.dumps([str(path), "auto"]) + "\n")
    indexer.stdin.flush()
    ended = int(indexer.stdout.readline())
    assert ended in (0, 3) or ended < 0
