"""From the mount's first word to a rank that serves: world, budget, manifest, placement, segments.

**Collective.** Every step is taken by all ranks; where one can fail, `agree` makes all of them fail together, so
that none is left waiting in MPI for a rank that has given up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.pairs import refuse_pairs
from deepiofs.dataset.samples import Samples, find_samples, group_samples
from deepiofs.dataset.selection import Globs
from deepiofs.dataset.sources import Selection, Source, open_source
from deepiofs.engine.addresses import host_addresses
from deepiofs.engine.indexing import obtain_manifest
from deepiofs.engine.peers import Peers
from deepiofs.engine.world import World, agree
from deepiofs.errors import DeepiofsError, MountPointError, error_for
from deepiofs.memory import columns_segment
from deepiofs.memory.board import Board
from deepiofs.memory.budget import Budget, plan_budget
from deepiofs.memory.placement import Placement, Replicas, Units, deal_samples, nearest, place, replicate
from deepiofs.memory.segments import Segment
from deepiofs.memory.store import Store, span
from deepiofs.memory.wire import Channel, Hello, Share, Started, Verdict
from deepiofs.options import Settings

_SECRET_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank, ready to serve."""

    manifest: Manifest
    units: Units
    placement: Placement
    replicas: Replicas
    stores: dict[int, Store]
    segments: dict[str, Segment]
    board: Board
    source: Source
    budget: Budget


@dataclasses.dataclass(frozen=True)
class Doors:
    """How mounts call each other: addresses and port of each rank's, and the job's secret, in hexadecimal digits."""

    places: list[tuple[list[str], int]]
    secret: str


async def greet(channel: Channel, world: World) -> Doors:
    """Tell the mount who it is, hear whether it can mount, and see that no two ranks mean the same place."""
    local = json.dumps({"rank": world.node_ranks.index(world.rank), "size": len(world.node_ranks)})
    await channel.send(Hello(world.rank, world.size, world.node, world.nodes, local))
    received = await channel.receive()
    if received is None or not isinstance(received[0], Verdict):
        raise DeepiofsError("the mount went away during start-up")
    verdict = received[0]
    agree(world, error_for(verdict.code, verdict.text) if verdict.code else None)
    places = world.allgather((world.host, verdict.text))
    first = places.index(places[world.rank])
    clash = f"ranks {first} and {world.rank} would both mount at {verdict.text}; put %r or %l into the mount point"
    agree(world, None if first == world.rank else MountPointError(clash))
    doors = world.allgather((host_addresses(), verdict.port))
    return Doors(doors, world.allgather(os.urandom(_SECRET_BYTES).hex())[0])


def prepare(world: World, source_name: str, settings: Settings, doors: Doors) -> Rank:
    """**Collective.** All that comes before serving."""
    with _agreed(world):
        budget = plan_budget(settings, len(world.node_ranks))
        source = open_source(source_name)
    selection = Selection(settings.include, settings.exclude, settings.links)
    with _agreed(world):
        made = obtain_manifest(source, selection, settings.index, world)
    manifest_segment = world.share_manifest(made)
    manifest = Manifest(*columns_segment.read(manifest_segment))
    units = Units.of(manifest)
    caches = world.allgather(budget.cache)
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, settings.shuffle, settings.shuffle_only)
    with _agreed(world):
        if world.rank == 0:
            refuse_pairs(manifest, samples, group, settings.shuffle)
    owner = deal_samples(manifest, samples, group, world.size)
    placement = place(manifest, units, samples, group, owner, caches)
    wanted = _wanted(manifest, units, settings.replicate)
    replicas = replicate(placement, units, wanted, world.node_ranks, [caches[r] for r in world.node_ranks])
    store = Segment.create("store", _store_bytes(world.rank, placement, replicas, units))
    home, at = nearest(placement, replicas)
    layout: dict[str, npt.NDArray[Any]] = {"home": home, "at": at, "first": units.first.astype(np.uint32)}
    layout["node"] = np.array(world.allgather(world.node), np.int32)
    if settings.shuffle != "off":
        layout |= _roster(samples, group, owner)
    told = {"samples": len(samples), "doors": doors.places, "secret": doors.secret}
    layout_segment = columns_segment.create("layout", told, layout)
    units, placement = _shared(layout_segment, units, placement, replicas)
    segments = {
        "manifest": manifest_segment,
        "layout": layout_segment,
        "staging": Segment.create("staging", budget.staging),
        "store": store,
    }
    stores = {rank: Store(segment) for rank, segment in world.share_stores(store).items()}
    return Rank(manifest, units, placement, replicas, stores, segments, Board.create(), source, budget)


async def share(channel: Channel, world: World, rank: Rank) -> None:
    """Hand the segments to the mount."""
    for name in ("manifest", "layout", "staging"):
        await channel.send(Share(world.rank, name), rank.segments[name].fd)
    await channel.send(Share(world.rank, "board"), rank.board.segment.fd)
    for owner, store in rank.stores.items():
        await channel.send(Share(owner, "store"), store.segment.fd)
    filled_in = {
        "cache_bytes": rank.budget.cache,
        "staging_bytes": rank.budget.staging,
        "store_bytes": rank.segments["store"].size,
    }
    await channel.send(Started(json.dumps(filled_in)))


def connect(world: World, rank: Rank) -> Peers:
    """**Collective.** Expose this rank's store to the others."""
    with _agreed(world):
        return world.peers(rank.segments["store"])


@contextlib.contextmanager
def _agreed(world: World) -> Iterator[None]:
    """**Collective.** An error of the block on any rank is raised on all of them."""
    error: DeepiofsError | None = None
    try:
        yield
    except DeepiofsError as failure:
        error = failure
    agree(world, error)


def _shared(layout: Segment, units: Units, placement: Placement, replicas: Replicas) -> tuple[Units, Placement]:
    """The same columns, as views of the segment that the mount maps too: of millions of files they are held once."""
    _, columns = columns_segment.read(layout)
    units = dataclasses.replace(units, first=columns["first"])
    if not len(replicas.unit):  # else the layout says where units lie for this node only
        placement = dataclasses.replace(placement, home=columns["home"], at=columns["at"])
    return units, placement


def _roster(
    samples: Samples, group: npt.NDArray[np.int32], owner: npt.NDArray[np.int32]
) -> dict[str, npt.NDArray[Any]]:
    """What a mount needs to plan passes, beside each rank's node (`order.plan.Membership`, `fs.roster.Roster`)."""
    return {
        "of_row": samples.of_row,
        "sample_first": samples.first,
        "sample_rows": samples.rows,
        "group": group,
        "owner": owner,
    }


def _wanted(manifest: Manifest, units: Units, patterns: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Which units every node keeps, bool (n_units,)."""
    globs = Globs(patterns)
    rows = np.zeros(manifest.n_rows, bool)
    if globs:
        # Any name of a file may be meant, not only the first.
        for row in np.flatnonzero(manifest.is_regular).tolist():
            if globs.cover(manifest.path(row)):
                rows[manifest.content_of[row]] = True
    wanted: npt.NDArray[np.bool_] = rows[units.row]
    return wanted


def _store_bytes(rank: int, placement: Placement, replicas: Replicas, units: Units) -> int:
    """What this rank's own units and further copies take."""
    mine = replicas.holder == rank
    ends = replicas.at[mine] + span(units.size[replicas.unit[mine]].astype(np.int64))
    return int(max(placement.store_bytes[rank], ends.max(initial=0)))
