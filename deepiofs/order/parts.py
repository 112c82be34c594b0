"""A rank's queue dealt over the parts that its readers ask for, and made even if that is wanted.

Parts are numbered as the readers number them, 0 to PARTS - 1. With batches, part p has the local batches p,
p + PARTS, ...: loader workers take turns batch by batch, so that the batches come in their order. Without, samples go
round.

Even parts have the same number of samples over all ranks and parts: `drop` the most that every part can have, `pad`
the least that holds all. What a part has above that goes to those which lack some, then is left out (`drop`); what
still is missing is repeated from the part's own beginning (`pad`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def even_size(shares: Ints, parts: int, even: str) -> int | None:
    """Samples of each part; None if they need not be equal. shares: int64 (n_ranks,), samples of each rank."""
    if even == "off":
        return None
    return int(shares.min()) // parts if even == "drop" else -(-int(shares.max()) // parts)


def part_places(n_samples: int, part: int, parts: int, edges: Ints | None = None, size: int | None = None) -> Ints:
    """The places of a queue that a part has, in order; int64.

    edges: int64 (n_batches + 1,), where the local batches begin, if there are batches. size: from `even_size`; a part
    has fewer only if nothing is there to repeat.
    """
    if size is None:
        return _dealt(n_samples, part, parts, edges)
    counts = _counts(n_samples, parts, edges)
    kept = np.minimum(counts, size)
    mine = _dealt(n_samples, part, parts, edges)[: kept[part]]
    if (missing := size - len(mine)) == 0:
        return mine
    before = int((size - kept[:part]).sum())
    given = _surplus(n_samples, parts, edges, counts, size)[before : before + missing]
    mine = np.concatenate((mine, given))
    if len(mine) < size:
        again = mine if len(mine) else np.arange(n_samples)
        mine = np.concatenate((mine, np.resize(again, size - len(mine)))) if len(again) else mine
    return mine


def _dealt(n_samples: int, part: int, parts: int, edges: Ints | None) -> Ints:
    if edges is None:
        return np.arange(part, n_samples, parts, dtype=np.int64)
    begins, ends = edges[:-1][part::parts], edges[1:][part::parts]
    lengths = ends - begins
    first = np.cumsum(lengths) - lengths
    places: Ints = np.arange(lengths.sum()) + np.repeat(begins - first, lengths)
    return places


def _counts(n_samples: int, parts: int, edges: Ints | None) -> Ints:
    """Samples of each part as dealt; int64 (parts,)."""
    if edges is None:
        return (n_samples - np.arange(parts) + parts - 1) // parts
    lengths = np.diff(edges)
    return np.bincount(np.arange(len(lengths)) % parts, lengths, parts).astype(np.int64)


def _surplus(n_samples: int, parts: int, edges: Ints | None, counts: Ints, size: int) -> Ints:
    """The places that parts have above an even size, part by part; int64."""
    above = [_dealt(n_samples, int(part), parts, edges)[size:] for part in np.flatnonzero(counts > size)]
    return np.concatenate(above) if above else np.empty(0, np.int64)
