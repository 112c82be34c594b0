"""Which lookups of a name may have crossed in the kernel."""

from __future__ import annotations

from deepiofs.fs.told import Told

_ROW, _OTHER, _DIRECTORY = 7, 8, 1


def test_one_thread_alone_crosses_nobody() -> None:
    told = Told()
    for row in (_ROW, _OTHER, _ROW):
        told.tell(1, row, _DIRECTORY, told.tells)
        told.heard_of(1)
        assert not told.may_have_crossed(row)


def test_a_lookup_crosses_that_of_a_thread_not_heard_of_since() -> None:
    told = Told()
    told.tell(1, _ROW, _DIRECTORY, told.tells)
    told.tell(2, _ROW, _DIRECTORY, told.tells)
    assert told.may_have_crossed(_ROW)


def test_what_a_thread_was_told_has_arrived_when_it_asks_again() -> None:
    told = Told()
    told.tell(1, _ROW, _DIRECTORY, told.tells)
    told.tell(1, _OTHER, _DIRECTORY, told.tells)
    told.tell(2, _ROW, _DIRECTORY, told.tells)
    assert not told.may_have_crossed(_ROW)


def test_an_open_tells_that_the_lookup_before_has_arrived() -> None:
    told = Told()
    told.tell(1, _ROW, _DIRECTORY, told.tells)
    told.heard_of(1)
    told.tell(2, _ROW, _DIRECTORY, told.tells)
    assert not told.may_have_crossed(_ROW)


def test_a_crossing_is_told_once() -> None:
    told = Told()
    told.tell(1, _ROW, _DIRECTORY, told.tells)
    told.tell(2, _ROW, _DIRECTORY, told.tells)
    assert [told.may_have_crossed(_ROW) for _ in range(2)] == [True, False]


def test_a_listing_crosses_all_lookups_in_its_directory_until_it_ends() -> None:
    told = Told()
    told.listing(_DIRECTORY, 1)
    told.tell(1, _ROW, _DIRECTORY, told.tells)
    assert told.may_have_crossed(_ROW)
    told.listing(_DIRECTORY, -1)
    told.tell(1, _OTHER, _DIRECTORY, told.tells)
    assert not told.may_have_crossed(_OTHER)


def test_of_unknown_threads_nothing_is_known() -> None:
    told = Told()
    told.tell(0, _ROW, _DIRECTORY, told.tells)
    assert told.may_have_crossed(_ROW)
