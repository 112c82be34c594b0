"""What the plan of a pass costs a rank: `python -m tests.benchmarks.plan [--quick]`.

All queues of one rank for one pass, each case in a fresh process: 1,281,167 samples in 1,000 groups (ImageNet) over
512 ranks, target 2 s; 100 million samples in one group over 512 ranks, target 60 s and 4 GB at most. Four ranks per
node, entropy 0.9. Seconds are of the plan and the queues, without making up the dataset; the peak is the process's,
with numpy and the dataset's columns. --quick: the second case with a million samples.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import time

import numpy as np

from deepiofs.order.plan import Membership, Plan

_RANKS = 512
_RANKS_PER_NODE = 4
_ENTROPY = 0.9


@dataclasses.dataclass(frozen=True)
class Case:
    """A dataset of equal groups; target_gb: 0 for none."""

    samples: int
    groups: int
    target_s: float
    target_gb: float


_IMAGENET = Case(1_281_167, 1000, 2, 0)
_LARGE = Case(100_000_000, 1, 60, 4)
_QUICK = Case(1_000_000, 1, 60, 4)


def measure(case: Case) -> None:
    """One case in this process; prints the results as JSON."""
    samples = np.arange(case.samples, dtype=np.uint32)
    group = (samples // np.uint32(-(-case.samples // case.groups))).astype(np.int32)
    owner = (samples % np.uint32(_RANKS)).astype(np.int32)
    node = (np.arange(_RANKS) // _RANKS_PER_NODE).astype(np.int32)
    del samples
    before_gb = _peak_gb()
    started = time.perf_counter()
    plan = Plan(Membership(group, owner, node), 0, _ENTROPY)
    planned_s = time.perf_counter() - started
    served = sum(len(plan.queue(0, each, 0)) for each in range(plan.n_groups))
    seconds = time.perf_counter() - started
    assert plan.n_groups == case.groups
    assert served == (owner == 0).sum()
    print(json.dumps({"plan_s": planned_s, "seconds": seconds, "before_gb": before_gb, "peak_gb": _peak_gb()}))


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _row(case: Case) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.plan", "--case", json.dumps(dataclasses.asdict(case))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    met = result["seconds"] <= case.target_s and (not case.target_gb or result["peak_gb"] <= case.target_gb)
    target = f"{case.target_s:g} s" + (f", {case.target_gb:g} GB" if case.target_gb else "")
    return (
        f"| {case.samples:,} | {case.groups:,} | {result['plan_s']:.2f} | {result['seconds']:.2f} "
        f"| {result['before_gb']:.2f} | {result['peak_gb']:.2f} | {target} | {'met' if met else 'missed'} |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        measure(Case(**json.loads(sys.argv[2])))
        return
    print("| samples | groups | plan s | with all queues of a rank s | GB before | peak GB | target | |")
    print("|---|---|---|---|---|---|---|---|")
    for case in (_IMAGENET, _QUICK if "--quick" in sys.argv[1:] else _LARGE):
        print(_row(case), flush=True)


if __name__ == "__main__":
    main()
