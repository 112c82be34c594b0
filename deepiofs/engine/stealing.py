"""Carrying the questions and answers of queues between mounts; the queues themselves are the mounts'.

**Threading.** The trio thread.
"""

from __future__ import annotations

from collections.abc import Callable

from deepiofs.engine.peers import Note, NoteKind, Peers
from deepiofs.memory.wire import Answered, Asked, Message, Steal, Stolen

# What is answered for a mount that is gone: its queue went with it (`order.queues.Reply.LEFT`).
_LEFT = 4


class StealRelay:
    """Between this rank's mount and the other engines."""

    def __init__(self, peers: Peers, say: Callable[[Message], None]) -> None:
        self._peers, self._say = peers, say
        self.mount_is_gone = False

    def ask(self, steal: Steal) -> None:
        """The mount asks a rank."""
        self._peers.send(steal.rank, Note(NoteKind.STEAL, group=steal.group, number=steal.number))

    def answer(self, answered: Answered) -> None:
        """The mount answers a rank."""
        note = Note(NoteKind.STOLEN, answered.reply, answered.value, answered.group, answered.number)
        self._peers.send(answered.rank, note)

    def on_note(self, rank: int, note: Note) -> None:
        """A rank asks, or answers."""
        if note.kind is NoteKind.STOLEN:
            self._say(Stolen(rank, note.group, note.number, note.unit, note.value))
        elif self.mount_is_gone:
            self._peers.send(rank, Note(NoteKind.STOLEN, _LEFT, 0, note.group, note.number))
        else:
            self._say(Asked(rank, note.group, note.number))
