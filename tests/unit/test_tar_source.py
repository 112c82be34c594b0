"""What of a tar becomes files, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepiofs.errors import DeepiofsError, SourceError
from tests.packs import TAR_BLOCK, contents, left_out, scanned
from tests.packs import tar_member as member


def symlink(name: str, target: str) -> bytes:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def hardlink(name: str, target: str) -> bytes:
    return member(name, kind=tarfile.LNKTYPE, link=target)


def written(path: Path, *members: bytes, end: bytes = bytes(2 * TAR_BLOCK)) -> str:
    """A tar of these; its name as a source."""
    path.write_bytes(b"".join(members) + end)
    return f"tar:{path}"


def test_a_leading_dot_or_slash_is_no_part_of_a_name(tmp_path: Path) -> None:
    name = written(tmp_path / "t.tar", member("./a/b", b"1"), member("/c", b"2"), member("a//d/./e", b"3"))
    assert contents(name) == {b"a/b": b"1", b"c": b"2", b"a/d/e": b"3"}


def test_a_name_that_leads_out_is_refused(tmp_path: Path) -> None:
    name = written(tmp_path / "t.tar", member("a", b"1"), member("../b", b"2"))
    with pytest.raises(SourceError, match=r"t\.tar: byte 1024: b'\.\./b' leads out of the tar"):
        contents(name)


def test_long_names_and_names_that_are_no_text(tmp_path: Path) -> None:
    deep = "/".join(["directory" * 20] * 5) + "/" + "x" * 200
    odd = os.fsdecode(b"caf\xe9/\xff\xfe")
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{form}.tar"
        with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
            for name in (deep, odd, "日本/語"):
                tar.addfile(tarfile.TarInfo(name))
        assert set(contents(f"tar:{path}")) == {os.fsencode(deep), os.fsencode(odd), "日本/語".encode()}


def test_names_as_gnu_tar_and_bsdtar_write_them(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "d")
    names = [b"n" * 250, b"caf\xe9", "日本".encode(), b"sub/" + b"m" * 120, b"new\nline"]
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(name)
    for program, *options in (["tar", "--format=gnu"], ["tar", "--format=posix"], ["bsdtar", "--format=pax"]):
        done = subprocess.run(
            [program, *options, "-cf", tmp_path / "t.tar", "-C", folder, "."], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert contents(f"tar:{tmp_path}/t.tar") == {name: name for name in names}


def test_of_a_name_that_comes_twice_the_last_one_counts(tmp_path: Path) -> None:
    name = written(tmp_path / "t.tar", member("a", b"1"), hardlink("b", "a"), member("a", b"two"))
    assert contents(name) == {b"a": b"two", b"b": b"1"}


def test_a_link_in_place_of_a_file_counts_too(tmp_path: Path) -> None:
    name = written(tmp_path / "t.tar", member("a", b"1"), member("b", b"2"), symlink("a", "b"))
    assert contents(name) == {b"a": b"2", b"b": b"2"}
    assert contents(name, links="skip") == {b"b": b"2"}


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    name = written(
        tmp_path / "t.tar", hardlink("early", "d/a"), member("d/a", b"data", mtime=77), hardlink("late", "./d/a"),
        hardlink("of a link", "late"), hardlink("nowhere", "x"), hardlink("itself", "itself"),
    )  # fmt: skip
    manifest = scanned(name)
    rows = [manifest.find(path) for path in (b"early", b"d/a", b"late", b"of a link")]
    assert len({manifest.content_of[row] for row in rows if row is not None}) == 1
    assert {(manifest.nlink_of[row], manifest.mtime_ns_of[row]) for row in rows if row} == {(4, 77_000_000_000)}
    assert contents(name) == dict.fromkeys((b"early", b"d/a", b"late", b"of a link"), b"data")
    assert left_out(name) == {"dangling": 2}


def test_a_hard_link_to_a_symbolic_one_leads_where_that_does(tmp_path: Path) -> None:
    name = written(
        tmp_path / "t.tar", hardlink("x/early", "d/link"), member("d/a", b"data"), symlink("d/link", "a"),
        hardlink("y/z/late", "d/link"),
    )  # fmt: skip
    assert contents(name) == dict.fromkeys((b"d/a", b"d/link", b"x/early", b"y/z/late"), b"data")


def test_symbolic_links_are_followed_within_the_tar(tmp_path: Path) -> None:
    name = written(
        tmp_path / "t.tar", symlink("by name", "d/a"), member("d/a", b"A"), member("d/e/b", b"B"),
        symlink("d/e/up", "../a"), symlink("all", "d"), symlink("two steps", "all/e/up"), symlink("d/e/again", ".."),
        symlink("outside", "/etc/passwd"), symlink("above", "../x"), symlink("d/dangling", "x"),
        symlink("round", "trip"), symlink("trip", "round"),
    )  # fmt: skip
    assert contents(name) == {
        b"by name": b"A", b"d/a": b"A", b"d/e/b": b"B", b"d/e/up": b"A", b"all/a": b"A", b"all/e/b": b"B",
        b"all/e/up": b"A", b"two steps": b"A",
    }  # fmt: skip
    # Of what is below `all`, too.
    assert left_out(name) == {"dangling": 6, "looping": 2}
    assert left_out(name, links="skip") == {"links": 10}


def test_links_that_multiply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepiofs.dataset.sources.packs.links._MOST_FILES", 1000)
    steps = [symlink(f"d{i}/{side}", f"../d{i - 1}") for i in range(1, 40) for side in "ab"]
    with pytest.raises(SourceError, match="links=skip"):
        contents(written(tmp_path / "t.tar", member("d0/a", b"1"), *steps))


def test_devices_and_pipes_are_left_out(tmp_path: Path) -> None:
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    name = written(tmp_path / "t.tar", member("a", b"1"), *(member(f"x{i}", kind=kind) for i, kind in enumerate(kinds)))
    assert contents(name) == {b"a": b"1"}
    assert left_out(name) == {"special": 3}


def test_times_are_the_members_to_the_nanosecond(tmp_path: Path) -> None:
    name = written(tmp_path / "t.tar", member("a", pax_headers={"mtime": "1700000000.123456789"}), member("b", mtime=5))
    manifest = scanned(name)
    times = {manifest.path(row): manifest.mtime_ns_of[row] for row in (1, 2)}
    assert times == {b"a": 1_700_000_000_123_456_789, b"b": 5_000_000_000}


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_member_is_refused(tmp_path: Path, form: str) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.seek(10 << 20)
        file.write(b"end")
    tar = ["tar", f"--format={form}", "--sparse", "-cf", tmp_path / "t.tar", "-C", tmp_path, "holes"]
    subprocess.run(tar, check=True)
    with pytest.raises(SourceError, match=r"t\.tar: byte 0: .*is sparse"):
        contents(f"tar:{tmp_path}/t.tar")


def test_many_tars_are_one_tree(tmp_path: Path) -> None:
    written(tmp_path / "b.tar", member("d/2", b"two"))
    written(tmp_path / "a.tar", member("d/1", b"one"), member("d/empty"))
    written(tmp_path / "none.tar")
    (tmp_path / "zero.tar").write_bytes(b"")
    (tmp_path / "not one.txt").write_bytes(b"")
    both = {b"d/1": b"one", b"d/2": b"two", b"d/empty": b""}
    assert contents(f"tar:{tmp_path}") == both
    assert contents(f"tar:{tmp_path}/{{a,b}}.tar") == both
    assert contents(f"tar:{tmp_path}/*.tar") == both
    assert contents(f"{tmp_path}/b.tar") == {b"d/2": b"two"}


def test_one_path_in_two_tars_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.tar", member("d/1", b"one"))
    written(tmp_path / "b.tar", member("d/1", b"two"))
    with pytest.raises(SourceError, match=r"d/1 is in a\.tar and b\.tar"):
        contents(f"tar:{tmp_path}")


def test_a_shard_that_is_missing_does_not_go_unnoticed(tmp_path: Path) -> None:
    written(tmp_path / "s-000.tar", member("a"))
    with pytest.raises(SourceError, match=r"s-001\.tar: No such file"):
        contents(f"tar:{tmp_path}/s-{{000..001}}.tar")


def test_no_tar_at_all(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file in it ends with \.tar"):
        contents(f"tar:{tmp_path}")
    with pytest.raises(SourceError, match="no file like it"):
        contents(f"tar:{tmp_path}/*.tar")


def test_a_compressed_tar_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    subprocess.run(["tar", "-czf", tmp_path / "t.tar.gz", "-C", tmp_path, "a"], check=True)
    for name in (f"tar:{tmp_path}", f"{tmp_path}/t.tar.gz"):
        with pytest.raises(SourceError, match=r"t\.tar\.gz: byte 0: .*unpack it with gzip -d first"):
            contents(name)


_A, _B = member("a", b"1" * 700), member("b", b"2" * 700)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (_A + _B[:300], "byte 1536"),
        (_A + _B[:900], "byte 1536: 'b' of 700 bytes is cut short"),
        (_A + _B[:1400], "byte 3072: not a tar header: unexpected end of data"),
        (_A[:900], "byte 0"),
        (_A + b"x" * 512 + _B, "byte 1536: neither a member nor the end"),
        (_A + bytes(512) + _B + bytes(1024), "byte 2048: neither a member nor the end"),
        (_A + bytes(1024) + _B + bytes(1024), "byte 2560: neither a member nor the end"),
        (_A[:124] + b"77777777777\0" + _A[136:], "byte 0: not a tar header: bad checksum"),
        (b"no tar at all" * 100, "byte 0: not a tar header"),
        (b"short", "byte 0: not a tar header"),
        (member("a", mtime=0, size=1 << 60), "byte 0"),
        (member("a", pax_headers={"size": "-5"}) + bytes(1024), "byte 0"),
    ],
)
def test_what_is_damaged_is_named_with_its_byte(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "t.tar").write_bytes(data)
    with pytest.raises(SourceError, match=rf"^t\.tar: {text}"):
        contents(f"tar:{tmp_path}/t.tar")


def test_a_tar_without_an_end_mark_is_whole(tmp_path: Path) -> None:
    assert contents(written(tmp_path / "t.tar", _A, _B, end=b"")) == {b"a": b"1" * 700, b"b": b"2" * 700}


def test_indexing_does_not_read_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path / "t.tar", *(member(f"{i}", bytes(1 << 20)) for i in range(20)))
    read_bytes = _counted(monkeypatch)
    scanned(name)
    assert sum(read_bytes) < 20 * 40_000


def test_indexing_reads_small_members_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path / "t.tar", *(member(f"{i}", b"x" * 100) for i in range(4000)))
    read_bytes = _counted(monkeypatch)
    scanned(name)
    assert len(read_bytes) < 20


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request from here on."""
    sizes: list[int] = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *how: sizes.append(sum(map(len, how[1]))) or preadv(*how))
    return sizes


