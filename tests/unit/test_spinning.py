"""When a wait begins with a look, and what a look must not miss."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio

from deepiofs import spinning
from deepiofs.idling import Idling
from deepiofs.spinning import MOST_S, Spinning
from tests.doubles import in_trio

_MANY = 200


class _World:
    """A clock, the scheduler's account of one thread, and something to wait for; the test says how they go."""

    def __init__(self, account: Path) -> None:
        self._account = account
        self.now = 1000.0
        self.comes_after_s = MOST_S / 4
        self.delayed = 0.0  # of the time, this thread waits for a processor
        self._delayed_s = 0.0
        self._tell()

    def perf_counter(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self._delayed_s += self.delayed * seconds

    def looks_in_one_of(self, waits: int, one: Spinning) -> int:
        """How often was looked without sleeping in the last of some waits."""
        for _ in range(waits):
            looks = self._wait(one)
        return looks

    def _wait(self, one: Spinning) -> int:
        """A request comes some time after this; how often was looked before it came or this slept."""
        due, looks = self.now + self.comes_after_s, 0

        def look(milliseconds: float) -> list[str]:
            nonlocal looks
            looks += not milliseconds
            self.pass_s(max(due - self.now, 0.0) if milliseconds else 1e-6)
            return ["request"] if self.now >= due else []

        assert one.wait(look, 1000) == ["request"]
        self.pass_s(100e-6)
        self._tell()
        return looks

    def _tell(self) -> None:
        self._account.write_text(f"123456789 {self._delayed_s * 1e9:.0f} 42\n")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _World:
    account = tmp_path / "schedstat"
    made = _World(account)
    monkeypatch.setattr(spinning, "DELAYS", account)
    monkeypatch.setattr(spinning, "time", made)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return made


@pytest.fixture
def one(world: _World) -> Spinning:
    made = Spinning()
    made.begin()
    return made


def test_who_waits_shortly_and_has_a_processor_looks_until_it_comes(world: _World, one: Spinning) -> None:
    assert world.looks_in_one_of(1, one) == 0
    assert world.looks_in_one_of(_MANY, one) == pytest.approx(world.comes_after_s / 1e-6, abs=1)


def test_who_waits_long_sleeps_at_once_until_waits_are_short_again(world: _World, one: Spinning) -> None:
    for comes_after_s, looks in ((1.0, False), (MOST_S / 2, True), (MOST_S * 2, False), (MOST_S / 2, True)):
        world.comes_after_s = comes_after_s
        assert bool(world.looks_in_one_of(_MANY, one)) is looks


def test_a_look_is_short(world: _World, one: Spinning) -> None:
    world.looks_in_one_of(_MANY, one)
    world.comes_after_s = 1.0
    assert world.looks_in_one_of(1, one) <= MOST_S / 1e-6 + 1


def test_who_shares_its_processor_sleeps_at_once_as_long_as_it_does(world: _World, one: Spinning) -> None:
    for delayed, looks in ((0.0, True), (0.2, False), (0.0, True), (0.05, False)):
        world.delayed = delayed
        assert bool(world.looks_in_one_of(2 * _MANY, one)) is looks


def test_the_only_processor_is_never_spun_on(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    one = Spinning()
    one.begin()
    assert world.looks_in_one_of(_MANY, one) == 0


def test_where_the_scheduler_keeps_no_account_nobody_looks(
    tmp_path: Path, world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spinning, "DELAYS", tmp_path / "nothing")
    one = Spinning()
    one.begin()
    assert world.looks_in_one_of(_MANY, one) == 0


def test_this_kernel_keeps_an_account() -> None:
    ran_ns, delayed_ns, times = map(int, spinning.DELAYS.read_text().split())
    assert ran_ns > 0 <= delayed_ns
    assert times > 0


class _LooksForEver(Spinning):
    """Until something comes, if there is time at all."""

    def wait(self, look, milliseconds):  # type: ignore[no-untyped-def]
        while not (found := look(0)) and milliseconds:
            pass
        return found


@pytest.mark.parametrize("kind", [Spinning, _LooksForEver])
def test_what_comes_for_others_while_the_device_is_empty_is_not_missed(
    kind: type[Spinning], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepiofs.idling.Spinning", kind)
    device, kernel = os.pipe()
    here, there = socket.socketpair()
    heard: list[bytes] = []

    async def listen() -> None:
        await trio.lowlevel.wait_readable(here)
        heard.append(here.recv(10))
        os.write(kernel, b"request")

    @in_trio
    async def main() -> None:
        idling = Idling(device)
        await idling.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            nursery.start_soon(trio.to_thread.run_sync, there.send, b"word")
            await idling.wait()
            heard.append(os.read(device, 10))
        idling.end()

    main()
    assert heard == [b"word", b"request"]
    for end in (here, there):
        end.close()
    os.close(device)
    os.close(kernel)
