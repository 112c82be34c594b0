"""Random faults while a job is read from: `python -m tests.benchmarks.schedules [N] [--seed S] [--ranks R]`.

N (20) schedules of `tests.ranks.schedules`, from seed S (0) on, in a lab of two hosts with R (2) ranks of MPICH. Four
readers compare every byte past the kernel's page cache. Exits with 1 if anything was not as promised.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.lab import Lab
from tests.launchers import installed_launchers
from tests.mounts import Journal, nothing_left
from tests.ranks.schedules import Outcome, draw, run, write_dataset

_HEADING = (
    "| seed | faults | reads | MB | from peers | from the source | longest read s | most memory MB | wrong | errors "
    "| seconds | problems |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(outcome: Outcome, seconds: float) -> str:
    """A line of the table."""
    faults = "; ".join(map(str, outcome.schedule.faults))
    problems = "<br>".join(problem.replace("|", "/").replace("\n", " ") for problem in outcome.problems) or "none"
    return (
        f"| {outcome.schedule.seed} | {faults} | {outcome.reads:,} | {outcome.bytes / 1e6:,.0f} "
        f"| {outcome.from_peers:,} | {outcome.from_source:,} | {outcome.longest_s:.2f} "
        f"| {outcome.most_rss_bytes / 1e6:.0f} | {outcome.wrong} | {outcome.errors} | {seconds:.1f} | {problems} |"
    )


def one(seed: int, ranks: int, lab: Lab, source: Path, folder: Path) -> Outcome:
    """A schedule; what goes wrong in mounting, unmounting or the log is a problem too."""
    folder.mkdir()
    journal = Journal(folder)
    schedule = draw(seed, ranks)
    outcome = Outcome(schedule)
    try:
        with nothing_left():
            outcome = run(schedule, installed_launchers()[0], lab, source, folder, journal)
        journal.check()
    except Exception as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.schedules")
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    if reason := Lab.unavailable():
        sys.exit(reason)
    well = True
    print(_HEADING)
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as folder, Lab() as lab:
        write_dataset(Path(folder, "source"))
        for seed in range(asked.seed, asked.seed + asked.count):
            started = time.monotonic()
            outcome = one(seed, asked.ranks, lab, Path(folder, "source"), Path(folder, f"seed{seed}"))
            well = well and not outcome.problems
            print(row(outcome, time.monotonic() - started), flush=True)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
