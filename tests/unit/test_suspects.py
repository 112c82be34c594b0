"""Which peers are not asked for now, and for how long each is left alone before it is probed."""

from __future__ import annotations

import pytest

from deepiofs.engine.suspects import Suspects


@pytest.fixture
def suspects() -> Suspects:
    return Suspects()


def test_at_first_nobody_is_suspect(suspects: Suspects) -> None:
    assert len(suspects) == 0
    assert 3 not in suspects


def test_who_failed_is_left_alone_for_five_seconds(suspects: Suspects) -> None:
    assert suspects.failed(3)
    assert 3 in suspects
    assert len(suspects) == 1
    assert suspects.next_pause(3) == 5.0


def test_others_are_asked_meanwhile(suspects: Suspects) -> None:
    suspects.failed(3)
    assert 4 not in suspects


def test_who_was_probed_stays_suspect_until_it_answers(suspects: Suspects) -> None:
    suspects.failed(3)
    suspects.next_pause(3)
    assert 3 in suspects


def test_each_further_pause_is_twice_as_long_up_to_a_minute(suspects: Suspects) -> None:
    suspects.failed(3)
    assert [suspects.next_pause(3) for _ in range(6)] == [5, 10, 20, 40, 60, 60]


def test_what_fails_while_a_rank_is_suspect_is_no_news_and_makes_no_pause_longer(suspects: Suspects) -> None:
    assert suspects.failed(3)
    assert not any(suspects.failed(3) for _ in range(8))
    assert len(suspects) == 1
    assert suspects.next_pause(3) == 5.0
    assert not suspects.failed(3)
    assert suspects.next_pause(3) == 10.0


def test_each_suspect_has_pauses_of_its_own(suspects: Suspects) -> None:
    suspects.failed(3)
    suspects.next_pause(3)
    suspects.failed(4)
    assert len(suspects) == 2
    assert (suspects.next_pause(4), suspects.next_pause(3)) == (5.0, 10.0)


def test_an_answer_ends_the_suspicion(suspects: Suspects) -> None:
    suspects.failed(3)
    suspects.answered(3)
    assert len(suspects) == 0
    assert 3 not in suspects


def test_after_an_answer_the_pause_begins_anew(suspects: Suspects) -> None:
    suspects.failed(3)
    for _ in range(3):
        suspects.next_pause(3)
    suspects.answered(3)
    assert suspects.failed(3)
    assert suspects.next_pause(3) == 5.0


def test_an_answer_of_who_is_not_suspect_changes_nothing(suspects: Suspects) -> None:
    suspects.failed(3)
    suspects.answered(4)
    assert len(suspects) == 1
