"""The queues of one rank: who serves what next, what others may take, and when the next pass begins (S2, S7).

A queue has one writer, its owner. Others ask for the entry at its back by a message; the owner answers with it, with
"empty", or with "I am in pass p already". So there is no shared counter and no race.

No I/O, no clock. **Invariants.** An entry is in one place: in a queue, or out with whoever took it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

Load = Callable[[int], npt.NDArray[np.uint32]]


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """A sample taken in a pass of a group."""

    group: int
    number: int
    sample: int


class Reply(enum.IntEnum):
    """What an owner answers to one who asks for an entry of a pass."""

    SAMPLE = 0
    EMPTY = 1
    AHEAD = 2  # the owner is in a later pass
    BUSY = 3  # what it has is out with someone who may give it back: ask again
    LEFT = 4  # its mount is gone, and its queue with it


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """value: the sample, or for AHEAD the pass that was begun by command last (0 if none was)."""

    reply: Reply
    value: int = 0


class _Queue:
    """One pass of one group: a range of the plan's order, and before it what was given back or taken from others."""

    __slots__ = ("_back", "_front", "_order", "_returned")

    def __init__(self, order: npt.NDArray[np.uint32]) -> None:
        self._order = order.tolist()
        self._front, self._back = 0, len(self._order)
        self._returned: list[int] = []

    def __len__(self) -> int:
        return self._back - self._front + len(self._returned)

    def take_front(self) -> int | None:
        if self._returned:
            return self._returned.pop()
        if self._front == self._back:
            return None
        self._front += 1
        sample: int = self._order[self._front - 1]
        return sample

    def take_back(self) -> int | None:
        if self._front < self._back:
            self._back -= 1
            sample: int = self._order[self._back]
            return sample
        return self._returned.pop(0) if self._returned else None

    def put_front(self, sample: int) -> None:
        self._returned.append(sample)

    def drop_planned(self) -> None:
        self._front = self._back


class GroupQueues:
    """All passes of one group on one rank. `current` is the pass that its next draw belongs to."""

    def __init__(self, group: int, rank: int, n_ranks: int, load: Load) -> None:
        """load: the plan's queue of this rank and group for a pass."""
        self.group, self._rank, self._n_ranks, self._load = group, rank, n_ranks, load
        self.current = 0
        self._queues: dict[int, _Queue] = {}
        self._empty: set[int] = set()
        self._missing: set[int] = set()
        self.in_vain = True  # nothing was drawn here in this pass yet, and nobody has answered
        self.vain_passes = 0
        self._farthest = 0
        self._commanded = 0

    def take(self) -> Draw | None:
        """The next sample of the earliest pass that has one here; None if this rank's part is drawn."""
        if not self.is_loaded or len(self._queues) > 1:
            draw = self._take_earlier()
            if draw:
                return draw
        sample = self._queue(self.current).take_front()
        if sample is None:
            return None
        self.in_vain = False
        return Draw(self.group, self.current, sample)

    def _take_earlier(self) -> Draw | None:
        """What came back to a pass that is over: it is late already."""
        for number in sorted(number for number in self._queues if number < self.current):
            sample = self._queues[number].take_front()
            if sample is not None:
                return Draw(self.group, number, sample)
            del self._queues[number]
        return None

    def give_back(self, draw: Draw) -> None:
        """A draw that was reserved and not used is the next again."""
        self._queue(draw.number).put_front(draw.sample)

    def victims(self, order: Iterable[int]) -> list[int]:
        """Of the ranks in the order given, those that may still have entries of the current pass."""
        return [rank for rank in order if rank != self._rank and rank not in self._empty]

    def answered(self, rank: int, number: int, answer: Answer) -> None:
        """A rank that was asked has answered, maybe late: what it gave is served all the same."""
        if answer.reply is Reply.SAMPLE:
            self._queue(number).put_front(answer.value)
        elif answer.reply is not Reply.BUSY:
            if answer.reply is Reply.AHEAD:
                self._farthest = max(self._farthest, answer.value)
            if number == self.current:
                self._empty.add(rank)
        if number == self.current:
            if answer.reply is Reply.LEFT:
                self._missing.add(rank)
            else:
                self.in_vain = False

    def give_up(self, rank: int, *, missing: bool = True) -> None:
        """A rank cannot be asked: for this pass it counts as empty. missing: whether it may be lost."""
        self._empty.add(rank)
        if missing:
            self._missing.add(rank)

    @property
    def missing(self) -> frozenset[int]:
        """Ranks that have left or did not answer in this pass, and of which it was not found out yet what they are."""
        return frozenset(self._missing)

    def judged(self, ranks: Iterable[int]) -> None:
        """It was found out what these ranks are."""
        self._missing.difference_update(ranks)

    def asked(self, number: int) -> Answer:
        """Another rank asks for an entry of pass `number`."""
        if number >= self.current or number in self._queues:
            sample = self._queue(number).take_back()
            if sample is not None:
                return Answer(Reply.SAMPLE, sample)
        return Answer(Reply.AHEAD, self._commanded) if number < self.current else Answer(Reply.EMPTY)

    @property
    def latest(self) -> int:
        """The latest pass whose queue was begun here, by the owner or by who asked; -1 if none was."""
        return max(self._queues, default=-1)

    def has(self, number: int) -> bool:
        """Whether answering for a pass needs nothing from the plan."""
        return number in self._queues or number < self.current

    def give_away(self, number: int) -> int:
        """Others serve what was planned for this rank from pass `number` on. How many entries these were."""
        dropped = 0
        for late in (queue for n, queue in self._queues.items() if n >= number):
            before = len(late)
            late.drop_planned()
            dropped += before - len(late)
        return dropped

    def ask_anew(self) -> None:
        """Who counted as empty may have something after all."""
        self._empty.clear()

    def advance(self) -> None:
        """Nobody has an entry of this pass: the next draw belongs to the next, or to one that was begun by command.

        Not to whatever pass another is in: it may have gone on without this rank's entries, and nobody else has them.
        """
        self.vain_passes = self.vain_passes + 1 if self.in_vain else 0
        self._enter(max(self.current + 1, self._farthest))
        self._queues = {n: queue for n, queue in self._queues.items() if n >= self.current or len(queue)}

    def begin(self, number: int) -> None:
        """Start a pass by command. What is left of earlier ones is given up; one begun again is whole again."""
        again = number <= self.current
        self._queues = {} if again else {n: queue for n, queue in self._queues.items() if n >= number}
        self._farthest, self._commanded = 0, number
        self._enter(number)

    def _enter(self, number: int) -> None:
        self.current = number
        self._empty.clear()
        self._missing.clear()
        self.in_vain = True

    @property
    def is_loaded(self) -> bool:
        """Whether the current pass's queue is computed."""
        return self.current in self._queues

    @property
    def remaining(self) -> int:
        """Entries of the current pass here."""
        return len(self._queue(self.current))

    def _queue(self, number: int) -> _Queue:
        queue = self._queues.get(number)
        if queue is None:
            # Of a pass that is over nothing is left here: only what comes back to it.
            order = self._load(number) if number >= self.current else np.empty(0, np.uint32)
            queue = self._queues[number] = _Queue(order)
        return queue


def victim_order(rank: int, n_ranks: int, number: int, group: int, seed: int) -> list[int]:
    """In which order a rank asks the others, seeded; so that not all ask the same one first."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(number, group, rank))))
    ranks: list[int] = random.permutation(n_ranks).tolist()
    return [other for other in ranks if other != rank]
