"""How tests start N ranks of a program, under each MPI that is installed, on this machine or in a `Lab`.

The program started is not itself the MPI process: it starts one child which is, and which inherits its
descriptors and environment. The options below were found with programs of that shape, MPICH 5.0.2 and
Open MPI 4.1.4. With them the loss of one rank, or of its MPI child alone, leaves the other ranks alive.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab import HOSTS, Lab

DEBIAN_OPENMPI = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")

# Hydra SIGKILLs every rank of a host when a process that it started there was itself killed by a signal, whatever
# its options. So that is a shell, which outlives the rank: with the shell, the others lived, on one host, too.
# Hydra also tells ranks of a loss by SIGUSR1, which ends a program that does not ignore it. SIGTERM and SIGINT
# reach the whole process group: the shell has to wait for the rank to end in its own way.
_OUTLIVE = ["/bin/sh", "-c", 'trap "" USR1; trap : TERM INT HUP; "$@"; exit $?', "rank"]

_MPICH_OPTIONS = [
    # Otherwise a rank that leaves without PMI's farewell (killed, or by os._exit) takes the others along.
    "-disable-auto-cleanup",
]
_OPENMPI_OPTIONS = [
    # Two cores, and tests of three ranks, which poll.
    "--oversubscribe", "--bind-to", "none",
    # Debian's defaults (osc = ^ucx,pt2pt) fail in Win.Create with MPI_ERR_WIN. osc/rdma works on one host (16 us
    # for 100 kB), but not between hosts over TCP; pt2pt works on both (165 and 485 us) below THREAD_MULTIPLE.
    "--mca", "pml", "ob1", "--mca", "osc", "pt2pt",
    # Otherwise mpirun ends all ranks as soon as one was killed, or ended without MPI_Finalize. The price: it does
    # not end itself when two ranks of one remote host ended so (one per host is well): bound the wait for it.
    "--enable-recovery",
]  # fmt: skip


@dataclass(frozen=True)
class Launcher:
    """One MPI's way to start ranks. `placement` adds what it needs to do so on a lab's hosts."""

    name: str
    mpirun: Path
    options: Sequence[str]
    placement: Callable[[Lab, int], list[str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    lab_variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def command(self, n: int, argv: Sequence[str], lab: Lab | None = None) -> list[str]:
        """The command line that starts `n` ranks of `argv`, dealt over the lab's hosts in turn if there is one."""
        where = self.placement(lab, n) if lab else []
        line = [str(self.mpirun), "-n", str(n), *self.options, *where, *_OUTLIVE, *argv]
        return lab.on_head(line) if lab else line

    def environment(self, lab: Lab | None = None) -> dict[str, str]:
        """The environment to give to `command`: this process's own, and what this MPI needs."""
        return {**os.environ, **self.variables, **(self.lab_variables if lab else {})}


def installed_launchers() -> list[Launcher]:
    """The MPIs that can be started here; the first is the one inside the virtual environment."""
    return [launcher for launcher in (_mpich(), _openmpi()) if launcher]


def one_mpi() -> pytest.MarkDecorator:
    """For tests to which it is nothing which MPI carries the bytes: under the first only, as each start takes long."""
    return pytest.mark.parametrize("launcher", installed_launchers()[:1], indirect=True, ids=str)


def mpis_in_turn(names: str, cases: Sequence[Any]) -> pytest.MarkDecorator:
    """`parametrize` with each case under one MPI, and each MPI with some: what differs between cases is not MPI's."""
    launchers = installed_launchers()
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    dealt = [(launchers[i % len(launchers)], *value) for i, value in enumerate(values) if launchers]
    ids = ["-".join(map(str, one)) for one in dealt]
    return pytest.mark.parametrize(f"launcher,{names}", dealt, indirect=["launcher"], ids=ids)


def _mpich() -> Launcher | None:
    mpirun = Path(sys.executable).parent / "mpirun"
    if not (mpirun.parent / "hydra_pmi_proxy").exists():
        return None
    # Both hosts have one kernel: UCX would copy by process_vm_readv, past the network.
    network = {"UCX_TLS": "tcp,self"}
    return Launcher("mpich", mpirun, _MPICH_OPTIONS, _mpich_placement, lab_variables=network)


def _mpich_placement(lab: Lab, n: int) -> list[str]:
    hosts = ["-hosts", ",".join(HOSTS), "-ppn", "1"]
    return [*hosts, "-launcher", "rsh", "-launcher-exec", str(lab.remote_shell)]


def _openmpi() -> Launcher | None:
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None or not DEBIAN_OPENMPI.exists():
        return None
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    library = {"MPI4PY_LIBMPI": str(DEBIAN_OPENMPI)}
    return Launcher("openmpi", Path(mpirun), _OPENMPI_OPTIONS, _openmpi_placement, {**as_root, **library})


def _openmpi_placement(lab: Lab, n: int) -> list[str]:
    hosts = ["--host", ",".join(f"{host}:{n}" for host in HOSTS), "--map-by", "node"]
    # Its session folder is named after the host. /tmp is the machine's, where other labs have a node1, too.
    return [*hosts, "--mca", "plm_rsh_agent", str(lab.remote_shell), "--mca", "orte_tmpdir_base", "/dev/shm"]
