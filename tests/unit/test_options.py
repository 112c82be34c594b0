"""The option table: splitting, parsing, what is refused, and what is derived from it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.errors import OptionError
from deepiofs.options import GENERIC, Amount, Settings, option_rows, parse_option_string

_DOCS = Path(__file__).parents[2] / "docs" / "OPTIONS.md"
_NAMES = [field.name for field in dataclasses.fields(Settings)]


def _settings(text: str) -> Settings:
    return Settings.from_strings(parse_option_string(text))


def _refusal(text: str) -> str:
    with pytest.raises(OptionError) as caught:
        _settings(text)
    return str(caught.value)


# --- Splitting -------------------------------------------------------------------------------------------------------


def test_a_string_is_split_at_commas_and_the_first_equals_sign() -> None:
    assert parse_option_string("a=b,c,d=e=f") == {"a": "b", "c": "", "d": "e=f"}


def test_an_escaped_comma_belongs_to_the_value() -> None:
    assert parse_option_string(r"include={a\,b},links=skip") == {"include": "{a,b}", "links": "skip"}


def test_the_last_of_several_values_wins() -> None:
    assert parse_option_string("cache=1G,cache=2G") == {"cache": "2G"}


def test_empty_items_are_nothing() -> None:
    assert parse_option_string("") == {}
    assert parse_option_string(",,cache=1G,") == {"cache": "1G"}


@pytest.mark.parametrize("name", sorted(GENERIC))
def test_what_mount_hands_to_every_helper_is_dropped(name: str) -> None:
    assert parse_option_string(f"{name},cache=1G") == {"cache": "1G"}


@pytest.mark.parametrize("item", ["x-systemd.automount", "x-gvfs-show", "X-mount.mkdir=0700", "comment=mine"])
def test_options_of_other_programs_are_dropped(item: str) -> None:
    assert parse_option_string(f"cache=1G,{item}") == {"cache": "1G"}


def test_no_option_of_ours_is_dropped_as_generic() -> None:
    assert GENERIC.isdisjoint(_NAMES)


def test_spaces_around_a_name_do_not_matter() -> None:
    assert parse_option_string("cache=1G, ro, links=skip") == {"cache": "1G", "links": "skip"}


@given(st.dictionaries(st.from_regex(r"[a-wyz][a-z_]{0,9}", fullmatch=True), st.text("ab=,:/*{}"), max_size=5))
def test_any_value_survives_splitting_when_its_commas_are_escaped(values: dict[str, str]) -> None:
    values = {name: value for name, value in values.items() if name not in GENERIC and name != "comment"}
    text = ",".join(name + "=" + value.replace(",", r"\,") for name, value in values.items())
    assert parse_option_string(text) == values


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1K", 1 << 10),
        ("256M", 256 << 20),
        ("2G", 2 << 30),
        ("3T", 3 << 40),
        ("256MiB", 256 << 20),
        ("256MB", 256 << 20),
        ("4gib", 4 << 30),
        ("1.5G", 3 << 29),
        ("12B", 12),
        (" 1 M ", 1 << 20),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert Settings.from_strings({"staging": text}).staging == Amount(bytes=size)
    assert Settings.from_strings({"cache": text}).cache == Amount(bytes=size)


@pytest.mark.parametrize("text", ["", "M", "-1", "1X", "1 000", "0x10", "1e3", "inf", "nan", "1KM", "1Ki", "50%%", "%"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    assert re.search("expected (a size such as 256M|a number)", _refusal(f"cache={text}"))


def test_a_size_beyond_all_bounds_is_refused_like_any_other() -> None:
    assert "cache" in _refusal("cache=" + "9" * 400)


@given(st.integers(0, 1 << 50))
def test_sizes_survive_being_written_and_read(size: int) -> None:
    assert Settings.from_strings({"cache": str(Amount(bytes=size))}).cache.bytes == size


@given(st.integers(0, 1 << 20), st.sampled_from("KMGT"), st.sampled_from(["", "B", "iB"]))
def test_a_unit_multiplies(number: int, unit: str, suffix: str) -> None:
    power = 10 * ("KMGT".index(unit) + 1)
    assert Settings.from_strings({"staging": f"{number}{unit}{suffix}"}).staging.bytes == number << power


@given(st.floats(0, 100))
def test_percentages_survive_being_written_and_read(percent: float) -> None:
    cache = Settings.from_strings({"cache": f"{percent!r}%"}).cache
    assert cache.percent == percent
    assert cache.of(1000) == int(10 * percent) or abs(cache.of(1000) - 10 * percent) <= 1


@pytest.mark.parametrize("text", ["-1%", "100.1%", "nan%", "all%"])
def test_a_percentage_is_from_0_to_100(text: str) -> None:
    assert "expected a number from 0 to 100" in _refusal(f"cache={text}")


def test_staging_takes_no_percentage() -> None:
    assert "staging=10%: expected a size" in _refusal("staging=10%")


def test_a_percentage_is_of_what_there_is_and_a_size_is_not() -> None:
    assert Amount(percent=25.0).of(1000) == 250
    assert Amount(bytes=7).of(1000) == 7


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("warm=later", "expected one of background, full, demand"),
        ("verify=yes", "expected one of off, fetch, always"),
        ("links=copy", "expected one of follow, skip"),
        ("mpi=maybe", "expected one of auto, on, off"),
        ("loglevel=loud", "expected one of debug, info, warning, error"),
        ("timeout=0", "expected a number from 0.01 to 86400"),
        ("timeout=soon", "expected a number"),
        ("linger=-1", "expected a number from 0"),
        ("uid=-1", "expected a whole number from 0"),
        ("gid=4294967295", "expected a whole number from 0"),
        ("umask=8", "in octal"),
        ("umask=1777", "in octal"),
        ("max_background=0", "expected a whole number from 1 to 65535"),
        ("allow_other=maybe", "takes no value"),
        ("index=", "expected a value"),
        ("log=", "expected a value"),
        ("fsname", "expected a value"),
        ("shuffle=re:(", "not a regular expression"),
        ("shuffle=some", "expected off, dir, all or re:REGEX"),
        ("entropy=1.1", "expected a number from 0 to 1"),
        ("seed=18446744073709551616", "expected a whole number"),
    ],
)
def test_a_wrong_value_is_refused_and_says_what_was_expected(option: str, expected: str) -> None:
    refusal = _refusal(option)
    assert expected in refusal
    assert option.partition("=")[0] in refusal


def test_an_umask_is_octal() -> None:
    assert _settings("umask=027").umask == 0o027


def test_globs_are_separated_by_colons() -> None:
    assert _settings("exclude=*.tmp:a/**::.git").exclude == ("*.tmp", "a/**", ".git")


@pytest.mark.parametrize(
    ("text", "value"), [("allow_other", True), ("allow_other=on", True), ("allow_other=off", False)]
)
def test_a_flag_needs_no_value(text: str, value: bool) -> None:
    assert _settings(text).allow_other is value


# --- All together ----------------------------------------------------------------------------------------------------


def test_nothing_given_is_all_defaults() -> None:
    assert Settings.from_strings({}) == Settings()


def test_all_problems_are_in_one_error() -> None:
    refusal = _refusal("cache=much,timeout=-1,chache=1G,allow_other,allow_root")
    for problem in ("cache=much", "timeout=-1", "'chache'", "allow_other and allow_root"):
        assert problem in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("given_name", "near"),
    [
        ("chache", "cache"),
        ("allow-other", "allow_other"),
        ("time_out", "timeout"),
        ("log_level", "loglevel"),
        ("linkx", "links"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(given_name: str, near: str) -> None:
    assert re.search(f"unknown option '{given_name}'.* '{near}'", _refusal(f"{given_name}=1"))


@given(st.text(min_size=1).filter(lambda name: name not in _NAMES))
def test_every_unknown_name_is_refused_and_some_name_offered(name: str) -> None:
    with pytest.raises(OptionError, match=r"the nearest is '[a-z_]+'"):
        Settings.from_strings({name: ""})


def test_allow_other_and_allow_root_exclude_each_other() -> None:
    assert "exclude each other" in _refusal("allow_other,allow_root")
    assert _settings("allow_root").allow_root
    assert _settings("allow_other,allow_root=off").allow_other


_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "cache": st.one_of(st.integers(0, 1 << 40).map(str), st.integers(0, 100).map("{}%".format)),
        "staging": st.integers(0, 1 << 40).map(str),
        "warm": st.sampled_from(["background", "full", "demand"]),
        "replicate": st.sampled_from(["", "val/**", "a:b"]),
        "timeout": st.floats(0.01, 86400).map(repr),
        "index": st.text(min_size=1),
        "allow_other": st.sampled_from(["", "on", "off"]),
        "uid": st.integers(0, 1000).map(str),
        "umask": st.integers(0, 0o777).map("{:o}".format),
    },
)


@given(_VALUES)
def test_the_effective_settings_are_json_and_name_every_option(values: dict[str, str]) -> None:
    effective = Settings.from_strings(values).effective()
    assert list(effective) == _NAMES
    assert json.loads(json.dumps(effective)) == effective


@given(_VALUES)
def test_settings_are_values(values: dict[str, str]) -> None:
    assert Settings.from_strings(values) == Settings.from_strings(dict(reversed(values.items())))


def test_the_table_that_help_and_docs_show_has_every_option() -> None:
    rows = list(option_rows())
    assert [row[0] for row in rows] == _NAMES
    assert all(values and default and meaning for _, values, default, meaning in rows)


def test_the_documentation_has_every_option() -> None:
    assert _DOCS.exists(), "docs/OPTIONS.md is missing"
    text = _DOCS.read_text()
    assert [name for name in _NAMES if f"`{name}" not in text] == []
