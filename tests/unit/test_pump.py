"""How often an engine polls: as often as can be, often, or rarely; counted by what it waits for, and not timed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from deepiofs.engine import pump as pump_module
from deepiofs.engine.napping import Napping
from deepiofs.engine.peers import NoPeers
from deepiofs.engine.pump import Pump
from tests.doubles import in_trio_time

_URGENT_S, _CALM_S, _ACTIVE_S, _IDLE_S = 0.05, 1e-3, 1.0, 0.02
_NAP_S, _TOLD_S = 50e-6, 5e-3


class _Clock:
    """Trio's time for the pump."""

    def monotonic(self) -> float:
        return trio.current_time()


class _Napping(Napping):
    """Naps by trio's mocked clock; whether others have anything to do is so. `naps`: how long it would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []
        self.believed = False

    @property
    def tells(self) -> bool:
        return self.believed

    def nap(self, seconds: float, heed: bool = True) -> bool:
        left_s = self._left_s()
        if left_s <= 0:
            return True
        self.naps.append(seconds)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(min(seconds, left_s))
        return super().nap(0, heed)


class _Peers(NoPeers):
    """Peers of whom nothing comes but what the test says. `polls`: when this rank polled."""

    def __init__(self) -> None:
        super().__init__()
        self.polls: list[float] = []
        self.is_busy = False
        self.to_complete = 0

    def poll(self) -> bool:
        self.polls.append(trio.current_time())
        self.to_complete -= 1
        return self.to_complete >= 0

    def busy(self) -> bool:
        return self.is_busy


class _Engine:
    """A pump at work."""

    def __init__(self, napping: _Napping) -> None:
        self.napping = napping
        self.peers = _Peers()
        self.pump = Pump(self.peers)

    def naps_of(self, seconds: float) -> int:
        """How often it napped for so long."""
        return sum(nap == pytest.approx(seconds) for nap in self.napping.naps)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pump.run)
            await trio.sleep(_IDLE_S / 2)
            yield
            nursery.cancel_scope.cancel()

    async def polls_in(self, seconds: float) -> int:
        """How often it polls within this time."""
        begun = len(self.peers.polls)
        await trio.sleep(seconds)
        return len(self.peers.polls) - begun


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> _Engine:
    napping = _Napping()
    monkeypatch.setattr(pump_module, "time", _Clock())
    monkeypatch.setattr(pump_module, "Napping", lambda arrivals: napping)
    return _Engine(napping)


def test_who_is_idle_polls_50_times_a_second(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            assert await engine.polls_in(1) == pytest.approx(50, abs=1)
        assert engine.naps_of(_NAP_S) == 0

    main()


def test_who_is_woken_for_what_is_ahead_polls_every_millisecond_for_a_second(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            engine.pump.wake(urgent=False)
            assert await engine.polls_in(_ACTIVE_S) == pytest.approx(1000, abs=5)
            assert await engine.polls_in(1) == pytest.approx(50, abs=2)
        assert engine.naps_of(_NAP_S) == 0

    main()


def test_who_is_woken_polls_at_once(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        for urgent in (False, True):
            async with engine.running():
                engine.pump.wake(urgent)
                assert await engine.polls_in(_CALM_S / 2) >= 1

    main()


def test_who_is_woken_for_a_reader_naps_between_polls_for_a_moment(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            engine.pump.wake(urgent=True)
            assert await engine.polls_in(_URGENT_S) == pytest.approx(_URGENT_S / _NAP_S, rel=0.05)
            naps = engine.naps_of(_NAP_S)
            assert await engine.polls_in(_ACTIVE_S / 2) == pytest.approx(500, abs=5)
            assert engine.naps_of(_NAP_S) - naps <= 2

    main()


def test_who_is_told_of_what_comes_does_not_look_for_it(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        engine.napping.believed = True
        async with engine.running():
            engine.pump.wake(urgent=True)
            assert await engine.polls_in(_URGENT_S) == pytest.approx(_URGENT_S / _TOLD_S, abs=2)
            assert engine.naps_of(_NAP_S) == 0

    main()


def test_at_the_pace_of_a_millisecond_urgency_cuts_the_wait_short_and_nothing_else(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            engine.pump.wake(urgent=False)
            await trio.sleep(10.5 * _CALM_S)
            engine.pump.wake(urgent=False)
            assert await engine.polls_in(_CALM_S / 4) == 0
            engine.pump.wake(urgent=True)
            assert await engine.polls_in(_CALM_S / 8) > 1

    main()


def test_while_gets_are_under_way_it_polls_every_millisecond(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            engine.peers.is_busy = True
            await trio.sleep(2 * _IDLE_S)
            assert await engine.polls_in(2) == pytest.approx(2000, abs=10)
            engine.peers.is_busy = False
            await trio.sleep(2 * _IDLE_S)
            assert await engine.polls_in(1) == pytest.approx(50, abs=1)

    main()


def test_what_comes_keeps_it_awake_for_a_second(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        async with engine.running():
            engine.peers.to_complete = 1
            await trio.sleep(2 * _IDLE_S)
            assert await engine.polls_in(_ACTIVE_S / 2) == pytest.approx(500, abs=5)
            await trio.sleep(_ACTIVE_S)
            assert await engine.polls_in(1) == pytest.approx(50, abs=1)
        assert engine.naps_of(_NAP_S) == 0

    main()


def test_other_tasks_have_their_turn_between_polls_however_urgent_it_is(engine: _Engine) -> None:
    @in_trio_time
    async def main() -> None:
        turns: list[int] = []

        async def work() -> None:
            while True:
                turns.append(len(engine.peers.polls))
                await trio.lowlevel.checkpoint()

        async with engine.running(), trio.open_nursery() as nursery:
            nursery.start_soon(work)
            engine.pump.wake(urgent=True)
            while len(engine.peers.polls) < 100:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= 2

    main()
