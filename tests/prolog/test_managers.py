"""Each manager's four functions, against doubles of its commands: from a batch script, two ranks on one machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.prolog.conftest import SCRIPTS, Begin
from tests.prolog.doubles import HOSTS, calls, install


@dataclass(frozen=True)
class Manager:
    """name: of its file; launcher: the command that starts the nodes' programs; job: its id as in names of logs."""

    name: str
    commands: tuple[str, ...]
    environment: Mapping[str, str]
    job: str
    launcher: str
    ending: str

    def __str__(self) -> str:
        return self.launcher


_SLOTS = "localhost 2 elsewhere 2"
MANAGERS = [
    Manager("pbs", ("pbs_tmrsh", "qdel"), {"PBS_JOBID": "12.head", "PBS_NODEFILE": "{folder}/nodes"}, "pbs-12.head",
            "pbs_tmrsh", "qdel 12.head"),
    Manager("pbs", ("pbsdsh", "qdel"), {"PBS_JOBID": "12[3].head", "PBS_NODEFILE": "{folder}/nodes"}, "pbs-12_3_.head",
            "pbsdsh", "qdel 12[3].head"),
    Manager("lsf", ("blaunch", "bkill"), {"LSB_JOBID": "12", "LSB_JOBINDEX": "3", "LSB_MCPU_HOSTS": _SLOTS},
            "lsf-12.3", "blaunch", "bkill 12[3]"),
    Manager("flux", ("flux",), {"FLUX_URI": "local:///tmp/flux/local-0"}, "flux-f2Bxyz", "flux",
            "flux --parent cancel --message=it failed f2Bxyz"),
]  # fmt: skip
each_manager = pytest.mark.parametrize("manager", MANAGERS, ids=str)


def environment(manager: Manager, folder: Path) -> dict[str, str]:
    """What a job of it has."""
    install(folder / "bin", *manager.commands)
    (folder / "nodes").write_text("".join(f"{host}\n{host}\n" for host in HOSTS))
    variables = {name: value.format(folder=folder) for name, value in manager.environment.items()}
    # Commands of a manager that is installed here must not be found.
    return {**variables, "PATH": f"{folder}/bin:{os.environ['PATH']}"}


@pytest.mark.mounted
@pytest.mark.mpi
@each_manager
def test_a_job_of_this_manager_has_its_mounts_and_loses_them(begin: Begin, tmp_path: Path, manager: Manager) -> None:
    points = [tmp_path / host for host in HOSTS]
    job = begin({**environment(manager, tmp_path), "DEEPIOFS_MOUNTPOINT": f"{tmp_path}/%h"}, points)
    done = job.prolog()
    assert done.returncode == 0, done.stderr + job.logs()
    assert f"{manager.job}.*.log" in done.stderr
    assert job.mounted() == points
    assert sorted(path.name for path in points[1].iterdir()) == ["0", "1", "2", "3"]
    job.epilog()
    launches = [call for call in calls(tmp_path / "bin") if "deepiofs-prolog --node" in call]
    assert len(launches) == (1 if manager.name == "flux" else len(HOSTS))
    assert all(call.startswith(f"{manager.launcher} ") for call in launches)


@each_manager
def test_the_functions_give_what_this_manager_documents(tmp_path: Path, manager: Manager) -> None:
    script = '. "$here/common.sh"; choose_manager; find_job; manager_terminate "it failed"; echo "${nodes[@]}"'
    variables = {**os.environ, **environment(manager, tmp_path), "here": str(SCRIPTS)}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(HOSTS)
    assert calls(tmp_path / "bin")[-1] == manager.ending


@pytest.mark.parametrize(
    ("taskprolog", "ends"), [("(null)", True), ("/etc/deepiofs/deepiofs-taskprolog", False), ("{wrapper}", False)]
)
def test_slurm_s_job_is_cancelled_only_where_no_taskprolog_will_fail_it(
    tmp_path: Path, taskprolog: str, ends: bool
) -> None:
    wrapper = tmp_path / "site-taskprolog"
    wrapper.write_text("#!/bin/sh\nexec /etc/deepiofs/deepiofs-taskprolog\n")
    install(tmp_path / "bin", "scontrol", "scancel")
    script = '. "$here/managers/slurm.sh"; manager_terminate "it failed"'
    variables = {
        "here": str(SCRIPTS), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "12",
        "TASKPROLOG": taskprolog.format(wrapper=wrapper),
    }  # fmt: skip
    subprocess.run(["bash", "-c", script], env=variables, check=True)
    assert "scontrol update JobId=12 AdminComment=it failed" in calls(tmp_path / "bin")
    assert ("scancel 12" in calls(tmp_path / "bin")) == ends


def test_every_manager_has_the_same_four_functions() -> None:
    for file in (SCRIPTS / "managers").glob("*.sh"):
        script = f". {file}; declare -F manager_job_id manager_nodes manager_launch manager_terminate"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert len(done.stdout.split()) == 4, file


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("DEEPIOFS_TIMEOUT=soon", "DEEPIOFS_TIMEOUT=soon: expected seconds"),
        ("DEEPIOFS_WAIT_FOR=lunch", "expected mounted or warm"),
        ("DEEPIOFS_NONSENSE=1", "unknown setting DEEPIOFS_NONSENSE"),
        ("rm -rf /", "expected DEEPIOFS_NAME=VALUE"),
        ("DEEPIOFS_PYTHON=/nonexistent", "set it to the Python that has deepiofs"),
        ("DEEPIOFS_MANAGER=cron", "expected flux hostfile lsf pbs slurm"),
        ("DEEPIOFS_MANAGER=pbs", "this is no job of pbs"),
        ("", "this is no job of hostfile"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line(tmp_path: Path, lines: str, said: str) -> None:
    conf = tmp_path / "deepiofs.conf"
    conf.write_text(f"# a comment\n\n{lines}\n")
    done = subprocess.run(
        [str(SCRIPTS / "deepiofs-prolog")],
        env={**os.environ, "DEEPIOFS_CONF": str(conf)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_site_s_scripts_believe_no_settings_that_others_can_write(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for file in (*SCRIPTS.glob("deepiofs-*"), SCRIPTS / "common.sh"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "deepiofs.conf").write_text("DEEPIOFS_TIMEOUT=1\n")
    (tmp_path / "deepiofs.conf").chmod(0o666)
    done = subprocess.run(
        ["bash", str(tmp_path / "deepiofs-prolog"), "--site"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "can be written by others than root" in done.stderr


def test_shellcheck_has_nothing_to_say() -> None:
    try:
        done = subprocess.run(
            ["shellcheck", "-x", *map(str, SCRIPTS.glob("deepiofs-*")), str(SCRIPTS / "common.sh"),
             *map(str, (SCRIPTS / "managers").glob("*.sh"))],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("shellcheck is not installed")
    assert done.stdout == ""
