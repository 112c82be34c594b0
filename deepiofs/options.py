"""The one table of mount options: parsing, validation, `--help`, docs and `.deepiofs/config` derive from it.

`Settings` *is* the table: each field is one option, its metadata says how it is written and what it means.
Three steps, as for every option string: `parse_option_string` splits, `Settings.from_strings` parses and
reports all problems at once, and what depends on the machine (a percentage) is filled in by
`Amount.of` where the machine is known.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deepiofs.errors import OptionError

# What mount(8) and fstab(5) hand to a helper beside the options that are meant for it.
GENERIC = frozenset(
    "rw ro dev nodev suid nosuid exec noexec auto noauto user nouser users owner group async sync atime noatime "  # noqa: SIM905
    "relatime norelatime strictatime nostrictatime diratime nodiratime lazytime nolazytime _netdev nofail defaults "
    "silent loud mand nomand iversion noiversion dirsync symfollow nosymfollow noowner nogroup".split()
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LARGEST = 1 << 62
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Amount:
    """A size in bytes, or a share of what the machine can give."""

    bytes: int = 0
    percent: float | None = None

    def of(self, available_bytes: int) -> int:
        """Bytes, given what the percentage is of."""
        return self.bytes if self.percent is None else int(available_bytes * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent is not None else str(self.bytes)


def _size(text: str) -> Amount:
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].upper()] if match else math.inf
    if not size < _LARGEST:
        raise ValueError("expected a size such as 256M or 4GiB")
    return Amount(bytes=int(size))


def _amount(text: str) -> Amount:
    if not text.endswith("%"):
        return _size(text)
    percent = _number(text[:-1], 0, 100)
    return Amount(percent=percent)


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g}")
    return value


def _seconds(text: str) -> float:
    return _number(text, 0, 86400)


def _timeout(text: str) -> float:
    return _number(text, 0.01, 86400)


def _fraction(text: str) -> float:
    return _number(text, 0, 1)


def _integer(low: int, high: int, base: int = 10) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text, base)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}" + (" in octal" if base == 8 else ""))
        return value

    return parse


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"expected one of {', '.join(values)}")
        return text

    return parse


def _shuffle(text: str) -> str:
    if text.startswith("re:"):
        try:
            re.compile(text[3:].encode())
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return text
    if text not in ("off", "dir", "all"):
        raise ValueError("expected off, dir, all or re:REGEX")
    return text


def _globs(text: str) -> tuple[str, ...]:
    return tuple(pattern for pattern in text.split(":") if pattern)


def _flag(text: str) -> bool:
    if text not in ("", "on", "off"):
        raise ValueError("takes no value")
    return text != "off"


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a value")
    return text


def _option(default: Any, parse: Callable[[str], Any], values: str, meaning: str) -> Any:
    metadata = {"parse": parse, "values": values, "meaning": meaning}
    return dataclasses.field(default=default, metadata=metadata)


_NOBODY = (1 << 32) - 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of one mount, typed. Defaults are those of the table in docs/OPTIONS.md."""

    shuffle: str = _option(
        "off",
        _shuffle,
        "off, dir, all, re:REGEX",
        "which files are interchangeable: none; those of one directory (the directory is the label); all; "
        "those with equal capture of REGEX in their path",
    )
    shuffle_only: tuple[str, ...] = _option((), _globs, "globs", "restricts shuffle; the rest keeps its own bytes")
    entropy: float = _option(0.9, _fraction, "0..1", "lower bound on the ordering entropy")
    batch: int = _option(
        0,
        _integer(0, 1 << 40),
        "integer",
        "global batch size; with shuffle=all and in streams: full shuffle of batches at a fraction of the traffic",
    )
    seed: int = _option(
        0,
        _integer(0, (1 << 64) - 1),
        "unsigned 64-bit",
        "of every random choice; same seed, topology and dataset: same plan",
    )
    cache: Amount = _option(
        Amount(percent=50.0),
        _amount,
        "size or percent",
        "memory per rank for resident samples; percent is of what the node (cgroup limit, MemAvailable) can "
        "give, divided by its ranks",
    )
    staging: Amount = _option(
        Amount(bytes=256 << 20), _size, "size", "memory per rank for samples fetched ahead and not resident"
    )
    warm: str = _option(
        "background",
        _choice("background", "full", "demand"),
        "background, full, demand",
        "load at once while serving; load before the mount reports success; load on first read",
    )
    prefetch: int = _option(64, _integer(0, 1 << 20), "integer", "how many draws ahead are fetched")
    replicate: tuple[str, ...] = _option((), _globs, "globs", "files kept in every node's memory (a validation set)")
    verify: str = _option(
        "fetch",
        _choice("off", "fetch", "always"),
        "off, fetch, always",
        "check xxh3 of every sample got from a peer; of every sample served",
    )
    timeout: float = _option(5.0, _timeout, "seconds", "after which a peer's get is abandoned for the source")
    linger: float = _option(
        30.0, _seconds, "seconds", "how long an engine goes on serving its peers after its mount is gone"
    )
    mpi: str = _option(
        "auto",
        _choice("auto", "on", "off"),
        "auto, on, off",
        "auto: MPI if a launcher's environment is found",
    )
    index: str | None = _option(
        None,
        _text,
        "file",
        "load the index from this file if it still matches the source; else build and write it",
    )
    include: tuple[str, ...] = _option((), _globs, "globs", "what of the source is in the view")
    exclude: tuple[str, ...] = _option((), _globs, "globs", "what of the source is not in the view")
    links: str = _option("follow", _choice("follow", "skip"), "follow, skip", "symbolic links in the source")
    even: str = _option(
        "off",
        _choice("off", "drop", "pad"),
        "off, drop, pad",
        "streams: make all ranks and parts equally long by leaving samples out, or by repeating some",
    )
    order_log: str | None = _option(
        None,
        _text,
        "file, %r allowed",
        "every draw as CSV: pass, position, name, sample, origin",
    )
    log: str | None = _option(None, _text, "file, %r allowed", "where log lines go")
    loglevel: str = _option(
        "warning",
        _choice("debug", "info", "warning", "error"),
        "debug, info, warning, error",
        "what is logged; at debug an error shows its traceback",
    )
    allow_other: bool = _option(False, _flag, "", "other users may enter the mount; file modes then decide")
    allow_root: bool = _option(False, _flag, "", "root may enter the mount")
    uid: int | None = _option(None, _integer(0, _NOBODY), "number", "owner of all files, instead of the source's")
    gid: int | None = _option(None, _integer(0, _NOBODY), "number", "group of all files, instead of the source's")
    umask: int | None = _option(
        None, _integer(0, 0o777, 8), "octal", "permission bits of all files, instead of the source's"
    )
    fsname: str | None = _option(None, _text, "text", "name in the first column of mount(8) (the source)")
    max_background: int = _option(
        64, _integer(1, 65535), "integer", "how many read-ahead requests the kernel may have under way"
    )

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> Settings:
        """Parse and validate; every problem found is named in the one `OptionError`."""
        table = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for name, text in strings.items():
            if name not in table:
                problems.append(_unknown(name, table))
                continue
            try:
                values[name] = table[name].metadata["parse"](text)
            except ValueError as error:
                problems.append(f"{name}={text}: {error}")
        settings = cls(**values)
        if settings.allow_other and settings.allow_root:
            problems.append("allow_other and allow_root exclude each other; give one")
        if problems:
            raise OptionError("; ".join(problems))
        return settings

    def effective(self) -> dict[str, object]:
        """Every option with the value in force, as JSON can hold it."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def parse_option_string(text: str) -> dict[str, str]:
    """Split `a=b,c,d=e` as mount(8) does (`\\,` is a comma within a value); the generic ones are dropped.

    The last of several values of one option wins, as with mount(8).
    """
    found: dict[str, str] = {}
    for item in re.split(r"(?<!\\),", text):
        name, _, value = item.replace("\\,", ",").partition("=")
        name = name.strip()
        if name and name not in GENERIC and not name.startswith(("x-", "X-")) and name != "comment":
            found[name] = value
    return found


def parse_size(text: str) -> int:
    """Bytes of a size such as `256M` or `4GiB`; OptionError for anything else."""
    try:
        return _size(text).bytes
    except ValueError as error:
        raise OptionError(f"{text}: {error}") from None


def option_rows() -> Iterable[tuple[str, str, str, str]]:
    """(name, values, default, meaning) of each option, for `--help` and docs/OPTIONS.md."""
    for field in dataclasses.fields(Settings):
        yield field.name, field.metadata["values"] or "flag", _shown(field.default), field.metadata["meaning"]


def _unknown(name: str, table: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.0)
    return f"unknown option {name!r}; the nearest is {near[0]!r}"


def _plain(value: object) -> object:
    if isinstance(value, Amount):
        return str(value) if value.percent is not None else value.bytes
    return list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "off"
    if isinstance(value, Amount) and value.percent is None:
        return f"{value.bytes >> 20}M"
    return f"{value:g}" if isinstance(value, float) else str(value)
