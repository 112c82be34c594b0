"""The layout of a store: digest, state and bytes of a unit."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.memory.segments import Segment
from deepiofs.memory.store import BROKEN, EMPTY, HEADER_BYTES, LOADED, UNITS_AT, Store, genuine, span, split

_AT = UNITS_AT


@pytest.fixture
def store() -> Store:
    return Store(Segment.create("store", UNITS_AT + (1 << 16)))


def _publish(store: Store, at: int, data: bytes) -> None:
    store.data(at, len(data))[:] = data
    store.publish(at, len(data))


def test_a_unit_is_empty_at_first(store: Store) -> None:
    assert store.state(_AT) == EMPTY


def test_bytes_are_not_there_before_they_are_published(store: Store) -> None:
    store.data(_AT, 5)[:] = b"bytes"
    assert store.state(_AT) == EMPTY
    store.publish(_AT, 5)
    assert store.state(_AT) == LOADED
    assert bytes(store.data(_AT, 5)) == b"bytes"


def test_a_published_unit_carries_its_digest(store: Store) -> None:
    _publish(store, _AT, b"sample")
    digest, state, data = split(store.unit(_AT, 6))
    assert (digest, state, bytes(data)) == (xxhash.xxh3_64_intdigest(b"sample"), LOADED, b"sample")


@pytest.mark.parametrize("pieces", [[b"sample"], [b"sam", b"p", b"le"]], ids=len)
def test_what_the_kernel_copies_is_as_if_it_had_been_published(store: Store, pieces: list[bytes]) -> None:
    store.write_pieces(_AT, map(memoryview, pieces))
    store.write(_AT + 32, memoryview(b"sample"))
    assert bytes(store.unit(_AT, 6)) == bytes(store.unit(_AT + 32, 6))
    assert split(store.unit(_AT, 6))[:2] == (xxhash.xxh3_64_intdigest(b"sample"), LOADED)
    assert bytes(split(store.unit(_AT, 6))[2]) == b"sample"


def test_what_ends_in_an_error_is_still_empty(store: Store) -> None:
    def pieces() -> Iterator[memoryview]:
        yield memoryview(b"sam")
        raise OSError(errno.EIO, "gone")

    with pytest.raises(OSError, match="gone"):
        store.write_pieces(_AT, pieces())
    assert store.state(_AT) == EMPTY


def test_what_does_not_fit_is_an_error_and_still_empty() -> None:
    store = Store(Segment.create("store", UNITS_AT + 4096))
    data = memoryview(bytes(8192))
    with pytest.raises(OSError, match=r"no memory|not permitted"):
        store.write(_AT, data)
    with pytest.raises(OSError, match=r"no memory|not permitted"):
        store.write_pieces(_AT, [data])
    assert store.state(_AT) == EMPTY


def test_a_unit_that_is_given_up_is_broken(store: Store) -> None:
    store.data(_AT, 4)[:] = b"half"
    store.give_up(_AT)
    assert store.state(_AT) == BROKEN
    assert split(store.unit(_AT, 4))[1] == BROKEN


@given(st.binary(max_size=300), st.data())
def test_any_flipped_byte_or_digest_is_noticed(data: bytes, draw: st.DataObject) -> None:
    store = Store(Segment.create("store", UNITS_AT + 4096))
    _publish(store, _AT, data)
    unit = bytearray(store.unit(_AT, len(data)))
    assert genuine(memoryview(unit))
    places = [*range(8), *range(HEADER_BYTES, len(unit))]  # the state is not digested
    unit[draw.draw(st.sampled_from(places))] ^= draw.draw(st.integers(1, 255))
    assert not genuine(memoryview(unit))


def test_an_empty_header_is_not_genuine(store: Store) -> None:
    assert not genuine(store.unit(_AT, 100))


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_units_side_by_side_do_not_touch_each_other(units: list[bytes]) -> None:
    store = Store(Segment.create("store", UNITS_AT + (1 << 13)))
    places, at = [], UNITS_AT
    for data in units:
        places.append(at)
        at += span(len(data))
    for i in reversed(range(len(units))):
        _publish(store, places[i], units[i])
    for place, data in zip(places, units, strict=True):
        assert genuine(store.unit(place, len(data)))
        assert bytes(store.data(place, len(data))) == data


@given(st.integers(0, 1 << 40))
def test_a_span_holds_header_and_bytes_and_keeps_headers_aligned(size: int) -> None:
    assert span(size) >= size + HEADER_BYTES
    assert span(size) < size + HEADER_BYTES + 16
    assert span(size) % 16 == 0


def test_spans_of_an_array_are_those_of_its_elements() -> None:
    sizes = np.array([0, 1, 15, 16, 17, 4 << 20], np.int64)
    assert span(sizes).tolist() == [span(int(size)) for size in sizes]


def test_a_reader_in_another_mapping_sees_the_unit(store: Store) -> None:
    _publish(store, _AT, b"shared")
    reader = Store(Segment.attach(os.dup(store.segment.fd)))
    assert reader.state(_AT) == LOADED
    assert bytes(reader.data(_AT, 6)) == b"shared"
