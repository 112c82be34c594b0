"""A real Slurm of two nodes on one machine: the hosts of a `Lab`, each with its slurmd, and the controller at its head.

Debian's packages slurm-wlm and munge; nothing of the machine is changed, and no service of it is used: munged has a
socket and a key of its own, the job's user exists in the hosts' own /etc/passwd only. The Python of the tests, which
lies where other users may not go perhaps, is made reachable within the hosts.

The site's side is set up as docs/MOUNTING.md says: a copy of `mount-scripts/` with deepiofs.conf and a key, named in
slurm.conf as Prolog, TaskProlog and Epilog. A job without a request in its comment is not touched by it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.lab import ADDRESSES, HEAD, HOSTS, Lab
from tests.mounts import end, is_running, reachable_by_all, wait_until

USER, OTHER = "alice", "mallory"
_UIDS = {USER: 42420, OTHER: 42421}
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "setpriv")
_ROOT = Path(__file__).parents[2]
_READY_S = 60.0
_LOOK_S = 0.2
_LOGS, _TAIL = 8, 1500
# The head's processes are the machine's; those of the nodes end with their PID 1.
_DIE_WITH_ME = ["setpriv", "--pdeathsig=KILL"]

_SLURM_CONF = """\
ClusterName=lab
SlurmctldHost=head({head})
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/%n/spool
TmpFS={base}/%n/tmp
SlurmctldPidFile={base}/state/slurmctld.pid
SlurmdPidFile={base}/%n/slurmd.pid
SlurmctldLogFile={base}/state/slurmctld.log
SlurmdLogFile={base}/log/slurmd.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=5
MinJobAge=300
UnkillableStepTimeout=30
PrologEpilogTimeout=120
PrologFlags=Alloc
Prolog={site}/deepiofs-prolog
TaskProlog={site}/deepiofs-taskprolog
Epilog={site}/deepiofs-epilog
MpiDefault=none
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
_SITE_CONF = """\
# As a site has it; the time limits are those of a test.
DEEPIOFS_PYTHON={base}/venv/bin/python
DEEPIOFS_KEY={site}/deepiofs.key
DEEPIOFS_STATE_DIR={base}/run
DEEPIOFS_LOG_DIR={base}/log
DEEPIOFS_TIMEOUT=60
DEEPIOFS_OPTIONS=cache=64M,staging=32M
DEEPIOFS_ON_FAILURE={on_failure}
# Both hosts have one kernel, and UCX would copy past the network.
DEEPIOFS_ENVIRONMENT=UCX_TLS=tcp,self MPI4PY_LIBMPI={libmpi}
"""


