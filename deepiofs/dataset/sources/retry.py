"""Which errors of a source may pass, and when a read that met one is tried again: one rule for engine and mount.

A server that fails over, or a lock that was lost, is over in a moment; a file that is gone, closed to this user, or
changed is not, and is told at once.

**Threading.** Stateless; `until_it_passes` sleeps and belongs into a worker thread.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

# Before the second and the third try. Together well below any `timeout` that makes sense.
PAUSES_S = (0.1, 0.5)

_PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.ENODEV,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOLINK,
        errno.ECOMM,
        errno.EPROTO,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EMFILE,
        errno.ENFILE,
    }
)

T = TypeVar("T")


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment. The file has to be opened anew (ESTALE)."""
    return isinstance(error, OSError) and error.errno in _PASSING


def until_it_passes(call: Callable[[], T]) -> T:
    """What a call on the source returns, tried again after `PAUSES_S`; the error of the last try, or one that lasts.

    `call` opens the file anew each time.
    """
    for pause_s in PAUSES_S:
        try:
            return call()
        except OSError as error:
            if not may_pass(error):
                raise
        time.sleep(pause_s)
    return call()
