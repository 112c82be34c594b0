"""A dataset with all kinds of names and samples, and what the mounts' streams hold of it."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mounts import MpiMount

STREAM = ".deepiofs/stream"
_SAMPLES = 120


@pytest.fixture(scope="session")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of one and of several files, long and foreign names, empty and large files, old and new times."""
    root = tmp_path_factory.mktemp("varied")
    root.chmod(0o755)
    generator = random.Random(5)
    for i in range(_SAMPLES):
        folder = root / f"class{i % 5}"
        folder.mkdir(exist_ok=True)
        for suffix in (("jpg", "cls"), ("jpg",), ("seg.png", "jpg", "json"))[i % 3]:
            path = folder / f"{i:05}.{suffix}"
            path.write_bytes(generator.randbytes(generator.choice([0, 1, 511, 512, 513, 3000, 40_000])))
            os.utime(path, (0, 86_400 * 365 * (i % 50)))
            path.chmod(0o644 if i % 2 else 0o444)
    names = [b"plain", b"\xff\xfe.bin", "\u00e4\u00f6.txt".encode(), b"two\nlines.txt", b" lead.txt", b"-dash.txt"]
    names += [b"long" * 40 + b".txt", "\u00e4".encode() * 110, b"\xfe" * 120]
    for name in names:
        path_bytes = os.fsencode(root) + b"/odd/" + name
        os.makedirs(os.path.dirname(path_bytes), exist_ok=True)
        with open(path_bytes, "wb") as file:
            file.write(b"bytes of " + name)
    deep = root / ("d" * 90) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / "deep.txt").write_bytes(b"deep")
    (root / "large.bin").write_bytes(generator.randbytes((9 << 20) + 17))
    return root


def parts(mountpoints: Iterable[Path], form: str, number: int, count: int) -> list[Path]:
    """All parts of all ranks."""
    extension = {"tar": "tar", "tfrecord": "tfrecord", "list": "txt"}[form]
    folder = f"{STREAM}/{form}/epoch-{number}"
    return [point / folder / f"{part}-of-{count}.{extension}" for point in mountpoints for part in range(count)]


def listed(mounted: MpiMount, number: int, count: int) -> list[list[str]]:
    """The paths of every part, by its list."""
    files = parts(mounted.mountpoints, "list", number, count)
    return [file.read_text("utf-8", "surrogateescape").splitlines() for file in files]


def quiet(*argv: str) -> str:
    """What a program prints; it must succeed and complain of nothing."""
    done = subprocess.run(argv, capture_output=True, text=True, errors="surrogateescape", check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout
