"""`deepiofs check`: the view against the source, byte for byte.

The source is scanned anew, with the mount's own include, exclude and links, so that names are compared both ways;
bytes are read through `.deepiofs/exact`, whatever `shuffle` says.
"""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Iterator
from typing import Any

from deepiofs.cli.inspect import read_control
from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo, Source, open_source
from deepiofs.errors import EXIT_OK, DeepiofsError, UsageError

_READ_BYTES = 1 << 20
_SHOWN = 20


def check(mountpoint: str, sample: int | None) -> int:
    """Print each difference and a summary; exit code 1 if there is one."""
    if sample is not None and sample < 1:
        raise UsageError("--sample: expected a positive number")
    config = json.loads(read_control(mountpoint, "config"))
    source = open_source(config["source"])
    try:
        return _compare(os.fsencode(mountpoint), config, source, sample)
    finally:
        source.close()


def _compare(mountpoint: bytes, config: dict[str, Any], source: Source, sample: int | None) -> int:
    selection = Selection(tuple(config["include"]), tuple(config["exclude"]), config["links"])
    found = source.scan(selection, Solo())
    assert found is not None
    manifest = Manifest(*found)
    view = os.path.join(mountpoint, b".deepiofs", b"exact")
    files = [row for row in range(manifest.n_rows) if not manifest.is_directory(row)]
    chosen = files if sample is None else sorted(random.sample(files, min(sample, len(files))))
    differences = 0
    for difference in _differences(view, manifest, source, chosen, config):
        differences += 1
        if differences <= _SHOWN:
            print(difference)
    size = sum(manifest.size_of[row] for row in chosen)
    print(f"{len(chosen)} files, {size / 1e6:.1f} MB compared, {differences} differences")
    return EXIT_OK if not differences else DeepiofsError.exit_code


def _differences(
    view: bytes, manifest: Manifest, source: Source, chosen: list[int], config: dict[str, Any]
) -> Iterator[str]:
    for row in range(manifest.n_rows):
        if manifest.is_directory(row):
            yield from _names_differ(view, manifest, row)
    for row in chosen:
        name = os.fsdecode(manifest.path(row))
        try:
            difference = _file_differs(os.path.join(view, manifest.path(row)), manifest, source, row, config)
        except (OSError, DeepiofsError) as error:
            difference = str(error)
        if difference:
            yield f"{name}: {difference}"


def _names_differ(view: bytes, manifest: Manifest, directory: int) -> Iterator[str]:
    try:
        seen = set(os.listdir(os.path.join(view, manifest.path(directory))))
    except OSError as error:
        yield f"{os.fsdecode(manifest.path(directory))}: {error.strerror}"
        return
    there = {manifest.name(row) for row in manifest.children(directory)}
    for names, text in ((there - seen, "not in the view"), (seen - there, "not in the source")):
        for name in sorted(names):
            yield f"{os.fsdecode(os.path.join(manifest.path(directory), name))}: {text}"


def _file_differs(path: bytes, manifest: Manifest, source: Source, row: int, config: dict[str, Any]) -> str | None:
    now = os.stat(path)
    if now.st_size != manifest.size_of[row]:
        return f"size {now.st_size}, in the source {manifest.size_of[row]}"
    if now.st_mtime_ns != manifest.mtime_ns_of[row]:
        return "modification times differ"
    if config["umask"] is None and stat.S_IMODE(now.st_mode) != stat.S_IMODE(manifest.mode_of[row]):
        return "modes differ"
    file = source.open(manifest, row)
    try:
        with open(path, "rb", buffering=0) as seen:
            for at in range(0, now.st_size, _READ_BYTES):
                expected = bytearray(min(_READ_BYTES, now.st_size - at))
                file.read_into(memoryview(expected), at)
                if _read(seen.fileno(), len(expected), at) != expected:
                    return f"bytes differ between {at} and {at + len(expected)}"
    finally:
        file.close()
    return None


def _read(fd: int, size: int, at: int) -> bytes:
    parts = []
    while size and (part := os.pread(fd, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
