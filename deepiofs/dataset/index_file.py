"""The index file: a manifest written once, ahead of the jobs. Written whole or not at all."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from deepiofs.dataset.columns import intact, packed
from deepiofs.errors import DeepiofsError, IndexMismatchError, UsageError


def save_index(path: str, content: memoryview) -> None:
    """Write the packed columns under a temporary name and rename. DeepiofsError with the cause."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:
            file.write(packed(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise UsageError(f"cannot write index {path}: {error.strerror}") from None


def load_index(path: str) -> memoryview | None:
    """The content of an index file, mapped; None if there is none.

    IndexMismatchError if it is damaged, cut short, or not an index; DeepiofsError if it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise IndexMismatchError("empty")
            content = memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeepiofsError(f"cannot read index {path}: {error.strerror}") from None
    content = packed(content)
    if not intact(content):
        raise IndexMismatchError("its checksum differs")
    return content
