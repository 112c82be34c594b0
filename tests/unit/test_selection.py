"""Which paths a list of globs means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset.selection import Globs
from deepiofs.errors import UsageError

_NAME = st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name)
_PATH = st.lists(_NAME.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=4).map(b"/".join)


def _literal(path: bytes) -> str:
    """A pattern that means this path only."""
    return re.sub(r"([\\*?\[\]{},!~|()+@$^.-])", r"\\\1", path.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.jpg", b"a.jpg"),
        ("*.jpg", b"train/cat/a.jpg"),
        ("*.jpg", b".hidden.jpg"),
        ("*", b"any/thing"),
        (".*", b"x/.git"),
        ("cache", b"cache"),
        ("cache", b"a/cache"),
        ("train/*", b"train/a"),
        ("train/**", b"train/a"),
        ("train/**", b"train/a/b/c"),
        ("**/cat/*.jpg", b"cat/a.jpg"),
        ("**/cat/*.jpg", b"a/b/cat/a.jpg"),
        ("a/**/z", b"a/z"),
        ("a/**/z", b"a/b/c/z"),
        ("{train,val}/*", b"val/a"),
        ("*.{jpg,png}", b"x/a.png"),
        ("[ab].jpg", b"x/b.jpg"),
        ("[!ab].jpg", b"c.jpg"),
        ("?", b"\xff"),
        (r"a\*", b"a*"),
        ("\udcff*", b"\xff-name"),
        ("é.jpg", "é.jpg".encode()),
        ("!a", b"!a"),
        ("~x", b"~x"),
    ],
)
def test_a_pattern_means(pattern: str, path: bytes) -> None:
    assert Globs([pattern]).matches(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.jpg", b"a.jpg.txt"),
        ("*.jpg", b"a.JPG"),
        ("*.jpg", b"a.jpg/b"),
        ("cache", b"cachet"),
        ("cache", b"my cache"),
        ("cache", b"cache/a"),
        ("train/*", b"train/a/b"),
        ("train/*", b"x/train/a"),
        ("train/**", b"trainer/a"),
        ("a/**/z", b"a/zz"),
        ("[ab].jpg", b"c.jpg"),
        ("?", b"ab"),
        (r"a\*", b"ab"),
        ("!a", b"b"),
    ],
)
def test_a_pattern_does_not_mean(pattern: str, path: bytes) -> None:
    assert not Globs([pattern]).matches(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("train", b"train/cat/a.jpg"), ("cat", b"train/cat/a.jpg"), ("train/c*", b"train/cat/deep/a.jpg"), ("*", b"a/b")],
)
def test_what_means_a_directory_covers_all_beneath_it(pattern: str, path: bytes) -> None:
    assert Globs([pattern]).cover(path)


@pytest.mark.parametrize(("pattern", "path"), [("train", b"trains/a"), ("a/b", b"a/c/b"), ("a/b", b"x/a/b/c")])
def test_what_means_no_directory_above_does_not_cover(pattern: str, path: bytes) -> None:
    assert not Globs([pattern]).cover(path)


def test_a_newline_at_the_end_is_part_of_a_name() -> None:
    assert not Globs(["*.jpg"]).matches(b"a.jpg\n")
    assert not Globs(["a/b"]).matches(b"a/b\n")
    assert Globs(["*"]).matches(b"a\n")


def test_a_pattern_that_expands_without_end_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=re.escape("{1..20000}")):
        Globs(["*.jpg", "{1..20000}"])


def test_no_patterns_mean_nothing() -> None:
    assert not Globs([])
    assert not Globs([]).matches(b"a")
    assert not Globs([]).cover(b"a/b")


def test_patterns_are_truthy_and_any_of_them_is_enough() -> None:
    globs = Globs(["*.png", "b"])
    assert globs
    assert globs.matches(b"x.png")
    assert globs.matches(b"b")
    assert not globs.matches(b"x.jpg")


@given(_PATH)
def test_an_escaped_path_means_that_path(path: bytes) -> None:
    assert Globs([_literal(path)]).matches(path)


@given(_PATH, _PATH)
def test_an_escaped_path_of_several_parts_means_no_other(path: bytes, other: bytes) -> None:
    globs = Globs([_literal(b"root/" + path)])
    assert globs.matches(b"root/" + other) == (path == other)


@given(_PATH)
def test_a_name_is_found_at_any_depth(path: bytes) -> None:
    assert Globs([_literal(path.rpartition(b"/")[2])]).matches(path)


@given(_PATH)
def test_what_matches_covers(path: bytes) -> None:
    first = path.partition(b"/")[0]
    globs = Globs([_literal(first)])
    assert globs.matches(first)
    assert globs.cover(path)


def test_slashes_at_the_ends_say_where_and_not_what() -> None:
    assert Globs(["cache/"]).cover(b"a/cache/x")
    assert Globs(["/cache"]).cover(b"cache/x")
    assert not Globs(["/cache"]).cover(b"a/cache/x")
