"""The shuffled view over two hosts: who serves what crosses the network as the bound asks, and no sample is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.launchers import mpis_in_turn
from tests.mounts import MpiMount, ending
from tests.shuffled.conftest import Digits, assert_exactly_once, order_of
from tests.shuffled.test_exactly_once import OPEN_ALL

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.lab]


def read_on_both(mounted: MpiMount, names: list[str]) -> None:
    """Each host opens every other name, at the same time."""
    readers = []
    for rank, place in enumerate(mounted.places):
        line = [sys.executable, "-c", OPEN_ALL, str(mounted.mountpoints[rank])]
        readers.append(place.start(line, stdin=subprocess.PIPE))
    for rank, reader in enumerate(readers):
        with ending(reader):
            reader.communicate("".join(f"{name}\n" for name in names[rank::2]), timeout=120)
            assert reader.returncode == 0


@mpis_in_turn("bound", [0.0, 1.0])
def test_the_bound_says_what_crosses_the_network(
    mpi_mount: MpiMountFactory, lab: Lab, digits: Digits, tmp_path: Path, bound: float
) -> None:
    logs = [tmp_path / "order-0", tmp_path / "order-1"]
    mounted = mpi_mount(2, digits.root, "shuffle=dir", f"entropy={bound}", f"order_log={tmp_path}/order-%r", lab=lab)
    read_on_both(mounted, digits.names)
    passes = order_of(logs)
    assert_exactly_once(passes, digits.names, complete=1)
    assert passes.keys() == {0}
    stats = [mounted.stats(rank) for rank in range(2)]
    from_peers = sum(said["served"]["peer"] for said in stats)
    steals = sum(said["steals"] for said in stats)
    assert all(said["entropy"]["planned"] >= bound for said in stats)
    if bound == 0:
        assert from_peers <= steals
    else:
        # Of a full shuffle over two nodes half the samples are the other's, with a spread of a few percent.
        assert abs(from_peers / len(digits.names) - 0.5) < 0.1
