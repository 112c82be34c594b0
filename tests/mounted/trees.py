"""Datasets that are hard to show right."""

from __future__ import annotations

import os
import random
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

BIG_BYTES = 300_000_000
DEPTH = 40
# At the very bottom: what the cache has no room for is the end of this file, and nothing else.
BIG = "/".join(["deep", *(f"level {level}" for level in range(DEPTH - 1)), "big"])
NASTY_NAMES = (
    b"\xff\xfe not UTF-8 \x80",
    b"new\nline",
    b"tab\tand back\\slash",
    b"*?[a]{b,c}!~",
    b"-rf",
    b" ",
    b"...",
    b".hidden",
    "größe 画像".encode(),
    b"n" * 255,
    b"\x01\x1b[31m\x7f",
    b"comma,colon:percent%r",
)
# What the view leaves out of `build`'s tree, by the reason that `left_out` gives.
LEFT_OUT = {
    "special": {"special/fifo", "special/socket"},
    "dangling": {"links/dangling"},
    "looping": {"links/up", "links/one", "links/other"},
}


def build(folder: Path) -> Path:
    """The nasty tree, at `folder`/source; some of its links lead to `folder`/outside."""
    source, outside = folder / "source", folder / "outside"
    for name in ("plain", "empty", "names", "links", "modes", "hard", "special"):
        (source / name).mkdir(parents=True)
    generator = random.Random(1)
    _plain(source, generator)
    _names(os.fsencode(source / "names"), generator)
    _deep(source / "deep", generator)
    big(source / BIG, generator)
    _links(source / "links", outside)
    _modes(source / "modes")
    (source / "hard/first").write_bytes(b"one file")
    os.link(source / "hard/first", source / "hard/second")
    os.link(source / "hard/first", source / "plain/third")
    _special(source / "special")
    return source


def big(path: Path, generator: random.Random, size: int = BIG_BYTES) -> None:
    """Mostly a hole, with random bytes at both ends, around each 4 MiB, and at other places."""
    places = [0, size - 10_001, *range((4 << 20) - 5000, size - 20_000, 4 << 20)]
    places += [generator.randrange(size - 20_000) for _ in range(50)]
    with path.open("wb") as file:
        file.truncate(size)
        for place in places:
            file.seek(place)
            file.write(generator.randbytes(10_001))


def walk(folder: bytes, seen: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[bytes, os.stat_result]]:
    """(path, stat) of what a reader who follows links finds below a directory: regular files and directories."""
    here = os.stat(folder)
    seen = (*seen, (here.st_dev, here.st_ino))
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
            yield path, found
            yield from walk(path, seen)
        elif stat.S_ISREG(found.st_mode):
            yield path, found


def _plain(source: Path, generator: random.Random) -> None:
    for size in (0, 1, 511, 4095, 4096, 4097, 131_071, 131_073, 1 << 20, (4 << 20) - 1, 4 << 20, (4 << 20) + 1):
        (source / f"plain/{size}").write_bytes(generator.randbytes(size))
    os.utime(source / "plain/1", ns=(0, 1))
    os.utime(source / "plain/511", ns=(0, -1_500_000_000))
    os.utime(source / "plain/4095", ns=(0, 4_000_000_000_123_456_789))
    (source / "plain/folder/of folder").mkdir(parents=True)


def _names(folder: bytes, generator: random.Random) -> None:
    for name in NASTY_NAMES:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(generator.randbytes(1000))
        os.makedirs(os.path.join(folder, b"below", name))
        with open(os.path.join(folder, b"below", name, name), "wb") as file:
            file.write(name)


def _deep(folder: Path, generator: random.Random) -> None:
    for level in range(DEPTH):
        folder.mkdir()
        (folder / "file").write_bytes(generator.randbytes(level * 100))
        folder /= f"level {level}"


def _links(folder: Path, outside: Path) -> None:
    (outside / "more").mkdir(parents=True)
    (outside / "file").write_bytes(b"outside of the dataset")
    (outside / "more/file").write_bytes(b"outside and below")
    for name, target in {
        "to-file": "../plain/4096",
        "to-directory": "../names",
        "to-link": "to-file",
        "absolute": str(outside / "file"),
        "escaping": "../../outside",
        "dangling": "nowhere",
        "up": "..",
        "one": "other",
        "other": "one",
    }.items():
        (folder / name).symlink_to(target)


def _modes(folder: Path) -> None:
    for mode in (0o000, 0o111, 0o200, 0o400, 0o444, 0o640, 0o755, 0o4755, 0o2755):
        path = folder / f"{mode:04o}"
        path.write_text(oct(mode))
        path.chmod(mode)
    (folder / "closed").mkdir()
    (folder / "closed/file").write_text("behind a closed door")
    (folder / "closed").chmod(0o000)
    (folder / "sticky").mkdir()
    (folder / "sticky").chmod(0o1777)


def _special(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    # A path of a socket may have no more than 107 bytes.
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
    finally:
        os.fchdir(here)
        os.close(here)
