"""`deepiofs mount`: the parts, composed in one exit stack and one nursery.

Order: engine (with MPI) first, then the verdict on this node's mount point, then segments, then the kernel. The
engine is started before /dev/fuse is opened, so that it cannot keep a mount alive whose process is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import trio

from deepiofs import __version__
from deepiofs.cli.engineprocess import EngineProcess, Shared
from deepiofs.cli.mountpoints import Mounted, expand, is_mounted, mounted_at, prepare_mountpoint
from deepiofs.cli.progress import wait_warm
from deepiofs.dataset.sources import open_source
from deepiofs.errors import DeepiofsError
from deepiofs.fs.access import mixed_groups, readable_by_all
from deepiofs.fs.control import ControlFile, ControlTree
from deepiofs.fs.counts import Counts
from deepiofs.fs.door import Door, open_door
from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.fetch import Reader
from deepiofs.fs.filesystem import FileSystem, Statistics
from deepiofs.fs.nearby import Nearby
from deepiofs.fs.orderlog import OrderLog
from deepiofs.fs.prefetch import Prefetcher
from deepiofs.fs.report import Identity, Report
from deepiofs.fs.rollcall import RollCall
from deepiofs.fs.roster import Roster
from deepiofs.fs.shuffle import Shuffle
from deepiofs.fs.streams.ahead import Ahead
from deepiofs.fs.streams.formats import formats_of
from deepiofs.fs.streams.orders import Orders
from deepiofs.fs.streams.tree import Streams
from deepiofs.fs.tree import BLOCK_BYTES, Tree
from deepiofs.fuse.operations import Operations
from deepiofs.fuse.requirements import check_fuse, passed_descriptor
from deepiofs.fuse.session import Session, fuse_options
from deepiofs.journal import open_journal
from deepiofs.memory.wire import Hello, facts
from deepiofs.options import Settings
from deepiofs.order.plan import Membership, Plan

_PASSES = 1 << 31
# How often to look whether it is still mounted.
_LOOK_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for. options: as given, settings: as understood; source: absolute."""

    source: str
    mountpoint: str
    options: dict[str, str]
    settings: Settings
    background: bool


async def serve(request: Request, live: Callable[[str], None]) -> None:
    """Mount and serve until unmounted or signalled; `live` is called with the mount point when it is mounted."""
    engine = EngineProcess(quiet=request.background)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
            await _mounted(request, engine, live)
            nursery.cancel_scope.cancel()
    finally:
        engine.kill()


async def _mounted(request: Request, engine: EngineProcess, live: Callable[[str], None]) -> None:
    hello = await engine.begin(request.source, request.options)
    open_journal(request.settings, hello.rank)
    # Only the shuffled view of several ranks has something to agree on.
    door = open_door() if hello.size > 1 and request.settings.shuffle != "off" else None
    mountpoint = await _judge(request, engine, hello, door)
    shared = await engine.shared()
    counts = Counts()
    link = EngineLink(engine.channel, hello.rank, shared.segments, shared.stores, counts)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.listen)
            if request.settings.warm == "full":
                await wait_warm(link, show=hello.rank == 0)
            with ExitStack() as stack:
                ahead = _prefetcher(request.settings, link, shared)
                shuffle = _shuffle(request.settings, hello, link, ahead, door, nursery)
                filesystem = _filesystem(request, hello, mountpoint, engine, shared, link, counts, shuffle, stack)
                mounted_for_us = passed_descriptor(mountpoint) is not None
                operations = Operations(filesystem, demand_permissions=mounted_for_us)
                session = Session(operations, mountpoint, fuse_options(request.settings, request.source))
                here = None if mounted_for_us else mounted_at(mountpoint)
                stack.callback(lambda: session.close(unmount=here is None or is_mounted(here)))
                if here:
                    session.allow_background(here.device_minor, request.settings.max_background)
                    nursery.start_soon(_read_far_ahead, session, mountpoint, here.device_minor)
                    nursery.start_soon(_cancel_when_unmounted, here, filesystem, nursery.cancel_scope)
                nursery.start_soon(ahead.run)
                nursery.start_soon(filesystem.streams.ahead.run)
                live(mountpoint)
                await session.serve()
            nursery.cancel_scope.cancel()
    finally:
        if door is not None:
            door.close()  # the others' calls are refused from now on: this mount is gone
        with trio.CancelScope(shield=True):
            await engine.leave(request.settings.linger)


