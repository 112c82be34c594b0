"""Which files a stream has: the same of all ranks without a word between them, each once, in the plan's order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import find_samples, group_samples
from deepiofs.fs.streams.orders import Orders
from deepiofs.memory.placement import deal_samples
from deepiofs.options import Settings
from tests.unit.jobs import Dataset

_NODE = np.array([0, 0, 1, 2], np.int32)
_FILES = {b"c%d/%03d.%s" % (i % 3, i, suffix): b"x" * i for i in range(90) for suffix in (b"cls", b"jpg")[: 1 + i % 2]}


def _layout(manifest: Manifest, shuffle: str) -> Mapping[str, npt.NDArray[Any]]:
    """What the engine shares."""
    if shuffle == "off":
        return {"node": _NODE}
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, shuffle), len(_NODE))
    return {"node": _NODE, "sample_first": samples.first, "sample_rows": samples.rows, "owner": owner}


def _orders(shuffle: str = "off", **options: Any) -> list[Orders]:
    manifest = Dataset(_FILES).manifest
    settings = Settings(shuffle=shuffle, **options)
    return [Orders(manifest, _layout(manifest, shuffle), settings, rank) for rank in range(len(_NODE))]


def _paths(rows: npt.NDArray[np.uint32]) -> list[bytes]:
    manifest = Dataset(_FILES).manifest
    return [manifest.path(row) for row in rows.tolist()]


@pytest.mark.parametrize("shuffle", ["off", "dir", "all"])
@pytest.mark.parametrize("batch", [0, 16])
def test_parts_of_all_ranks_hold_each_file_once(shuffle: str, batch: int) -> None:
    for parts in (1, 3, 100):
        ranks = _orders(shuffle, batch=batch)
        rows = [orders.rows(5, part, parts) for orders in ranks for part in range(parts)]
        assert sorted(_paths(np.concatenate(rows))) == sorted(_FILES)


def test_files_of_a_sample_are_adjacent_in_the_order_of_their_names() -> None:
    paths = _paths(_orders()[1].rows(0, 0, 1))
    for i, path in enumerate(paths):
        if path.endswith(b"jpg"):
            assert paths[i - 1] == path.replace(b"jpg", b"cls")


def test_only_what_is_selected_is_in_streams() -> None:
    ranks = _orders(shuffle_only=("c1",))
    paths = _paths(np.concatenate([orders.rows(0, 0, 1) for orders in ranks]))
    assert sorted(paths) == sorted(path for path in _FILES if path.startswith(b"c1/"))
    nothing = _orders(shuffle_only=("nowhere",))[0]
    assert nothing.is_empty
    assert len(nothing.rows(0, 0, 1)) == 0


def test_parts_are_the_queue_dealt_round() -> None:
    orders = _orders()[2]
    whole = _paths(orders.rows(3, 0, 1))
    singles = [path for path in whole if path.endswith(b"cls")]
    dealt = [[path for path in _paths(orders.rows(3, part, 4)) if path.endswith(b"cls")] for part in range(4)]
    assert list(filter(None, itertools.chain(*itertools.zip_longest(*dealt)))) == singles


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_more_parts_than_samples_are_even_too(even: str) -> None:
    counts = {
        len(orders.rows(0, part, 200))
        for orders in _orders(even=even, shuffle_only=("*.cls",))[:2]
        for part in (0, 7, 199)
    }
    assert counts <= ({0} if even == "drop" else {1, 2})


def test_passes_differ_and_equal_ones_agree_whatever_was_asked_before() -> None:
    one, other = _orders()[0], _orders()[0]
    asked = [one.rows(number, 0, 1).tobytes() for number in (0, 1, 2, 3, 4, 0)]
    assert asked[0] == asked[-1] == other.rows(0, 0, 1).tobytes()
    assert len(set(asked)) == 5
