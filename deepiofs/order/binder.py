"""Which sample a name stands for: rules S3 to S6 as a state machine. No I/O, the clock is given.

Names are those of samples (`a` for `a.jpg` and `a.json`); a member is the place of a file in its sample. The kernel
looks a name up right before it opens it, and believes the size that the lookup told. So a *lookup* decides what a
name stands for, an *open* takes what the last lookup decided, and a name has one binding at a time.

    reserved   by a lookup; shared by all that look it up; given back when the only thread that looked turns to
               another name (S6), or when it is revoked
    drawn      by the first open; kept while a handle is open (S3), for the thread that last used it until it uses
               another sample (S4), and for members that were not opened yet (S5)

**Invariants.** A draw is in one binding; a thread has at most one reservation; see `check_invariants`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from deepiofs.order.queues import Draw

# pid that FUSE reports for a process outside the mount's pid namespace: many threads in one, so only S3 and S5 hold.
UNKNOWN_THREAD = 0
# Bindings kept only for S4 or S5 of threads and members that may never come: the oldest go first.
_KEPT = 65536
# Of unknown threads no reservation can be given back in time; so many may be out at once.
_UNKNOWN_KEPT = 64


@dataclasses.dataclass(eq=False, slots=True)
class Binding:
    """A name's sample."""

    name: int
    draw: Draw
    members: int
    since: float
    drawn: bool = False
    handles: int = 0
    users: int = 0  # threads that used this sample last
    lookers: set[int] = dataclasses.field(default_factory=set)
    opened: dict[int, int] = dataclasses.field(default_factory=dict)  # member: the thread that opened it first


