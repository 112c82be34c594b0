"""Who has left, once some rank is lost: then the barrier for leaving never completes.

Each rank that knows of a loss tells all others that it leaves, and needs to linger only for those that are neither
lost nor have said so. Without a loss nobody says anything: M ranks would send M times M notes where one barrier does.

**Threading.** The trio thread.
"""

from __future__ import annotations

from deepiofs.engine.peers import Note, NoteKind, Peers


class Farewell:
    """One rank's view of it. out: ranks that are lost."""

    def __init__(self, rank: int, n_ranks: int, peers: Peers) -> None:
        self._others = set(range(n_ranks)) - {rank}
        self._peers = peers
        self.out: set[int] = set()
        self._left: set[int] = set()
        self._told: set[int] = set()
        self._is_leaving = False

    def heard(self, rank: int) -> None:
        """A rank says that it leaves; it does not wait for one that has left unaware of a loss."""
        self._left.add(rank)
        if self._is_leaving:
            self._tell(rank)

    def leave(self) -> None:
        """This rank's mount is gone."""
        self._is_leaving = True
        if self.out:
            for rank in sorted(self._others - self.out):
                self._tell(rank)

    def complete(self) -> bool:
        """Whether nobody needs this rank's memory any more, and its own farewells are on their way."""
        return bool(self.out) and self._others <= self.out | self._left and not self._peers.busy()

    def _tell(self, rank: int) -> None:
        if rank not in self._told:
            self._told.add(rank)
            self._peers.send(rank, Note(NoteKind.LEFT))
