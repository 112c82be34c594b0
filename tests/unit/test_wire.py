"""The words between a mount and its engine, over a real socket pair."""

from __future__ import annotations

import dataclasses
import os
import socket
import struct
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.errors import EngineLostError
from deepiofs.memory import wire
from deepiofs.memory.segments import Segment
from deepiofs.memory.wire import (
    Begin,
    Channel,
    Fetch,
    Hurry,
    Leave,
    Message,
    Missed,
    Pressed,
    Ready,
    Share,
    decode,
    encode,
)
from tests.doubles import in_trio

_KINDS: tuple[type[Any], ...] = wire._KINDS
_SHORTEST = len(encode(Leave()))
# What os.fsdecode can give: any bytes.
_TEXT = st.binary(max_size=200).map(os.fsdecode)
_NUMBER = st.integers(-(1 << 63), (1 << 63) - 1)


def _messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        field.name: _TEXT if field.name == "text" else _NUMBER for field in dataclasses.fields(kind)
    }
    return st.builds(kind, **fields)


@given(st.one_of([_messages(kind) for kind in _KINDS]))
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", _KINDS)
def test_every_kind_of_message_survives_at_its_bounds(kind: type[Any]) -> None:
    for number in (-(1 << 63), -1, 0, (1 << 63) - 1):
        values = {field.name: "\udcff" if field.name == "text" else number for field in dataclasses.fields(kind)}
        message = kind(**values)
        assert decode(encode(message)) == message


def test_all_messages_have_different_codes() -> None:
    assert len({encode(kind(*_zeros(kind)))[0] for kind in _KINDS}) == len(_KINDS)


def _zeros(kind: type[Any]) -> list[int | str]:
    return ["" if field.name == "text" else 0 for field in dataclasses.fields(kind)]


@given(st.binary(max_size=100))
def test_garbage_is_a_value_error_or_a_message(packet: bytes) -> None:
    try:
        message = decode(packet)
    except ValueError:
        return
    assert isinstance(message, _KINDS)
    assert packet[0] < len(_KINDS)


@pytest.mark.parametrize(
    "packet", [b"", b"\0", b"\0" * (_SHORTEST - 1), bytes([len(_KINDS)]) + b"\0" * _SHORTEST, b"\xff" * _SHORTEST]
)
def test_what_is_no_message_is_a_value_error(packet: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(packet)


def test_a_number_that_does_not_fit_is_not_sent() -> None:
    with pytest.raises(struct.error):
        encode(Fetch(1 << 63, 0))


@in_trio
async def test_messages_arrive_in_order_and_whole() -> None:
    mount, engine = map(Channel, wire.pair())
    sent: list[Message] = [Begin("é" * 20_000), Fetch(1, 0), Fetch(1, 1), Hurry(1), Pressed(), Ready(1 << 40, -1, 1)]
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for message in sent:
                await mount.send(message)

        nursery.start_soon(send)
        assert [await engine.receive() for _ in sent] == [(message, None) for message in sent]
    mount.close()
    engine.close()


@in_trio
async def test_a_sender_waits_while_the_other_end_does_not_read() -> None:
    mount, engine = map(Channel, wire.pair())
    sent = 0

    async def send() -> None:
        nonlocal sent
        for unit in range(5000):
            await mount.send(Fetch(unit, 1))
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < sent < 5000
        assert [await engine.receive() for _ in range(5000)] == [(Fetch(unit, 1), None) for unit in range(5000)]
    assert sent == 5000
    mount.close()
    engine.close()


@in_trio
async def test_several_tasks_may_wait_to_send() -> None:
    mount, engine = map(Channel, wire.pair())
    each, received = 2000, []

    async def send(first: int) -> None:
        for unit in range(first, first + each):
            await mount.send(Fetch(unit, 1))

    async with trio.open_nursery() as nursery:
        for first in (0, each):
            nursery.start_soon(send, first)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2 * each):
            got = await engine.receive()
            assert got is not None
            assert isinstance(got[0], Fetch)
            received.append(got[0].unit)
    assert sorted(received) == list(range(2 * each))
    assert [unit for unit in received if unit < each] == list(range(each))
    mount.close()
    engine.close()


