"""The processes that read HDF5 files for this one (`hdf5.child`): some, each started when it is first needed.

**Threading.** Any thread. A thread has a process for itself while it waits for an answer, and waits a bounded time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from deepiofs.dataset.sources.containers import Container
from deepiofs.errors import CorruptRecordError, SourceChangedError

# Decompressing is what takes the time; more than this share one file system anyway.
_MOST_PROCESSES = 4
# Without a word for so long, a process is ended: the file system hangs, or the library goes round in circles.
SILENT_S = 60.0
_READ_BYTES = 1 << 20


class Readers:
    """name, suffixes: as `shards_of` takes them."""

    def __init__(self, name: str, suffixes: tuple[str, ...]) -> None:
        self._name, self._suffixes = name, suffixes
        self._free = threading.Semaphore(min(_MOST_PROCESSES, os.cpu_count() or 1))
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()

    def ask(self, container: Container, **request: Any) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The frames of an answer. SourceChangedError, CorruptRecordError (also when the library crashes), OSError."""
        facts = [container.name, container.size, container.mtime_ns, container.mode, container.uid, container.gid]
        asked = {"name": self._name, "suffixes": self._suffixes, "container": facts, **request}
        with self._free:
            reader = self._take()
            whole = False
            try:
                for said, data in reader.answers(asked):
                    whole = ("end" in said or "error" in said) and "crashed" not in said
                    if "error" in said:
                        raise _error(container.name, said)
                    if not whole:
                        yield said, data
            finally:
                if whole:
                    with self._lock:
                        self._idle.append(reader)
                else:
                    reader.close()

    def close(self) -> None:
        """End the processes that are idle; others end when they have answered, or with this process."""
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _take(self) -> _Reader:
        """One that is idle and lives, or another one."""
        with self._lock:
            while self._idle:
                reader = self._idle.pop()
                if reader.lives:
                    return reader
                reader.close()
        return _Reader()


def _error(name: str, said: dict[str, Any]) -> Exception:
    if said.get("changed"):
        return SourceChangedError(said["error"])
    if said.get("errno"):
        return OSError(said["errno"], said["error"])
    return CorruptRecordError(f"{name}: {said['error']}")


class _Reader:
    """One process."""

    def __init__(self) -> None:
        # Not in a group of its own: it ignores the signals that the group gets, and ends with its standard input.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deepiofs.dataset.sources.hdf5.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._pending = bytearray()

    @property
    def lives(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def answers(self, request: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            yield self._crashed(), b""
            return
        said: dict[str, Any] = {}
        while not ("end" in said or "error" in said):
            try:
                said = json.loads(self._line())
                data = self._exactly(said.pop("bytes"))
            except EOFError:
                said, data = self._crashed(), b""
            yield said, data

    def close(self) -> None:
        """Idempotent."""
        process = self._process
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # one that hangs in a file system ends when that answers
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _crashed(self) -> dict[str, Any]:
        code = self._process.wait()
        how = signal.strsignal(-code) if code < 0 else f"exit status {code}"
        # Out of memory, or killed by hand: says nothing of the file.
        if code == -signal.SIGKILL:
            return {"error": f"the process that reads it ended: {how}", "errno": errno.EIO, "crashed": True}
        return {"error": f"the HDF5 library crashes on it ({how}): it is damaged", "crashed": True}

    def _line(self) -> bytes:
        while (end := self._pending.find(b"\n")) < 0:
            self._receive()
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._pending) < size:
            self._receive()
        data = bytes(memoryview(self._pending)[:size])
        del self._pending[:size]
        return data

    def _receive(self) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        end = time.monotonic() + SILENT_S
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
            raise OSError(errno.ETIMEDOUT, f"the HDF5 library did not answer for {SILENT_S:g} s")
        data = os.read(fd, _READ_BYTES)
        if not data:
            raise EOFError
        self._pending += data
