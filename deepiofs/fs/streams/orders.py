"""Which files a stream has, in which order: the plan of a pass over all that `shuffle_only` selects, as one group.

Computed when the first stream is asked for: a mount whose streams nobody reads pays nothing for them. With `shuffle`
the engine has shared the samples and their owners; without, they are found again here, as pure functions of the
index, the same on every rank.

**Threading.** Any one thread at a time: whoever calls sees to that.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import find_samples, group_samples, meant_samples
from deepiofs.fs.streams.layout import Rows
from deepiofs.memory.placement import deal_samples
from deepiofs.options import Settings
from deepiofs.order.parts import even_size, part_places
from deepiofs.order.plan import Ids, Membership, Plan

# Passes whose queue is kept: the current and the next, and one that somebody still looks at. 4 bytes per sample.
_PASSES_KEPT = 3


class Orders:
    """The streams' samples of one mount."""

    def __init__(
        self, manifest: Manifest, layout: Mapping[str, npt.NDArray[Any]], settings: Settings, rank: int
    ) -> None:
        """layout: the columns that the engine shares."""
        self._rank, self._n_ranks = rank, len(layout["node"])
        self._even = settings.even
        if "owner" in layout:
            self._first, self._rows, owner = layout["sample_first"], layout["sample_rows"], layout["owner"]
        else:
            samples = find_samples(manifest)
            alone = group_samples(manifest, samples, "off")
            self._first, self._rows = samples.first, samples.rows
            owner = deal_samples(manifest, samples, alone, self._n_ranks)
        meant = meant_samples(manifest, self._rows[self._first[:-1]], settings.shuffle_only)
        group = np.where(meant, 0, -1).astype(np.int32)
        self.plan = Plan(Membership(group, owner, layout["node"]), settings.seed, settings.entropy, settings.batch)
        self._queues: collections.OrderedDict[int, Ids] = collections.OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether there is no sample at all."""
        return not self.plan.n_groups

    def rows(self, number: int, part: int, parts: int) -> Rows:
        """The files of a part of this rank's queue of a pass: sample by sample, the files of each by their suffixes."""
        if self.is_empty:
            return np.empty(0, np.uint32)
        return self._files(self._samples(number, part, parts))

    def _samples(self, number: int, part: int, parts: int) -> Ids:
        plan, queue = self.plan, self._queue(number)
        shares = np.array([plan.queue_size(rank, 0) for rank in range(self._n_ranks)], np.int64)
        size = even_size(shares, parts, self._even)
        places = part_places(len(queue), part, parts, plan.batch_edges(self._rank, 0), size)
        if size and not len(queue):  # fewer samples than ranks, and some to be repeated
            return plan.queue(int(shares.argmax()), 0, number)[:1].repeat(size)
        return queue[places]

    def _files(self, samples: Ids) -> Rows:
        begins = self._first[samples]
        counts = self._first[samples.astype(np.int64) + 1] - begins
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)
        rows: Rows = self._rows[places]
        return rows

    def _queue(self, number: int) -> Ids:
        if number in self._queues:
            self._queues.move_to_end(number)
            return self._queues[number]
        queue = self._queues[number] = self.plan.queue(self._rank, 0, number)
        while len(self._queues) > _PASSES_KEPT:
            self._queues.popitem(last=False)
        return queue
