"""Whom the kernel may not have heard yet: replies about a name that may still be on their way to a thread.

The kernel takes a reply's attributes only if nothing newer came for the inode since the request began; of two lookups
of one name that cross, the later one's size can be dropped (fuse_change_attributes; seen once in 20,000 opens of 40
names by 8 threads). A thread that has sent another request has taken the reply before: so it is known, without
asking, whether a lookup can have crossed another.

**Threading.** The trio thread.
"""

from __future__ import annotations

import collections

from deepiofs.order.binder import UNKNOWN_THREAD


class Told:
    """Rows whose attributes were told to threads that were not heard of since, or by listings still open."""

    def __init__(self) -> None:
        self._about: dict[int, int] = {}
        self._threads: collections.defaultdict[int, set[int]] = collections.defaultdict(set)
        self._listings: collections.Counter[int] = collections.Counter()
        self._crossed: set[int] = set()
        self.tells = 0  # so far

    def heard_of(self, thread: int) -> None:
        """A request came: what this thread was told before has arrived."""
        row = self._about.pop(thread, None)
        if row is not None:
            self._threads[row].discard(thread)
            if not self._threads[row]:
                del self._threads[row]

    def tell(self, thread: int, row: int, directory: int, begun: int) -> None:
        """A thread is told a row's attributes now; of an unknown thread nothing is known but that it asked.

        begun: `tells` when its request came. Whoever was told of the row since may have opened and closed it by now.
        """
        self.heard_of(thread)
        if begun != self.tells or thread == UNKNOWN_THREAD or row in self._threads or self._listings[directory]:
            self._crossed.add(row)
        self.tells += 1
        if thread != UNKNOWN_THREAD:
            self._about[thread] = row
            self._threads[row].add(thread)

    def listing(self, directory: int, change: int) -> None:
        """A listing of a directory begins (1) or ends (-1)."""
        self._listings[directory] += change
        if not self._listings[directory]:
            del self._listings[directory]

    def may_have_crossed(self, row: int) -> bool:
        """Whether the kernel may believe another size than it was told last; asked once, when the row is opened."""
        crossed = row in self._crossed
        self._crossed.discard(row)
        return crossed
