"""The ranks that scan together: who they are, and work dealt over them and their threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

from deepiofs.errors import DeepiofsError


class Team(Protocol):
    """The ranks that scan together. **Collective.** Every method is called by all ranks in the same order."""

    rank: int
    size: int

    def scatter(self, parts: list[Any] | None) -> Any:
        """Rank r gets parts[r]; only rank 0 gives them."""

    def gather(self, part: Any) -> list[Any] | None:
        """Rank 0 gets the parts of all ranks in order, the others None."""

    def bcast(self, value: Any) -> Any:
        """All ranks get rank 0's value."""


class Solo:
    """A team of one."""

    rank = 0
    size = 1

    def scatter(self, parts: list[Any] | None) -> Any:
        assert parts is not None
        return parts[0]

    def gather(self, part: Any) -> list[Any] | None:
        return [part]

    def bcast(self, value: Any) -> Any:
        return value


def share(team: Team, work: list[Any] | None, do: Callable[[Any], Any], pool: Executor) -> list[Any] | None:
    """**Collective.** Deal `work` of rank 0 over the ranks and their threads; rank 0 gets the results in order.

    An error of any rank is raised on all of them, so that none waits for a rank that has given up.
    """
    parts = None if work is None else [work[rank :: team.size] for rank in range(team.size)]
    mine = team.scatter(parts)
    failure: DeepiofsError | None = None
    done: list[Any] = []
    try:
        done = list(pool.map(do, mine))
    except DeepiofsError as error:
        failure = error
    gathered = team.gather((failure, done))
    failure = team.bcast(next((part[0] for part in gathered if part[0]), None) if gathered else None)
    if failure:
        raise failure
    if gathered is None or work is None:
        return None
    results: list[Any] = [None] * len(work)
    for rank, (_, part) in enumerate(gathered):
        results[rank :: team.size] = part
    return results


@contextlib.contextmanager
def fails_for_all(team: Team) -> Iterator[None]:
    """**Collective.** A DeepiofsError of the block on rank 0 is raised on all ranks; the others must raise none."""
    failure: DeepiofsError | None = None
    try:
        yield
    except DeepiofsError as error:
        failure = error
    failure = team.bcast(failure)
    if failure:
        raise failure


def told_by_first(team: Team, look: Callable[[], Any]) -> Any:
    """**Collective.** What `look` returns on rank 0, on all ranks; its DeepiofsError is raised on all of them."""
    value = None
    with fails_for_all(team):
        if team.rank == 0:
            value = look()
    return team.bcast(value)
