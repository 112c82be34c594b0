"""Jobs of an unprivileged user on a real Slurm, with mounts on both nodes, in both ways of use, and what ends them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lab import HOSTS
from tests.mounts import is_running, parent_of, wait_until
from tests.slurm.cluster import OTHER, Slurm
from tests.slurm.conftest import WAYS, Submit

pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.mounted]

both_ways = pytest.mark.parametrize("way", WAYS)


@both_ways
def test_a_job_reads_the_dataset_with_pytorch_through_mounts_on_both_nodes(
    slurm: Slurm, submit: Submit, way: str
) -> None:
    job = submit(way, stop=True, by="torch")
    assert job.wait_over() == "COMPLETED", job.output() + slurm.logs()
    for host in HOSTS:
        assert f"{host}: 200 files right" in job.output()
    job.nothing_left()


@both_ways
def test_the_nodes_serve_each_other_and_only_the_job_s_user(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way)
    job.wait_reading()
    for host in HOSTS:
        stats = slurm.on(host, "cat", f"{job.mountpoint}/.deepiofs/stats", user="alice").stdout
        assert '"size": 2' in stats
        assert '"peer": 0' not in stats
        for stranger in (OTHER, "root"):
            assert slurm.on(host, "ls", str(job.mountpoint), user=stranger).returncode != 0
    job.stop()
    assert job.wait_over() == "COMPLETED"
    job.nothing_left()


@both_ways
def test_a_secret_is_in_no_command_line_and_no_file_of_others(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way)
    job.wait_reading()
    keys = [slurm.site / "deepiofs.key", *(slurm.base / "home/alice/.deepiofs").glob("*/secret")]
    for file in keys:
        assert file.stat().st_mode & 0o077 == 0
        assert slurm.on(HOSTS[0], "cat", str(file), user=OTHER).returncode != 0
    for host in HOSTS:
        for pid in slurm.processes(host, "deepiofs."):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert not any(file.read_bytes() in line or file.read_bytes().hex().encode() in line for file in keys)
            assert Path(f"/proc/{pid}").stat().st_uid != 0  # as the job's user
    job.stop()
    job.wait_over()


@both_ways
@pytest.mark.parametrize("how", [(), ("--signal=KILL", "--full")], ids=["cancelled", "killed"])
def test_a_job_that_is_ended_leaves_nothing_and_the_next_works(
    slurm: Slurm, submit: Submit, way: str, how: tuple[str, ...]
) -> None:
    job = submit(way)
    job.wait_reading()
    slurm.command("scancel", *how, job.number)
    assert job.wait_over() in ("CANCELLED", "FAILED")
    job.nothing_left()
    again = submit(way, stop=True)
    assert again.wait_over() == "COMPLETED", again.output() + slurm.logs()
    again.nothing_left()


@both_ways
def test_a_mount_that_is_killed_leaves_nothing_and_the_next_job_works(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way)
    job.wait_reading()
    (victim,) = slurm.processes(HOSTS[1], "deepiofs.cli.main mount")
    os.kill(victim, signal.SIGKILL)
    assert job.wait_over() == "FAILED"  # the task on that node; what it says last may be lost with its step
    job.nothing_left()
    again = submit(way, stop=True)
    assert again.wait_over() == "COMPLETED", again.output() + slurm.logs()
    again.nothing_left()


@both_ways
def test_a_job_goes_on_when_an_engine_is_killed_and_leaves_nothing(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way)
    job.wait_reading()
    (victim,) = slurm.processes(HOSTS[1], "deepiofs.engine")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_running(victim), "the engine ended")
    job.wait_reading()
    job.stop()
    assert job.wait_over() == "COMPLETED", job.output() + slurm.logs()
    job.nothing_left()


@both_ways
def test_a_keeper_that_is_killed_leaves_nothing(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way)
    job.wait_reading()
    (mount,) = slurm.processes(HOSTS[0], "deepiofs.cli.main mount")
    os.kill(parent_of(mount), signal.SIGKILL)
    job.stop()
    job.wait_over()
    job.nothing_left()


def test_jobs_that_run_out_of_time_leave_nothing(slurm: Slurm, submit: Submit) -> None:
    jobs = [submit(way, "--time=1") for way in WAYS]  # at the same time, on the same nodes
    for job in jobs:
        job.wait_reading()
    for job in jobs:
        assert job.wait_over(180) == "TIMEOUT"
        job.nothing_left()


@both_ways
def test_a_mount_that_fails_is_told_of_by_node_and_fails_the_job_alone(slurm: Slurm, submit: Submit, way: str) -> None:
    job = submit(way, source=Path("/nonexistent"))
    assert job.wait_over() == "FAILED"
    assert "node1: rank 0 on node1: source /nonexistent: no such directory" in job.output()
    assert slurm.states() == ["idle", "idle"]
    job.nothing_left()


def test_a_site_may_fall_back_to_the_source_itself(slurm: Slurm, submit: Submit) -> None:
    slurm.install_site(on_failure="bind")
    try:
        job = submit("site", mount_options="nonsense=1")
        job.wait_reading()
        assert str(job.mountpoint) in slurm.mounts(HOSTS[0])
        assert slurm.on(HOSTS[0], "touch", f"{job.mountpoint}/new").returncode != 0
        job.stop()
        assert job.wait_over() == "COMPLETED", job.output() + slurm.logs()
        job.nothing_left()
    finally:
        slurm.install_site()


def test_the_epilog_runs_where_no_prolog_ran_and_any_number_of_times(slurm: Slurm) -> None:
    script = str(slurm.site / "deepiofs-epilog")
    environment = f"SLURM_JOB_ID=999999 SLURM_JOB_UID=42420 SLURM_NODELIST={HOSTS[0]} SLURMD_NODENAME={HOSTS[0]}"
    for _ in range(2):
        done = slurm.on(HOSTS[0], "env", *environment.split(), f"SLURM_CONF={slurm.conf}", script, "--site")
        assert (done.returncode, done.stdout) == (0, "")