async def _judge(request: Request, engine: EngineProcess, hello: Hello, door: socket.socket | None) -> str:
    """See whether this node can mount, and tell the engine, so that all ranks mount or none does."""
    local = facts(hello.text)
    try:
        mountpoint = request.mountpoint
        if passed_descriptor(mountpoint) is None:
            check_fuse(request.settings)
            path = expand(mountpoint, hello.rank, local["rank"], socket.gethostname())
            mountpoint = prepare_mountpoint(path)
    except DeepiofsError as error:
        await engine.verdict(error.exit_code, str(error))
        await engine.shared()  # raises the error that the ranks agreed on
        raise
    await engine.verdict(0, mountpoint, door.getsockname()[1] if door else 0)
    return mountpoint


def _filesystem(
    request: Request,
    hello: Hello,
    mountpoint: str,
    engine: EngineProcess,
    shared: Shared,
    link: EngineLink,
    counts: Counts,
    shuffle: Shuffle | None,
    stack: ExitStack,
) -> FileSystem:
    settings = request.settings
    source = open_source(request.source)
    stack.callback(source.close)
    tree = _tree(settings, link, shuffle)
    reader = Reader(
        link, source, counts,
        timeout_s=settings.timeout, verify=settings.verify, staging_bytes=shared.filled_in["staging_bytes"],
    )  # fmt: skip
    identity = Identity(hello.rank, hello.size, hello.node, hello.nodes, engine.process.pid)
    streams = _streams(settings, link, tree, reader, shuffle, shared)
    report = Report(identity, link, counts, reader.source_reads, streams, shuffle)
    order_log = None
    if settings.order_log:
        order_log = OrderLog(settings.order_log.replace("%r", str(hello.rank)))
        stack.callback(order_log.close)
    config = {
        "source": request.source,
        "mountpoint": mountpoint,
        "version": __version__,
        **settings.effective(),
        **shared.filled_in,
    }
    files = (
        ControlFile(b"stats", report.stats_text),
        ControlFile(b"metrics", report.metrics_text),
        ControlFile(b"config", lambda: json.dumps(config, indent=1) + "\n"),
        ControlFile(b"version", lambda: f"{__version__}\n"),
        ControlFile(b"health", report.health_text),
        ControlFile(b"epoch", lambda: f"{report.number}\n", lambda text: _begin_pass(shuffle, text)),
    )
    statistics = Statistics(-(-report.bytes // BLOCK_BYTES), BLOCK_BYTES, link.manifest.n_rows)
    control = ControlTree(files, link.manifest.mode_of[0])
    return FileSystem(tree, control, reader, counts, statistics, streams, shuffle, order_log)


def _tree(settings: Settings, link: EngineLink, shuffle: Shuffle | None) -> Tree:
    """Where others may get in, a name must not stand for what they could not read by its own name."""
    if shuffle is None:
        return Tree(link.manifest, settings, lambda row: False)
    if not settings.allow_other:
        return Tree(link.manifest, settings, shuffle.covers)
    sample_of, group = link.layout["of_row"], link.layout["group"]
    private = mixed_groups(link.manifest, settings, np.where(sample_of < 0, -1, group[sample_of])).data
    return Tree(link.manifest, settings, shuffle.covers, lambda row: bool(private[row]))


def _streams(
    settings: Settings, link: EngineLink, tree: Tree, reader: Reader, shuffle: Shuffle | None, shared: Shared
) -> Streams:
    """Shards of a pass; of what they hold nothing is computed yet."""
    ahead = Ahead(link, shared.filled_in["staging_bytes"], settings.prefetch)
    other = link.requests.give_up_claim
    link.requests.give_up_claim = lambda: ahead.give_up_newest() or other()
    return Streams(
        tree, readable_by_all(link.manifest, settings), formats_of(tree),
        lambda: Orders(link.manifest, link.layout, settings, link.rank),
        reader, ahead, current=lambda: shuffle.number if shuffle else 0,
    )  # fmt: skip


def _prefetcher(settings: Settings, link: EngineLink, shared: Shared) -> Prefetcher:
    """What fetches ahead of the draws; without shuffling there are none."""
    count = settings.prefetch if settings.shuffle != "off" else 0
    first, rows = (link.layout[name].data for name in ("sample_first", "sample_rows")) if count else ([0], [])
    nearby = Nearby(link, lambda sample: rows[first[sample] : first[sample + 1]], link.n_samples if count else 0)
    ahead = Prefetcher(
        link.requests, nearby, count=count, staging_bytes=shared.filled_in["staging_bytes"], timeout_s=settings.timeout,
    )  # fmt: skip
    link.requests.give_up_claim = ahead.give_up_newest
    return ahead


def _shuffle(
    settings: Settings,
    hello: Hello,
    link: EngineLink,
    ahead: Prefetcher,
    listening: socket.socket | None,
    nursery: trio.Nursery,
) -> Shuffle | None:
    """The remapping, if the user declared files interchangeable; the plan is computed from shared columns."""
    if settings.shuffle == "off":
        return None
    columns = link.layout
    membership = Membership(columns["group"], columns["owner"], columns["node"])
    batch = settings.batch if settings.shuffle == "all" else 0
    plan = Plan(membership, settings.seed, settings.entropy, batch)
    roster = Roster(columns["of_row"], columns["sample_first"], columns["sample_rows"], columns["group"])
    shuffle = Shuffle(
        link.manifest, roster, plan, ahead,
        rank=hello.rank, n_ranks=hello.size, seed=settings.seed,
        ask=lambda rank, group, number: link.ask(rank, group, number, settings.timeout),
        rollcall=_rollcall(settings, hello, link, listening, nursery),
    )  # fmt: skip
    nursery.start_soon(shuffle.plan_for_others)
    shuffle.on_losses = lambda: nursery.start_soon(link.tell_lost, list(shuffle.rollcall.losses.since))
    link.on_asked, link.on_answer = shuffle.asked, shuffle.stolen
    return shuffle


def _rollcall(
    settings: Settings, hello: Hello, link: EngineLink, listening: socket.socket | None, nursery: trio.Nursery
) -> RollCall:
    """How the mounts of several ranks find out who is lost; it answers from now on."""
    if listening is None:
        return RollCall(hello.rank, hello.size)
    door = Door(listening, hello.rank, link.doors, link.secret)
    rollcall = RollCall(hello.rank, hello.size, door.call, settings.timeout)
    rollcall.has_engine = lambda: link.running
    link.on_suspect = lambda rank: nursery.start_soon(rollcall.judge, [rank])
    nursery.start_soon(door.serve, rollcall.answer)
    nursery.start_soon(rollcall.run)
    return rollcall


def _begin_pass(shuffle: Shuffle | None, text: str) -> None:
    """Writing `.deepiofs/epoch`; ValueError if it is no pass."""
    number = int(text)
    if not 0 <= number < _PASSES:
        raise ValueError("out of range")
    if shuffle:
        shuffle.begin(number)


async def _read_far_ahead(session: Session, mountpoint: str, connection: int) -> None:
    """Once the kernel and libfuse have agreed on their terms, which would undo it: when the mount answers."""
    with contextlib.suppress(OSError):
        await trio.to_thread.run_sync(os.stat, mountpoint, abandon_on_cancel=True)
        session.read_ahead(connection)


async def _cancel_when_unmounted(here: Mounted, filesystem: FileSystem, scope: trio.CancelScope) -> None:
    """End once it is mounted here no more and no file is open.

    The kernel ends the session by itself only with the last copy of the mount, and every mount namespace that was
    made meanwhile, a container's say, has a copy.
    """
    while is_mounted(here) or filesystem.open_handles:
        await trio.sleep(_LOOK_S)
    scope.cancel()


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as received:
        async for _ in received:
            scope.cancel()


def run(request: Request, live: Callable[[str], None]) -> None:
    """Serve in this process; DeepiofsError if it could not start."""
    # Hydra tells its ranks of the loss of one by SIGUSR1, whose default would end this mount too.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if (descriptor := passed_descriptor(request.mountpoint)) is not None:
        os.set_inheritable(descriptor, False)  # an engine that has it keeps the mount of a dead process alive
    try:
        trio.run(serve, request, live)
    except BaseExceptionGroup as group:
        raise _first_cause(group) from None
    finally:
        sys.stdout.flush()


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Nurseries wrap errors; the user is told of the first of ours."""
    errors = list(_leaves(group))
    return next((error for error in errors if isinstance(error, DeepiofsError)), errors[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