class Binder:
    """The bindings of a mount."""

    def __init__(self, give_back: Callable[[Draw], None]) -> None:
        """give_back: put a reserved draw to the front of its queue."""
        self._give_back = give_back
        self._bindings: collections.OrderedDict[int, Binding] = collections.OrderedDict()
        self._unused: collections.OrderedDict[int, Binding] = collections.OrderedDict()  # by name; not drawn yet
        self._reserved: dict[int, Binding] = {}  # by thread
        self._last: collections.OrderedDict[int, Binding] = collections.OrderedDict()

    def peek(self, name: int) -> Binding | None:
        """What the name stands for now, without using it."""
        return self._bindings.get(name)

    def look(self, thread: int, name: int, member: int, now: float) -> Binding | None:
        """A thread looks a name up: its binding, or None if a sample must be reserved for it now.

        A reservation that the thread had on another name is given back first (S6).
        """
        self._turn_to(thread, name)
        binding = self._bindings.get(name)
        if binding is None or not self._holds(binding, thread, member):
            return None
        if not binding.drawn:
            if thread not in binding.lookers:
                # Not for one that looks again and again and never opens: it must not hold up a pass.
                binding.since = now
            binding.lookers.add(thread)
            if thread != UNKNOWN_THREAD:
                self._reserved[thread] = binding
        return binding

    def reserve(self, thread: int, name: int, draw: Draw, members: int, now: float) -> Binding:
        """Bind a name to a sample just taken. What it stood for before is forgotten."""
        before = self._bindings.pop(name, None)
        assert before is None or (before.drawn and not before.handles)
        binding = self._bindings[name] = self._unused[name] = Binding(name, draw, members, now, lookers={thread})
        if thread != UNKNOWN_THREAD:
            self._reserved[thread] = binding
        else:
            self._trim_unknown()
        self._trim()
        return binding

    def open(self, thread: int, name: int, member: int) -> tuple[Binding, bool, bool] | None:
        """A thread opens a member of a name, after a lookup.

        The binding; whether this open draws the sample; whether this thread was the first to open this member under
        this binding and does so again, so that the kernel's pages may be kept. Of another thread's open it is not
        known whether the kernel has dropped the pages before by now. None if the reservation was revoked meanwhile.
        """
        binding = self._bindings.get(name)
        if binding is None:
            return None
        draws = not binding.drawn
        known = thread != UNKNOWN_THREAD and binding.opened.get(member) == thread
        if draws:
            self._end_reservation(binding)
        binding.drawn = True
        binding.handles += 1
        binding.opened.setdefault(member, thread)
        self._use(thread, binding)
        return binding, draws, known

    def close(self, binding: Binding) -> None:
        """A handle is gone."""
        binding.handles -= 1
        self._forget_if_free(binding)

    def revoke(self, group: int, is_stale: Callable[[Binding], bool]) -> list[Draw]:
        """Take stale reservations of a group back: threads that looked a name up and did not open it."""
        stale = [b for b in self._unused.values() if b.draw.group == group and is_stale(b)]
        for binding in stale:
            self._drop(binding)
        return [binding.draw for binding in stale]

    def reservations(self, group: int) -> int:
        """How many samples of a group are reserved and not drawn."""
        return sum(binding.draw.group == group for binding in self._unused.values())

    def forget_reservations(self) -> None:
        """A pass begins by command: what was reserved of the last one is given up."""
        for binding in list(self._unused.values()):
            self._drop(binding)

    def check_invariants(self) -> None:
        draws = [binding.draw for binding in self._bindings.values()]
        assert len(draws) == len(set(draws)), "a draw is in two bindings"
        for name, binding in self._bindings.items():
            assert binding.name == name
            assert binding.drawn != (name in self._unused)
            assert binding.drawn or (binding.lookers and not binding.handles)
            assert binding.users == sum(last is binding for last in self._last.values())
        assert self._unused.keys() <= self._bindings.keys()
        for thread, binding in self._reserved.items():
            assert thread in binding.lookers
            assert self._unused[binding.name] is binding

    def _holds(self, binding: Binding, thread: int, member: int) -> bool:
        if not binding.drawn or binding.handles:  # shared reservation; S3
            return True
        if thread != UNKNOWN_THREAD and self._last.get(thread) is binding:  # S4
            return True
        return member not in binding.opened  # S5

    def _turn_to(self, thread: int, name: int) -> None:
        """S6: a thread that looks at another name gives its reservation back, unless someone else looked too."""
        binding = self._reserved.get(thread)
        if binding is None or binding.name == name:
            return
        del self._reserved[thread]
        binding.lookers.discard(thread)
        if not binding.lookers:
            self._drop(binding)
            self._give_back(binding.draw)

    def _trim_unknown(self) -> None:
        """Give the oldest reservation of unknown threads back when there are too many."""
        unknown = [b for b in self._unused.values() if b.lookers == {UNKNOWN_THREAD}]
        if len(unknown) > _UNKNOWN_KEPT:
            self._drop(unknown[0])
            self._give_back(unknown[0].draw)

    def _use(self, thread: int, binding: Binding) -> None:
        """S4: the thread's hold on the sample before ends."""
        if thread == UNKNOWN_THREAD:
            return
        before = self._last.pop(thread, None)
        self._last[thread] = binding
        binding.users += 1
        if before is not None:
            before.users -= 1
            self._forget_if_free(before)
        if len(self._last) > _KEPT:
            _, oldest = self._last.popitem(last=False)
            oldest.users -= 1
            self._forget_if_free(oldest)

    def _forget_if_free(self, binding: Binding) -> None:
        if binding.handles or binding.users or len(binding.opened) < binding.members:
            return
        if self._bindings.get(binding.name) is binding:
            del self._bindings[binding.name]

    def _drop(self, binding: Binding) -> None:
        """A reservation ends without a draw."""
        self._end_reservation(binding)
        del self._bindings[binding.name]

    def _end_reservation(self, binding: Binding) -> None:
        del self._unused[binding.name]
        for looker in binding.lookers:
            self._reserved.pop(looker, None)
        binding.lookers.clear()

    def _trim(self) -> None:
        """Forget the oldest binding that is kept only for members that nobody opens."""
        if len(self._bindings) <= _KEPT:
            return
        oldest = next(iter(self._bindings.values()))
        if oldest.drawn and not oldest.handles and not oldest.users:
            del self._bindings[oldest.name]
        else:
            self._bindings.move_to_end(oldest.name)
