"""What the libraries of object stores raise, as errors that a file system has.

Each library has exceptions of its own; they are told apart by class and by the HTTP status that they carry, so that
none of them has to be imported here. What the server or the network does wrong is `EIO`, which may pass; only what
says something of the file itself, or of this user, has another errno.
"""

from __future__ import annotations

import errno
import os
from typing import Any

_STATUS = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    408: errno.ETIMEDOUT,
    410: errno.ENOENT,
    504: errno.ETIMEDOUT,
}
# Of an OSError these are kept; the rest (EINVAL of a bad request, EBUSY of a busy server ...) is the server's trouble.
_KEPT = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENAMETOOLONG,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOMEM,
        errno.ENOTDIR,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
_CREDENTIALS = ("Credential", "TokenRetrieval", "RefreshError", "SSOToken", "LocalTokenNotFound")
_CLASSES: tuple[tuple[type[BaseException], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (TimeoutError, errno.ETIMEDOUT),
    (MemoryError, errno.ENOMEM),
)
_TEXT_CHARACTERS = 200


def as_os_error(error: Exception) -> OSError:
    """An OSError with an errno, and with the cause in its text, for anything that a library raises."""
    cause = _cause(error)
    number = _errno(cause)
    said = os.strerror(number)
    text = " ".join(str(cause).split())[:_TEXT_CHARACTERS] or type(cause).__name__
    return OSError(number, said if said in text else f"{said}: {text}")


def is_range_error(error: Exception) -> bool:
    """Whether the server says that there are no such bytes."""
    return _status(_cause(error)) == 416


def _cause(error: BaseException) -> BaseException:
    """fsspec's HTTP says "not found" of whatever it met; s3fs wraps what has a status."""
    inner = error.__cause__
    if isinstance(error, FileNotFoundError) and inner is not None:
        return _cause(inner)
    if inner is not None and _status(error) is None and _status(inner) is not None:
        return inner
    return error


def _errno(error: BaseException) -> int:
    status = _status(error)
    if status is not None:
        return _STATUS.get(status, errno.EIO)
    for kind, number in _CLASSES:
        if isinstance(error, kind):
            return number
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(word in name for word in _CREDENTIALS for name in names):
        return errno.EACCES
    if any("Timeout" in name for name in names):
        return errno.ETIMEDOUT
    number = getattr(error, "errno", None) or errno.EIO
    return number if isinstance(error, OSError) and number in _KEPT else errno.EIO


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries, under whichever name."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = getattr(response, "status_code", None)
    for name in ("status", "status_code", "code"):
        found = found if isinstance(found, int) else getattr(error, name, None)
    return found if isinstance(found, int) and 300 <= found < 600 else None
