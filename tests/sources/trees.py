"""What is below a directory, read here or on a host of the lab."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.mounts import HERE, Place

_DIGESTS = (
    "import hashlib, json, os, sys; os.chdir(sys.argv[1]); print(json.dumps({os.path.join(d, n)[2:]: "
    "hashlib.md5(open(os.path.join(d, n), 'rb').read()).hexdigest() for d, _, ns in os.walk('.') for n in ns}))"
)


def below(root: Path) -> dict[bytes, bytes]:
    """All files of a tree."""
    top = os.fsencode(root)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
    return {os.path.relpath(path, top): Path(os.fsdecode(path)).read_bytes() for path in paths}


def digests_below(root: Path, place: Place = HERE) -> dict[str, str]:
    """MD5 of all files, as a program sees them there."""
    found: dict[str, str] = json.loads(place.output(sys.executable, "-c", _DIGESTS, str(root)))
    return found


def digests(files: Mapping[bytes, bytes]) -> dict[str, str]:
    """The same of files in memory."""
    return {os.fsdecode(path): hashlib.md5(data).hexdigest() for path, data in files.items()}


def by_directory(files: Mapping[bytes, bytes]) -> Counter[tuple[bytes, bytes]]:
    """How often each content is in each directory, whatever its name."""
    return Counter((os.path.dirname(path), data) for path, data in files.items())
