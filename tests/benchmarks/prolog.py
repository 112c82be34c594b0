"""How long until a job can read? `python -m tests.benchmarks.prolog [REPETITIONS] [--wait-for warm]`.

Two hosts, MPICH, real TCP; the 1,797 digits. `deepiofs-prolog` runs as in a batch script, with a list of hosts and a
remote shell that takes no time to log in (`tests/lab.py`). Measured from its start: until it returns, and until a file
has been read to its end through the mount on both hosts. Then `deepiofs-epilog`, until it returns.

Cache policy: nothing is dropped; the first repetition, which finds programs cold, is not counted. No warm-up of the
mount: its memory is empty when it is first read. Target: 5 s until the first read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.measuring import Table, clean_up_on_sigterm
from tests.lab import Lab
from tests.mounts import Place, on_host

_SCRIPTS = Path(__file__).parents[2] / "mount-scripts"


def by_prolog(lab: Lab, folder: Path, source: Path, wait_for: str) -> list[float]:
    """Seconds until the prolog has returned, until both hosts have read a file, and of the epilog."""
    settings = {
        "SOURCE": source, "MOUNTPOINT": folder / "%h", "OPTIONS": "cache=64M,staging=64M", "WAIT_FOR": wait_for,
        "HOSTFILE": folder / "hosts", "RSH": lab.remote_shell, "SHARED_DIR": folder / "shared",
    }  # fmt: skip
    environment = {**os.environ, **{f"DEEPIOFS_{name}": str(value) for name, value in settings.items()}}
    environment["UCX_TLS"] = "tcp,self"
    (folder / "hosts").write_text("".join(f"{host}\n" for host in lab.hosts))
    begin = time.perf_counter()
    _run(lab, environment, "deepiofs-prolog")
    returned = time.perf_counter()
    try:
        _read_first(lab, folder, source)
        read = time.perf_counter()
    finally:
        last = time.perf_counter()
        _run(lab, environment, "deepiofs-epilog")
    return [returned - begin, read - begin, time.perf_counter() - last]


def _run(lab: Lab, environment: dict[str, str], script: str) -> None:
    line = lab.on_head([str(_SCRIPTS / script)])
    subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def _read_first(lab: Lab, folder: Path, source: Path) -> None:
    name = min(source.rglob("*.png")).relative_to(source)
    places = [(on_host(lab, host), folder / host / name) for host in lab.hosts]
    readers = [place.start(["cat", str(path)], stdout=subprocess.DEVNULL) for place, path in places]
    assert all(reader.wait() == 0 for reader in readers)


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repetitions", type=int, nargs="?", default=5)
    parser.add_argument("--wait-for", choices=("mounted", "warm"), default="mounted")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder, Lab() as lab:
        work, source = Path(folder), Path(folder, "digits")
        Place().output(sys.executable, str(_SCRIPTS / "digits.py"), str(source))
        measured = []
        for _ in range(wanted.repetitions + 1):
            measured.append(by_prolog(lab, work, source, wanted.wait_for))
        table = Table("", "median s", "from - to")
        names = ("prolog returns", "first read on both hosts", "epilog")
        for name, values in zip(names, zip(*measured[1:], strict=True), strict=True):
            table.row(name, f"{statistics.median(values):.2f}", f"{min(values):.2f} - {max(values):.2f}")


if __name__ == "__main__":
    main()
