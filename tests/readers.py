"""Readers that use a framework: each a process of its own, forked from one that has imported the framework already.

Importing torch or tensorflow takes longer than all that such a reader reads. `readers("torch")` is that process, one
for each framework, started when it is first asked for; a fixture of conftest.py ends it.

As a program (`python -m tests.readers MODULE ...`) this is that process: of each line of its standard input, a list of
programs in JSON, it runs all at once and prints their exit statuses when all have ended.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

READERS_S = 180.0
# What is imported before a reader of a framework begins.
_MODULES = {"torch": ("torch", "tests.vision"), "tensorflow": ("tensorflow",)}


class Readers:
    """A process that has imported `modules`; `run` forks it."""

    def __init__(self, *modules: str) -> None:
        # Not a process of this session: what ends it has to end its readers, too.
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *command_lines: Sequence[str], cwd: Path | None = None) -> list[str]:
        """Run `[program, argument ...]`, all at once; what each prints. `program` is the text of one.

        AssertionError, with what it said, for one that fails.
        """
        with tempfile.TemporaryDirectory(prefix="readers-") as folder:
            programs = [
                {"program": program, "arguments": arguments, "cwd": str(cwd or Path.cwd()), "output": f"{folder}/{i}"}
                for i, (program, *arguments) in enumerate(command_lines)
            ]
            statuses = self._answer(json.dumps(programs))
            said = [Path(f"{folder}/{i}.err").read_text(errors="replace") for i in range(len(programs))]
            assert not any(statuses), "\n".join(said)
            return [Path(f"{folder}/{i}.out").read_text() for i in range(len(programs))]

    def _answer(self, line: str) -> list[int]:
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        print(line, file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], READERS_S)[0]:
            self.close()
            raise AssertionError(f"readers have not ended after {READERS_S:.0f} s")
        statuses: list[int] = json.loads(server.stdout.readline())
        return statuses

    def close(self) -> None:
        """End it, and readers that still run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()


_started: dict[str, Readers] = {}


def readers(framework: str, *libraries: str) -> Readers:
    """Readers that use a framework; skips where it, or one of these libraries, is not installed."""
    for name in (framework, *libraries):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if framework not in _started:
        _started[framework] = Readers(*_MODULES[framework])
    return _started[framework]


@contextlib.contextmanager
def no_readers_left() -> Iterator[None]:
    """What `readers` has started inside ends."""
    yield
    while _started:
        _started.popitem()[1].close()


def _run(programs: list[dict[str, Any]]) -> list[int]:
    """Fork once for each and wait for all; their exit statuses."""
    pids = []
    for program in programs:
        pids.append(os.fork())
        if not pids[-1]:
            _become(program)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _become(how: dict[str, Any]) -> None:
    """Run a program as if Python had been started with it."""
    status = 1
    try:
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"{how['output']}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(how["cwd"])
        sys.argv = ["reader", *how["arguments"]]
        exec(compile(how["program"], "reader", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
