"""Which errors of a source are tried again, and how often."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import pytest

from deepiofs.dataset.sources import retry
from deepiofs.errors import SourceChangedError

_LASTING = [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG]
_PASSING = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ENODEV, errno.EREMOTEIO]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; none of them takes time."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def _failing(error: Exception, times: int) -> Callable[[], str]:
    left = iter([error] * times)

    def call() -> str:
        for each in left:
            raise each
        return "done"

    return call


@pytest.mark.parametrize("number", _PASSING, ids=errno.errorcode.get)
def test_an_error_that_may_pass_is_tried_again(number: int, slept: list[float]) -> None:
    assert retry.until_it_passes(_failing(OSError(number, "the cause"), 2)) == "done"
    assert slept == list(retry.PAUSES_S)


@pytest.mark.parametrize("number", _PASSING, ids=errno.errorcode.get)
def test_an_error_that_does_not_pass_is_raised_in_the_end(number: int, slept: list[float]) -> None:
    with pytest.raises(OSError, match="the cause") as told:
        retry.until_it_passes(_failing(OSError(number, "the cause"), 3))
    assert told.value.errno == number
    assert slept == list(retry.PAUSES_S)


@pytest.mark.parametrize("number", _LASTING, ids=errno.errorcode.get)
def test_an_error_that_lasts_is_raised_at_once(number: int, slept: list[float]) -> None:
    with pytest.raises(OSError, match="the cause") as told:
        retry.until_it_passes(_failing(OSError(number, "the cause"), 1))
    assert told.value.errno == number
    assert slept == []


def test_a_changed_file_is_told_at_once(slept: list[float]) -> None:
    with pytest.raises(SourceChangedError):
        retry.until_it_passes(_failing(SourceChangedError("changed"), 1))
    assert slept == []
