"""`deepiofs plan`: what an ordering costs and gives, before a job is spent on it."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import ALONE, find_samples, group_samples
from deepiofs.dataset.sources import Selection, Solo, open_source
from deepiofs.errors import EXIT_OK, EnvironmentFault, UsageError
from deepiofs.options import Settings, parse_size
from deepiofs.order.entropy import (
    batch_entropy,
    batch_overhang,
    batched_ordering_entropy,
    full_exchange,
    hybrid_level,
    least_exchange,
    ordering_entropy,
    stolen_share,
)

_CURVE = [i / 100 for i in range(101)]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Sizes of the groups (how many groups of each size), and bytes of it all, None if unknown."""

    groups: dict[int, int]
    n_bytes: int | None

    @property
    def n_samples(self) -> int:
        return sum(size * count for size, count in self.groups.items())

    @property
    def n_groups(self) -> int:
        return sum(self.groups.values())


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a bound gives and costs. Shares are of the samples of a pass; bytes per node."""

    entropy_bound: float
    entropy: float
    deepio_level: float
    batch_entropy: float | None
    exchange: float
    in_streams: float
    stolen: float
    from_peers: float
    peer_bytes: int | None
    memory_bytes: int | None


def plan(args: argparse.Namespace, settings: Settings) -> int:
    """Print the table, and draw the curve if asked."""
    dataset = _dataset(args, settings)
    if args.nodes < 1 or args.ranks_per_node < 1:
        raise UsageError("--nodes and --ranks-per-node: expected positive numbers")
    if not 0 <= args.entropy <= 1:
        raise UsageError("--entropy: expected a number from 0 to 1")
    costs = estimate(dataset, args.nodes, args.ranks_per_node, args.entropy, args.batch)
    if args.json:
        print(json.dumps({"samples": dataset.n_samples, "groups": dataset.n_groups, **dataclasses.asdict(costs)}))
    else:
        Console().print(_table(dataset, args, costs))
    if args.plot:
        _plot(dataset, args)
    return EXIT_OK


def estimate(dataset: Dataset, n_nodes: int, ranks_per_node: int, bound: float, batch: int = 0) -> Costs:
    """The figures for one bound; groups of one size are alike, so each size is computed once."""
    n_ranks = n_nodes * ranks_per_node
    total = max(dataset.n_samples, 1)
    # Batches are of all samples together: in streams, and by name where all are interchangeable.
    dealt = batch if dataset.n_groups == 1 else 0
    q = {size: _leaving(size, n_nodes, bound, dealt) for size in dataset.groups}
    exchange = sum(size * count * q[size] for size, count in dataset.groups.items()) / total
    equal_groups = max(total / max(sum(s * s * c for s, c in dataset.groups.items()) / total, 1), 1.0)
    stolen = sum(s * c * stolen_share(s, equal_groups, n_ranks) for s, c in dataset.groups.items()) / total
    abroad = (n_ranks - ranks_per_node) / max(n_ranks - 1, 1)
    from_peers = min(exchange + stolen * abroad, 1.0)
    largest = max(dataset.groups, default=1)
    n_bytes = dataset.n_bytes
    return Costs(
        entropy_bound=bound,
        entropy=min((_entropy(size, n_nodes, q[size], dealt) for size in q), default=1.0),
        deepio_level=hybrid_level(largest, n_nodes),
        batch_entropy=_batch_entropy(largest, total, n_nodes, q.get(largest, 0.0), batch, dealt) if batch else None,
        exchange=exchange,
        in_streams=_leaving(dataset.n_samples, n_nodes, bound, batch),
        stolen=stolen,
        from_peers=from_peers,
        peer_bytes=None if n_bytes is None else round(n_bytes / n_nodes * from_peers),
        memory_bytes=None if n_bytes is None else -(-n_bytes // n_nodes),
    )


def _leaving(size: int, n_nodes: int, bound: float, batch: int) -> float:
    """The share of a group's samples that leave their node: the overhang of batches, else what the bound asks for."""
    return batch_overhang(size, n_nodes, batch) if batch else least_exchange(size, n_nodes, bound)


