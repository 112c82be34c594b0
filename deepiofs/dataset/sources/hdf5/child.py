"""The process in which the HDF5 library runs: it indexes files and reads blocks of datasets, one request at a time.

The library ends its process on some damaged files, and holds one lock around each call, also while a file system
hangs. Here neither reaches the mount or the engine.

A request is a line of JSON on standard input; the answer is frames on standard output: a line of JSON, and behind it
as many bytes as its `bytes` says. The last frame of an answer has `end` or `error`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import resource
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO

from deepiofs.dataset.sources.containers import Container, ContainerFile, LocalContainer, OpenContainer, shards_of
from deepiofs.errors import DeepiofsError, SourceChangedError

# A damaged length must not take the node's memory.
_MOST_ADDRESSES = 8 << 30
_MOST_OPEN = 8
_CHUNK_CACHE_BYTES = 32 << 20
_REMOTE_BUFFER_BYTES = 256 << 10

Frame = tuple[dict[str, Any], bytes]


def main() -> None:
    """Serve until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    files = Files()
    for line in sys.stdin.buffer:
        for said, data in answer(files, json.loads(line)):
            _send(sys.stdout.buffer, said, data)


def answer(files: Files, request: dict[str, Any]) -> Iterator[Frame]:
    """The frames of an answer."""
    from deepiofs.dataset.sources.hdf5.index import describe_all

    try:
        file = files.get(request["name"], request["suffixes"], Container(*request["container"]))
        if request["do"] == "index":
            for said in describe_all(file.h5, file.opened):
                yield said, b""
        else:
            yield {}, file.block(request["path"], request["selection"])
        file.opened.read_into([], 0)  # what was read of a file that changed meanwhile is worth nothing
        yield {"end": True}, b""
    except Exception as error:
        files.forget()
        yield _as_error(error), b""


class Files:
    """The files that are open, those used last at the end."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, Container], _File] = OrderedDict()

    def get(self, name: str, suffixes: list[str], container: Container) -> _File:
        key = (name, container)
        if key not in self._open:
            self._open[key] = _File(shards_of(name, tuple(suffixes)).open(container), container.size)
        self._open.move_to_end(key)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return self._open[key]

    def forget(self) -> None:
        """After an error each is opened anew."""
        while self._open:
            with contextlib.suppress(Exception):
                self._open.popitem()[1].close()


class _File:
    def __init__(self, opened: OpenContainer, size: int) -> None:
        import h5py

        with contextlib.suppress(ImportError):
            import hdf5plugin  # noqa: F401  the filters of a package of its own, if it is there

        self.opened = opened
        options = {"rdcc_nbytes": _CHUNK_CACHE_BYTES}
        if isinstance(opened, LocalContainer):
            # The very file that was looked at. A lock on the source helps nobody, and some file systems have none.
            self.h5 = h5py.File(f"/proc/self/fd/{opened.fileno()}", "r", locking=False, **options)
        else:
            raw = ContainerFile(opened, size)
            self.h5 = h5py.File(io.BufferedReader(raw, _REMOTE_BUFFER_BYTES), "r", **options)

    def block(self, path: str, selection: list[Any]) -> bytes:
        """Elements of a dataset in C order: of each axis one number, or [first, end); axes not named are whole."""
        which = tuple(slice(*one) if isinstance(one, list) else one for one in selection)
        data: bytes = self.h5[path][which].tobytes()
        return data

    def close(self) -> None:
        self.h5.close()
        self.opened.close()


def _as_error(error: Exception) -> dict[str, Any]:
    """`changed`, `errno` (of the system, or of an object store), or none: then the file is damaged."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SourceChangedError):
        return {"error": text, "changed": True}
    # The library puts the system's errno into its text.
    said = re.search(r"errno = (\d+)", text)
    number = int(said[1]) if said else getattr(error, "errno", None)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if isinstance(error, DeepiofsError) or not number:
        return {"error": text}
    return {"error": os.strerror(number) if said else text, "errno": number}


def _send(stream: BinaryIO, said: dict[str, Any], data: bytes) -> None:
    stream.write(json.dumps({**said, "bytes": len(data)}).encode() + b"\n")
    stream.write(data)
    stream.flush()


if __name__ == "__main__":
    main()
