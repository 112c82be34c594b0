"""Several ranks on one host: every byte is right through each of their mounts, and held once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory

pytestmark = [pytest.mark.mounted, pytest.mark.mpi]


def test_two_ranks_hold_the_dataset_once_and_both_serve_all_of_it(mpi_mount: MpiMountFactory, tmp_path: Path) -> None:
    generator = random.Random(1)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(100):
        (source / f"{number}.bin").write_bytes(generator.randbytes(generator.randrange(50_000)))
    ranks = mpi_mount(2, source)
    for rank, point in enumerate(ranks.mountpoints):
        assert all((point / file.name).read_bytes() == file.read_bytes() for file in source.iterdir())
        served = ranks.stats(rank)["served"]
        assert served["local"] > 0
        assert served["node"] > 0
        assert served["peer"] == served["source"] == 0
    total = sum(file.stat().st_size for file in source.iterdir())
    assert sum(ranks.stats(rank)["resident_bytes"] for rank in range(2)) == total
    ranks.umount()
    assert ranks.ended() == 0


def test_each_rank_logs_to_its_own_file(mpi_mount: MpiMountFactory, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mpi_mount(2, source, f"log={tmp_path}/of-%r")
    assert {path.name for path in tmp_path.glob("of-*")} == {"of-0", "of-1"}
