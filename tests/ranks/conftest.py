"""Datasets of several ranks, their engines, and their memory."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.mounts import MpiMount, wait_until


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """120 small files and one of three and a half extents: 20 MB, recognisable bytes."""
    generator = random.Random(2)
    source = tmp_path / "source"
    for i in range(120):
        path = source / f"class{i % 4}" / f"{i:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.randbytes(20_000 + 100 * i))
    (source / "large.bin").write_bytes(generator.randbytes(14 << 20))
    (source / "empty.bin").write_bytes(b"")
    return source


def total_bytes(source: Path) -> int:
    """Of all files."""
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


def differences(mounted: MpiMount, rank: int, below: str = "") -> str:
    """What an independent comparison of a mount with the source says; empty if nothing differs."""
    done = mounted.places[rank].run("diff", "-r", str(mounted.source), f"{mounted.mountpoints[rank]}{below}")
    return done.stdout + done.stderr


def fresh_differences(mounted: MpiMount, rank: int) -> str:
    """The same through names that the kernel has no pages of yet."""
    return differences(mounted, rank, "/.deepiofs/exact")


def engine(mounted: MpiMount, rank: int, lab: Lab | None = None) -> int:
    """The engine's pid, by the machine's numbers."""
    if lab is None:
        return int(mounted.stats(rank)["engine_pid"])
    host = lab.hosts[rank % len(lab.hosts)]
    return next(pid for pid in lab.processes(host) if "deepiofs.engine" in _command(pid))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def flip_first_byte(pid: int, content: bytes) -> None:
    """Change the first byte of some bytes in an engine's store, as a faulty memory would."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if "deepiofs-store" in os.readlink(fd):
            with open(fd, "r+b", buffering=0) as store:
                place = _find(store.fileno(), content)
                if place is not None:
                    os.pwrite(store.fileno(), bytes([content[0] ^ 0x40]), place)
                    return
    raise AssertionError("these bytes are not in this engine's store")


def _find(fd: int, content: bytes) -> int | None:
    place = os.pread(fd, os.fstat(fd).st_size, 0).find(content)
    return None if place < 0 else place


def held_elsewhere(mounted: MpiMount, rank: int, origin: str) -> Path:
    """A small file that another rank holds, relative to the source."""
    for path in sorted(mounted.source.rglob("*.bin")):
        name = path.relative_to(mounted.source)
        said = mounted.places[rank].output(
            "getfattr", "--absolute-names", "--only-values", "-n", "user.deepiofs.origin",
            str(mounted.mountpoints[rank] / name),
        )  # fmt: skip
        if said == origin and path.stat().st_size < 1 << 20:
            return name
    raise AssertionError(f"no file comes from {origin}")


def wait_for_health(mounted: MpiMount, rank: int, word: str) -> None:
    """Return when `health` says it."""
    wait_until(lambda: word in mounted.control(rank, "health"), f"health says {word}")
