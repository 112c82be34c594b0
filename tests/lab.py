"""Two hosts on one machine: separate names, networks, mounts and processes, joined by a real TCP link.

Each host is a set of namespaces held by one keeper process, PID 1 of that host. A third set, `head`, holds the
bridge between them and is where launchers such as mpirun run; it shares the machine's process numbers, so that
signals sent to a launcher reach it. The machine's own network, mounts and /etc/hosts are never touched, so labs
do not clash, whatever their number; what the machine mounts later is not seen in them. A keeper ends when its
standard input ends, so hosts do not outlive the process that made them, even if that is killed.

Needs root. `Lab.unavailable()` says what is missing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import pytest

from tests import delayline

HEAD = "head"
BRIDGE = "br0"
HOSTS = ("node1", "node2")
NETWORK = "10.77.0"
ADDRESSES = {HEAD: f"{NETWORK}.1", **{host: f"{NETWORK}.{11 + i}" for i, host in enumerate(HOSTS)}}
TOOLS = ("ip", "tc", "nsenter", "unshare", "mount")
CLOSE_TIMEOUT_S = 10.0

# `ip netns exec` would give each program a mount namespace of its own; a keeper's is shared by all on the host.
_UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private"]
# UCX looks for devices in /sys/class/net, which shows the network namespace that mounted it; a fresh /sys lacks
# /sys/fs, where cgroups and FUSE connections are, so that is carried over.
_KEEPER = """
set -e
# A copy of a mount keeps it alive: those that are there now belong to other tests.
awk '/ - fuse.deepiofs / {print $5}' /proc/self/mountinfo | xargs -r umount -l
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount --rbind /sys/fs "$2/sysfs"
mount -t sysfs sysfs /sys
mount --rbind "$2/sysfs" /sys/fs
if [ $$ = 1 ]; then mount -t proc proc /proc; fi
ip link set lo up
echo ready
exec >/dev/null
cat
"""
_PROBE = "ip link add br0 type bridge && ip link add v0 type veth peer name v1"
# Called as ssh is: options, a host, the words of a command line. `nsenter` would leave the working folder.
_REMOTE_SHELL = """#!/bin/sh
while :; do case $1 in {cases} '') echo "no such host" >&2; exit 255;; *) shift;; esac; done
shift
exec nsenter --target $keeper --net --uts --ipc --mount --pid=/proc/$keeper/ns/pid_for_children \\
    sh -c "cd '$PWD' && $*"
