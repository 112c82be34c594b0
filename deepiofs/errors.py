"""The error tree: each class has the errno a reader sees and the exit code a command ends with.

Exit codes: 0 done, 1 runtime failure, 2 wrong usage or option, 3 source unreadable, 4 environment, 5 timed out.
"""

from __future__ import annotations

import errno as errnos

EXIT_OK = 0


class DeepiofsError(Exception):
    """Base of all errors that are reported in one line: what is wrong, and what to do."""

    exit_code = 1
    errno = errnos.EIO


class UsageError(DeepiofsError):
    """The command line cannot mean anything."""

    exit_code = 2
    errno = errnos.EINVAL


class OptionError(UsageError):
    """A mount option is unknown, malformed, out of range, or contradicts another."""


class MountPointError(UsageError):
    """The mount point is missing, not a directory, not empty, in use, or shared by two ranks."""


class SourceError(DeepiofsError):
    """The source is missing or cannot be read."""

    exit_code = 3


class SourceChangedError(SourceError):
    """A file of the source is not what the index says (size or modification time differ)."""


class CorruptRecordError(SourceError):
    """A record of a container fails its check; the others are good."""


class IndexMismatchError(SourceError):
    """An index file is damaged, of another version, or describes a source that has changed since."""


class EnvironmentFault(DeepiofsError):
    """The machine lacks something: /dev/fuse, fusermount3, memory, an MPI library."""

    exit_code = 4


class NotEnoughMemoryError(EnvironmentFault):
    """`cache` and `staging` together exceed what the node can give; raised before anything is mounted."""

    errno = errnos.ENOMEM


class FuseUnavailableError(EnvironmentFault):
    """/dev/fuse or fusermount3 is missing, or the kernel refused the mount."""


class MpiUnavailableError(EnvironmentFault):
    """A launcher is there but no MPI library can be loaded, or MPI could not start."""


class TimedOutError(DeepiofsError):
    """Something was waited for longer than was asked."""

    exit_code = 5
    errno = errnos.ETIMEDOUT


class EngineLostError(DeepiofsError):
    """The engine process ended or does not answer; the mount goes on without it."""


def error_for(exit_code: int, text: str) -> DeepiofsError:
    """The error that another process reported by its exit code and one-line text."""
    for kind in (UsageError, SourceError, EnvironmentFault, TimedOutError):
        if kind.exit_code == exit_code:
            return kind(text)
    return DeepiofsError(text)
