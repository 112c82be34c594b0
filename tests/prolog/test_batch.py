"""Two hosts and no manager: the prolog from a batch script, what ends its mounts, and the epilog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.mounts import is_running, on_host, wait_until
from tests.prolog.conftest import SCRIPTS, Begin, Job

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.lab]


@pytest.fixture
def job(begin: Begin, lab: Lab, tmp_path: Path) -> Job:
    """A job of both hosts."""
    hosts = tmp_path / "hosts"
    hosts.write_text("# of this job\n\nnode1 slots=2\nnode2\nnode2\n")
    environment = {
        "DEEPIOFS_HOSTFILE": str(hosts),
        "DEEPIOFS_RSH": str(lab.remote_shell),
        "DEEPIOFS_MOUNTPOINT": f"{tmp_path}/%h",
        "UCX_TLS": "tcp,self",
    }
    points = [tmp_path / host for host in lab.hosts]
    return begin(environment, points, [on_host(lab, host) for host in lab.hosts], tuple(lab.on_head([])))


def differences(job: Job, node: int) -> str:
    """Between the source and the mount of a node."""
    done = job.places[node].run("diff", "-r", str(job.folder / "source"), str(job.points[node]))
    return done.stdout + done.stderr


def test_the_prolog_returns_when_both_hosts_serve_each_other_and_the_epilog_takes_it_all_away(
    job: Job, tmp_path: Path
) -> None:
    done = job.prolog(DEEPIOFS_WAIT_FOR="warm")
    assert done.returncode == 0, done.stderr + job.logs()
    assert "is mounted at" in done.stderr
    assert job.mounted() == job.points
    assert [differences(job, node) for node in (0, 1)] == ["", ""]
    stats = job.places[1].output("cat", f"{job.points[1]}/.deepiofs/stats")
    assert '"size": 2' in stats
    assert '"source": 0' in stats
    job.epilog()
    assert not any(point.exists() for point in job.points)  # the prolog had made them
    job.epilog()


def test_the_epilog_does_nothing_where_no_prolog_ran(job: Job) -> None:
    job.epilog()


def test_each_node_that_failed_is_told_of_and_nothing_stays_mounted(job: Job, source: Path) -> None:
    job.points[1].mkdir()
    (job.points[1] / "file").touch()
    done = job.prolog()
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "node" in line and "logs" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("deepiofs-prolog: node2: ")
    assert lines[0].endswith(f"mount point {job.points[1]} is not empty; give an empty directory")
    assert job.mounted() == []
    shutil.rmtree(job.points[1])
    assert job.prolog().returncode == 0
    job.epilog()


def test_a_node_that_does_not_answer_is_named_when_the_time_is_over(job: Job, tmp_path: Path) -> None:
    rsh = tmp_path / "rsh"
    rsh.write_text(f'#!/bin/sh\n[ "$1" != node2 ] || exit 1\nexec {job.environment["DEEPIOFS_RSH"]} "$@"\n')
    rsh.chmod(0o755)
    done = job.prolog(DEEPIOFS_RSH=str(rsh), DEEPIOFS_TIMEOUT="4")
    assert done.returncode == 1
    assert "deepiofs-prolog: node2: has not answered after 4 s" in done.stderr
    assert "node1: " not in done.stderr
    assert job.mounted() == []


def test_the_epilog_clears_up_after_what_was_killed_and_the_next_job_works(job: Job) -> None:
    assert job.prolog().returncode == 0
    for victims in (
        lambda: job.processes("deepiofs.cli.main mount"),
        lambda: job.processes("deepiofs.engine"),
        job.keepers,
    ):
        job.kill(victims()[-1])
        job.epilog()
        assert job.prolog().returncode == 0
        assert differences(job, 0) == ""
    job.epilog()


def test_all_goes_when_the_prolog_s_launcher_and_the_nodes_processes_are_killed_at_once(job: Job) -> None:
    """As by a scheduler's SIGKILL: a guard of its own session clears up, without an epilog."""
    assert job.prolog().returncode == 0
    job.kill(*job.processes("nsenter"), *job.keepers())
    wait_until(lambda: job.mounted() == [], "the mounts are gone")
    job.epilog()


def test_the_epilog_ends_what_hangs(job: Job) -> None:
    assert job.prolog(DEEPIOFS_END_TIMEOUT="1").returncode == 0
    mounts, keepers = job.processes("deepiofs.cli.main mount"), job.keepers()
    for pid in (mounts[0], keepers[1]):
        os.kill(pid, signal.SIGSTOP)
    job.epilog()
    wait_until(lambda: not any(map(is_running, (*mounts, *keepers))), "they have ended")


def test_an_interrupted_prolog_leaves_nothing(job: Job, tmp_path: Path) -> None:
    prolog = subprocess.Popen(
        [*job.prefix, str(SCRIPTS / "deepiofs-prolog")], env=job.environment, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: bool(job.processes("deepiofs.cli.main mount")), "a mount begins")
    prolog.send_signal(signal.SIGTERM)
    assert prolog.wait(60) == 1
    job.epilog()


def test_a_secret_and_what_the_job_shares_are_the_user_s_alone(job: Job, tmp_path: Path) -> None:
    assert job.prolog().returncode == 0
    (secret,) = (tmp_path / "shared").glob("*/secret")
    assert secret.stat().st_mode & 0o077 == 0
    assert secret.parent.stat().st_mode & 0o077 == 0
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.processes("")]
    assert lines
    content = secret.read_bytes()
    assert not any(content in line or content.hex().encode() in line for line in lines)
    job.epilog()