def _entropy(size: int, n_nodes: int, q: float, batch: int) -> float:
    """E of who serves what when."""
    return batched_ordering_entropy(size, n_nodes, batch) if batch else ordering_entropy(size, n_nodes, q)


def _batch_entropy(size: int, total: int, n_nodes: int, q: float, batch: int, dealt: int) -> float:
    """Of a group's part of each global batch; a full shuffle's where batches are dealt as such."""
    if dealt:
        return 1.0
    return batch_entropy(size, n_nodes, q, max(round(batch * size / total), 1))


def _dataset(args: argparse.Namespace, settings: Settings) -> Dataset:
    if (args.source is None) == (args.samples is None):
        raise UsageError("plan: give either SOURCE or --samples N")
    if args.source is not None:
        return _scan(args.source, settings)
    if args.samples < 1 or not 1 <= args.groups <= args.samples:
        raise UsageError("--samples and --groups: expected positive numbers, and no more groups than samples")
    size, larger = divmod(args.samples, args.groups)
    groups = collections.Counter({size: args.groups - larger})
    groups[size + 1] += larger
    each = parse_size(args.sample_bytes) if args.sample_bytes else None
    return Dataset({s: c for s, c in groups.items() if c}, None if each is None else each * args.samples)


def _scan(name: str, settings: Settings) -> Dataset:
    """Groups as `shuffle` says (dir, unless it is given)."""
    source = open_source(name)
    try:
        found = source.scan(Selection(settings.include, settings.exclude, settings.links), Solo())
    finally:
        source.close()
    assert found is not None
    manifest = Manifest(*found)
    samples = find_samples(manifest)
    shuffle = "dir" if settings.shuffle == "off" else settings.shuffle
    group = group_samples(manifest, samples, shuffle, settings.shuffle_only)
    sizes = collections.Counter(collections.Counter(group[group != ALONE].tolist()).values())
    return Dataset(dict(sizes), int(manifest.sizes[manifest.is_regular].sum()))


def _table(dataset: Dataset, args: argparse.Namespace, costs: Costs) -> Table:
    title = (
        f"{dataset.n_samples} samples in {dataset.n_groups} groups, "
        f"{args.nodes} nodes of {args.ranks_per_node} ranks, entropy {args.entropy:g}"
    )
    table = Table(title=title, title_justify="left", show_header=False)
    rows: dict[str, Any] = {
        "ordering entropy E": f"{costs.entropy:.3f} of a full shuffle's",
        "DeepIO's RL, nodes apart": f"{costs.deepio_level:.3f}",
        "batch composition entropy": "-" if costs.batch_entropy is None else f"{costs.batch_entropy:.3f}",
        "exchange q": f"{costs.exchange:.3f}",
        "stolen (random sampler)": f"{100 * costs.stolen:.1f} %",
        "read from peers": f"{100 * costs.from_peers:.1f} %",
        "read from peers, by streams": f"{100 * costs.in_streams:.1f} %",
        "from peers per node and pass": _gb(costs.peer_bytes),
        "memory for samples per node": _gb(costs.memory_bytes),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _gb(size: int | None) -> str:
    return "- (give SOURCE or --sample-bytes)" if size is None else f"{size / 1e9:.3f} GB"


def _plot(dataset: Dataset, args: argparse.Namespace) -> None:
    """E against the share read from peers, for all exchanges."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise EnvironmentFault("--plot needs matplotlib; install deepiofs[plot]") from None
    largest = max(dataset.groups)
    q = [share * full_exchange(args.nodes) for share in _CURVE]
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([100 * x for x in q], [ordering_entropy(largest, args.nodes, x) for x in q])
    axes.axhline(args.entropy, linestyle=":", color="grey")
    axes.set(
        xlabel="samples read from peers, %", ylabel="ordering entropy E",
        title=f"group of {largest} samples, {args.nodes} nodes",
    )  # fmt: skip
    try:
        figure.savefig(args.plot)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {args.plot}: {error}") from None
