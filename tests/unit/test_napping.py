"""What ends a nap between two polls of MPI, and whether what tells of arrivals is believed."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import AsyncIterator

import pytest
import trio

from deepiofs.engine import napping as napping_module
from deepiofs.engine.napping import Napping, epolls
from tests.doubles import HUNG_S, in_trio


class _Bell:
    """A descriptor that is readable while it rings."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)

    def ring(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def still(self) -> None:
        os.eventfd_read(self.descriptor)


@contextlib.asynccontextmanager
async def _napping(*bells: _Bell) -> AsyncIterator[Napping]:
    napping = Napping([bell.descriptor for bell in bells])
    await napping.begin()
    assert napping.works
    yield napping
    napping.end()
    for bell in bells:
        os.close(bell.descriptor)


def _find(napping: Napping, seconds: float = 0.0) -> None:
    """A poll that finds something, after a nap."""
    assert not napping.nap(seconds)
    napping.polled(True)


@in_trio
async def test_a_nap_ends_when_something_comes_for_mpi_and_others_have_nothing_to_do() -> None:
    bell = _Bell()
    async with _napping(bell) as napping:
        bell.ring()
        assert not napping.nap(HUNG_S / 2)


@in_trio
async def test_a_nap_ends_when_another_task_has_something_to_do() -> None:
    async with _napping() as napping, trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
        assert napping.nap(HUNG_S / 2)


@in_trio
async def test_a_nap_does_not_outlast_a_deadline() -> None:
    async with _napping() as napping:
        with trio.move_on_after(0.01) as limit:
            while not limit.cancelled_caught:
                if napping.nap(HUNG_S / 2):
                    await trio.lowlevel.checkpoint()
        assert limit.cancelled_caught


@in_trio
async def test_who_does_not_heed_arrivals_sleeps_through_them_and_learns_nothing() -> None:
    bell = _Bell()
    async with _napping(bell) as napping:
        bell.ring()
        assert not napping.nap(0.001, heed=False)
        napping.polled(True)
        assert not napping.tells


@in_trio
async def test_arrivals_are_believed_once_they_announced_what_was_found() -> None:
    bell = _Bell()
    async with _napping(bell) as napping:
        _find(napping)
        assert not napping.tells
        bell.ring()
        _find(napping)
        assert napping.tells


@in_trio
async def test_what_one_poll_took_from_a_socket_may_be_found_by_the_next() -> None:
    bell = _Bell()
    async with _napping(bell) as napping:
        bell.ring()
        assert not napping.nap(0)
        napping.polled(False)
        bell.still()
        _find(napping)
        assert napping.tells


@in_trio
async def test_arrivals_are_not_believed_any_more_when_much_was_found_that_they_did_not_announce() -> None:
    bell = _Bell()
    async with _napping(bell) as napping:
        bell.ring()
        _find(napping)
        bell.still()
        _find(napping)  # of what was announced before
        for _ in range(3):
            _find(napping)
            assert napping.tells
        _find(napping)
        assert not napping.tells


def test_what_rings_for_ever_and_for_nothing_is_not_heeded_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(napping_module, "_STUCK_S", 0.05)

    @in_trio
    async def main() -> None:
        bell = _Bell()
        async with _napping(bell) as napping:
            bell.ring()
            _find(napping)
            assert napping.tells
            begin = trio.current_time()
            naps = 0
            while napping.tells:
                assert not napping.nap(HUNG_S / 2)
                napping.polled(False)
                naps += 1
            assert naps == 1024
            assert not napping.nap(0.02)
            assert trio.current_time() - begin >= 0.02
            while not napping.nap(0.01) and not napping.tells:
                pass
            assert trio.current_time() - begin >= 0.05

    main()


@in_trio
async def test_without_arrivals_nothing_is_believed() -> None:
    async with _napping() as napping:
        for _ in range(10):
            _find(napping)
        assert not napping.tells


@pytest.mark.parametrize("others", [False, True])
def test_words_are_taken_within_a_nap(others: bool) -> None:
    @in_trio
    async def main() -> None:
        bell, taken = _Bell(), []

        def take() -> None:
            bell.still()
            taken.append(1)

        async with _napping() as napping, trio.open_nursery() as nursery:
            # As the service does: a task waits for the same words.
            nursery.start_soon(trio.lowlevel.wait_readable, bell.descriptor)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            napping.take_words(bell.descriptor, take)
            bell.ring()
            if others:
                trio.lowlevel.current_trio_token().run_sync_soon(lambda: None)
            assert not napping.nap(HUNG_S / 2)
            assert taken == [1]
            assert napping.nap(0) == others
            nursery.cancel_scope.cancel()
        os.close(bell.descriptor)

    main()


@in_trio
async def test_however_many_words_come_others_have_their_turn() -> None:
    bell = _Bell()
    async with _napping() as napping, trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.wait_readable, bell.descriptor)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        napping.take_words(bell.descriptor, lambda: None)
        bell.ring()
        naps = 1
        while not napping.nap(HUNG_S / 2):
            naps += 1
        assert naps == 17
    os.close(bell.descriptor)


def test_the_epolls_of_this_process_are_found() -> None:
    before = epolls()
    with select.epoll() as more:
        assert epolls() - before == {more.fileno()}
    assert epolls() == before
