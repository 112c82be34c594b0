"""Which peers are not asked for now. The clock is given."""

from __future__ import annotations

import pytest

from deepiofs.engine.suspects import Suspects


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def suspects(clock: _Clock) -> Suspects:
    return Suspects(clock)


def _pause(suspects: Suspects, clock: _Clock) -> float:
    """For how long from now on rank 3 is not asked; the probe that ends it is taken."""
    begin = clock.now
    while not suspects.may_ask(3):
        clock.now += 0.5
    return clock.now - begin


def test_at_first_nobody_is_suspect(suspects: Suspects) -> None:
    assert len(suspects) == 0
    assert suspects.may_ask(3)


def test_who_failed_is_left_alone_for_five_seconds(suspects: Suspects, clock: _Clock) -> None:
    suspects.failed(3)
    assert len(suspects) == 1
    assert _pause(suspects, clock) == 5.0


def test_others_are_asked_meanwhile(suspects: Suspects) -> None:
    suspects.failed(3)
    assert suspects.may_ask(4)


def test_one_probe_is_let_through_at_a_time(suspects: Suspects, clock: _Clock) -> None:
    suspects.failed(3)
    clock.now += 5
    assert suspects.may_ask(3)
    assert not suspects.may_ask(3)


def test_a_probe_that_fails_doubles_the_pause_up_to_a_minute(suspects: Suspects, clock: _Clock) -> None:
    suspects.failed(3)
    pauses = []
    for _ in range(6):
        pauses.append(_pause(suspects, clock))
        clock.now += 5  # the probe's own timeout
        suspects.failed(3)
    assert pauses == [5, 10, 20, 40, 60, 60]


def test_a_probe_that_fails_at_once_doubles_the_pause_too(suspects: Suspects, clock: _Clock) -> None:
    suspects.failed(3)
    _pause(suspects, clock)
    suspects.failed(3)
    assert _pause(suspects, clock) == 10.0


def test_gets_that_fail_together_are_one_failure(suspects: Suspects, clock: _Clock) -> None:
    for _ in range(8):
        suspects.failed(3)
        clock.now += 0.125
    assert len(suspects) == 1
    assert _pause(suspects, clock) <= 5.0


def test_an_answer_ends_the_suspicion(suspects: Suspects) -> None:
    suspects.failed(3)
    suspects.answered(3)
    assert len(suspects) == 0
    assert suspects.may_ask(3)


def test_after_an_answer_the_pause_begins_anew(suspects: Suspects, clock: _Clock) -> None:
    for _ in range(3):
        suspects.failed(3)
        _pause(suspects, clock)
    suspects.answered(3)
    suspects.failed(3)
    assert _pause(suspects, clock) == 5.0


def test_an_answer_of_who_is_not_suspect_changes_nothing(suspects: Suspects) -> None:
    suspects.answered(4)
    assert len(suspects) == 0
