"""The engine process: `python -m deepiofs.engine FD`, started by a mount with its end of the socket."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

import trio

from deepiofs.engine.service import Service
from deepiofs.engine.startup import connect, greet, prepare, share
from deepiofs.engine.world import StartError, World, enter_world
from deepiofs.errors import DeepiofsError
from deepiofs.journal import open_journal
from deepiofs.memory.wire import Begin, Channel, Failed, facts
from deepiofs.options import Settings

log = logging.getLogger("deepiofs.engine")

# A launcher signals the whole group, but the peers still need this memory: the mount tells when to leave.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Serve one mount until it leaves."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        world, in_time = trio.run(_run, channel)
    except Exception as error:
        # The mount sees the socket end and goes on by itself; what went wrong belongs into the log.
        log.critical("the engine ends: %r", error, exc_info=log.isEnabledFor(logging.DEBUG))
        os._exit(DeepiofsError.exit_code)
    if world is not None:
        world.leave(in_time)
    os._exit(0)


async def _run(channel: Channel) -> tuple[World | None, bool]:
    received = await channel.receive()
    if received is None or not isinstance(received[0], Begin):
        return None, False
    orders = facts(received[0].text)
    settings = Settings.from_strings(orders["options"])
    world: World | None = None
    try:
        world = enter_world(settings.mpi)
        open_journal(settings, world.rank)
        doors = await greet(channel, world)
        rank = prepare(world, orders["source"], settings, doors)
        peers = connect(world, rank)
        await share(channel, world, rank)
    except DeepiofsError as error:
        await channel.send(_failure(error, world))
        return world, True
    in_time = await Service(channel, world, rank, peers, settings).run()
    return world, in_time


def _failure(error: DeepiofsError, world: World | None) -> Failed:
    """All ranks fail together and only one tells the user, unless it is this rank's own MPI that is missing."""
    speak = world is None or not isinstance(error, StartError) or error.rank == world.rank
    where = f"rank {world.rank} on {world.host}: " if world and world.size > 1 else ""
    return Failed(error.exit_code, int(speak), where + str(error))


if __name__ == "__main__":
    main()
