"""How fast an index is loaded again, and what it takes: `python -m tests.benchmarks.manifest [FILES]`.

FILES (1,000,000) synthetic names in directories of 1,000, as in ImageNet. One process builds and saves the index; a
fresh one does what a rank does with it: read, compare the checksum, copy into shared memory, place over 8 ranks,
look names up. Page cache: warm, the file was just written.
"""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from deepiofs.dataset.index_file import load_index, save_index
from deepiofs.dataset.manifest import Manifest, build_columns
from deepiofs.dataset.samples import find_samples, group_samples
from deepiofs.memory import columns_segment
from deepiofs.memory.placement import Units, deal_samples, place

_PER_DIRECTORY = 1000
_RANKS = 8
_LOOKUPS = 10_000


def build(path: str, n_files: int) -> None:
    """Write the index of `n_files` synthetic files."""
    n_directories = -(-n_files // _PER_DIRECTORY)
    names = [b"", *(b"n%08d" % i for i in range(n_directories))]
    names += [b"n%08d_%d.JPEG" % (i // _PER_DIRECTORY, i) for i in range(n_files)]
    n = len(names)
    directories = n - n_files
    parent = np.zeros(n, np.int64)
    parent[directories:] = 1 + np.arange(n_files) // _PER_DIRECTORY
    mode = np.full(n, stat.S_IFREG | 0o644)
    mode[:directories] = stat.S_IFDIR | 0o755
    size = np.random.default_rng(0).lognormal(11.5, 0.5, n).astype(np.int64)
    zeros = np.zeros(n, np.int64)
    facts = {"parent": parent, "size": size, "mtime_ns": zeros, "mode": mode, "uid": zeros, "gid": zeros}
    facts["nlink"] = np.ones(n, np.int64)
    identity = np.stack([zeros, np.arange(n)], axis=1)
    meta = {"selection": {"include": [], "exclude": [], "links": "follow"}, "left_out": {}}
    save_index(path, columns_segment.create("bench", meta, build_columns(names, facts, identity)).view)


def reload(path: str) -> None:
    """What a rank does; prints seconds, megabytes, bytes per file."""
    before = _resident()
    started = time.perf_counter()
    content = load_index(path)
    assert content is not None
    segment = columns_segment.copy_of("manifest", content)
    manifest = Manifest(*columns_segment.read(segment))
    loaded = time.perf_counter() - started
    units = Units.of(manifest)
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, "off")
    owner = deal_samples(manifest, samples, group, _RANKS)
    placement = place(manifest, units, samples, group, owner, [1 << 40] * _RANKS)
    placed = time.perf_counter() - started
    rows = np.random.default_rng(1).integers(1, manifest.n_rows, _LOOKUPS).tolist()
    paths = [manifest.path(row) for row in rows]
    started = time.perf_counter()
    assert [manifest.find(path) for path in paths] == rows
    each_us = (time.perf_counter() - started) / _LOOKUPS * 1e6
    beside_names = sum(a.nbytes for name, a in manifest.columns.items() if name != "names")
    beside_names += placement.home.nbytes + placement.at.nbytes
    beside_names += units.first.nbytes + units.row.nbytes + units.size.nbytes
    print(f"| rows | reload s | with placement s | resident MB (all, process {before / 1e6:.0f}) | peak MB "
          "| bytes/row beside names | lookup us |")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"| {manifest.n_rows:,} | {loaded:.2f} | {placed:.2f} | {_resident() / 1e6:.0f} | {peak:.0f} "
          f"| {beside_names / manifest.n_rows:.1f} | {each_us:.1f} |")  # fmt: skip


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    if sys.argv[1:2] == ["--reload"]:
        reload(sys.argv[2])
        return
    n_files = int(sys.argv[1]) if sys.argv[1:] else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "index")
        started = time.perf_counter()
        build(path, n_files)
        print(f"built {n_files:,} in {time.perf_counter() - started:.1f} s, {os.path.getsize(path) / 1e6:.0f} MB")
        subprocess.run([sys.executable, "-m", "tests.benchmarks.manifest", "--reload", path], check=True)


if __name__ == "__main__":
    main()
