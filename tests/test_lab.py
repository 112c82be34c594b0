"""The two hosts of a lab are two hosts, under every MPI that is installed, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import ADDRESSES, Lab
from tests.launchers import Launcher, installed_launchers

DEADLINE_S = 15.0
TRANSFER_BYTES = 8 << 20

needs_lab = pytest.mark.lab


def needs_delay(test: Callable[..., None]) -> Callable[..., None]:
    return needs_lab(pytest.mark.skipif(not Lab.delays(), reason="/dev/net/tun cannot be opened")(test))


each_launcher = pytest.mark.parametrize("launcher", installed_launchers(), ids=str)

GET = """
import mmap, os, sys, time
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI

MPI.Init_thread(MPI.THREAD_FUNNELED)
comm, size = MPI.COMM_WORLD, int(sys.argv[1])
memory = os.memfd_create("window")
os.ftruncate(memory, size)
store = mmap.mmap(memory, size)
store[:] = bytes([comm.rank + 1]) * size
window = MPI.Win.Create(store, 1, MPI.INFO_NULL, comm)
window.Lock_all(MPI.MODE_NOCHECK)
comm.Barrier()
if comm.rank == 1:
    copy = bytearray(size)
    request = window.Rget(copy, 0)
    while not request.Test():
        time.sleep(50e-6)
    assert copy == bytes([1]) * size
done = comm.Ibarrier()
while not done.Test():
    time.sleep(50e-6)
print(f"{comm.Split_type(MPI.COMM_TYPE_SHARED).size} rank on {os.uname().nodename}", flush=True)
window.Unlock_all()
window.Free()
MPI.Finalize()
"""

# As a mount does: the rank itself is no MPI process, its child is.
RANK = """
import os, signal, subprocess, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE, text=True, close_fds=False)
rank = child.stdout.readline().strip()
(folder / f"ready.{rank}").touch()
while not (folder / "end").exists():
    if (folder / f"kill.{rank}").exists():
        child.kill()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.005)
child.kill()
(folder / f"ended.{rank}").touch()
"""
CHILD = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import time

MPI.Init_thread(MPI.THREAD_FUNNELED)
MPI.COMM_WORLD.Barrier()
print(MPI.COMM_WORLD.rank, flush=True)
while True:
    MPI.COMM_WORLD.Iprobe()
    time.sleep(0.001)
"""


@needs_lab
def test_a_mount_on_one_host_is_seen_there_only(lab: Lab, tmp_path: Path) -> None:
    output(lab, "node1", "mount", "-t", "tmpfs", "lab", str(tmp_path))
    try:
        output(lab, "node1", "touch", str(tmp_path / "file"))
        assert output(lab, "node1", "ls", str(tmp_path)) == "file"
        assert output(lab, "node2", "ls", str(tmp_path)) == ""
        assert os.listdir(tmp_path) == []
    finally:
        output(lab, "node1", "umount", str(tmp_path))


