"""Other ways to serve the same files: the least file system in C, ratarmount, squashfuse, and the plain directory.

Each is a `Peer`. What it needs and does not find is told by `missing`, so that a table can name it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mounts import end, wait_until

_MEMORY_FS = Path(__file__).parent / "memoryfs.c"
# Nothing compressed, no tails packed together: what is compared is serving.
_SQUASH = ("-noI", "-noD", "-noF", "-noX", "-no-fragments", "-no-progress", "-quiet")
C_ONE, C_THREADS = "C, 1 thread", "C, threads"


@dataclass(frozen=True)
class Peer:
    """programs: what must be installed, with the package that brings it. serve: (source, folder) to where it serves."""

    name: str
    programs: tuple[tuple[str, str], ...]
    serve: Callable[[Path, Path], contextlib.AbstractContextManager[Path]]

    def missing(self) -> str | None:
        """What has to be installed, or None."""
        lacking = [package for program, package in self.programs if not _found(program)]
        return f"not installed: {', '.join(lacking)}" if lacking else None


def _found(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))


def build_memory_fs(folder: Path) -> Path:
    """Compile the file system in C; its program."""
    program = folder / "memoryfs"
    if not program.exists():
        said = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True)
        subprocess.run(["gcc", "-O2", "-o", program, _MEMORY_FS, *said.stdout.split()], check=True)
    return program


@contextlib.contextmanager
def serving(command: Sequence[str | Path], point: Path) -> Iterator[Path]:
    """What a program serves that stays in the foreground; it is ended by SIGTERM, and unmounts itself."""
    point.mkdir(exist_ok=True)
    process = subprocess.Popen(list(map(str, command)), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.ismount(point) or process.poll() is not None, f"{command[0]} has mounted")
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        yield point
    finally:
        end(process)
        if os.path.ismount(point):
            subprocess.run(["umount", "-l", point], check=False)


@contextlib.contextmanager
def by_c(source: Path, folder: Path, threads: int = 1) -> Iterator[Path]:
    """By the file system in C."""
    program = build_memory_fs(folder)
    with serving([program, source, folder / f"c{threads}", str(threads)], folder / f"c{threads}") as root:
        yield root


def _c(threads: int) -> Callable[[Path, Path], contextlib.AbstractContextManager[Path]]:
    return lambda source, folder: by_c(source, folder, threads)


@contextlib.contextmanager
def _plain(source: Path, folder: Path) -> Iterator[Path]:
    yield source


def _squashed(program: str) -> Callable[[Path, Path], contextlib.AbstractContextManager[Path]]:
    @contextlib.contextmanager
    def serve(source: Path, folder: Path) -> Iterator[Path]:
        image = folder / "image.squashfs"
        if not image.exists():
            subprocess.run(["mksquashfs", source, image, *_SQUASH], check=True, stdout=subprocess.DEVNULL)
        with serving([program, "-f", image, folder / program], folder / program) as root:
            yield root

    return serve


def _ratarmount(*options: str) -> Callable[[Path, Path], contextlib.AbstractContextManager[Path]]:
    @contextlib.contextmanager
    def serve(source: Path, folder: Path) -> Iterator[Path]:
        archive = folder / "archive.tar"
        if not archive.exists():
            subprocess.run(["tar", "-C", source, "-cf", archive, "."], check=True)
        point = folder / ("ratarmount" + "-".join(options).replace("=", "-"))
        command = [_found("ratarmount") or "", "-f", "--index-file", f"{point}.index", *options, archive, point]
        with serving(command, point) as root:
            yield root

    return serve


_COMPILER = (("gcc", "gcc"), ("pkg-config", "pkg-config, libfuse3-dev"))
_MAKER = ("mksquashfs", "squashfs-tools")
_RATARMOUNT = (("ratarmount", "ratarmount (pip)"),)
PEERS = (
    Peer(C_ONE, _COMPILER, _c(1)),
    Peer(C_THREADS, _COMPILER, _c(4)),
    Peer(
        "squashfuse_ll", (("squashfuse_ll", "squashfuse"), ("mksquashfs", "squashfs-tools")), _squashed("squashfuse_ll")
    ),
    Peer("squashfuse", (("squashfuse", "squashfuse"), ("mksquashfs", "squashfs-tools")), _squashed("squashfuse")),
    Peer("ratarmount", (("ratarmount", "ratarmount (pip)"),), _ratarmount()),
    Peer("ratarmount, kernel_cache", (("ratarmount", "ratarmount (pip)"),), _ratarmount("-o", "kernel_cache")),
    Peer("plain directory", (), _plain),
)