class Slurm:
    """Context manager for the cluster; `lab` are its hosts, `base` a folder that all of them share."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="deepiofs-bench-slurm-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.site = self.base / "site"
        self.lab = Lab()
        self._daemons: list[subprocess.Popen[Any]] = []

    @staticmethod
    def unavailable() -> str | None:
        """Why there can be none here, or None."""
        if missing := [program for program in _PROGRAMS if not shutil.which(program)]:
            return f"not installed: {', '.join(missing)}; apt-get install slurm-wlm munge"
        return Lab.unavailable()

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _set_up(self) -> None:
        self._make_folders()
        self.lab.__enter__()
        self._make_users()
        self._make_python()
        self.install_site()
        self._write_slurm_conf()
        self._start_munge()
        # It would become this user itself, and then outlive what it is to die with.
        become = ["--reuid=slurm", "--regid=slurm", "--clear-groups"]
        self._daemon(HEAD, *_DIE_WITH_ME, *become, "slurmctld", "-c", "-D")
        for host in HOSTS:
            self._checked(host, "sh", "-c", reachable_by_all())
            self._checked(host, "mount", "--bind", str(self._tmp(host)), "/tmp")
            self._daemon(host, "slurmd", "-D", "-N", host)
        self.wait_idle()

    def _tmp(self, host: str) -> Path:
        """What a node has as /tmp; the machine's own, if this Python or this repository lies there."""
        needed = [sys.prefix, sys.base_prefix, str(_ROOT)]
        return Path("/tmp") if any(path.startswith("/tmp/") for path in needed) else self.base / host / "tmp"

    def _make_folders(self) -> None:
        for name in (
            "state",
            "log",
            "run",
            "munge",
            *(f"{host}/{part}" for host in HOSTS for part in ("spool", "tmp")),
        ):
            (self.base / name).mkdir(parents=True)
        shutil.chown(self.base / "state", "slurm")
        shutil.chown(self.base / "munge", "munge", "munge")
        for host in HOSTS:
            (self.base / host / "tmp").chmod(0o1777)

    def _make_users(self) -> None:
        """Known in the hosts only."""
        for file, line in (("passwd", "{0}:x:{1}:{1}::{2}:/bin/bash\n"), ("group", "{0}:x:{1}:\n")):
            added = "".join(line.format(name, uid, self.base / "home" / name) for name, uid in _UIDS.items())
            (self.base / file).write_text(Path(f"/etc/{file}").read_text() + added)
            for host in (HEAD, *HOSTS):
                self._checked(host, "mount", "--bind", str(self.base / file), f"/etc/{file}")
        for name, uid in _UIDS.items():
            home = self.base / "home" / name
            home.mkdir(parents=True)
            os.chown(home, uid, uid)

    def _make_python(self) -> None:
        """An environment with this repository's deepiofs in it: root's scripts pass PYTHONPATH over."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.base / "venv")], check=True)
        places = f"{_ROOT}\n{sysconfig.get_path('purelib')}\n"
        (next((self.base / "venv/lib").glob("python*/site-packages")) / "deepiofs.pth").write_text(places)

    def install_site(self, on_failure: str = "fail") -> None:
        """The site's copy of the scripts, its settings and its key."""
        if not self.site.exists():
            shutil.copytree(_ROOT / "mount-scripts", self.site, ignore=shutil.ignore_patterns("deepiofs.conf"))
            (self.site / "deepiofs.key").write_bytes(secrets.token_bytes(32))
            (self.site / "deepiofs.key").chmod(0o600)
        libmpi = Path(sys.prefix) / "lib/libmpi.so.12"
        text = _SITE_CONF.format(base=self.base, site=self.site, on_failure=on_failure, libmpi=libmpi)
        (self.site / "deepiofs.conf").write_text(text)

    def _write_slurm_conf(self) -> None:
        # Four processors each, whatever the machine has: two tasks of two jobs have to fit.
        nodes = "\n".join(f"NodeName={host} NodeAddr={ADDRESSES[host]} CPUs=4 RealMemory=1000" for host in HOSTS)
        places = {"base": self.base, "site": self.site, "head": ADDRESSES[HEAD]}
        self.conf.write_text(_SLURM_CONF.format(**places, nodes=nodes, names=",".join(HOSTS)))

    @property
    def conf(self) -> Path:
        """slurm.conf"""
        return self.base / "slurm.conf"

    def _start_munge(self) -> None:
        folder = self.base / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o600)
        shutil.chown(folder / "key", "munge", "munge")
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        become = ["--reuid=munge", "--regid=munge", "--clear-groups"]
        self._daemon(HEAD, *_DIE_WITH_ME, *become, "munged", "--foreground", *options)
        wait_until((folder / "socket").exists, "munged listens")

    def _daemon(self, host: str, *argv: str) -> None:
        with (self.base / "log" / "daemons").open("a") as log:
            environment = {**os.environ, "SLURM_CONF": str(self.conf)}
            quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._daemons.append(self.lab.run(host, argv, env=environment, start_new_session=True, cwd="/", **quiet))

    def _checked(self, host: str, *argv: str) -> None:
        done = self.lab.run(host, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, _ = done.communicate(timeout=_READY_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)} on {host}: {said}")

    def command(self, *argv: str, user: str = USER) -> str:
        """What a client command of Slurm prints, run by the user where users are; it must succeed."""
        who = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []
        home = self.base / "home" / user if user != "root" else self.base
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "USER": user, "SLURM_CONF": str(self.conf)}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = self.lab.run(HEAD, ["setpriv", *who, *argv], env=environment, cwd=home, **streams)
        out, err = done.communicate(timeout=_READY_S)
        assert done.returncode == 0, f"{argv}: {out}{err}"
        return str(out)

    def on(self, host: str, *argv: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """A program run on a node."""
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != "root" else []
        process = self.lab.run(host, [*who, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = process.communicate(timeout=_READY_S)
        return subprocess.CompletedProcess(argv, process.returncode, out)

    def states(self) -> list[str]:
        """Of the nodes; a plain `idle` has no job, and none that is completing."""
        return self.command("sinfo", "-h", "-N", "-o", "%T", user="root").split()

    def wait_idle(self) -> None:
        """All epilogs have run."""

        def idle() -> bool:
            time.sleep(_LOOK_S)
            try:
                return self.states() == ["idle"] * len(HOSTS)
            except AssertionError:  # the controller is not up yet
                return False

        wait_until(idle, lambda: f"idle nodes: {self.command('sinfo', '-N', '-l', user='root')}", _READY_S)

    def processes(self, host: str, word: str) -> list[int]:
        """On a node, by the machine's numbers, those that have the word in their command line."""
        found = []
        for pid in self.lab.processes(host):
            try:
                if word in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                    found.append(pid)
            except OSError:
                continue
        return [pid for pid in found if is_running(pid)]

    def mounts(self, host: str) -> list[str]:
        """Where deepiofs, or a bind in its place, is mounted on a node."""
        lines = self.on(host, "cat", "/proc/self/mountinfo").stdout.splitlines()
        return [line.split()[4] for line in lines if " - fuse.deepiofs " in line or "/home/" in line.split()[4]]

    def leftovers(self) -> list[str]:
        """What jobs have left on the nodes."""
        found = [f"{host}: mount {place}" for host in HOSTS for place in self.mounts(host)]
        for host in HOSTS:
            found += [f"{host}: process {pid}" for pid in self.processes(host, "deepiofs.")]
            found += [f"{host}: /dev/shm/{name}" for name in self.on(host, "ls", "/dev/shm").stdout.split()]
        found += [str(path) for path in (self.base / "run").iterdir()]
        return found + [str(path) for host in HOSTS for path in self._tmp(host).glob(f"deepiofs-{_UIDS[USER]}")]

    def logs(self) -> str:
        """What the daemons and the scripts had to say last."""
        files = [
            self.base / "state/slurmctld.log",
            *(self.base / "log").iterdir(),
            *(self.base / "home").glob("*/*.out"),
        ]
        last = sorted(files, key=lambda file: file.stat().st_mtime)[-_LOGS:]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-_TAIL:]}" for file in last)

    def close(self) -> None:
        """Stop it all, and remove it."""
        for daemon in reversed(self._daemons):
            end(daemon)
        self.lab.close()
        shutil.rmtree(self.base, ignore_errors=True)
