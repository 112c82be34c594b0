"""Peers over MPI: a window on the store, passive target, request-based gets (MPI-4.1, chapter 12), small notes.

The window is locked for all targets for its whole life. Requests are completed by `Test`, one by one: with
ERRORS_RETURN a failed peer's request then tells for itself, where Testsome would only say that one of many failed.

Notes are matched by Improbe, never by receives posted ahead. Of MPICH 5.0.2 over UCX, an Irecv from ANY_SOURCE that
finds its message already there, come from another host, takes it and never completes (measured: of 100 notes 4 came).
And among several receives it cannot be told which one was matched first.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from deepiofs.engine.peers import Barrier, Get, Note, NoteKind
from deepiofs.memory.segments import Segment

_NOTE_TAG = 7
_NOTE_WORDS = 5


@dataclasses.dataclass(frozen=True)
class _Incoming:
    """A note that has been matched; its bytes may be under way."""

    request: MPI.Request
    rank: int
    words: np.ndarray[tuple[int], np.dtype[np.int64]]


class _Ibarrier:
    """A nonblocking barrier on a communicator of its own, so that ranks may enter the barriers in any order."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._request = comm.Ibarrier()
        self._over = False

    def passed(self) -> bool:
        if not self._over:
            try:
                self._over = self._request.Test()
            except MPI.Exception:
                return False
        return self._over


class MpiPeers:
    """All other ranks, over one window and one communicator for notes."""

    def __init__(self, comm: MPI.Intracomm, store: Segment, arrivals: Sequence[int] = ()) -> None:
        self.on_note: Callable[[int, Note], None] = lambda rank, note: None
        self.arrivals = arrivals
        self._notes = comm.Dup()
        self._warm = comm.Dup()
        self._leave = comm.Dup()
        self._window = MPI.Win.Create(store.view, 1, MPI.INFO_NULL, comm)
        for handle in (self._notes, self._warm, self._leave, self._window):
            handle.Set_errhandler(MPI.ERRORS_RETURN)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._gets: collections.deque[tuple[MPI.Request, Get]] = collections.deque()
        self._sends: list[tuple[MPI.Request, object]] = []
        self._incoming: _Incoming | None = None
        comm.Barrier()

    def get(self, rank: int, at: int, into: memoryview) -> Get:
        get = Get(rank)
        try:
            request = self._window.Rget([into, MPI.BYTE], rank, [at, len(into), MPI.BYTE])
        except MPI.Exception as error:
            get.finish(error)
            return get
        self._gets.append((request, get))
        return get

    def send(self, rank: int, note: Note) -> None:
        words = np.array([note.kind, note.unit, note.value, note.group, note.number], np.int64)
        try:
            self._sends.append((self._notes.Isend(words, rank, _NOTE_TAG), words))
        except MPI.Exception:
            return

    def poll(self) -> bool:
        moved = self._poll_notes()
        for _ in range(len(self._gets)):
            request, get = self._gets.popleft()
            try:
                over, error = request.Test(), None
            except MPI.Exception as failure:
                over, error = True, failure
            if over:
                get.finish(error)
                moved = True
            else:
                self._gets.append((request, get))
        self._sends = [entry for entry in self._sends if not _over(entry[0])]
        return moved

    def busy(self) -> bool:
        return bool(self._gets or self._sends)

    def enter_warm(self) -> Barrier:
        return _Ibarrier(self._warm)

    def enter_leave(self) -> Barrier:
        return _Ibarrier(self._leave)

    def close(self) -> None:
        """**Collective.** Free the window; all gets are done, all ranks are here."""
        self._window.Unlock_all()
        self._window.Free()

    def _poll_notes(self) -> bool:
        moved = False
        while incoming := self._incoming or self._match():
            self._incoming = incoming
            try:
                if not incoming.request.Test():
                    return moved
            except MPI.Exception:
                self._incoming = None  # the sender is gone, and its note with it
                continue
            self._incoming = None
            kind, *numbers = incoming.words.tolist()
            self.on_note(incoming.rank, Note(NoteKind(kind), *numbers))
            moved = True
        return moved

    def _match(self) -> _Incoming | None:
        """Begin to receive the next note, if there is one."""
        status = MPI.Status()
        try:
            message = self._notes.Improbe(MPI.ANY_SOURCE, _NOTE_TAG, status)
            if message is None:
                return None
            words = np.empty(_NOTE_WORDS, np.int64)
            return _Incoming(message.Irecv(words), status.source, words)
        except MPI.Exception:
            return None


def _over(request: MPI.Request) -> bool:
    try:
        return request.Test()
    except MPI.Exception:
        return True
