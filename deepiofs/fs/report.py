"""What a mount says of itself: `stats`, `metrics`, `health`. One table gives the names, kinds and meanings.

`stats` is JSON with every row of the table; `metrics` is the Prometheus text format (version 0.0.4) with the same
names behind `deepiofs_`, where a text value becomes a label of a constant 1.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deepiofs import __version__
from deepiofs.fs.counts import Counts, by_origin
from deepiofs.fs.enginelink import EngineLink
from deepiofs.fs.shuffle import Shuffle
from deepiofs.fs.sourcereads import SourceReads
from deepiofs.fs.streams.tree import Streams
from deepiofs.memory.board import Counter
from deepiofs.order.members import Losses


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which rank this is, of how many, and on which node."""

    rank: int
    size: int
    node: int
    nodes: int
    engine_pid: int


Value = int | float | str | None | Mapping[str, int | float | None]


@dataclasses.dataclass(frozen=True)
class Metric:
    """One row: `label` names the key of a mapping."""

    name: str
    kind: str
    meaning: str
    value: Callable[[Report], Value]
    label: str = ""


class Report:
    """Renders what the counters and the engine's board say now."""

    def __init__(
        self,
        identity: Identity,
        link: EngineLink,
        counts: Counts,
        reads: SourceReads,
        streams: Streams,
        shuffle: Shuffle | None = None,
    ) -> None:
        self.identity, self.link, self.counts, self.shuffle = identity, link, counts, shuffle
        self.streams = streams
        self._reads = reads
        plan = shuffle.plan if shuffle else None
        self.entropy = {
            "bound": plan.entropy_bound if plan else None,
            "planned": round(plan.planned_entropy(), 6) if plan else None,
            "served": round(plan.served_entropy(), 6) if plan else None,
            "batch": 1.0 if plan and plan.batch else None,
        }
        self.exchange_fraction = round(plan.exchange_fraction(), 6) if plan else 0.0
        self._started = time.monotonic()
        manifest = link.manifest
        self.files = int(manifest.is_regular.sum())
        self.bytes = int(manifest.sizes[manifest.is_regular].sum())

    @property
    def number(self) -> int:
        """The pass of the last draw."""
        return self.shuffle.number if self.shuffle else 0

    @property
    def losses(self) -> Losses:
        """Which ranks are out of the passes."""
        return self.shuffle.rollcall.losses if self.shuffle else Losses()

    @property
    def members(self) -> int:
        """How many ranks take part in the pass of the last draw."""
        return self.identity.size - len(self.losses.out_in(self.number))

    def _loss(self, rank: int, number: int) -> str:
        if rank == self.identity.rank:
            return f"this rank is out since pass {number}: it serves what the others leave"
        return f"rank {rank} is out since pass {number}: its samples are served by the others"

    @property
    def uptime_s(self) -> float:
        return round(time.monotonic() - self._started, 3)

    @property
    def state(self) -> str:
        return "warm" if self.link.board[Counter.STATE_WARM] else "loading"

    @property
    def verify_failures(self) -> int:
        return self.counts.verify_failures + self.link.board[Counter.VERIFY_FAILURES]

    @property
    def source_hangs(self) -> int:
        """Reads of the source that hang, of this mount and its engine; a lost engine waits for nothing."""
        return self._reads.hanging + (self.link.board[Counter.SOURCE_HANGS] if self.link.running else 0)

    @property
    def rss_bytes(self) -> int:
        """Memory of both processes, what they share counted once (Pss of smaps_rollup, proc(5))."""
        return sum(_pss_bytes(pid) for pid in (os.getpid(), self.identity.engine_pid))

    def stats(self) -> dict[str, Value]:
        return {metric.name: metric.value(self) for metric in METRICS}

    def stats_text(self) -> str:
        return json.dumps(self.stats(), indent=1) + "\n"

    def metrics_text(self) -> str:
        return "".join(_exposed(metric, metric.value(self)) for metric in METRICS)

    def health_text(self) -> str:
        """`ok`, or a line for each thing that is degraded."""
        return "\n".join(self.complaints() or ["ok"]) + "\n"

    def complaints(self) -> list[str]:
        board = self.link.board
        lines = [] if self.link.running else ["engine lost: serving resident memory and the source, no peers"]
        lines += [self._loss(rank, number) for rank, number in self.losses.since.items()]
        for count, text in (
            (board[Counter.PEERS_SUSPECT], "peers do not answer; their samples come from the source"),
            (board[Counter.QUARANTINED_BYTES], "bytes of staging wait for gets and source reads that were given up"),
            (board[Counter.BROKEN_UNITS], "units could not be loaded from the source; see the log"),
            (self.source_hangs, "reads of the source hang; see the log for the files"),
            (self.verify_failures, "digests differed; these samples came from the source"),
            (board[Counter.MPI_ERRORS], "gets failed in MPI"),
            (self.counts.engine_timeouts, "requests were not answered by the engine"),
        ):
            if count:
                lines.append(f"{count} {text}")
        return lines