"""


@dataclass(frozen=True)
class _Host:
    """A running host; `keeper` is the parent of its PID 1 (of `head`: the shell itself)."""

    keeper: subprocess.Popen[str]

    def namespace(self, kind: str) -> str:
        return f"/proc/{self.keeper.pid}/ns/{kind}"

    def holds(self, process: int) -> bool:
        try:
            return os.readlink(f"/proc/{process}/ns/net") == os.readlink(self.namespace("net"))
        except OSError:
            return False


class Lab:
    """Context manager for the hosts `node1` and `node2`; `close` leaves nothing of them behind."""

    hosts = HOSTS

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lab-"))
        self._up: dict[str, _Host] = {}
        self._programs: list[subprocess.Popen[Any]] = []
        self._delays: dict[str, subprocess.Popen[Any]] = {}

    @staticmethod
    def unavailable() -> str | None:
        """Why a lab cannot be made here, or None."""
        if os.geteuid() != 0:
            return "two hosts on one machine need root"
        if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
            return f"not installed: {', '.join(missing)}"
        probe = [*_UNSHARE, "--pid", "--fork", "sh", "-c", _PROBE]
        result = subprocess.run(probe, capture_output=True, text=True, timeout=CLOSE_TIMEOUT_S)
        return f"no namespaces: {result.stderr.strip()}" if result.returncode else None

    @staticmethod
    def shapes(discipline: str) -> bool:
        """Whether this kernel has a queueing discipline for `shape`; not all are built with netem."""
        probe = ["unshare", "--net", "tc", "qdisc", "replace", "dev", "lo", "root", *discipline.split()]
        return subprocess.run(probe, capture_output=True, timeout=CLOSE_TIMEOUT_S).returncode == 0

    @staticmethod
    def delays() -> bool:
        """Whether this machine can `delay`."""
        return os.access("/dev/net/tun", os.R_OK | os.W_OK)

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
        names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (self.folder / "sysfs").mkdir()
        for host in (HEAD, *HOSTS):
            self._up[host] = self._boot(host)
        self._wire()
        self._write_remote_shell()

    def _boot(self, host: str) -> _Host:
        own_processes = [] if host == HEAD else ["--pid", "--fork", "--kill-child"]
        keeper = subprocess.Popen(
            [*_UNSHARE, *own_processes, "sh", "-c", _KEEPER, "keeper", host, str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._up[host] = _Host(keeper)
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "ready\n":
            raise RuntimeError(f"{host} did not start: {_rest(keeper.stderr)}")
        return self._up[host]

    def _wire(self) -> None:
        self._check(HEAD, f"ip link add {BRIDGE} type bridge")
        self._check(HEAD, f"ip addr add {ADDRESSES[HEAD]}/24 dev {BRIDGE}")
        self._check(HEAD, f"ip link set {BRIDGE} up")
        for host in HOSTS:
            keeper = self._up[host].keeper.pid
            self._check(HEAD, f"ip link add {host} type veth peer name eth0 netns {keeper}")
            self._check(HEAD, f"ip link set {host} master {BRIDGE} up")
            self._check(host, f"ip addr add {ADDRESSES[host]}/24 dev eth0")
            self._check(host, "ip link set eth0 up")

    def _write_remote_shell(self) -> None:
        cases = " ".join(f"{host}) keeper={self._up[host].keeper.pid}; break;;" for host in HOSTS)
        self.remote_shell.write_text(_REMOTE_SHELL.format(cases=cases))
        self.remote_shell.chmod(0o755)

    @property
    def remote_shell(self) -> Path:
        """A program that runs a command line on a host, for launchers to use in place of ssh."""
        return self.folder / "remote-shell"

    def on_head(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` where launchers belong; its process becomes `argv` itself."""
        keeper = str(self._up[HEAD].keeper.pid)
        enter = ["nsenter", "--target", keeper, "--net", "--uts", "--ipc", "--mount", f"--wdns={os.getcwd()}"]
        return [*enter, *argv]

    def run(self, host: str, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a program on a host; the result's `pid` and signals are those of the program itself."""
        # nsenter forks to enter a PID namespace and passes no signals on, so Popen enters by itself.
        where = self._up[host]
        folder = popen.pop("cwd", None) or os.getcwd()
        kinds = ("net", "uts", "ipc", "mnt")
        with _opened([where.namespace(kind) for kind in kinds]) as entries:
            enter = _entering(entries, os.fspath(folder))
            with _children_in(where.namespace("pid_for_children")):
                program = subprocess.Popen(list(argv), preexec_fn=enter, **popen)
        self._programs.append(program)
        return program

    def processes(self, host: str) -> list[int]:
        """The processes on a host, by the machine's numbers, its keeper's included."""
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if self._up[host].holds(int(p.name))]

    def bytes_received(self, host: str) -> int:
        """What came in over the host's link since it started, headers included."""
        lines = Path(f"/proc/{self._up[host].keeper.pid}/net/dev").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.lstrip().startswith("eth0:"))

    def link(self, host: str, up: bool) -> None:
        """Plug the host's cable in, or pull it: packets are lost, nobody is told."""
        self._check(HEAD, f"ip link set {host} {'up' if up else 'down'}")

    def shape(self, host: str, discipline: str) -> None:
        """Slow down or damage what the host sends, in tc's words: "netem delay 1ms", "tbf rate 100mbit ..."."""
        self._check(host, f"tc qdisc replace dev eth0 root {discipline}")

    def unshape(self, host: str) -> None:
        """Undo `shape`."""
        self._check(host, "tc qdisc del dev eth0 root")

    def delay(self, host: str, seconds: float) -> None:
        """Hold what the host sends, and what is sent to it, for so long each way; connections live on.

        Called again it changes the time. It adds 50 to 150 us of its own, and carries 300 to 450 MB/s for two thirds
        of a core.
        """
        if host not in self._delays:
            self._insert_delay(host)
        print(seconds, file=self._delays[host].stdin, flush=True)

    def undelay(self, host: str) -> None:
        """Undo `delay`."""
        line = self._delays.pop(host)
        print(0, file=line.stdin, flush=True)  # what is held leaves while the host can still be reached
        self._check(HEAD, f"ip link set {host} master {BRIDGE}")
        line.communicate(timeout=CLOSE_TIMEOUT_S)
        self._check(HEAD, f"ip link del {host}-br")

    def _insert_delay(self, host: str) -> None:
        # The host's end moves to a bridge of its own; a frame's way is then host, its bridge, the line, the bridge.
        near, far = f"{host}-near", f"{host}-far"
        argv = [sys.executable, delayline.__file__, near, far]
        line = self.run(HEAD, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._delays[host] = line
        assert line.stdout is not None
        if line.stdout.readline() != "ready\n":
            raise RuntimeError(f"no delay line: {_rest(line.stderr)}")
        self._check(HEAD, f"ip link add {host}-br up type bridge")
        self._check(HEAD, f"ip link set {near} up master {host}-br")
        self._check(HEAD, f"ip link set {far} up master {BRIDGE}")
        self._check(HEAD, f"ip link set {host} master {host}-br")

    def close(self) -> None:
        """Kill everything in the hosts and remove them."""
        if HEAD in self._up:
            self._kill_launchers(self._up[HEAD].keeper.pid)
        self._kill_programs()
        while self._up:
            _end(self._up.popitem()[1].keeper)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_launchers(self, keeper: int) -> None:
        # Only `head` needs this: the other hosts' processes are killed by the kernel with their PID 1.
        for process in self.processes(HEAD):
            if process != keeper:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _kill_programs(self) -> None:
        # A PID 1 cannot end before all of its host are reaped, and programs that `run` started are our children.
        for program in self._programs:
            program.kill()
        while self._programs:
            self._programs.pop().wait(CLOSE_TIMEOUT_S)

    def _check(self, host: str, command: str) -> None:
        process = self.run(host, command.split(), stderr=subprocess.PIPE, text=True)
        _, problem = process.communicate(timeout=CLOSE_TIMEOUT_S)
        if process.returncode:
            raise RuntimeError(f"{command} on {host}: {problem.strip()}")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two hosts for the whole session; skips, saying why, where they cannot be made."""
    if reason := Lab.unavailable():
        pytest.skip(reason)
    with Lab() as two_hosts:
        yield two_hosts


def _end(keeper: subprocess.Popen[str]) -> None:
    for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
        if stream is not None:
            stream.close()
    try:
        # unshare ends when PID 1 has, and that only when the kernel has reaped all the host's processes.
        keeper.wait(CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait(CLOSE_TIMEOUT_S)


def _rest(stream: IO[str] | None) -> str:
    return stream.read().strip() if stream is not None else ""


@contextmanager
def _opened(paths: Sequence[str]) -> Iterator[list[int]]:
    descriptors: list[int] = []
    try:
        descriptors.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _children_in(namespace: str) -> Iterator[None]:
    """Children forked by this thread meanwhile are born in a PID namespace; nobody can move there later."""
    with _opened([namespace, "/proc/self/ns/pid"]) as (theirs, ours):
        _setns(theirs)
        try:
            yield
        finally:
            _setns(ours)


def _entering(namespaces: Sequence[int], folder: str) -> Callable[[], None]:
    def enter() -> None:
        for namespace in namespaces:
            _setns(namespace)
        os.chdir(folder)

    return enter


_LIBC = ctypes.CDLL(None, use_errno=True)


def _setns(descriptor: int) -> None:
    # os.setns exists from Python 3.12 on.
    if _LIBC.setns(descriptor, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
