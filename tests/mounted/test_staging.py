"""What memory does not hold: right bytes, each sample once, each byte of the source once, within the room given."""

from __future__ import annotations

import csv
import hashlib
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MountFactory
from tests.mounts import HERE, Mount

pytestmark = pytest.mark.mounted

_CLASSES = ("cat", "dog")
# Of each class: empty ones, those that the kernel asks for in one request, and those of several units.
_SIZES = (0, 0, *(100_000 + i for i in range(12)), 200_000, 9_000_000)
_STAGING = {"tiny": 4 << 20, "default": 256 << 20}


@dataclass(frozen=True)
class _Dataset:
    """Files in two directories, and the digest of each."""

    root: Path
    digests: dict[str, str]

    @property
    def names(self) -> list[str]:
        return sorted(self.digests)

    @property
    def bytes(self) -> int:
        return len(_CLASSES) * sum(_SIZES)


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> _Dataset:
    root = tmp_path_factory.mktemp("staging")
    generator = random.Random(7)
    digests = {}
    for kind in _CLASSES:
        (root / kind).mkdir()
        for i, size in enumerate(_SIZES):
            data = generator.randbytes(size)
            (root / kind / f"{i:02}.bin").write_bytes(data)
            digests[f"{kind}/{i:02}.bin"] = hashlib.md5(data).hexdigest()
    return _Dataset(root, digests)


def _read(view: Mount, name: str, *, stat_first: bool = False) -> str:
    """The digest of what a reader sees who looks how large a file is, and reads it."""
    path = view.point / name
    told = os.stat(path).st_size if stat_first else None
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read()
    assert len(data) == size
    assert told in (None, size)
    return hashlib.md5(data).hexdigest()


def _drawn(log: Path, number: int) -> list[str]:
    """The samples of a pass, in the order in which they were drawn."""
    with log.open(newline="") as file:
        return [row["sample"] for row in csv.DictReader(file) if int(row["pass"]) == number]


def _read_pass(view: Mount, dataset: _Dataset, log: Path, number: int, *, stat_first: bool = False) -> None:
    """Read every name once, in random order: bytes are right, and each sample was drawn once."""
    names = dataset.names
    random.Random(number).shuffle(names)
    seen = Counter(_read(view, name, stat_first=stat_first) for name in names)
    assert seen == Counter(dataset.digests.values())
    drawn = _drawn(log, number)
    assert sorted(drawn) == dataset.names
    assert drawn != names


def _check(view: Mount, staging: str) -> None:
    """Nothing is degraded, and staging is not exceeded."""
    stats = view.stats()
    assert stats["staged_bytes"] <= _STAGING[staging]
    assert stats["quarantined_bytes"] == 0
    assert stats["errors"] == {}
    assert view.control("health") == "ok\n"


_CACHES = {"none": "cache=0", "a third": "cache=12M", "all": "cache=64M"}


@pytest.mark.parametrize("staging", _STAGING)
@pytest.mark.parametrize("cache", _CACHES)
def test_without_shuffling_the_tree_is_the_sources_and_each_byte_is_read_once(
    mount: MountFactory, dataset: _Dataset, cache: str, staging: str
) -> None:
    view = mount(dataset.root, _CACHES[cache], f"staging={_STAGING[staging]}", "mpi=off")
    resident = view.stats()["resident_bytes"]
    assert {"none": resident == 0, "a third": 8 << 20 <= resident <= 12 << 20, "all": resident == dataset.bytes}[cache]
    assert HERE.output("diff", "-r", str(dataset.root), str(view.point)) == ""
    assert view.stats()["source_bytes"] == dataset.bytes
    _check(view, staging)


# Any two of the three, with half of all products.
@pytest.mark.parametrize(
    ("cache", "staging", "shuffle"),
    [
        (cache, staging, ("dir", "all")[(i + j) % 2])
        for i, cache in enumerate(_CACHES)
        for j, staging in enumerate(_STAGING)
    ],
)
def test_a_shuffled_pass_has_each_sample_once_and_reads_each_byte_of_the_source_once(
    mount: MountFactory, dataset: _Dataset, tmp_path: Path, cache: str, staging: str, shuffle: str
) -> None:
    log = tmp_path / "order"
    view = mount(
        dataset.root, f"shuffle={shuffle}", _CACHES[cache], f"staging={_STAGING[staging]}", "mpi=off",
        f"order_log={log}",
    )  # fmt: skip
    _read_pass(view, dataset, log, 0)
    stats = view.stats()
    assert stats["source_bytes"] == dataset.bytes
    assert stats["draws"] == len(dataset.names)
    _check(view, staging)
    _read_pass(view, dataset, log, 1)
    again = view.stats()["source_bytes"] - stats["source_bytes"]
    assert again <= dataset.bytes - stats["resident_bytes"]  # less by what is still staged
    _check(view, staging)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_fetching_none_or_few_ahead_changes_no_byte(
    mount: MountFactory, dataset: _Dataset, tmp_path: Path, prefetch: int
) -> None:
    log = tmp_path / "order"
    view = mount(dataset.root, "shuffle=dir", "cache=0", f"prefetch={prefetch}", "mpi=off", f"order_log={log}")
    _read_pass(view, dataset, log, 0)
    stats = view.stats()
    assert stats["source_bytes"] == dataset.bytes
    if not prefetch:
        assert stats["stalls"] == 0


def test_a_pass_begun_in_the_middle_of_another_is_whole(mount: MountFactory, dataset: _Dataset, tmp_path: Path) -> None:
    log = tmp_path / "order"
    view = mount(dataset.root, "shuffle=dir", "cache=0", f"staging={_STAGING['tiny']}", "mpi=off", f"order_log={log}")
    for name in dataset.names[::3]:
        assert _read(view, name) in dataset.digests.values()
    (view.point / ".deepiofs/epoch").write_text("3\n")
    _read_pass(view, dataset, log, 3)
    _read_pass(view, dataset, log, 4)
    assert set(_drawn(log, 0)) < set(dataset.names)
    _check(view, "tiny")


@pytest.mark.parametrize("staging", _STAGING)
def test_names_that_are_looked_at_before_they_are_opened_show_the_size_of_what_is_read(
    mount: MountFactory, dataset: _Dataset, tmp_path: Path, staging: str
) -> None:
    log = tmp_path / "order"
    view = mount(dataset.root, "shuffle=all", "cache=0", f"staging={_STAGING[staging]}", "mpi=off", f"order_log={log}")
    HERE.output("ls", "-lR", str(view.point))
    _read_pass(view, dataset, log, 0, stat_first=True)
    assert view.stats()["source_bytes"] == dataset.bytes
    _check(view, staging)