@in_trio
async def test_a_descriptor_comes_along_with_its_message() -> None:
    mount, engine = map(Channel, wire.pair())
    segment = Segment.create("test", 1)
    segment.view[:4] = b"here"
    await engine.send(Share(3, "store"), segment.fd)
    segment.close()
    received = await mount.receive()
    assert received is not None
    message, fd = received
    assert message == Share(3, "store")
    assert fd is not None
    assert not os.get_inheritable(fd)
    attached = Segment.attach(fd)
    assert bytes(attached.view[:4]) == b"here"
    attached.close()
    mount.close()
    engine.close()


@in_trio
async def test_descriptors_stay_with_their_messages() -> None:
    mount, engine = map(Channel, wire.pair())
    segments = [Segment.create("test", (i + 1) << 12) for i in range(5)]
    for i, segment in enumerate(segments):
        await engine.send(Missed(i))
        await engine.send(Share(i, "store"), segment.fd)
        segment.close()
    for i in range(5):
        assert await mount.receive() == (Missed(i), None)
        received = await mount.receive()
        assert received is not None
        assert received[0] == Share(i, "store")
        assert received[1] is not None
        assert os.fstat(received[1]).st_size == (i + 1) << 12
        os.close(received[1])
    mount.close()
    engine.close()


@in_trio
async def test_what_was_sent_before_the_end_is_received_before_it() -> None:
    mount, engine = map(Channel, wire.pair())
    await mount.send(Leave())
    mount.close()
    assert await engine.receive() == (Leave(), None)
    assert await engine.receive() is None
    assert await engine.receive() is None
    engine.close()


@in_trio
async def test_who_waits_for_a_message_learns_of_the_end() -> None:
    mount, engine = map(Channel, wire.pair())
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.testing.wait_all_tasks_blocked()
            engine.close()

        nursery.start_soon(end)
        assert await mount.receive() is None
    mount.close()


@in_trio
async def test_unread_words_of_a_process_that_is_killed_do_not_break_the_end() -> None:
    mount, engine = map(Channel, wire.pair())
    await mount.send(Fetch(1, 1))
    engine.close()  # with a message unread: the kernel reports ECONNRESET
    assert await mount.receive() is None
    mount.close()


@in_trio
async def test_a_word_to_an_end_that_is_gone_is_an_error() -> None:
    mount, engine = map(Channel, wire.pair())
    engine.close()
    with pytest.raises(EngineLostError, match="gone"):
        await mount.send(Fetch(1, 1))
    mount.close()


@in_trio
async def test_a_sender_that_waits_learns_of_the_end() -> None:
    mount, engine = map(Channel, wire.pair())

    async def send() -> None:
        for unit in range(5000):
            await mount.send(Fetch(unit, 1))

    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.testing.wait_all_tasks_blocked()
            engine.close()

        nursery.start_soon(end)
        with pytest.raises(EngineLostError):
            await send()
    mount.close()


def test_the_ends_are_packet_sockets_and_not_inherited() -> None:
    for end in wire.pair():
        assert end.type == socket.SOCK_SEQPACKET
        assert not os.get_inheritable(end.fileno())
        end.close()


def test_a_text_of_json_is_read() -> None:
    assert wire.facts('{"rank": 1, "size": 2}') == {"rank": 1, "size": 2}


@in_trio
async def test_words_that_come_in_one_packet_are_heard_one_by_one() -> None:
    ends = wire.pair()
    here, there = map(Channel, ends)
    words = [Ready(unit, 4096 * unit) for unit in range(3)]
    assert here.send_together(words)
    await here.send(Leave())
    assert [await there.receive() for _ in range(4)] == [(word, None) for word in (*words, Leave())]
    with pytest.raises(BlockingIOError):
        there.receive_nowait()
    for end in ends:
        end.close()
