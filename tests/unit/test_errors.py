"""The error tree: what a reader sees, and what a command ends with."""

from __future__ import annotations

import errno
import pickle

import pytest

from deepiofs import errors
from deepiofs.errors import DeepiofsError, EnvironmentFault, SourceError, TimedOutError, UsageError, error_for

_KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DeepiofsError)
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "exit_code", "number"),
    [
        (errors.DeepiofsError, 1, errno.EIO),
        (errors.UsageError, 2, errno.EINVAL),
        (errors.OptionError, 2, errno.EINVAL),
        (errors.MountPointError, 2, errno.EINVAL),
        (errors.SourceError, 3, errno.EIO),
        (errors.SourceChangedError, 3, errno.EIO),
        (errors.IndexMismatchError, 3, errno.EIO),
        (errors.EnvironmentFault, 4, errno.EIO),
        (errors.NotEnoughMemoryError, 4, errno.ENOMEM),
        (errors.FuseUnavailableError, 4, errno.EIO),
        (errors.MpiUnavailableError, 4, errno.EIO),
        (errors.TimedOutError, 5, errno.ETIMEDOUT),
        (errors.EngineLostError, 1, errno.EIO),
    ],
)
def test_an_error_has_an_exit_code_and_an_errno(kind: type[DeepiofsError], exit_code: int, number: int) -> None:
    assert (kind("text").exit_code, kind("text").errno) == (exit_code, number)


@pytest.mark.parametrize("kind", _KINDS)
def test_every_error_ends_a_command_with_a_code_of_the_table(kind: type[DeepiofsError]) -> None:
    assert kind.exit_code in range(1, 6)
    assert kind.errno in errno.errorcode
    assert kind.__doc__


@pytest.mark.parametrize("kind", _KINDS)
def test_an_error_survives_being_sent_to_another_rank(kind: type[DeepiofsError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("source /x: no such directory")))
    assert type(copy) is kind
    assert str(copy) == "source /x: no such directory"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DeepiofsError),
        (2, UsageError),
        (3, SourceError),
        (4, EnvironmentFault),
        (5, TimedOutError),
        (9, DeepiofsError),
    ],
)
def test_the_error_of_another_process_is_told_by_its_code(code: int, kind: type[DeepiofsError]) -> None:
    error = error_for(code, "it said so")
    assert type(error) is kind
    assert str(error) == "it said so"
