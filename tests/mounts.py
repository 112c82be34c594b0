"""Real mounts for tests: made with the commands, as users make them, and seen to leave nothing behind.

`mounted` makes one mount, `mpi_mounted` one of several ranks; the fixtures `mount` and `mpi_mount` of conftest.py
wrap them. A `Place` says where programs run: here, or in a mount namespace of the test's own, as some user.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deepiofs.cli import inspect
from deepiofs.cli.main import main
from deepiofs.cli.mountpoints import FSTYPE
from deepiofs.errors import TimedOutError
from tests.lab import HOSTS, Lab
from tests.launchers import Launcher

DEEPIOFS = str(Path(sys.executable).parent / "deepiofs")
DEADLINE_S = 60.0
# How often a wait for ranks looks whether their launcher has ended.
LOOK_S = 5.0
# Small machines, and tests beside each other: a later option of the same name wins.
MODEST = ("cache=64M", "staging=32M")
_CAP_SYS_ADMIN = 21


def unavailable() -> str | None:
    """Why nothing can be mounted here, or None."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0:
        return None if shutil.which("fusermount3") else "fusermount3 is not installed"
    status = Path("/proc/self/status").read_text()
    capabilities = int(re.findall(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[0], 16)
    return None if capabilities >> _CAP_SYS_ADMIN & 1 else "root without CAP_SYS_ADMIN"


@dataclass(frozen=True)
class Place:
    """Where programs run: `prefix` takes a command line there; `process` has its mounts in /proc/PID/mountinfo."""

    prefix: tuple[str, ...] = ()
    process: str = "self"
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, argv: Sequence[str], **popen: Any) -> subprocess.Popen[str]:
        """Start a program; its pid is that of the program itself."""
        environment = {**os.environ, **self.environment}
        where = {"stdin": subprocess.DEVNULL, "env": environment, "text": True, **popen}
        return subprocess.Popen([*self.prefix, *argv], **where)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="surrogateescape")
        with ending(process):
            out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def output(self, *argv: str) -> str:
        """What a program prints; it must succeed, and say nothing on stderr."""
        done = self.run(*argv)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def deepiofs(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return self.run(DEEPIOFS, *argv)

    def succeed(self, *argv: str) -> None:
        """A command that must succeed, and say nothing on stderr.

        Here it is called and not started, as Python takes longer to start than `wait` and `umount` take.
        """
        if self.prefix:
            self.output(DEEPIOFS, *argv)
            return
        said = io.StringIO()
        with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
            main(argv)
        assert (ended.value.code, said.getvalue()) == (0, ""), argv

    def mountpoints(self) -> set[str]:
        """Where deepiofs is mounted; names with white space keep their octal."""
        lines = Path(f"/proc/{self.process}/mountinfo").read_text().splitlines()
        return {line.split()[4] for line in lines if line.partition(" - ")[2].startswith(FSTYPE)}


HERE = Place()


@dataclass
class Mount:
    """A live mount."""

    source: Path
    point: Path
    place: Place
    processes: tuple[int, int]
    process: subprocess.Popen[str] | None = None

    def control(self, name: str) -> str:
        """The text of a control file."""
        return self.place.output("cat", f"{self.point}/.deepiofs/{name}")

    def stats(self) -> dict[str, Any]:
        """The control file `stats`."""
        said: dict[str, Any] = json.loads(self.control("stats"))
        return said

    def wait(self, what: str = "warm") -> None:
        """Return when it is mounted, or warm."""
        self.place.succeed("wait", str(self.point), "--for", what, "--timeout", f"{DEADLINE_S - 5}")

    def umount(self) -> None:
        """Unmount with the command; the process that the test started, if any, ends with exit status 0."""
        self.place.succeed("umount", str(self.point))
        if self.process:
            assert self.process.wait(DEADLINE_S) == 0


@contextlib.contextmanager
def mounted(
    source: Path,
    point: Path,
    *options: str,
    place: Place = HERE,
    foreground: bool = False,
    until: str = "warm",
    command: Sequence[str] = (DEEPIOFS, "mount"),
) -> Iterator[Mount]:
    """One mount, waited for, unmounted at the end. No mount and no process remains; for files see `nothing_left`."""
    line = [*command, str(source), str(point), "-o", ",".join((*MODEST, *options))]
    process = place.start([*line, "-f"]) if foreground else None
    mount = Mount(source, point, place, (0, 0), process)
    try:
        if not foreground:
            place.output(*line)
        mount.wait(until)
        stats = mount.stats()
        mount.processes = (stats["pid"], stats["engine_pid"])
        yield mount
        mount.umount()
        assert str(point) not in place.mountpoints()
        wait_until(lambda: not any(map(is_running, mount.processes)), f"processes {mount.processes} ended")
    finally:
        if str(point) in place.mountpoints():
            place.run("umount", "-l", str(point))
        for pid in filter(is_running, filter(None, mount.processes)):
            os.kill(pid, signal.SIGKILL)
        if process:
            end(process)


@dataclass
class MpiMount:
    """A live mount of several ranks. In a lab, rank r is on host r modulo 2 and seen there only."""

    source: Path
    mountpoints: list[Path]
    places: list[Place]
    process: subprocess.Popen[str]
    output: Path

    def control(self, rank: int, name: str) -> str:
        """The text of a rank's control file."""
        return self.places[rank].output("cat", f"{self.mountpoints[rank]}/.deepiofs/{name}")

    def stats(self, rank: int) -> dict[str, Any]:
        """The control file `stats` of a rank."""
        said: dict[str, Any] = json.loads(self.control(rank, "stats"))
        return said

    def wait(self, what: str = "warm", ranks: Sequence[int] | None = None) -> None:
        """Return when the ranks are mounted, or warm; fails if the launcher ends before."""
        for rank in range(len(self.mountpoints)) if ranks is None else ranks:
            self._wait(rank, what)

    def _wait(self, rank: int, what: str) -> None:
        point, place = str(self.mountpoints[rank]), self.places[rank]
        if not place.prefix:
            wait_until(lambda: _is(point, what) or self._has_failed(), f"rank {rank} {what}")
            return
        line = [DEEPIOFS, "wait", point, "--for", what, "--timeout", f"{DEADLINE_S - 5}"]
        with ending(place.start(line)) as waiter:
            wait_until(lambda: waiter.poll() is not None or self.process.poll() is not None, f"rank {rank} {what}")
            assert waiter.returncode == 0, self.output.read_text()

    def _has_failed(self) -> bool:
        """False; AssertionError, with what it said, if the launcher has ended."""
        assert self.process.poll() is None, self.output.read_text()
        return False

    def umount(self) -> None:
        """Unmount all ranks; for what the launcher then does see `ended`."""
        for point, place in zip(self.mountpoints, self.places, strict=True):
            place.succeed("umount", str(point))

    def ended(self) -> int:
        """The launcher's exit status, once it has ended."""
        return self.process.wait(DEADLINE_S)


def _is(point: str, what: str) -> bool:
    """Whether something is mounted, or warm, within a few seconds."""
    try:
        return inspect.wait(point, what, LOOK_S) == 0
    except TimedOutError:
        return False


@contextlib.contextmanager
def mpi_mounted(
    launcher: Launcher,
    ranks: int,
    source: Path,
    folder: Path,
    *options: str,
    lab: Lab | None = None,
    until: str = "warm",
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[MpiMount]:
    """A mount of several ranks at `folder`/mnt0 and so on; at the end unmounted, and the launcher has ended.

    `prefix` is what the launcher is started with, such as that of a `SlowSource`.
    Its exit status is not looked at: a test that kills ranks has its own opinion on that.
    """
    points = [folder / f"mnt{rank}" for rank in range(ranks)]
    for point in points:
        point.mkdir(exist_ok=True)
    places = [on_host(lab, HOSTS[rank % len(HOSTS)]) if lab else HERE for rank in range(ranks)]
    line = [DEEPIOFS, "mount", str(source), f"{folder}/mnt%r", "-o", ",".join((*MODEST, *options))]
    output = folder / "launcher-output"
    with output.open("w") as sink:
        process = subprocess.Popen(
            [*prefix, *launcher.command(ranks, line, lab)],
            env={**launcher.environment(lab), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            text=True,
        )
        mount = MpiMount(source, points, places, process, output)
        with ending(process):
            mount.wait(until)
            pids = [] if lab else [int(mount.stats(r)[name]) for r in range(ranks) for name in ("pid", "engine_pid")]
            yield mount
            mount.umount()
            mount.ended()
            wait_until(lambda: not any(map(is_running, pids)), f"processes {pids} ended")
        for point, place in zip(points, places, strict=True):
            assert str(point) not in place.mountpoints()


def on_host(lab: Lab, host: str) -> Place:
    """Where programs of a lab's host run."""
    process = str(min(lab.processes(host)))
    return Place(
        (
            "nsenter",
            f"--target={process}",
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            f"--pid=/proc/{process}/ns/pid_for_children",
            "--",
        ),
        process,
    )


class Namespace:
    """A mount namespace that lives until it is closed, for what a test must not do to the machine.

    `script` is a shell script that changes it. keep_mounts: with copies of what deepiofs has mounted, which keep it
    alive when it is unmounted elsewhere. Needs root.
    """

    def __init__(self, script: str = "", keep_mounts: bool = False) -> None:
        lines = ["set -e", script, "echo ready", "exec >/dev/null", "exec cat"]
        if not keep_mounts:
            lines.insert(1, rf"awk '/ - {FSTYPE} / {{print $5}}' /proc/self/mountinfo | xargs -r umount -l || true")
        keeper = "\n".join(lines)
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", keeper],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("the namespace was not made")

    @staticmethod
    def unavailable() -> str | None:
        """Why there can be none here, or None."""
        if os.geteuid() != 0:
            return "a mount namespace needs root"
        done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else None

    def place(self, user: int = 0, **environment: str) -> Place:
        """Programs in it, as a user of this number, with these changes to the environment."""
        pid = str(self._keeper.pid)
        become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all") if user else ()
        return Place(
            ("nsenter", f"--target={pid}", "--mount", f"--wdns={os.getcwd()}", "--", *become), pid, environment
        )

    def close(self) -> None:
        """Let it go, and with it what is mounted in it."""
        if self._keeper.stdin:
            self._keeper.stdin.close()
        end(self._keeper)
        if self._keeper.stdout:
            self._keeper.stdout.close()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def reachable_by_all() -> str:
    """A script for `Namespace`: any user may run this Python and use /dev/fuse, whatever the machine says."""
    lines = [
        "mkdir -p /tmp",
        "mount -t tmpfs -o mode=755 deepiofs-test /mnt",
        "mknod -m 666 /mnt/fuse c 10 229",
        "mount --bind /mnt/fuse /dev/fuse",
    ]
    needed = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[1])}
    closed = {closest for path in needed if (closest := _closed_above(Path(path)))}
    for number, path in enumerate(sorted(needed)):
        lines += [f"mkdir /mnt/{number}", f"mount --bind {path} /mnt/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 deepiofs-test {folder}" for folder in sorted(map(str, closed))]
    for number, path in enumerate(sorted(needed)):
        if _closed_above(Path(path)):
            lines += [f"mkdir -p {path}", f"mount --bind /mnt/{number} {path}"]
    return "\n".join(lines)


def _closed_above(path: Path) -> Path | None:
    """The topmost directory on the way to a path that others may not pass."""
    return next((above for above in reversed([path, *path.parents]) if not above.stat().st_mode & 0o001), None)


class Journal:
    """The log files of a test's mounts: warnings that nobody expected are failures, and those that did not come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._expected: list[str] = []
        self._allowed: list[str] = []

    def option(self) -> str:
        """A log= option for another mount."""
        self._files += 1
        return f"log={self._folder}/log-{self._files}-%r"

    def expect(self, pattern: str) -> None:
        """Some warning or error, at least one, will match this regular expression."""
        self._expected.append(pattern)

    def allow(self, pattern: str) -> None:
        """Warnings and errors that match may come, or not: how MPI ends after a loss is not ours to say."""
        self._allowed.append(pattern)

    def complaints(self) -> list[str]:
        """All warnings and errors so far."""
        files = sorted(self._folder.glob("log-*"))
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return [line for line in lines if re.search(r"deepiofs\[\d+\] (WARNING|ERROR|CRITICAL) ", line)]

    def check(self) -> None:
        """AssertionError with what was not expected, or did not come."""
        complaints = self.complaints()
        missing = [pattern for pattern in self._expected if not any(re.search(pattern, line) for line in complaints)]
        extra = [
            line
            for line in complaints
            if not any(re.search(pattern, line) for pattern in (*self._expected, *self._allowed))
        ]
        assert not missing, f"not logged: {missing}"
        assert not extra, "\n".join(["unexpected in the log:", *extra])


@contextlib.contextmanager
def nothing_left(jobs: bool = False) -> Iterator[None]:
    """What is done inside leaves no shared memory, temporary or run-time file behind.

    jobs: nor what a prolog keeps for its epilog; other tests, which may run at the same time, would find that of these.
    """
    before = _traces(jobs)

    def left() -> set[Path]:
        return _abandoned(_traces(jobs) - before)

    yield
    wait_until(lambda: not left(), lambda: f"{left()} removed", 15)


def _traces(jobs: bool) -> set[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path("/dev/shm"), *([Path(runtime)] if runtime else [])]
    found = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    found |= set(Path("/tmp").glob("deepiofs*"))
    # Benchmarks, and `try`, have folders of their own, and may run beside the tests.
    others = r"deepiofs-(bench-|try\.)" if jobs else r"deepiofs-(bench-|try\.|\d+$)"
    return {path for path in found if not re.match(others, path.name)}


def _abandoned(traces: set[Path]) -> set[Path]:
    """Without what other programs, which run beside the tests, have mapped now."""
    if not traces:
        return traces
    maps = []
    for file in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps.append(file.read_text(errors="replace"))
    return {path for path in traces if path.exists() and not any(f"{path}\n" in text for text in maps)}


@contextlib.contextmanager
def no_process_left() -> Iterator[dict[str, str]]:
    """Whatever is started with the environment that is given ends, with all that it starts, before the block does."""
    mark = {"DEEPIOFS_TEST_MARK": os.urandom(8).hex()}
    yield mark
    wait_until(lambda: not _marked(mark), lambda: f"processes {_marked(mark)} ended")


def _marked(mark: Mapping[str, str]) -> list[int]:
    words = [f"{name}={value}".encode() for name, value in mark.items()]
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if all(word in file.read_bytes().split(b"\0") for word in words):
                found.append(int(file.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    """The process that a process is a child of."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; AssertionError saying what was waited for."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process which is stopped at the end if it has not ended by itself."""
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Stop a process, gently at first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
