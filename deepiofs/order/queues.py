"""The queues of one rank: who serves what next, what others may take, and when the next pass begins (S2, S7).

A queue has one writer, its owner. Others ask for the entry at its back by a message; the owner answers with it, with
"empty", or with "I am in pass p already". So there is no shared counter and no race.

No I/O, no clock. **Invariants.** An entry is in one place: in a queue, or out with whoever took it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Load = Callable[[int], npt.NDArray[np.uint32]]
Ready = Callable[[int], bool]


class Draw(NamedTuple):
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
    """One pass of one group: a range of the plan's order, and before it what is near: looked at already, given back,
    or taken from others.
    """

    __slots__ = ("_back", "_due", "_front", "_near", "_order", "_put", "_taken")

    def __init__(self, order: npt.NDArray[np.uint32]) -> None:
        self._order = order.tolist()
        self._front, self._back = 0, len(self._order)
        self._near: list[int] = []
        self._due: list[int] = []  # of each that is near, how many are to be taken before it
        self._put: set[int] = set()  # of those that are near, which were given back or taken from others
        self._taken = 0

    def __len__(self) -> int:
        return self._back - self._front + len(self._near)

    def near(self, count: int) -> list[int]:
        """The next entries, in order: `count` of them or a few more, less only at the end. Not to be changed."""
        missing = count - len(self._near)
        if missing > 0 and (missing := min(missing, self._back - self._front)):
            self._due += range(self._taken + len(self._near), self._taken + len(self._near) + missing)
            self._near += self._order[self._front : self._front + missing]
            self._front += missing
        return self._near

    def choice(self, window: int) -> int:
        """From how many of the next entries one may be taken: the first alone when it is late by `window`."""
        count = min(window, len(self.near(window)))
        return 1 if count and self._taken - self._due[0] >= window else count

    def take(self, place: int) -> int:
        """Remove one of the entries that are near."""
        del self._due[place]
        self._taken += 1
        sample = self._near.pop(place)
        self._put.discard(sample)
        return sample

    def take_back(self) -> int | None:
        if self._front < self._back:
            self._back -= 1
            sample: int = self._order[self._back]
            return sample
        if not self._near:
            return None
        self._due.pop()
        sample = self._near.pop()
        self._put.discard(sample)
        return sample

    def put_front(self, sample: int) -> None:
        self._taken -= 1
        self._near.insert(0, sample)
        self._due.insert(0, self._taken)
        self._put.add(sample)

    def drop_planned(self) -> None:
        self._front = self._back
        kept = [(sample, due) for sample, due in zip(self._near, self._due, strict=True) if sample in self._put]
        self._near[:] = [sample for sample, _ in kept]
        self._due[:] = [due for _, due in kept]


class GroupQueues:
    """All passes of one group on one rank. `current` is the pass that its next draw belongs to."""

    def __init__(self, group: int, rank: int, n_ranks: int, load: Load) -> None:
        """load: the plan's queue of this rank and group for a pass."""
        self.group, self._rank, self._n_ranks, self._compute = group, rank, n_ranks, load
        self.current = 0
        self._queues: dict[int, _Queue] = {}
        self._empty: set[int] = set()
        self._missing: set[int] = set()
        self.in_vain = True  # nothing was drawn here in this pass yet, and nobody has answered
        self.vain_passes = 0
        self._farthest = 0
        self._commanded = 0

    def take(self, window: int = 1, ready: Ready = lambda sample: True) -> Draw | None:
        """The next sample of the earliest pass that has one here: the first of the `window` next ones that is ready.

        None if none of them is, or if this rank's part is drawn. Those that are skipped stay, in order, and none is
        skipped for ever: the first is the only choice once it is late by `window`.
        """
        if not self.is_loaded or len(self._queues) > 1:
            draw = self._take_earlier()
            if draw:
                return draw
        place = self._first_ready(window, ready)
        if place is None:
            return None
        self.in_vain = False
        return Draw(self.group, self.current, self._queue(self.current).take(place))

    def has_ready(self, window: int, ready: Ready) -> bool:
        """Whether `take` would take something of the current pass."""
        return self._first_ready(window, ready) is not None

    def _first_ready(self, window: int, ready: Ready) -> int | None:
        queue = self._queue(self.current)
        near = queue.near(window)
        if near and ready(near[0]):
            return 0  # nearly always
        choice = queue.choice(window)
        return next((place for place in range(choice) if ready(near[place])), None)

    def _take_earlier(self) -> Draw | None:
        """What came back to a pass that is over: it is late already, and not waited for."""
        for number in sorted(number for number in self._queues if number < self.current):
            queue = self._queues[number]
            if queue.near(1):
                return Draw(self.group, number, queue.take(0))
            del self._queues[number]
        return None

    def upcoming(self, count: int) -> list[int]:
        """The next samples of the current pass here, in order: `count` or more, less only at its end.

        The list is the queue's own.
        """
        return self._queue(self.current).near(count)

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

    def load(self) -> None:
        """Compute the current pass's queue, if that is not done."""
        self._queue(self.current)

    @property
    def remaining(self) -> int:
        """Entries of the current pass here."""
        return len(self._queue(self.current))

    def _queue(self, number: int) -> _Queue:
        queue = self._queues.get(number)
        if queue is None:
            # Of a pass that is over nothing is left here: only what comes back to it.
            order = self._compute(number) if number >= self.current else np.empty(0, np.uint32)
            queue = self._queues[number] = _Queue(order)
        return queue


def victim_order(rank: int, n_ranks: int, number: int, group: int, seed: int) -> list[int]:
    """In which order a rank asks the others, seeded; so that not all ask the same one first."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(number, group, rank))))
    ranks: list[int] = random.permutation(n_ranks).tolist()
    return [other for other in ranks if other != rank]
