"""How random orders are, and what they cost: `python -m tests.benchmarks.shuffles [SAMPLES] [PASSES]`.

One pass over SAMPLES samples (65,536) on 8 nodes with a global batch of 256. Beside deepiofs's plans: WebDataset's
shuffle buffer (PyPI `webdataset`, called as it comes) over shards that are read in random order, and the shuffles of
MosaicML streaming (PyPI `mosaicml-streaming`, its package `streaming.base.shuffle` as it comes; `pip install --no-deps`
will do, as that part needs numpy alone). What is not installed is left out.

- E: ordering entropy, where a formula is known for it (deepiofs).
- reach: mean distance of a sample from where it stands in the dataset; a uniform shuffle has 1.
- neighbours: bits of differences of neighbours in the global order (MosaicML's measure), beside a uniform shuffle's.
- classes met: classes in a batch beside a uniform shuffle's, if the dataset is sorted by 1,000 classes.
- from peers: share of samples that another node than their own serves; the other two read from the source instead.
- buffer: samples that a node holds for the sake of order.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepiofs.order.entropy import neighbour_entropy
from deepiofs.order.plan import Membership, Plan

_NODES, _BATCH, _SHARD, _CLASSES = 8, 256, 1024, 1000
_BUFFER = 5000

Order = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """order: a pass, as the global order in which samples are trained on; other figures as text."""

    name: str
    order: Callable[[int], Order]
    entropy: str
    peers: str
    buffer: str


def _interleaved(queues: list[Order]) -> Order:
    """The order of batches to which each node gives its part."""
    share = _BATCH // _NODES
    length = min(map(len, queues)) // share * share
    return np.concatenate([queue[:length].reshape(-1, share) for queue in queues], axis=1).reshape(-1)


def ours(n: int, entropy: float, batch: int) -> Way:
    """A plan of deepiofs; samples are dealt to the nodes round."""
    node = np.arange(_NODES, dtype=np.int32)
    plan = Plan(Membership(np.zeros(n, np.int32), (np.arange(n) % _NODES).astype(np.int32), node), 0, entropy, batch)

    def order(number: int) -> Order:
        return _interleaved([plan.queue(rank, 0, number).astype(np.int64) for rank in range(_NODES)])

    name = f"deepiofs, batch={batch}" if batch else f"deepiofs, entropy={entropy:g}"
    return Way(name, order, f"{plan.served_entropy():.3f}", f"{100 * plan.exchange_fraction():.1f} %", "0")


def webdataset_buffer(n: int) -> Way | None:
    """Shards in random order, each node its own of them, through the shuffle buffer."""
    if importlib.util.find_spec("webdataset") is None:
        return None
    filters = importlib.import_module("webdataset.filters")

    def of_node(node: int, number: int) -> Iterator[int]:
        shards = list(range(0, n, _SHARD))
        random.Random(number).shuffle(shards)
        samples = (i for begin in shards[node::_NODES] for i in range(begin, min(begin + _SHARD, n)))
        shuffled: Iterator[int] = filters.shuffle(_BUFFER, initial=_BUFFER, rng=random.Random(node))(samples)
        return shuffled

    def order(number: int) -> Order:
        return _interleaved([np.fromiter(of_node(node, number), np.int64) for node in range(_NODES)])

    return Way(f"WebDataset, buffer of {_BUFFER:,}", order, "-", "source", f"{_BUFFER:,}")


def mosaicml(n: int) -> list[Way]:
    """The algorithms of `streaming.base.shuffle`, each node a part of the order."""
    found = importlib.util.find_spec("streaming")
    if found is None or not found.submodule_search_locations:
        return []
    folder = found.submodule_search_locations[0]
    for name, path in (("streaming", folder), ("streaming.base", f"{folder}/base")):
        # Without running the packages' own imports, of cloud libraries that no shuffle needs.
        module = types.ModuleType(name)
        module.__path__ = [path]
        sys.modules[name] = module
    get_shuffle = importlib.import_module("streaming.base.shuffle").get_shuffle
    sizes = np.full(n // _SHARD, _SHARD, np.int64)

    def way(algorithm: str, block: int) -> Way:
        def order(number: int) -> Order:
            whole = get_shuffle(algorithm, sizes, _NODES, 0, number, block)
            return _interleaved(np.array_split(whole, _NODES))

        return Way(f"MosaicML {algorithm}", order, "-", "source", f"{block:,}" if algorithm != "py1s" else "all")

    # Blocks as its simulator proposes for small datasets; py1s shuffles each node's whole part.
    return [way("py1s", 1 << 18), way("py1e", 1 << 12), way("py1br", 1 << 12)]


def in_order(n: int) -> Way:
    """A full shuffle, to compare with."""
    return Way(
        "full shuffle", lambda number: np.random.default_rng(number).permutation(n), "1.000",
        f"{100 * (1 - 1 / _NODES):.1f} %", "0",
    )  # fmt: skip


def figures(order: Order, n: int) -> npt.NDArray[np.float64]:
    """(reach, neighbour bits, classes per batch), the first as a share of a random order's."""
    reach = np.abs(order / n - np.arange(len(order)) / len(order)).mean() * 3
    classes = (order * _CLASSES // n)[: len(order) // _BATCH * _BATCH].reshape(-1, _BATCH)
    met = np.mean([len(np.unique(batch)) for batch in classes])
    ranks = np.argsort(np.argsort(order))
    return np.array([reach, neighbour_entropy(ranks), met])


def main() -> None:
    n = int(sys.argv[1]) if sys.argv[1:] else 65_536
    passes = int(sys.argv[2]) if sys.argv[2:] else 3
    full = in_order(n)
    ways = [
        full,
        ours(n, 1, 0),
        ours(n, 0.9, 0),
        ours(n, 0, 0),
        ours(n, 0.9, _BATCH),
        webdataset_buffer(n),
        *mosaicml(n),
    ]
    reference = np.mean([figures(full.order(number), n) for number in range(passes)], axis=0)
    reference[0] = 1
    print("| order | E | reach | neighbours | classes met | from peers | buffer |\n|---|---|---|---|---|---|---|")
    for way in filter(None, ways):
        found = np.mean([figures(way.order(number), n) for number in range(passes)], axis=0) / reference
        shares = " | ".join(f"{share:.3f}" for share in found)
        print(f"| {way.name} | {way.entropy} | {shares} | {way.peers} | {way.buffer} |", flush=True)


if __name__ == "__main__":
    main()
