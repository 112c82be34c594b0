"""`deepiofs plan`: the figures of the design from the command line, and its refusals in one line."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path

import pytest

from deepiofs.cli.main import main


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command: a process of its own would take longer to start than to plan."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(arguments, ended.value.code, out.getvalue(), err.getvalue())


def figures(*arguments: str) -> dict[str, float]:
    """What it says with `--json`."""
    done = plan(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, float] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize(
    ("nodes", "bound", "q"), [(8, 0.9, 0.166), (8, 0.95, 0.389), (8, 1, 0.875), (16, 0.9, 0.312), (512, 0.9, 0.691)]
)
def test_the_exchange_that_a_bound_asks_for(nodes: int, bound: float, q: float) -> None:
    said = figures("--samples", "1281167", "--nodes", str(nodes), "--entropy", str(bound))
    assert round(said["exchange"], 3) == q
    assert said["entropy"] >= bound - 1e-9
    # One group: a sampler asks each rank for as many as it has.
    assert said["stolen"] == 0
    assert said["from_peers"] == said["exchange"]


@pytest.mark.parametrize(("nodes", "share"), [(8, 0.029), (64, 0.088)])
def test_the_share_that_a_random_sampler_steals(nodes: int, share: float) -> None:
    said = figures("--samples", "1300000", "--groups", "1000", "--nodes", str(nodes), "--entropy", "0")
    assert round(said["stolen"], 3) == share


def test_ranks_of_one_node_share_memory_and_exchange_nothing() -> None:
    said = figures("--samples", "1000", "--nodes", "1", "--ranks-per-node", "4", "--entropy", "1")
    assert (said["entropy"], said["exchange"], said["from_peers"]) == (1.0, 0.0, 0.0)


def test_a_dataset_is_counted_by_its_directories_and_bytes(tmp_path: Path) -> None:
    for name, files in (("cat", 30), ("dog", 50)):
        (tmp_path / name).mkdir()
        for i in range(files):
            (tmp_path / name / f"{i}.jpg").write_bytes(bytes(100))
    said = figures(str(tmp_path), "--nodes", "2")
    assert (said["samples"], said["groups"], said["memory_bytes"]) == (80, 2, 4000)
    assert said["peer_bytes"] == round(4000 * said["from_peers"])
    assert figures(str(tmp_path), "--nodes", "2", "-o", "shuffle=all")["groups"] == 1


@pytest.mark.parametrize(("nodes", "share"), [(8, 0.012), (64, 0.035), (512, 0.099)])
def test_with_a_batch_only_the_overhang_is_read_from_peers(nodes: int, share: float) -> None:
    numbers = ("--samples", "1281167", "--nodes", str(nodes), "--batch", "8192")
    said = figures(*numbers)
    assert (round(said["exchange"], 3), said["batch_entropy"]) == (share, 1.0)
    assert said["from_peers"] == said["in_streams"] == said["exchange"]
    # Streams do not mind groups; who opens by name has each group's exchange.
    said = figures(*numbers, "--groups", "1000")
    assert round(said["in_streams"], 3) == share
    assert said["exchange"] > 2 * share


def test_the_table_and_the_curve(tmp_path: Path) -> None:
    curve = tmp_path / "curve.png"
    done = plan("--samples", "1300", "--groups", "1", "--nodes", "8", "--plot", str(curve))
    assert done.returncode == 0
    assert "0.397" in done.stdout
    assert "batch composition entropy" in done.stdout
    assert curve.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--nodes", "2"], 2, "either SOURCE or --samples"),
        (["--samples", "10", "--nodes", "0"], 2, "expected positive numbers"),
        (["--samples", "10", "--nodes", "2", "--entropy", "2"], 2, "from 0 to 1"),
        (["--samples", "10", "--groups", "11", "--nodes", "2"], 2, "no more groups than samples"),
        (["/nowhere/at/all", "--nodes", "2"], 3, "no such directory"),
        (["--samples", "10", "--nodes", "2", "--plot", "/nowhere/at/all/x.png"], 2, "cannot write"),
    ],
)
def test_wrong_questions_get_one_line(arguments: list[str], status: int, words: str) -> None:
    done = plan(*arguments)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
