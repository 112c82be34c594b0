"""Reader processes for the benchmarks: open, read to the end, close; nothing else."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 20


def _read(start: multiprocessing.synchronize.Barrier, root: str, names: Sequence[str]) -> None:
    start.wait()
    for name in names:
        fd = os.open(f"{root}/{name}", os.O_RDONLY)
        while os.read(fd, _READ_BYTES):
            pass
        os.close(fd)
    start.wait()


def files_per_second(root: Path, names: Sequence[str], readers: int, seed: int = 0) -> float:
    """All names once, in random order, dealt over the readers; from the start of all to the end of the last."""
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(readers + 1)
    processes = [
        context.Process(target=_read, args=(start, os.fspath(root), shuffled[i::readers])) for i in range(readers)
    ]
    for process in processes:
        process.start()
    start.wait()
    begun = time.perf_counter()
    start.wait()
    taken = time.perf_counter() - begun
    for process in processes:
        process.join()
    return len(names) / taken


def drop_caches() -> bool:
    """Make the page cache, names and inodes of all file systems cold; False where this process may not."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def make_files(root: Path, count: int, size: int, per_directory: int = 1000) -> list[str]:
    """Files of random bytes; their names relative to `root`."""
    generator = random.Random(0)
    block = generator.randbytes(size + count)
    names = []
    for i in range(count):
        name = f"d{i // per_directory:04}/{i:07}.bin"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(block[i : i + size])
        names.append(name)
    return names
