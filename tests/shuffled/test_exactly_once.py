"""S2, S7: over all mounts each sample once per pass, however the readers ask; and labels are right by content."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MountFactory, MpiMountFactory
from tests.launchers import mpis_in_turn, one_mpi
from tests.shuffled.conftest import Digits, Read, assert_exactly_once, order_of, read_with_torch

pytestmark = [pytest.mark.mounted]

# An unmodified reader of a list of names, in its own process: prints nothing, fails on a wrong size.
OPEN_ALL = """
import os, sys
for line in sys.stdin:
    path = os.path.join(sys.argv[1], line.rstrip("\\n"))
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        assert len(file.read()) == size, path
"""


def open_all(mountpoint: Path, names: list[str]) -> None:
    """Open and read names, each once, in a process of its own."""
    text = "".join(f"{name}\n" for name in names)
    subprocess.run([sys.executable, "-c", OPEN_ALL, str(mountpoint)], input=text, text=True, check=True, timeout=120)


def assert_labels(reads: list[Read], digits: Digits) -> None:
    """Every image is of the class that it came with, by its pixels."""
    assert all(read.label in digits.classes[read.digest] for read in reads)


@pytest.mark.parametrize("workers", [0, 4])
def test_torch_on_one_mount_sees_each_sample_once_per_epoch_in_three_orders(
    mount: MountFactory, few_digits: Digits, tmp_path: Path, workers: int
) -> None:
    log = tmp_path / "order"
    ours = mount(few_digits.root, "shuffle=dir", f"order_log={log}")
    (reads,) = read_with_torch([ours.point], tmp_path, epochs=3, workers=workers)
    assert_labels(reads, few_digits)
    seen = [[read.digest for read in reads if read.epoch == epoch] for epoch in range(3)]
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(seen[2])
    assert len({tuple(order) for order in seen}) == 3
    assert_exactly_once(order_of([log]), few_digits.names, complete=3)


@pytest.mark.mpi
@mpis_in_turn("ranks,workers", [(2, 4), (3, 1)])
def test_torch_on_several_ranks_sees_each_sample_once_per_pass(
    mpi_mount: MpiMountFactory, few_digits: Digits, tmp_path: Path, ranks: int, workers: int
) -> None:
    mounted = mpi_mount(ranks, few_digits.root, "shuffle=dir", f"order_log={tmp_path}/order-%r")
    reads = read_with_torch(mounted.mountpoints, tmp_path, epochs=2, workers=workers)
    for mine in reads:
        assert_labels(mine, few_digits)
    logs = [tmp_path / f"order-{rank}" for rank in range(ranks)]
    # The sampler pads to equal counts: in two epochs every sample is opened at least twice.
    assert_exactly_once(order_of(logs), few_digits.names, complete=2)


@pytest.mark.mpi
@one_mpi()
def test_drop_last_and_an_epoch_left_in_the_middle_lose_and_repeat_nothing(
    mpi_mount: MpiMountFactory, few_digits: Digits, tmp_path: Path
) -> None:
    mounted = mpi_mount(2, few_digits.root, "shuffle=dir", f"order_log={tmp_path}/order-%r")
    logs = [tmp_path / "order-0", tmp_path / "order-1"]
    read_with_torch(mounted.mountpoints, tmp_path, epochs=1, drop_last=True)
    read_with_torch(mounted.mountpoints, tmp_path, epochs=1, batches=5)
    read_with_torch(mounted.mountpoints, tmp_path, epochs=2)
    assert_exactly_once(order_of(logs), few_digits.names, complete=2)


@pytest.mark.mpi
@one_mpi()
def test_what_lies_with_a_mount_that_nobody_reads_is_drawn_by_the_others(
    mpi_mount: MpiMountFactory, few_digits: Digits, tmp_path: Path
) -> None:
    mounted = mpi_mount(3, few_digits.root, "shuffle=dir", f"order_log={tmp_path}/order-%r")
    names = few_digits.names
    open_all(mounted.mountpoints[0], names[::2])
    open_all(mounted.mountpoints[1], names[1::2])
    passes = order_of(tmp_path / f"order-{rank}" for rank in range(3))
    assert_exactly_once(passes, names, complete=1)
    assert passes.keys() == {0}
    assert mounted.stats(2)["draws"] == 0
    assert mounted.stats(0)["steals"] + mounted.stats(1)["steals"] > len(names) / 4


@pytest.mark.mpi
@one_mpi()
def test_all_opens_through_one_mount_take_the_other_ones_samples_too(
    mpi_mount: MpiMountFactory, few_digits: Digits, tmp_path: Path
) -> None:
    mounted = mpi_mount(2, few_digits.root, "shuffle=all", f"order_log={tmp_path}/order-%r")
    open_all(mounted.mountpoints[0], few_digits.names)
    open_all(mounted.mountpoints[1], few_digits.names)
    passes = order_of([tmp_path / "order-0", tmp_path / "order-1"])
    samples = {number: sorted(draw.sample for draw in draws) for number, draws in passes.items()}
    assert samples == {0: few_digits.names, 1: few_digits.names}


def test_names_opened_in_listing_order_come_in_a_shuffled_order(
    mount: MountFactory, digits: Digits, tmp_path: Path
) -> None:
    log = tmp_path / "order"
    ours = mount(digits.root, "shuffle=dir", f"order_log={log}")
    open_all(ours.point, digits.names)
    samples = [draw.sample for draw in order_of([log])[0]]
    assert sorted(samples) == digits.names
    in_place = sum(sample == name for sample, name in zip(samples, digits.names, strict=True))
    # Ten classes of about 180: one in each stays in place on average.
    assert in_place < 40


def test_equal_seeds_give_equal_orders_and_others_others(mount: MountFactory, digits: Digits, tmp_path: Path) -> None:
    orders = []
    for i, seed in enumerate((7, 7, 8)):
        log = tmp_path / f"order{i}"
        ours = mount(digits.root, "shuffle=dir", f"seed={seed}", f"order_log={log}")
        open_all(ours.point, digits.names[:400])
        orders.append([draw.sample for draw in order_of([log])[0]])
        ours.umount()
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_writing_a_number_begins_that_pass(mount: MountFactory, few_digits: Digits, tmp_path: Path) -> None:
    log = tmp_path / "order"
    ours = mount(few_digits.root, "shuffle=dir", f"order_log={log}")
    epoch = ours.point / ".deepiofs/epoch"
    assert epoch.read_text() == "0\n"
    open_all(ours.point, few_digits.names[:50])
    epoch.write_text("5\n")
    assert epoch.read_text() == "5\n"
    open_all(ours.point, few_digits.names)
    passes = order_of([log])
    assert sorted(draw.sample for draw in passes[5]) == few_digits.names
    assert collections.Counter(number for draws in passes.values() for number in [draws[0].number]) == {0: 1, 5: 1}
    for text in ("x", "-1", ""):
        if text:
            with pytest.raises(OSError, match="Invalid argument"):
                epoch.write_text(text)