def _valid() -> bytes:
    generator = random.Random(2)
    parts = [member(f"d{i % 3}/{i}", generator.randbytes(generator.randrange(3000))) for i in range(12)]
    parts += [hardlink("h", "d0/0"), symlink("s", "d1"), member("p" * 300, b"long", pax_headers={"mtime": "1.5"})]
    info = tarfile.TarInfo("g" * 300)
    return b"".join([*parts, info.tobuf(tarfile.GNU_FORMAT), bytes(1024)])


_VALID = _valid()
_HEADERS = [at for at in range(0, len(_VALID), TAR_BLOCK) if _VALID[at + 257 : at + 262] == b"ustar"]


def _edits() -> st.SearchStrategy[tuple[str, int, bytes]]:
    anywhere = st.integers(0, len(_VALID) - 1)
    in_headers = st.builds(lambda header, at: header + at, st.sampled_from(_HEADERS), st.integers(0, 511))
    kinds = st.sampled_from(["flip", "insert", "cut", "end", "fixed"])
    return st.tuples(kinds, st.one_of(anywhere, in_headers), st.binary(min_size=1, max_size=12))


def _edited(edits: list[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(_VALID)
    for kind, at, new in edits:
        if kind in ("flip", "fixed"):
            data[at : at + len(new)] = new
        elif kind == "insert":
            data[at:at] = new
        elif kind == "cut":
            del data[at : at + len(new)]
        else:
            del data[at:]
        header = at // TAR_BLOCK * TAR_BLOCK
        if kind == "fixed" and header + TAR_BLOCK <= len(data):  # with a right checksum the lie is believed
            data[header + 148 : header + 156] = b" " * 8
            data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + TAR_BLOCK])
    return bytes(data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(_edits(), min_size=1, max_size=3))
def test_whatever_is_done_to_a_tar_it_is_read_as_the_library_does_or_refused(
    tmp_path: Path, edits: list[tuple[str, int, bytes]]
) -> None:
    (tmp_path / "t.tar").write_bytes(_edited(edits))
    try:
        found = contents(f"tar:{tmp_path}/t.tar", links="skip")
    except (DeepiofsError, OSError):
        return
    assert _by_the_library(tmp_path / "t.tar").items() <= found.items()


def _by_the_library(path: Path) -> dict[bytes, bytes]:
    """Regular members that no later one replaces."""
    found: dict[bytes, bytes] = {}
    if not path.stat().st_size:
        return found
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        for one in tar:
            parts = one.name.encode("utf-8", "surrogateescape").split(b"/")
            name = b"/".join(part for part in parts if part not in (b"", b"."))
            found.pop(name, None)
            data = tar.extractfile(one) if one.isreg() else None
            if data:
                found[name] = data.read()
    return found