METRICS: tuple[Metric, ...] = (
    Metric("rank", "gauge", "number of this rank", lambda r: r.identity.rank),
    Metric("size", "gauge", "ranks of this mount", lambda r: r.identity.size),
    Metric("node", "gauge", "number of this node", lambda r: r.identity.node),
    Metric("nodes", "gauge", "nodes of this mount", lambda r: r.identity.nodes),
    Metric("state", "gauge", "loading, or warm when all ranks have loaded", lambda r: r.state, "value"),
    Metric("samples", "gauge", "samples in the view", lambda r: r.link.n_samples),
    Metric("files", "gauge", "files in the view", lambda r: r.files),
    Metric("bytes", "gauge", "bytes of all files", lambda r: r.bytes),
    Metric("resident_bytes", "gauge", "bytes in this rank's store", lambda r: r.link.board[Counter.LOADED_BYTES]),
    Metric("own_bytes", "gauge", "bytes this rank is to hold", lambda r: r.link.board[Counter.OWN_BYTES]),
    Metric("staged_bytes", "gauge", "bytes in staging", lambda r: r.link.board[Counter.STAGED_BYTES]),
    Metric(
        "quarantined_bytes",
        "gauge",
        "bytes of staging that gets and source reads given up may still write to",
        lambda r: r.link.board[Counter.QUARANTINED_BYTES],
    ),
    Metric("pass", "gauge", "current pass", lambda r: r.number),
    Metric("members", "gauge", "ranks that take part in the current pass", lambda r: r.members),
    Metric("draws", "counter", "samples drawn", lambda r: r.shuffle.draws if r.shuffle else 0),
    Metric("requests", "counter", "requests of the kernel", lambda r: r.counts.requests),
    Metric("opens", "counter", "files opened", lambda r: r.counts.opens),
    Metric("reads", "counter", "read requests answered", lambda r: r.counts.reads),
    Metric("bytes_served", "counter", "bytes answered", lambda r: r.counts.bytes_served),
    Metric("served", "counter", "reads by where they came from", lambda r: by_origin(r.counts.served), "origin"),
    Metric("served_bytes", "counter", "bytes by origin", lambda r: by_origin(r.counts.served_bytes), "origin"),
    Metric(
        "source_bytes",
        "counter",
        "bytes read from the source by this rank, loading included",
        lambda r: r.counts.source_bytes + r.link.board[Counter.SOURCE_BYTES],
    ),
    Metric(
        "fetch_ms",
        "gauge",
        "milliseconds a fetch took, of the last 1024",
        lambda r: {"p50": r.counts.fetch_quantile(0.5), "p99": r.counts.fetch_quantile(0.99)},
        "quantile",
    ),
    Metric(
        "steals", "counter", "samples taken from another rank's queue", lambda r: r.shuffle.steals if r.shuffle else 0
    ),
    Metric("stalls", "counter", "draws that waited to be fetched", lambda r: r.shuffle.stalls if r.shuffle else 0),
    Metric(
        "stall_ms",
        "counter",
        "milliseconds that draws waited",
        lambda r: round(r.shuffle.stall_s * 1000) if r.shuffle else 0,
    ),
    Metric("verify_failures", "counter", "digests that differed", lambda r: r.verify_failures),
    Metric("peer_timeouts", "counter", "gets abandoned", lambda r: r.link.board[Counter.PEER_TIMEOUTS]),
    Metric("mpi_errors", "counter", "gets that MPI failed", lambda r: r.link.board[Counter.MPI_ERRORS]),
    Metric("peers_suspect", "gauge", "peers not asked for now", lambda r: r.link.board[Counter.PEERS_SUSPECT]),
    Metric("source_hangs", "gauge", "reads of the source that hang now", lambda r: r.source_hangs),
    Metric("entropy", "gauge", "ordering entropy", lambda r: r.entropy, "kind"),
    Metric("exchange_fraction", "gauge", "share of samples that change node in a pass", lambda r: r.exchange_fraction),
    Metric(
        "stream_entropy",
        "gauge",
        "ordering entropy of each open stream",
        lambda r: r.streams.of_open(lambda stream, orders: round(orders.plan.served_entropy(), 6)),
        "stream",
    ),
    Metric(
        "stream_batch_entropy",
        "gauge",
        "entropy of what meets in a batch, of each open stream; none without batches",
        lambda r: r.streams.of_open(lambda stream, orders: 1.0 if orders.plan.batch else None),
        "stream",
    ),
    Metric(
        "stream_peer_share",
        "gauge",
        "share of each open stream's bytes that other nodes hold",
        lambda r: r.streams.of_open(lambda stream, orders: stream.peer_share),
        "stream",
    ),
    Metric(
        "stream_position",
        "gauge",
        "byte that each open stream was read to last",
        lambda r: r.streams.of_open(lambda stream, orders: stream.position),
        "stream",
    ),
    Metric("errors", "counter", "requests that failed, by errno", lambda r: dict(r.counts.errors), "errno"),
    Metric("left_out", "gauge", "names of the source left out", lambda r: r.link.manifest.meta["left_out"], "reason"),
    Metric("rss_bytes", "gauge", "memory of both processes, shared counted once", lambda r: r.rss_bytes),
    Metric("engine", "gauge", "running or lost", lambda r: "running" if r.link.running else "lost", "value"),
    Metric("uptime_s", "gauge", "seconds since the mount", lambda r: r.uptime_s),
    Metric("pid", "gauge", "process of the mount", lambda r: os.getpid()),
    Metric("engine_pid", "gauge", "process of the engine", lambda r: r.identity.engine_pid),
    Metric("version", "gauge", "of deepiofs", lambda r: __version__, "value"),
)


def _exposed(metric: Metric, value: Value) -> str:
    """A metric in the Prometheus text format."""
    name = f"deepiofs_{metric.name}"
    if isinstance(value, str):
        samples = [f'{name}{{{metric.label}="{value}"}} 1']
    elif isinstance(value, Mapping):
        samples = [f'{name}{{{metric.label}="{key}"}} {number}' for key, number in value.items() if number is not None]
    else:
        samples = [f"{name} {value}"]
    return "\n".join([f"# HELP {name} {metric.meaning}", f"# TYPE {name} {metric.kind}", *samples]) + "\n"


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except (OSError, ProcessLookupError):
        pass
    return 0
