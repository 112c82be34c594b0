"""The lab: two hosts with mounts of their own and real TCP between them, under each MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.mounts import Journal
from tests.ranks.conftest import differences, engine, flip_first_byte, fresh_differences, held_elsewhere, total_bytes

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.lab]


def test_each_byte_is_read_from_the_source_once_and_served_right_on_both_hosts(
    mpi_mount: MpiMountFactory, lab: Lab, dataset: Path
) -> None:
    mounted = mpi_mount(2, dataset, "verify=always", lab=lab)
    before = [lab.bytes_received(host) for host in lab.hosts]
    for rank in range(2):
        assert differences(mounted, rank) == ""
    stats = [mounted.stats(rank) for rank in range(2)]
    assert [said["nodes"] for said in stats] == [2, 2]
    assert [said["node"] for said in stats] == [0, 1]
    assert sum(said["source_bytes"] for said in stats) == total_bytes(dataset)
    for said, host, was in zip(stats, lab.hosts, before, strict=True):
        assert said["served"]["source"] == said["served"]["node"] == 0
        # A read that takes from both counts as the peer's, so what was served says less than what is held.
        elsewhere = total_bytes(dataset) - said["resident_bytes"]
        assert said["served_bytes"]["peer"] >= elsewhere
        assert said["served_bytes"]["peer"] + said["served_bytes"]["local"] == total_bytes(dataset)
        assert lab.bytes_received(host) - was > elsewhere
        assert said["verify_failures"] == 0
    mounted.umount()
    assert mounted.ended() == 0


def test_a_replicated_file_is_in_the_memory_of_both_hosts_and_read_from_the_source_once(
    mpi_mount: MpiMountFactory, lab: Lab, dataset: Path
) -> None:
    mounted = mpi_mount(2, dataset, "replicate=class0/**", lab=lab)
    for rank in range(2):
        assert differences(mounted, rank) == ""
        for file in (dataset / "class0").iterdir():
            said = mounted.places[rank].output(
                "getfattr", "--absolute-names", "--only-values", "-n", "user.deepiofs.origin",
                f"{mounted.mountpoints[rank]}/class0/{file.name}",
            )  # fmt: skip
            assert said == "local"
    assert sum(mounted.stats(rank)["source_bytes"] for rank in range(2)) == total_bytes(dataset)


def test_loading_on_demand_reads_each_byte_once_whoever_asks_first(
    mpi_mount: MpiMountFactory, lab: Lab, dataset: Path
) -> None:
    mounted = mpi_mount(2, dataset, "warm=demand", lab=lab, until="mounted")
    assert sum(mounted.stats(rank)["resident_bytes"] for rank in range(2)) == 0
    for rank in (1, 0):
        assert differences(mounted, rank) == ""
    stats = [mounted.stats(rank) for rank in range(2)]
    assert sum(said["source_bytes"] for said in stats) == total_bytes(dataset)
    assert stats[0]["served"]["peer"] > 0
    assert stats[1]["served"]["peer"] > 0


def test_a_flipped_byte_in_a_peers_memory_is_counted_and_never_delivered(
    mpi_mount: MpiMountFactory, lab: Lab, dataset: Path, journal: Journal
) -> None:
    journal.expect("does not have its digest")
    mounted = mpi_mount(2, dataset, lab=lab)
    name = held_elsewhere(mounted, 0, "peer")
    flip_first_byte(engine(mounted, 1, lab), (dataset / name).read_bytes())
    assert fresh_differences(mounted, 0) == ""
    said = mounted.stats(0)
    assert said["verify_failures"] >= 1
    assert said["served"]["source"] >= 1
    assert "digests differed" in mounted.control(0, "health")
