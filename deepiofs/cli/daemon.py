"""Going to the background: the parent waits until the mount is live, and ends with the right exit status.

The child leads a session of its own (setsid(2)) and, once live, has no descriptor of its caller left open.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from deepiofs.errors import EXIT_OK, DeepiofsError
from deepiofs.fuse.requirements import passed_descriptor

Live = Callable[[str], None]


def detach() -> Live:
    """Fork. Only the child returns; what it returns is called with the mount point when the mount is live."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os._exit(_wait_for(child, reading))
    os.close(reading)
    os.setsid()

    def live(mountpoint: str) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        os.close(nowhere)
        os.chdir("/")
        os.write(writing, json.dumps(mountpoint).encode())
        os.close(writing)

    return live


def _wait_for(child: int, reading: int) -> int:
    """The exit status of the parent: 0 only if the mount answers."""
    with contextlib.suppress(KeyboardInterrupt):
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        if said:
            mountpoint = json.loads(said)
            return EXIT_OK if passed_descriptor(mountpoint) is not None else _answers(mountpoint)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or DeepiofsError.exit_code
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return DeepiofsError.exit_code


def _answers(mountpoint: str) -> int:
    try:
        Path(mountpoint, ".deepiofs/version").read_text()
    except OSError as error:
        print(f"deepiofs: {mountpoint} does not answer: {error.strerror}", file=sys.stderr)
        return DeepiofsError.exit_code
    return EXIT_OK
