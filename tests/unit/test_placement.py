"""Which rank holds which unit, and where: for any dataset, and any number of ranks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import Samples, find_samples, group_samples
from deepiofs.memory.placement import (
    EXTENT_BYTES,
    NOWHERE,
    Placement,
    Replicas,
    Units,
    deal,
    deal_samples,
    nearest,
    place,
    replicate,
)
from deepiofs.memory.store import UNITS_AT, span
from tests.doubles import manifest_of
from tests.unit.trees import scanned

_LARGE = 1 << 40
_SIZES = st.one_of(st.integers(0, 2000), st.integers(0, 3 * EXTENT_BYTES), st.sampled_from([EXTENT_BYTES]))
_DATASETS = st.dictionaries(
    st.builds(
        lambda directory, name, suffix: b"/".join((directory, name)) + suffix,
        st.sampled_from([b"a", b"b", b"c/d"]),
        st.integers(0, 30).map(lambda i: b"%02d" % i),
        st.sampled_from([b".jpg", b".json", b""]),
    ),
    _SIZES,
    max_size=40,
)
_RANKS = st.integers(1, 7)


class _Job:
    """A dataset dealt over ranks."""

    def __init__(self, sizes: dict[bytes, int], capacities: list[int], shuffle: str = "off") -> None:
        self.manifest = manifest_of(sizes)
        self.units = Units.of(self.manifest)
        self.samples: Samples = find_samples(self.manifest)
        self.group = group_samples(self.manifest, self.samples, shuffle)
        self.owner = deal_samples(self.manifest, self.samples, self.group, len(capacities))
        self.placement = place(self.manifest, self.units, self.samples, self.group, self.owner, capacities)
        self.capacities = capacities

    def large(self) -> npt.NDArray[np.bool_]:
        """Which units are extents of files that are cut."""
        return np.asarray(self.manifest.sizes[self.units.row] > EXTENT_BYTES)


def _spread(values: Counter[int], n_ranks: int) -> int:
    return max(values[rank] for rank in range(n_ranks)) - min(values[rank] for rank in range(n_ranks))


# --- Units -----------------------------------------------------------------------------------------------------------


@given(_DATASETS)
def test_the_units_of_a_file_are_its_bytes_once_and_in_order(sizes: dict[bytes, int]) -> None:
    manifest = manifest_of(sizes)
    units = Units.of(manifest)
    for path, size in sizes.items():
        row = manifest.find(path) or 0
        numbers = range(units.first[row], units.first[row + 1])
        assert sum(int(units.size[unit]) for unit in numbers) == size
        assert [units.place_in_file(unit) for unit in numbers] == [(row, i * EXTENT_BYTES) for i in range(len(numbers))]
        assert all(int(units.size[unit]) == EXTENT_BYTES for unit in numbers[:-1])
        assert all(0 < int(units.size[unit]) <= EXTENT_BYTES for unit in numbers)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, []),
        (1, [1]),
        (EXTENT_BYTES, [EXTENT_BYTES]),
        (EXTENT_BYTES + 1, [EXTENT_BYTES, 1]),
        (3 * EXTENT_BYTES, [EXTENT_BYTES] * 3),
    ],
)
def test_a_file_is_cut_into_extents(size: int, expected: list[int]) -> None:
    assert Units.of(manifest_of({b"file": size})).size.tolist() == expected


def test_names_of_one_file_share_its_units(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    units = Units.of(scanned(tmp_path))
    assert units.row.tolist() == [1]
    assert units.first.tolist() == [0, 0, 1, 1, 1]


# --- Dealing ---------------------------------------------------------------------------------------------------------


@given(_DATASETS, _RANKS)
def test_the_samples_of_a_directory_are_dealt_evenly(sizes: dict[bytes, int], n_ranks: int) -> None:
    job = _Job(sizes, [_LARGE] * n_ranks)
    leaders = job.samples.rows[job.samples.first[:-1]]
    directories = job.manifest.parents[leaders]
    for directory in set(directories.tolist()):
        assert _spread(Counter(job.owner[directories == directory].tolist()), n_ranks) <= 1
    assert _spread(Counter(job.owner.tolist()), n_ranks) <= 1


@given(_DATASETS, _RANKS, st.sampled_from(["dir", "all", r"re:(\d)"]))
def test_the_samples_of_a_group_are_dealt_evenly(sizes: dict[bytes, int], n_ranks: int, shuffle: str) -> None:
    job = _Job(sizes, [_LARGE] * n_ranks, shuffle)
    for group in set(job.group.tolist()):
        assert _spread(Counter(job.owner[job.group == group].tolist()), n_ranks) <= 1


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 10_000)), max_size=60), _RANKS)
def test_what_is_dealt_is_even_in_count_and_nearly_in_bytes(entries: list[tuple[int, int]], n_ranks: int) -> None:
    group = np.array([entry[0] for entry in entries], np.int64)
    size = np.array([entry[1] for entry in entries], np.int64)
    dealt = deal(group, size, n_ranks)
    assert len(dealt) == len(entries)
    assert set(dealt.tolist()) <= set(range(n_ranks))
    for each in set(group.tolist()):
        of_each = group == each
        assert _spread(Counter(dealt[of_each].tolist()), n_ranks) <= 1
        held = np.bincount(dealt[of_each], size[of_each], n_ranks)
        assert held.max() - held.min() <= size[of_each].max()
    assert _spread(Counter(dealt.tolist()), n_ranks) <= 1


@given(_DATASETS, _RANKS)
def test_small_files_lie_with_the_owner_of_their_sample(sizes: dict[bytes, int], n_ranks: int) -> None:
    job = _Job(sizes, [_LARGE] * n_ranks)
    small = ~job.large()
    owners = job.owner[job.samples.of_row[job.units.row[small]]]
    assert job.placement.home[small].tolist() == owners.tolist()


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("extents", [2, 3, 10, 11])
def test_the_extents_of_one_large_file_are_dealt_evenly(extents: int, n_ranks: int) -> None:
    job = _Job({b"huge": extents * EXTENT_BYTES - 7}, [_LARGE] * n_ranks)
    assert len(job.units.row) == extents
    assert _spread(Counter(job.placement.home.tolist()), n_ranks) <= 1


@given(st.lists(st.integers(8, 20), min_size=1, max_size=4), st.integers(1, 4))
def test_every_rank_holds_a_part_of_every_file_that_is_large_enough(extents: list[int], n_ranks: int) -> None:
    job = _Job({b"%d" % i: n * EXTENT_BYTES for i, n in enumerate(extents)}, [_LARGE] * n_ranks)
    for row in set(job.units.row.tolist()):
        assert set(job.placement.home[job.units.row == row].tolist()) == set(range(n_ranks))
    assert _spread(Counter(job.placement.home.tolist()), n_ranks) <= 1


# --- Places ----------------------------------------------------------------------------------------------------------


def _check_no_overlap(ranges: list[tuple[int, int]]) -> None:
    ranges.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))


def _ranges(job: _Job, rank: int) -> list[tuple[int, int]]:
    here = np.flatnonzero(job.placement.home == rank).tolist()
    return [(int(job.placement.at[u]), int(job.placement.at[u]) + span(int(job.units.size[u]))) for u in here]


@st.composite
def _jobs(draw: st.DrawFn) -> _Job:
    """Datasets on ranks of very different room, often too small."""
    sizes = draw(_DATASETS)
    rooms = st.one_of(st.integers(0, 20_000), st.integers(0, 4 * EXTENT_BYTES), st.just(_LARGE))
    return _Job(sizes, draw(st.lists(rooms, min_size=1, max_size=6)))


@given(_jobs())
def test_units_do_not_overlap_and_lie_within_their_store(job: _Job) -> None:
    for rank, capacity in enumerate(job.capacities):
        ranges = _ranges(job, rank)
        _check_no_overlap(ranges)
        assert all(begin >= UNITS_AT and end <= min(capacity, job.placement.store_bytes[rank]) for begin, end in ranges)
        assert all(begin % 16 == 0 for begin, _ in ranges)


@given(_jobs())
def test_a_store_is_no_larger_than_its_units(job: _Job) -> None:
    for rank in range(len(job.capacities)):
        assert job.placement.store_bytes[rank] == max([end for _, end in _ranges(job, rank)], default=UNITS_AT)


@given(_jobs())
def test_every_unit_is_placed_once_or_nowhere(job: _Job) -> None:
    home = job.placement.home
    assert len(home) == len(job.units.row) == len(job.placement.at)
    assert ((home == NOWHERE) | ((home >= 0) & (home < len(job.capacities)))).all()


@given(_DATASETS, _RANKS)
def test_with_room_for_all_nothing_is_nowhere(sizes: dict[bytes, int], n_ranks: int) -> None:
    assert (_Job(sizes, [_LARGE] * n_ranks).placement.home != NOWHERE).all()


# --- Where not all fits ----------------------------------------------------------------------------------------------


@st.composite
def _tight(draw: st.DrawFn) -> tuple[_Job, _Job]:
    """A dataset with room for all of it, and the same with less, or none, on each rank."""
    sizes, n_ranks, shuffle = draw(_DATASETS), draw(_RANKS), draw(st.sampled_from(["off", "dir", "all"]))
    roomy = _Job(sizes, [_LARGE] * n_ranks, shuffle)
    rooms = [st.one_of(st.integers(0, int(used)), st.just(_LARGE)) for used in roomy.placement.store_bytes]
    return roomy, _Job(sizes, [draw(room) for room in rooms], shuffle)


def _pieces(job: _Job, dealt: npt.NDArray[np.int32]) -> dict[tuple[int, ...], list[int]]:
    """What is kept together: the small files of a sample on its rank; each extent of a larger file by itself."""
    pieces: dict[tuple[int, ...], list[int]] = {}
    sample = job.samples.of_row[job.units.row]
    for unit, is_extent in enumerate(job.large().tolist()):
        key = (int(dealt[unit]), int(sample[unit]), *([unit] if is_extent else []))
        pieces.setdefault(key, []).append(unit)
    return pieces


@given(_tight())
def test_less_room_moves_nothing_to_another_rank(made: tuple[_Job, _Job]) -> None:
    roomy, tight = made
    stays = tight.placement.home != NOWHERE
    assert (tight.placement.home[stays] == roomy.placement.home[stays]).all()


@given(_tight())
def test_the_small_files_of_a_sample_are_resident_together_or_not_at_all(made: tuple[_Job, _Job]) -> None:
    roomy, tight = made
    for units in _pieces(roomy, roomy.placement.home).values():
        assert len(set(tight.placement.home[units].tolist())) == 1


@given(_tight())
def test_room_is_left_only_where_the_next_piece_does_not_fit(made: tuple[_Job, _Job]) -> None:
    roomy, tight = made
    pieces = _pieces(roomy, roomy.placement.home)
    for rank, capacity in enumerate(tight.capacities):
        left_out = [
            sum(span(int(tight.units.size[unit])) for unit in units)
            for key, units in pieces.items()
            if key[0] == rank and tight.placement.home[units[0]] == NOWHERE
        ]
        if left_out:
            assert max(left_out) > capacity - tight.placement.store_bytes[rank]


@given(_tight())
def test_of_the_samples_on_a_rank_one_at_most_is_resident_in_part(made: tuple[_Job, _Job]) -> None:
    roomy, tight = made
    resident: dict[tuple[int, int], set[bool]] = {}
    for (rank, sample, *_), units in _pieces(roomy, roomy.placement.home).items():
        resident.setdefault((rank, sample), set()).add(bool(tight.placement.home[units[0]] != NOWHERE))
    for rank in range(len(tight.capacities)):
        assert sum(len(kinds) > 1 for key, kinds in resident.items() if key[0] == rank) <= 1


@given(st.integers(1, 30), st.integers(2, 12), st.integers(1, 5), st.sampled_from(["off", "dir"]), st.floats(0, 1))
def test_each_of_equal_groups_keeps_the_same_number_of_samples(
    size: int, n_groups: int, n_ranks: int, shuffle: str, share: float
) -> None:
    n_samples = size * n_ranks
    sizes = {b"%02d/%03d" % (group, i): 1000 for group in range(n_groups) for i in range(n_samples)}
    room = UNITS_AT + int(share * n_groups * size * span(1000))
    job = _Job(sizes, [room] * n_ranks, shuffle)
    directory = job.manifest.parents[job.units.row]
    for rank in range(n_ranks):
        kept = Counter(directory[job.placement.home == rank].tolist())
        counts = [kept[row] for row in set(directory.tolist())]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == (room - UNITS_AT) // span(1000)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.floats(0, 1))
def test_groups_of_different_sizes_keep_the_same_share_to_within_a_sample(counts: list[int], share: float) -> None:
    sizes = {b"%02d/%03d" % (group, i): 1000 for group, count in enumerate(counts) for i in range(count)}
    job = _Job(sizes, [UNITS_AT + int(share * sum(counts) * span(1000))], "dir")
    parents = job.manifest.parents[job.units.row]
    kept = Counter(parents[job.placement.home == 0].tolist())
    shares = [(kept[row] / count, 1 / count) for row, count in Counter(parents.tolist()).items()]
    for (one, step), (other, other_step) in itertools.combinations(shares, 2):
        assert abs(one - other) < step + other_step


def test_what_is_kept_is_not_the_beginning_of_a_directory() -> None:
    job = _Job({b"%04d" % i: 1000 for i in range(1000)}, [UNITS_AT + 500 * span(1000)])
    kept = np.flatnonzero(job.placement.home == 0)
    assert len(kept) == 500
    for begin in range(0, 1000, 100):
        assert 35 <= ((kept >= begin) & (kept < begin + 100)).sum() <= 65


def test_a_file_larger_than_the_room_is_resident_as_far_as_there_is_room() -> None:
    job = _Job({b"huge": 75 * EXTENT_BYTES}, [50 * EXTENT_BYTES])
    assert (job.placement.home == 0).sum() == 49


@pytest.mark.parametrize("place", [b"a", b"t", b"z"])
def test_beside_a_file_larger_than_the_room_all_of_the_room_is_used(place: bytes) -> None:
    sizes = {b"s/%03d" % i: 100_000 for i in range(500)}
    room = 60_000_000
    job = _Job({**sizes, place + b"/huge": 75 * EXTENT_BYTES}, [room])
    assert room - span(EXTENT_BYTES) < job.placement.store_bytes[0] <= room


def test_no_rank_has_room_for_anything_in_a_job_without_cache() -> None:
    job = _Job({b"a": 10, b"b": 5 * EXTENT_BYTES}, [0, 0])
    assert set(job.placement.home.tolist()) == {NOWHERE}
    assert job.placement.store_bytes.tolist() == [UNITS_AT] * 2


def test_a_dataset_of_nothing_is_placed() -> None:
    for sizes in ({}, {b"empty": 0, b"d/empty": 0}):
        job = _Job(sizes, [_LARGE] * 3)
        assert len(job.placement.home) == 0
        assert job.placement.store_bytes.tolist() == [UNITS_AT] * 3


# --- Replicas --------------------------------------------------------------------------------------------------------


@st.composite
def _replicated(draw: st.DrawFn) -> tuple[_Job, npt.NDArray[np.bool_], list[int], list[int], Replicas]:
    job = draw(_jobs())
    n_ranks = len(job.capacities)
    node = sorted(draw(st.sets(st.integers(0, n_ranks - 1), min_size=1)))
    wanted = np.array(draw(st.lists(st.booleans(), min_size=len(job.units.row), max_size=len(job.units.row))), bool)
    room = [job.capacities[rank] for rank in node]
    return job, wanted, node, room, replicate(job.placement, job.units, wanted, node, room)


@given(_replicated())
def test_a_replica_is_of_a_wanted_unit_from_elsewhere_and_on_this_node(
    made: tuple[_Job, npt.NDArray[np.bool_], list[int], list[int], Replicas],
) -> None:
    job, wanted, node, _, replicas = made
    assert (np.diff(replicas.unit) > 0).all()
    assert wanted[replicas.unit].all()
    assert not np.isin(job.placement.home[replicas.unit], node).any()
    assert np.isin(replicas.holder, node).all()


@given(_replicated())
def test_replicas_lie_behind_the_own_units_and_do_not_overlap(
    made: tuple[_Job, npt.NDArray[np.bool_], list[int], list[int], Replicas],
) -> None:
    job, _, node, room, replicas = made
    for rank, capacity in zip(node, room, strict=True):
        mine = np.flatnonzero(replicas.holder == rank)
        copies = [
            (int(replicas.at[i]), int(replicas.at[i]) + span(int(job.units.size[replicas.unit[i]]))) for i in mine
        ]
        _check_no_overlap(_ranges(job, rank) + copies)
        assert all(job.placement.store_bytes[rank] <= begin and end <= capacity for begin, end in copies)


@given(_DATASETS, st.integers(2, 6), st.data())
def test_with_room_every_wanted_unit_is_on_the_node(sizes: dict[bytes, int], n_ranks: int, data: st.DataObject) -> None:
    job = _Job(sizes, [_LARGE] * n_ranks)
    node = sorted(data.draw(st.sets(st.integers(0, n_ranks - 1), min_size=1)))
    wanted = np.ones(len(job.units.row), bool)
    replicas = replicate(job.placement, job.units, wanted, node, [_LARGE] * len(node))
    home, at = nearest(job.placement, replicas)
    assert np.isin(home, node).all()
    own = np.isin(job.placement.home, node)
    assert (home[own] == job.placement.home[own]).all()
    assert (at[own] == job.placement.at[own]).all()
    assert home[replicas.unit].tolist() == replicas.holder.tolist()
    assert at[replicas.unit].tolist() == replicas.at.tolist()


@given(_DATASETS, st.integers(1, 5))
def test_without_wishes_there_are_no_replicas(sizes: dict[bytes, int], n_ranks: int) -> None:
    job = _Job(sizes, [_LARGE] * n_ranks)
    replicas = replicate(job.placement, job.units, np.zeros(len(job.units.row), bool), [0], [_LARGE])
    assert len(replicas.unit) == 0
    home, at = nearest(job.placement, replicas)
    assert home.tolist() == job.placement.home.tolist()
    assert at.tolist() == job.placement.at.tolist()


# --- The same everywhere ---------------------------------------------------------------------------------------------

_SAME = """
from tests.unit.test_placement import fingerprint
print(fingerprint())
"""


def fingerprint() -> str:
    """What is placed where, of a dataset with every kind of file."""
    sizes = {b"%d/%03d.jpg" % (i % 3, i): i * i * 1000 % 70_000 for i in range(300)}
    job = _Job({**sizes, b"huge": 20 * EXTENT_BYTES + 1}, [1 << 21, 1 << 25, 1 << 30], "dir")
    wanted = np.arange(len(job.units.row)) % 3 == 0
    replicas = replicate(job.placement, job.units, wanted, [0, 2], [1 << 22, 1 << 30])
    arrays = (job.placement.home, job.placement.at, replicas.unit, replicas.holder, replicas.at)
    return " ".join(str(hash_of(array)) for array in arrays)


def hash_of(array: npt.NDArray[np.generic]) -> int:
    """A hash that is the same in every process."""
    return int.from_bytes(array.tobytes(), "little") % ((1 << 61) - 1)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_places_alike(seed: str) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run([sys.executable, "-c", _SAME], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.strip() == fingerprint()


def test_the_order_of_the_names_given_does_not_matter() -> None:
    sizes = {b"%02d" % i: i * 100 for i in range(50)}
    one, other = _Job(sizes, [3000, _LARGE]), _Job(dict(reversed(sizes.items())), [3000, _LARGE])
    _assert_same(one.placement, other.placement)
    assert isinstance(one.manifest, Manifest)


def _assert_same(one: Placement, other: Placement) -> None:
    assert one.home.tolist() == other.home.tolist()
    assert one.at.tolist() == other.at.tolist()
    assert one.store_bytes.tolist() == other.store_bytes.tolist()
