"""What millions of records cost: `python -m tests.benchmarks.records [RECORDS] [OPTIONS]`.

The index of a synthetic container (10,000,000 records of about 1 KB in 1,000 directories; a sparse file stands for
the container, none of it is read) is built and saved once, and mounted from `index=` with the options given, memory
for 64 MB of the records. Resident index memory is what mount and engine hold together (proportional set size), less
that of the same mount over 1,000 records; names are those of the manifest. Page cache: warm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from deepiofs.dataset.index_file import save_index
from deepiofs.dataset.sources import Selection
from deepiofs.dataset.sources.containers import LocalShards
from deepiofs.dataset.sources.recordtree import Found, columns_of_records
from deepiofs.memory import columns_segment

_DIRECTORIES = 1000
_RECORD_BYTES = 1024
_OPTIONS = "mpi=off,warm=demand,cache=64M,staging=16M"


def build(folder: Path, n_records: int) -> float:
    """The container and its index; seconds that the index took."""
    size = np.random.default_rng(0).integers(1, _RECORD_BYTES, n_records)
    at = np.arange(n_records) * _RECORD_BYTES
    with (folder / "records.tar").open("wb") as file:
        file.truncate(n_records * _RECORD_BYTES)
    started = time.perf_counter()
    paths = [b"n%08d/n%08d_%d.JPEG" % (i % _DIRECTORIES, i % _DIRECTORIES, i) for i in range(n_records)]
    containers = LocalShards(str(folder / "records.tar"), (".tar",)).find()
    meta, columns = columns_of_records(containers, [Found(paths, size, at)], Selection())
    meta["kind"] = "tar"
    save_index(str(folder / "index"), columns_segment.create("bench", meta, columns).view)
    print(f"names {len(columns['names']) / n_records:.1f} bytes a record")
    return time.perf_counter() - started


def mount(folder: Path, options: str) -> tuple[float, int]:
    """Seconds until the mount answers, and the bytes that its processes hold then."""
    point = folder / "mnt"
    point.mkdir(exist_ok=True)
    given = f"{_OPTIONS},index={folder / 'index'}" + (f",{options}" if options else "")
    source = f"tar:{folder / 'records.tar'}"
    started = time.perf_counter()
    argv = [sys.executable, "-m", "deepiofs.cli.main", "mount", source, str(point), "-f", "-o", given]
    with subprocess.Popen(argv) as process:
        try:
            while not os.path.ismount(point) and process.poll() is None:
                time.sleep(0.01)
            os.stat(point / ".deepiofs")
            took = time.perf_counter() - started
            return took, sum(map(_held, [process.pid, *_children(process.pid)]))
        finally:
            process.terminate()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _held(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    n_records = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    options = sys.argv[2] if len(sys.argv) > 2 else ""
    held = {}
    for n in (1000, n_records):
        with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder:
            built = build(Path(folder), n)
            index = os.stat(Path(folder, "index")).st_size
            seconds, held[n] = mount(Path(folder), options)
    print("| records | options | index built s | index bytes a record | mounted s | resident bytes a record |")
    print("|---|---|---|---|---|---|")
    each = (held[n_records] - held[1000]) / n_records
    print(f"| {n_records:,} | {options or '-'} | {built:.1f} | {index / n_records:.1f} | {seconds:.1f} | {each:.1f} |")


if __name__ == "__main__":
    main()
