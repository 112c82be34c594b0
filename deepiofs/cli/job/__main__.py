"""`python -m deepiofs.cli.job`: what the scripts in `mount-scripts/` run on each node.

    run     as the user, in the foreground: keep this node's mount until told to end
    start   as root: the same as the job's user, in the background; returns when it is known what came of it
    bind    as root: show the source itself at the mount point

Exit codes as of `deepiofs`. What failed is told on stdout, one line per node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from deepiofs.cli.job import steward
from deepiofs.cli.job.keys import job_secret, ports, read_key
from deepiofs.cli.mountpoints import expand
from deepiofs.errors import DeepiofsError, UsageError

# What the keeper needs beyond the limit to say what came of it, and to end.
_GRACE_S = 10.0
_POLL_S = 0.05


def main() -> NoReturn:
    """Run a subcommand and exit."""
    args = _parser().parse_args()
    try:
        sys.exit(args.run(args))
    except DeepiofsError as error:
        print(f"{getattr(args, 'node', None) or os.uname().nodename}: {error}", flush=True)
        sys.exit(error.exit_code)


def _run(args: argparse.Namespace) -> int:
    from deepiofs.cli.job.guard import Guard, forget

    nodes = args.nodes.split(",")
    mountpoint = _mountpoint(args, nodes)
    state = _State(args.state)
    state.begin(os.path.realpath(mountpoint), made=_made(mountpoint))
    guard = Guard(f"{args.job}.{args.node}", mountpoint, Path(args.state), args.end_timeout)
    secret = read_key(args.secret)

    def report(failed: Mapping[str, str]) -> None:
        state.settled()
        _write(args.outcome, failed)

    code = _keep(args, mountpoint, secret, dict(os.environ), report)
    guard.dismiss()
    forget(Path(args.state), mountpoint)
    return code


def _start(args: argparse.Namespace) -> int:
    user = steward.find_user(args.user)
    nodes = args.nodes.split(",")
    secret = steward.apart(lambda: job_secret(read_key(args.key), args.job, user.pw_uid, nodes))
    mountpoint = _mountpoint(args, nodes)
    with steward.acting_as(user):
        made = _made(mountpoint)
        place = os.path.realpath(mountpoint)
    state = _State(args.state)
    state.begin(place, made)
    log = os.open(args.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    os.fchown(log, user.pw_uid, user.pw_gid)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _detached(log)
        steward.become(user)
        report = _reporter(writing)
        os._exit(_keep(args, mountpoint, secret, steward.environment_of(user), report))
    os.close(writing)
    state.keeper(child)
    failed = _heard(reading, args)
    state.settled()
    _print(failed)
    if failed:
        _reap(child, args.end_timeout)
    return DeepiofsError.exit_code if failed else 0


def _bind(args: argparse.Namespace) -> int:
    mountpoint = Path(args.state, "mountpoint").read_text()
    steward.bind(steward.find_user(args.user), args.source, mountpoint)
    Path(args.state, "bound").touch()
    return 0


def _keep(
    args: argparse.Namespace,
    mountpoint: str,
    secret: bytes,
    environment: dict[str, str],
    report: Callable[[Mapping[str, str]], None],
) -> int:
    import trio

    from deepiofs.cli.job.keeper import Keeper, Task

    nodes = args.nodes.split(",")
    first, last = _range(args.ports)
    task = Task(
        args.job, nodes, nodes.index(args.node), args.source, mountpoint, args.options, args.wait_for, args.timeout,
        args.end_timeout, ports(secret, first, last), secret, {**environment, **_extra(args.environment)}, args.log,
    )  # fmt: skip
    return trio.run(Keeper(task, report).run)


def _mountpoint(args: argparse.Namespace, nodes: list[str]) -> str:
    if args.node not in nodes:
        raise UsageError(f"this node is called {args.node}, which is none of the job's: {', '.join(nodes)}")
    path = expand(args.mountpoint, nodes.index(args.node), 0, args.node)
    if not os.path.isabs(path):
        raise UsageError(f"mount point {path} must be an absolute path")
    return path


def _made(mountpoint: str) -> bool:
    """Make the mount point if it is missing; whether it was made. What is wrong with it the mount itself will say."""
    try:
        os.mkdir(mountpoint, 0o700)
    except OSError:
        return False
    return True


class _State:
    """What the epilog needs to know, in a folder of this job and node."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def begin(self, mountpoint: str, made: bool) -> None:
        """mountpoint: as the kernel will list it, without links."""
        (self._folder / "mountpoint").write_text(mountpoint)
        if made:
            (self._folder / "made").touch()
        self.keeper(os.getpid())

    def settled(self) -> None:
        """What MPI made to start with has been made."""
        (self._folder / "settled").touch()

    def keeper(self, pid: int) -> None:
        """With the time of its start, as numbers of processes come again."""
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        (self._folder / "keeper").write_text(f"{pid} {started}\n")


