"""The peers over MPI keep the contract of peers, on one host and between two, under each MPI (`peers_program`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contracts.peers import SCENARIOS
from tests.lab import Lab
from tests.launchers import Launcher
from tests.mounts import ending, no_process_left, nothing_left

pytestmark = pytest.mark.mpi

# The program ends by itself before, and says where it hung.
_LIMIT_S = 60.0
# What a rank of the program says at its end. It is not imported: it would bring MPI into this process.
_LEFT = "left in order"


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_one_host_keep_the_contract_of_peers(launcher: Launcher, ranks: int) -> None:
    assert _passed(launcher, ranks) == list(SCENARIOS)


@pytest.mark.lab
def test_ranks_of_two_hosts_keep_the_contract_of_peers(launcher: Launcher, lab: Lab) -> None:
    assert _passed(launcher, 2, lab) == list(SCENARIOS)


def test_a_rank_alone_has_nobody_to_tell_and_leaves(launcher: Launcher) -> None:
    assert _passed(launcher, 1) == []


def _passed(launcher: Launcher, ranks: int, lab: Lab | None = None) -> list[str]:
    """The scenarios that the program has passed; all its ranks have ended in order, and nothing of it is left."""
    line = launcher.command(ranks, [sys.executable, "-m", "tests.ranks.peers_program"], lab)
    with nothing_left(), no_process_left() as mark:
        process = subprocess.Popen(
            line,
            env={**launcher.environment(lab), **mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with ending(process):
            out, problems = process.communicate(timeout=_LIMIT_S)
    said = out.splitlines()
    assert process.returncode == 0, problems
    assert said.count(_LEFT) == ranks, problems
    return [line for line in said if line != _LEFT]
