"""The words between a mount and its engine, and both ends of the socket that carries them.

A Unix socket pair of type SOCK_SEQPACKET (unix(7)): one packet is one message, and may carry one descriptor
(SCM_RIGHTS), or it is several that have no text. A message is its code, up to five integers, and text. The end of the
socket is a message too: the other process is gone.

**Threading.** Each end belongs to one trio thread. Several tasks may send; one receives.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import trio

from deepiofs.errors import EngineLostError

_NUMBERS = struct.Struct("<B7x5q")
_MAX_PACKET = 1 << 17

# `Ready.at` when the unit now lies in a store of this node.
IN_NODE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Mount: the first word. text: JSON of source and options as given."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Hello:
    """Engine: MPI is up. World rank and size; number of this node and of nodes. text: local rank and size, JSON."""

    rank: int
    size: int
    node: int
    nodes: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Mount: whether it could mount here. code: exit code, 0 if it can. text: mount point, or the error.

    port: of its door (`fs.door`), 0 if it has none.
    """

    code: int
    port: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Engine: here is a segment; its descriptor comes along. For stores, whose. name: as text."""

    rank: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """Engine: all is shared, loading begins. text: JSON of what was filled in."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """Engine: start-up failed on some rank. code: exit code. speak: whether this rank is the one to tell the user."""

    code: int
    speak: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Fetch:
    """Mount: make this unit readable, in its store if that is on this node, else in staging.

    urgent: 1 if a reader waits for it, 0 if it is fetched ahead. One answer each, `Ready` or `Missed`.
    """

    unit: int
    urgent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Hurry:
    """Mount: a reader waits now for what was to be fetched ahead. No answer of its own."""

    unit: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """Engine: the unit is readable at this byte of staging, or IN_NODE. from_source: 1 if no peer gave it."""

    unit: int
    at: int
    from_source: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Missed:
    """Engine: the unit cannot be had from memory; ask the source."""

    unit: int


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Mount: the staged unit is no longer needed."""

    unit: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pressed:
    """Engine: staging has no room for what was asked; release what can be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steal:
    """Mount: its queue of a group is empty in pass `number`; ask this rank for an entry of its own."""

    rank: int
    group: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """Engine: this rank asks for an entry."""

    rank: int
    group: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """Mount: what it answers to that rank (`order.queues.Answer`)."""

    rank: int
    group: int
    number: int
    reply: int
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Stolen:
    """Engine: what that rank answered."""

    rank: int
    group: int
    number: int
    reply: int
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """Engine: this rank does not answer gets; it may be lost."""

    rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class Out:
    """Mount: this rank is lost; nobody waits for it to leave."""

    rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """Mount: it is unmounted and asks for nothing more."""


Message: TypeAlias = (
    Begin | Hello | Verdict | Share | Started | Failed | Fetch | Hurry | Ready | Missed | Release | Pressed
    | Steal | Asked | Answered | Stolen | Suspect | Out | Leave
)  # fmt: skip
_KINDS: tuple[type[Message], ...] = (
    Begin, Hello, Verdict, Share, Started, Failed, Fetch, Hurry, Ready, Missed, Release, Pressed,
    Steal, Asked, Answered, Stolen, Suspect, Out, Leave,
)  # fmt: skip
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_INTEGERS = {kind: tuple(f.name for f in dataclasses.fields(kind) if f.name != "text") for kind in _KINDS}
_WORDY = {kind for kind in _KINDS if any(f.name == "text" for f in dataclasses.fields(kind))}


def encode(message: Message) -> bytes:
    """The packet of a message."""
    kind = type(message)
    numbers = [getattr(message, name) for name in _INTEGERS[kind]]
    packet = _NUMBERS.pack(_CODES[kind], *numbers, *(0,) * (5 - len(numbers)))
    return packet + getattr(message, "text", "").encode("utf-8", "surrogateescape")


def decode(packet: bytes | bytearray) -> Message:
    """The message of a packet; ValueError for anything else."""
    try:
        code, *numbers = _NUMBERS.unpack_from(packet)
        kind: Any = _KINDS[code]
    except (struct.error, IndexError):
        raise ValueError("not a message") from None
    words = [packet[_NUMBERS.size :].decode("utf-8", "surrogateescape")] if kind in _WORDY else []
    message: Message = kind(*numbers[: len(_INTEGERS[kind])], *words)
    return message


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, not inheritable."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end."""

    _ANCILLARY: ClassVar[int] = socket.CMSG_SPACE(struct.calcsize("i"))

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._blocked = trio.Lock()  # only one task may wait for room
        # Of the longest packet, and kept: a buffer for each would be mapped and unmapped each time (10 % of a mount).
        self._buffer = bytearray(_MAX_PACKET)
        self._more: collections.deque[Message] = collections.deque()  # of a packet of several

    async def send(self, message: Message, fd: int | None = None) -> None:
        """Send one message, with a descriptor if given; EngineLostError if the other end is gone."""
        while not self.send_nowait(message, fd):
            async with self._blocked:
                await trio.lowlevel.wait_writable(self._socket)

    def send_together(self, messages: Sequence[Message]) -> bool:
        """Several messages without text in one packet, if there is room; whether there was."""
        return self._send(b"".join(map(encode, messages)), None)

    def send_nowait(self, message: Message, fd: int | None = None) -> bool:
        """The same as `send`, if there is room; whether there was."""
        return self._send(encode(message), fd)

    def _send(self, packet: bytes, fd: int | None) -> bool:
        try:
            if fd is None:
                self._socket.send(packet)
            else:
                self._socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))])
        except BlockingIOError:
            return False
        except OSError as error:
            raise EngineLostError(f"the other process is gone: {error.strerror}") from None
        return True

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to receive."""
        return self._socket.fileno()

    async def receive(self) -> tuple[Message, int | None] | None:
        """The next message and its descriptor, if any; None when the other process is gone."""
        while True:
            try:
                return self.receive_nowait()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)

    def more_of_packet(self) -> tuple[Message, None] | None:
        """The next message of the packet that was received last; None if it had no more."""
        return (self._more.popleft(), None) if self._more else None

    def receive_nowait(self) -> tuple[Message, int | None] | None:
        """The same, if there is one; BlockingIOError if there is none."""
        if more := self.more_of_packet():
            return more
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], self._ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise
        except OSError:
            return None
        if not size:
            return None
        fds = [struct.unpack("i", data[:4])[0] for _, kind, data in ancillary if kind == socket.SCM_RIGHTS]
        if size > _NUMBERS.size and _KINDS[self._buffer[0]] not in _WORDY:
            self._more.extend(decode(self._buffer[at : at + _NUMBERS.size]) for at in range(0, size, _NUMBERS.size))
            return self._more.popleft(), None
        return decode(self._buffer[:size]), fds[0] if fds else None

    def close(self) -> None:
        self._socket.close()


def facts(text: str) -> dict[str, Any]:
    """The JSON object of a message's text."""
    found: dict[str, Any] = json.loads(text)
    return found
