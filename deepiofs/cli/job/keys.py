"""The job's secret, and the ports at which its first node may be found.

From a site's prolog each node derives the secret by itself, from a key file that only root can read: no message, no
shared file, nothing to clean up. munge(1) would also tell who speaks, but not every manager brings it, and a
credential needs somebody to hand it to first. The user's number goes into the secret, so a job can know its own and
no other's. The ports follow from the secret, too: nobody else can sit on them beforehand.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence

from deepiofs.errors import EnvironmentFault

_LEAST_BYTES = 32
_PORTS = 16
_LABEL = b"deepiofs job 1"


def read_key(path: str, private: bool = True) -> bytes:
    """A secret of at least 32 bytes; EnvironmentFault if there is none, or if others could read it too."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise EnvironmentFault(f"key {path}: {error.strerror}; make one, see docs/MOUNTING.md") from None
    if private and stat.S_IMODE(status.st_mode) & 0o077:
        raise EnvironmentFault(f"key {path} can be read by others; chmod 600 {path}")
    if len(content) < _LEAST_BYTES:
        raise EnvironmentFault(f"key {path} has {len(content)} bytes; {_LEAST_BYTES} are the least")
    return content


def job_secret(site_key: bytes, job: str, uid: int, nodes: Sequence[str]) -> bytes:
    """HMAC-SHA-256 of what makes the job one of a kind."""
    return digest(site_key, _LABEL, job.encode(), str(uid).encode(), *(node.encode() for node in nodes))


def ports(secret: bytes, first: int, last: int) -> list[int]:
    """Where the first node may listen, in order of preference: some may be taken by other programs."""
    count = last - first + 1
    numbers = (int.from_bytes(digest(secret, b"port", bytes([i]))[:8], "big") % count for i in range(_PORTS))
    return list(dict.fromkeys(first + number for number in numbers))


def digest(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256 of several parts, none of which can pass for another's end."""
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(key, framed, hashlib.sha256).digest()
