"""Logging of both processes: to the file of `log=`, else to stderr while there is one."""

from __future__ import annotations

import logging

from deepiofs.errors import UsageError
from deepiofs.options import Settings

_FORMAT = "%(asctime)s deepiofs[%(process)d] %(levelname)s %(message)s"


def open_journal(settings: Settings, rank: int) -> None:
    """Log from now on; `%r` in the file's name is the rank. UsageError if it cannot be written."""
    handler: logging.Handler = logging.StreamHandler()
    if settings.log:
        path = settings.log.replace("%r", str(rank))
        try:
            handler = logging.FileHandler(path, encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise UsageError(f"cannot write log {path}: {error.strerror}") from None
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger("deepiofs")
    root.handlers = [handler]
    root.setLevel(settings.loglevel.upper())
    root.propagate = False
