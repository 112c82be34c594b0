"""Units that the engine is asked for: one request each, whoever waits for it, and room in staging for what comes.

**Threading.** The trio thread. **Invariants.** A request is in `_requests` until the engine has answered it, and is
answered once: who gives up before leaves it there. A staged unit is readable at its place until it is released here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import trio

from deepiofs.fs.counts import Counts
from deepiofs.fs.staged import Place, Staged
from deepiofs.memory.store import span
from deepiofs.memory.wire import IN_NODE, Fetch, Hurry, Message, Release

log = logging.getLogger(__name__)

# The engine gives up after `timeout` and says so; a mount waits this much longer for its word.
GRACE_S = 0.5
# For how long an engine that did not answer is left alone.
_PAUSE_S = 5.0
# Words in one packet.
_TOGETHER = 64

Then = Callable[[bool], None]


class _Request:
    """A unit under way. `then`: who is to be told how it went, without waiting."""

    __slots__ = ("done", "good", "size", "then", "urgent", "waiters")

    def __init__(self, size: int, urgent: bool) -> None:
        self.size, self.urgent = size, urgent
        self.waiters = 0
        self.good = False
        self.done = trio.Event()
        self.then: list[Then] = []

    def finish(self, good: bool) -> None:
        """Tell everyone; a second word changes nothing."""
        if self.done.is_set():
            return
        self.good = good
        self.done.set()
        for then in self.then:
            then(good)


class Requests:
    """What is under way, and what has come."""

    def __init__(
        self,
        tell: Callable[[Message], Awaitable[bool]],
        say: Callable[[Message], bool],
        say_later: Callable[[Sequence[Message]], None],
        staging_bytes: int,
        counts: Counts,
    ) -> None:
        """tell: send a word to the engine; False if it is gone. say: the same, if it need not wait for room on the
        wire. say_later: the same, now or as soon as there is room.
        """
        self._tell, self._say, self._say_later, self._counts = tell, say, say_later, counts
        self._awaited: dict[_Request, float] = {}  # those of `ask`, and until when
        self._asked = trio.Event()
        self._words: list[Message] = []  # of `together`
        # With the half that claims may take, this leaves an eighth for what is under way.
        self._keep_bytes = staging_bytes * 3 // 8
        self.staged = Staged()
        self.give_up_claim: Callable[[], bool] = lambda: False
        self._requests: dict[int, _Request] = {}
        self._spared: set[int] = set()  # when the engine had no room the last time
        self._unseen: set[int] = set()
        self._paused_until = 0.0
        self._lost = False

    @property
    def usable(self) -> bool:
        """Whether the engine is there, and not known to be stuck."""
        return not self._lost and trio.current_time() >= self._paused_until

    def may_come(self, unit: int) -> bool:
        """Whether the engine was asked for a unit and has not answered yet, though nobody may wait for it any more."""
        return unit in self._requests

    def ask(self, unit: int, size: int, timeout_s: float, then: Then) -> bool:
        """Have a unit brought near for one who reads it: `then` hears how it went, later, and within `timeout_s` (and
        a little). False: it cannot be had, or not without waiting for the wire; ask `fetch`.
        """
        request = self._requests.get(unit)
        if not self.usable or (request is not None and request.done.is_set()):
            return False
        if request is None:
            if not self._say(Fetch(unit, 1)):
                return False
            request = self._requests[unit] = _Request(size, True)
        elif not request.urgent:
            if not self._say(Hurry(unit)):
                return False
            request.urgent = True
        request.then.append(then)
        self._awaited.setdefault(request, trio.current_time() + timeout_s + GRACE_S)
        self._asked.set()
        return True

    async def watch(self) -> None:
        """See that those who asked are answered in time, until cancelled: one task for all of them."""
        while True:
            request, limit = next(iter(self._awaited.items()), (None, 0.0))
            if request is None:
                self._asked = trio.Event()
                await self._asked.wait()
            elif limit <= trio.current_time():
                self.engine_late()
            else:
                # Nearly always it is answered by then; that it is is not told to this task.
                await trio.sleep_until(limit)

    async def fetch(self, unit: int, size: int, timeout_s: float) -> bool:
        """Have a unit brought near; False if it cannot be had within `timeout_s` (and a little)."""
        if unit in self.staged:
            return True
        if not self.usable:
            return False
        started = trio.current_time()
        request: _Request | None = None
        with trio.move_on_after(timeout_s + GRACE_S):
            request = await self._urgent(unit, size)
            await self._seen(request, unit)
        if request is None or not request.done.is_set():
            self.engine_late()
            return False
        self._counts.fetched_in((trio.current_time() - started) * 1000)
        return request.good

    async def fetch_ahead(self, unit: int, size: int, then: Then, urgent: bool = False) -> None:
        """Have a unit brought near; `then` hears how it went, at once or later."""
        request = self._requests.get(unit)
        if not self._join(unit, then):
            await self._request(unit, size, urgent, then)
        elif urgent and request is not None and not request.done.is_set():
            await self.hurry(unit)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Nothing is awaited inside: what `fetch_with_others` asks for goes to the engine behind it, in few packets."""
        self._words = []
        yield
        self._say_all(self._words)

    def fetch_with_others(self, unit: int, size: int, then: Then) -> None:
        """As `fetch_ahead`, within `together`."""
        if not self._join(unit, then):
            request = self._requests[unit] = _Request(size, urgent=False)
            request.then.append(then)
            self._words.append(Fetch(unit, 0))

    async def hurry(self, unit: int) -> None:
        """Somebody waits now for what was to be fetched ahead."""
        request = self._requests.get(unit)
        if request is not None and not request.urgent:
            request.urgent = True
            await self._tell(Hurry(unit))

    def ready(self, unit: int, at: int, from_source: bool) -> None:
        """The engine's answer: the unit is there."""
        request = self._requests.pop(unit, None)
        if at != IN_NODE and request is not None:
            if request.waiters:
                self._unseen.add(unit)
            self.staged.add(unit, Place(at, span(request.size), from_source))
        if request is not None:
            self._finish(request, True)
        if self.staged.unclaimed_bytes > self._keep_bytes:
            # An eighth of them at once: a word by itself costs more than what it says.
            self._release_down_to(self._keep_bytes, self.staged.unclaimed_units // 8)

    def missed(self, unit: int) -> None:
        """The engine's answer: it cannot be had from it."""
        request = self._requests.pop(unit, None)
        if request is not None:
            self._finish(request, False)

    def pressed(self) -> None:
        """The engine has no room for what it was asked for."""
        if not self.staged.unclaimed_bytes and not self.give_up_claim():
            return
        several = self.staged.unclaimed_units > 1
        # Who has opened a file reads it soon, or not at all: what was drawn is spared once. The engine asks again.
        spared, self._spared = self.staged.unread - self._spared, set(self.staged.unread)
        self._release_down_to(self.staged.unclaimed_bytes // 2 if several else 0, spared=spared)

    def engine_late(self) -> None:
        """It did not answer in time: whoever waits for it is let go."""
        self._paused_until = trio.current_time() + _PAUSE_S
        self._counts.engine_timeouts += 1
        log.warning("the engine does not answer; reading from the source for %g s", _PAUSE_S)
        for request in list(self._requests.values()):
            self._finish(request, False)

    def lost(self) -> None:
        """The engine is gone."""
        self._lost = True
        while self._requests:
            self._finish(self._requests.popitem()[1], False)

    def _join(self, unit: int, then: Then) -> bool:
        """Have `then` hear of what is there, under way, or not to be had; False if the engine has to be asked."""
        request = self._requests.get(unit)
        if unit in self.staged or not self.usable:
            then(unit in self.staged)
        elif request is None:
            return False
        elif request.done.is_set():  # given up, and not answered yet
            then(False)
        else:
            request.then.append(then)
        return True

    def _finish(self, request: _Request, good: bool) -> None:
        self._awaited.pop(request, None)
        request.finish(good)

    async def _urgent(self, unit: int, size: int) -> _Request:
        request = self._requests.get(unit)
        if request is None:
            return await self._request(unit, size, True)
        await self.hurry(unit)
        return request

    async def _request(self, unit: int, size: int, urgent: bool, then: Then | None = None) -> _Request:
        """Ask the engine; what did not get on the wire was not asked."""
        request = self._requests[unit] = _Request(size, urgent)
        if then:
            request.then.append(then)
        try:
            await self._tell(Fetch(unit, int(urgent)))
        except trio.Cancelled:
            if self._requests.get(unit) is request:
                self.missed(unit)
            raise
        return request

    async def _seen(self, request: _Request, unit: int) -> None:
        """Wait for the answer. Who is woken takes the unit before anything else runs; then it may be released."""
        request.waiters += 1
        try:
            await request.done.wait()
        finally:
            request.waiters -= 1
            if not request.waiters:
                self._unseen.discard(unit)

    def _release_down_to(self, keep_bytes: int, at_least: int = 0, spared: Collection[int] = ()) -> None:
        """Give unclaimed units back, but nothing that was fetched for somebody who has not seen it yet.

        at_least: so many, where any are to be given back. spared: not these.
        """
        if self.staged.unclaimed_bytes <= keep_bytes:
            return
        words: list[Message] = []
        for unit in self.staged.unclaimed():
            if self.staged.unclaimed_bytes <= keep_bytes and len(words) >= at_least:
                break
            if unit not in self._unseen and unit not in spared:
                self.staged.remove(unit)
                words.append(Release(unit))
        self._say_all(words)

    def _say_all(self, words: list[Message]) -> None:
        for at in range(0, len(words), _TOGETHER):
            self._say_later(words[at : at + _TOGETHER])
