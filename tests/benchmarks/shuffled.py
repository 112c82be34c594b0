"""What a shuffled open costs beside an exact one: `python -m tests.benchmarks.shuffled [REPETITIONS]`.

2,000 files of 100 KB, two mounts of one source (`shuffle=off` and `shuffle=dir`), read in turn by 1 and by 4 reader
processes. Cache policy: caches of the kernel dropped before each measurement, memory of the mounts warm. Medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.readers import drop_caches, files_per_second, make_files
from tests.mounts import mounted

_FILES, _BYTES = 2000, 100_000


def main() -> None:
    repetitions = int(sys.argv[1]) if sys.argv[1:] else 7
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder:
        source = Path(folder, "source")
        names = make_files(source, _FILES, _BYTES)
        for point in ("exact", "shuffled"):
            Path(folder, point).mkdir()
        cache = "cache=1G"
        with (
            mounted(source, Path(folder, "exact"), cache) as exact,
            mounted(source, Path(folder, "shuffled"), cache, "shuffle=dir") as shuffled,
        ):
            cold = drop_caches()
            print(f"page cache {'cold' if cold else 'as it is: not root'}; medians of {repetitions}")
            print("| readers | exact files/s | shuffled files/s | cost of a shuffled open |\n|---|---|---|---|")
            for readers in (1, 4):
                rates: dict[str, list[float]] = {"exact": [], "shuffled": []}
                for seed in range(repetitions):
                    for name, mount in (("exact", exact), ("shuffled", shuffled)):
                        drop_caches()
                        rates[name].append(files_per_second(mount.point, names, readers, seed))
                a, b = (statistics.median(rates[name]) for name in ("exact", "shuffled"))
                ratio = statistics.median(x / y for x, y in zip(rates["exact"], rates["shuffled"], strict=True))
                print(f"| {readers} | {a:,.0f} | {b:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