@needs_lab
@pytest.mark.parametrize("host", Lab.hosts)
def test_a_host_has_its_own_name_and_processes(lab: Lab, host: str) -> None:
    assert output(lab, host, "hostname") == host
    assert output(lab, host, "readlink", "/proc/self/exe").endswith("readlink")
    assert output(lab, host, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline").startswith("sh -c")


@needs_lab
def test_a_program_on_a_host_gets_signals_and_folder(lab: Lab, tmp_path: Path) -> None:
    script = 'echo "$PWD"; exec sleep 100'
    process = lab.run("node1", ["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(tmp_path)
    assert process.pid in lab.processes("node1")
    process.terminate()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGTERM


@needs_lab
def test_a_pulled_cable_keeps_the_hosts_apart_until_it_is_back(lab: Lab) -> None:
    wait_until(lambda: reaches(lab, "node1", "node2"))
    lab.link("node2", up=False)
    try:
        assert not reaches(lab, "node1", "node2")
    finally:
        lab.link("node2", up=True)
    wait_until(lambda: reaches(lab, "node1", "node2"))


@needs_lab
def test_shaping_slows_down_what_a_host_sends(lab: Lab) -> None:
    if not Lab.shapes("tbf rate 8mbit burst 16k latency 1s"):
        pytest.skip("this kernel has no tbf")
    lab.shape("node1", "tbf rate 8mbit burst 16k latency 1s")
    try:
        assert seconds_to_send(lab, 500_000) > 0.3
    finally:
        lab.unshape("node1")
    assert seconds_to_send(lab, 500_000) < 0.3


@needs_delay
@pytest.mark.parametrize("seconds", [0.01, 0.03])
def test_a_delay_is_added_to_the_round_trip_and_taken_away_again(lab: Lab, seconds: float) -> None:
    plain = round_trip_s(lab)
    with delayed(lab, "node1", seconds):
        assert 2 * seconds <= round_trip_s(lab) < plain + 2 * seconds + 0.01
    assert round_trip_s(lab) < 2 * seconds
    assert links_on_head(lab) == {"lo", "br0", *Lab.hosts}


@needs_delay
def test_a_connection_lives_on_and_its_bytes_are_right_while_the_delay_comes_changes_and_goes(lab: Lab) -> None:
    data = "random.Random(1).randbytes(32 << 20)"
    send = (
        f"data = {data}\nfor i in range(0, len(data), 1 << 17): c.sendall(data[i : i + (1 << 17)]); time.sleep(0.005)"
    )
    receiver, sender = connected(lab, f"c.settimeout(10); print(c.makefile('rb').read() == {data})", send)
    changes = 0
    while sender.poll() is None:
        with delayed(lab, "node1", 0.003):
            lab.delay("node1", 0.001)
        changes += 1
    assert last_word(sender, receiver) == "True"
    assert changes > 1


@needs_delay
def test_a_delayed_cable_can_be_pulled_and_put_back(lab: Lab) -> None:
    with delayed(lab, "node2", 0.001):
        wait_until(lambda: reaches(lab, "node1", "node2"))
        lab.link("node2", up=False)
        try:
            assert not reaches(lab, "node1", "node2")
        finally:
            lab.link("node2", up=True)
        wait_until(lambda: reaches(lab, "node1", "node2"))


@needs_lab
@pytest.mark.mpi
@each_launcher
def test_a_get_between_hosts_crosses_the_network(lab: Lab, launcher: Launcher) -> None:
    before = lab.bytes_received("node2")
    command = launcher.command(2, [sys.executable, "-c", GET, str(TRANSFER_BYTES)], lab)
    with started(command, launcher.environment(lab)) as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert [out.count(f"1 rank on {host}") for host in Lab.hosts] == [1, 1]
    assert lab.bytes_received("node2") - before >= TRANSFER_BYTES


@pytest.mark.mpi
@each_launcher
def test_ranks_outlive_a_killed_one(launcher: Launcher, tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    try:
        assert_ranks_outlive_a_killed_one(launcher, tmp_path, None)
    finally:
        # MPICH's own, which it takes away only in MPI_Finalize; deepiofs does so by itself, this program does not.
        for path in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
            path.unlink()


@needs_lab
@pytest.mark.mpi
@each_launcher
def test_a_host_outlives_the_other_ones_rank(lab: Lab, launcher: Launcher, tmp_path: Path) -> None:
    assert_ranks_outlive_a_killed_one(launcher, tmp_path, lab)


@needs_lab
def test_nothing_is_left_of_a_closed_lab() -> None:
    links = machine("ip", "-o", "link").splitlines()
    skip_without_lab()
    with Lab() as hosts:
        if Lab.delays():
            hosts.delay("node1", 0.001)
        programs = [hosts.run(host, ["sleep", "100"]) for host in (*Lab.hosts, "head")]
        orphans = hosts.run("node1", ["sh", "-c", "sleep 100 & sleep 100 &"])
        orphans.wait(DEADLINE_S)
        processes = {pid for host in (*Lab.hosts, "head") for pid in hosts.processes(host)}
    assert [program.wait(DEADLINE_S) for program in programs] == [-signal.SIGKILL] * 3
    assert len(processes) >= 3 + 2 + 3
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert {name(link) for link in machine("ip", "-o", "link").splitlines()} == {name(link) for link in links}
    assert machine("ip", "netns", "list") == ""
    assert not hosts.folder.exists()


@needs_lab
def test_nothing_is_left_of_a_lab_that_failed_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_lab()
    processes: list[int] = []

    def fail(hosts: Lab) -> None:
        processes.extend(pid for host in Lab.hosts for pid in hosts.processes(host))
        raise RuntimeError("no cable")

    monkeypatch.setattr(Lab, "_wire", fail)
    hosts = Lab()
    with pytest.raises(RuntimeError, match="no cable"):
        hosts.__enter__()
    assert processes
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert not hosts.folder.exists()


def assert_ranks_outlive_a_killed_one(launcher: Launcher, folder: Path, lab: Lab | None) -> None:
    command = launcher.command(2, [sys.executable, "-c", RANK, str(folder), CHILD], lab)
    with started(command, launcher.environment(lab)) as process:
        wait_until(lambda: (folder / "ready.0").exists() and (folder / "ready.1").exists())
        (folder / "kill.1").touch()
        # That nothing happens can only be watched for a while; launchers that kill the others do so within 0.1 s.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        (folder / "end").touch()
        process.communicate(timeout=DEADLINE_S)
    assert (folder / "ended.0").exists()
    assert not (folder / "ended.1").exists()


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A launcher, stopped at the end whatever happened."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def output(lab: Lab, host: str, *argv: str) -> str:
    process = lab.run(host, argv, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return str(out).strip()


def machine(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.strip()


def name(link: str) -> str:
    return link.split(": ")[1]


def reaches(lab: Lab, here: str, there: str) -> bool:
    """Whether a port that nobody listens on refuses, instead of the network not answering."""
    script = "import socket, sys; s = socket.socket(); s.settimeout(0.5); sys.exit(s.connect_ex((sys.argv[1], 9)))"
    process = lab.run(here, [sys.executable, "-c", script, ADDRESSES[there]])
    return process.wait(DEADLINE_S) == 111  # ECONNREFUSED


def seconds_to_send(lab: Lab, size: int) -> float:
    receive = "while c.recv(1 << 16): pass"
    send = f"c.sendall(bytes({size})); c.shutdown(socket.SHUT_WR); c.recv(1); print(time.monotonic() - start)"
    return float(last_word(*connected(lab, receive, send)))


def round_trip_s(lab: Lab) -> float:
    """The shortest of several: others use the machine, too."""
    answer = "while c.send(c.recv(1)): pass"
    ask = "for _ in range(30): start = time.monotonic(); c.send(b'?'); c.recv(1); print(time.monotonic() - start)"
    _, asking = connected(lab, answer, ask)
    said, _ = asking.communicate(timeout=DEADLINE_S)
    return min(map(float, said.split()))


def connected(lab: Lab, there: str, here: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Programs on node2 and on node1 that hold the two ends `c` of a connection."""
    accept = "s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept()"
    connect = "start = time.monotonic(); c = socket.create_connection((sys.argv[1], int(sys.argv[2])))"
    programs = (
        f"import random, socket, sys, time\n{begin}\n{then}" for begin, then in ((accept, there), (connect, here))
    )
    server = lab.run("node2", [sys.executable, "-c", next(programs)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    at = [ADDRESSES["node2"], server.stdout.readline().strip()]
    return server, lab.run("node1", [sys.executable, "-c", next(programs), *at], stdout=subprocess.PIPE, text=True)


def last_word(*programs: subprocess.Popen[str]) -> str:
    """What the last one prints last; all succeed."""
    said = [program.communicate(timeout=DEADLINE_S)[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * len(programs)
    return said[-1].split()[-1]


@contextmanager
def delayed(lab: Lab, host: str, seconds: float) -> Iterator[None]:
    lab.delay(host, seconds)
    try:
        yield
    finally:
        lab.undelay(host)


def links_on_head(lab: Lab) -> set[str]:
    return {name(line).partition("@")[0] for line in output(lab, "head", "ip", "-o", "link").splitlines()}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def skip_without_lab() -> None:
    if reason := Lab.unavailable():
        pytest.skip(reason)