def _detached(log: int) -> None:
    """A session of its own, with no descriptor of the daemon that waits for the prolog's end."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.chdir("/")


def _reporter(writing: int) -> Callable[[Mapping[str, str]], None]:
    def report(failed: Mapping[str, str]) -> None:
        with os.fdopen(writing, "w") as pipe:
            json.dump(failed, pipe)

    return report


def _heard(reading: int, args: argparse.Namespace) -> Mapping[str, str]:
    """What the keeper reports, in bounded time."""
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], args.timeout + _GRACE_S)
        said = pipe.read() if ready else b""
    if not said:
        return {args.node: f"its keeper {'ended' if ready else 'does not answer'}; see {args.log}"}
    failed: Mapping[str, str] = json.loads(said)
    return failed


def _reap(child: int, patience_s: float) -> None:
    """Wait until a keeper that has failed is gone, and has unmounted."""
    deadline = time.monotonic() + patience_s + _GRACE_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)


def _write(path: str, failed: Mapping[str, str]) -> None:
    """For the batch script, which looks for it on a shared file system."""
    if path:
        Path(f"{path}.part").write_text("".join(f"{line}\n" for line in _lines(failed)))
        os.replace(f"{path}.part", path)


def _print(failed: Mapping[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(*_lines(failed), sep="\n", end="\n" if failed else "", flush=True)


def _lines(failed: Mapping[str, str]) -> list[str]:
    return [f"{node}: {why}" for node, why in sorted(failed.items())]


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 1 << 16):
        raise UsageError(f"DEEPIOFS_PORTS={text}: expected FIRST-LAST")
    return int(first), int(last)


def _extra(text: str) -> dict[str, str]:
    """Words NAME=VALUE."""
    words = [word.partition("=") for word in text.split()]
    if bad := next((name for name, equals, _ in words if not equals or not name), None):
        raise UsageError(f"DEEPIOFS_ENVIRONMENT: {bad} is not NAME=VALUE")
    return {name: value for name, _, value in words}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepiofs.cli.job", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run in (("run", _run), ("start", _start)):
        sub = commands.add_parser(name)
        sub.set_defaults(run=run)
        for required in ("job", "nodes", "node", "source", "mountpoint", "state", "log"):
            sub.add_argument(f"--{required}", required=True)
        sub.add_argument("--options", default="")
        sub.add_argument("--environment", default="")
        sub.add_argument("--ports", default="20000-29999")
        sub.add_argument("--wait-for", choices=("mounted", "warm"), default="mounted")
        sub.add_argument("--timeout", type=float, default=120.0)
        sub.add_argument("--end-timeout", type=float, default=10.0)
    commands.choices["run"].add_argument("--secret", required=True)
    commands.choices["run"].add_argument("--outcome", default="")
    commands.choices["start"].add_argument("--key", required=True)
    commands.choices["start"].add_argument("--user", type=int, required=True)
    sub = commands.add_parser("bind")
    sub.set_defaults(run=_bind)
    for required in ("source", "state"):
        sub.add_argument(f"--{required}", required=True)
    sub.add_argument("--user", type=int, required=True)
    return parser


if __name__ == "__main__":
    main()
