"""A wire that takes its time: two TAP devices, and all that comes in at one leaves at the other after a while.

The program `python delayline.py NAME NAME` makes the devices in its network namespace, says "ready", and reads seconds
from its standard input, a number a line; it ends, and with it the devices, when that ends. `tests.lab` puts it into
a host's link: this is for kernels without netem.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# <linux/if_tun.h>
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 1, 2, 4
# 64 KB of a stream in one piece, as the kernel hands it over with the header of virtio; whole pieces, not segments
# of 1,500 bytes, are what makes hundreds of MB/s possible.
_FRAME_BYTES = (64 << 10) + 256
# So that a flood at one end does not keep the other, and what is due, waiting.
_FRAMES_AT_A_TIME = 64
# The default of 50 us would be a tenth of the delays that are asked for.
_TIMER_SLACK_NS = 1000


@dataclass
class _Way:
    """One direction: what came in, with when, oldest first."""

    entry: int
    exit: int
    held: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take_in(self) -> None:
        for _ in range(_FRAMES_AT_A_TIME):
            try:
                frame = os.read(self.entry, _FRAME_BYTES)
            except BlockingIOError:
                return
            self.held.append((time.monotonic(), frame))

    def let_out(self, arrived_before: float) -> None:
        while self.held and self.held[0][0] <= arrived_before:
            with suppress(OSError):  # the device is down: then a frame is lost, as on any wire
                os.write(self.exit, self.held.popleft()[1])


def forward(left: int, right: int, orders: int) -> None:
    """Carry frames between two TAP devices until `orders` ends."""
    ways = {left: _Way(left, right), right: _Way(right, left)}
    delay_s = 0.0
    while True:
        now = time.monotonic()
        for way in ways.values():
            way.let_out(now - delay_s)
        dues = [way.held[0][0] + delay_s for way in ways.values() if way.held]
        # select's timeout has microseconds, that of poll and epoll whole milliseconds.
        wait_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        for descriptor in select.select([left, right, orders], [], [], wait_s)[0]:
            if descriptor in ways:
                ways[descriptor].take_in()
            elif order := os.read(orders, 64).split():
                delay_s = float(order[-1])
            else:
                return


def tap(name: str) -> int:
    """A new TAP device, which lives as long as the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    return descriptor


def main(names: Sequence[str]) -> None:
    """The program."""
    Path("/proc/self/timerslack_ns").write_text(str(_TIMER_SLACK_NS))
    left, right = map(tap, names)
    print("ready", flush=True)
    forward(left, right, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
