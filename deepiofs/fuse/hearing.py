"""Waiting for the device and for the engine's words as if they were one: an epoll of both stands for the device.

A word that wakes a task of trio's costs a pass of its scheduler or two, more than all that is done about it. So who
waits for the next request takes the words, too. trio's own task for them has what comes while requests keep all busy.

**Threading.** The trio thread.
"""

from __future__ import annotations

import select
from typing import Protocol

from deepiofs.idling import Idling


class Words(Protocol):
    """What the engine says."""

    def fileno(self) -> int:
        """Readable when there is something to take."""

    def take_words(self) -> bool:
        """Take all that has come and act on it, without waiting. False: there will be no more."""


class Hearing:
    """Of the task that reads the device."""

    def __init__(self, device: int, words: Words | None) -> None:
        """words: None where the device is all that is to be waited for."""
        self._both = select.epoll()
        self._both.register(device, select.EPOLLIN)
        if words is not None:
            self._both.register(words.fileno(), select.EPOLLIN)
        self._device, self._words = device, words
        self._idling = Idling(device if words is None else self._both.fileno())
        self.begin, self.end, self.give_way = self._idling.begin, self._idling.end, self._idling.give_way

    async def wait(self) -> None:
        """Until there is something to read."""
        if self._words is None:
            return await self._idling.wait()
        while True:
            await self._idling.wait()
            ready = self._both.poll(0)
            if len(ready) == 1 and ready[0][0] == self._device:
                return None
            if self._words is not None and not self._words.take_words():
                self._both.unregister(self._words.fileno())  # an end stays readable for ever
                self._words = None
            if len(ready) != 1:
                return None

    def close(self) -> None:
        """Let the epoll go."""
        self._both.close()
