"""Who owns a sample, and that its files lie there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset.samples import ALONE, find_samples, group_samples
from deepiofs.memory.placement import EXTENT_BYTES, NOWHERE, Units, deal_samples, place
from tests.doubles import manifest_of

_LARGE = 1 << 40
_RANKS = st.integers(1, 9)
_SHUFFLES = st.sampled_from(["off", "dir", "all"])
_SIZES = st.dictionaries(
    st.builds(
        lambda directory, number, suffix: b"%s/%02d%s" % (directory, number, suffix),
        st.sampled_from([b"a", b"b", b"c/d", b"e"]), st.integers(0, 40), st.sampled_from([b".jpg", b".json", b""]),
    ),
    st.one_of(st.integers(0, 5000), st.integers(0, EXTENT_BYTES), st.integers(EXTENT_BYTES, 3 * EXTENT_BYTES)),
    max_size=60,
)  # fmt: skip


def _spread(counts: npt.NDArray[np.int64]) -> int:
    return int(counts.max() - counts.min())


@given(_SIZES, _RANKS, _SHUFFLES)
def test_counts_of_each_group_differ_by_at_most_one(sizes: dict[bytes, int], n_ranks: int, shuffle: str) -> None:
    manifest = manifest_of(sizes)
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, shuffle)
    owner = deal_samples(manifest, samples, group, n_ranks)
    for number in set(group.tolist()) - {ALONE}:
        assert _spread(np.bincount(owner[group == number], minlength=n_ranks)) <= 1


@given(_SIZES, _RANKS)
def test_unshuffled_samples_are_dealt_evenly_by_directory(sizes: dict[bytes, int], n_ranks: int) -> None:
    manifest = manifest_of(sizes)
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, "off"), n_ranks)
    directory = manifest.parents[samples.rows[samples.first[:-1]]]
    for row in set(directory.tolist()):
        assert _spread(np.bincount(owner[directory == row], minlength=n_ranks)) <= 1


@given(_SIZES, _RANKS, _SHUFFLES)
def test_counts_of_all_samples_differ_by_at_most_one(sizes: dict[bytes, int], n_ranks: int, shuffle: str) -> None:
    """Where one group's deal ended, the next one's begins."""
    manifest = manifest_of(sizes)
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, shuffle), n_ranks)
    assert len(owner) == len(samples)
    assert _spread(np.bincount(owner, minlength=n_ranks)) <= 1


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200), _RANKS)
def test_bytes_of_one_group_differ_by_at_most_its_largest_sample(sizes: list[int], n_ranks: int) -> None:
    manifest = manifest_of({b"a/%05d" % i: size for i, size in enumerate(sizes)})
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, "dir"), n_ranks)
    held = np.bincount(owner, weights=np.array(sizes), minlength=n_ranks)
    assert held.max() - held.min() <= max(sizes)


@pytest.mark.parametrize("n_ranks", [2, 8, 13])
def test_bytes_over_many_classes_agree_within_a_percent(n_ranks: int) -> None:
    sizes = np.random.default_rng(0).lognormal(11.5, 0.5, 100 * 130).astype(np.int64).tolist()
    manifest = manifest_of({b"%03d/%05d.jpg" % (i // 130, i): size for i, size in enumerate(sizes)})
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, "dir"), n_ranks)
    of_sample = manifest.sizes[samples.rows]
    held = np.bincount(owner, weights=of_sample, minlength=n_ranks)
    assert held.max() / held.mean() < 1.01
    assert held.min() / held.mean() > 0.99


@given(_SIZES, _RANKS, _SHUFFLES)
def test_all_small_files_of_a_sample_lie_with_its_owner(sizes: dict[bytes, int], n_ranks: int, shuffle: str) -> None:
    manifest = manifest_of(sizes)
    samples, units = find_samples(manifest), Units.of(manifest)
    group = group_samples(manifest, samples, shuffle)
    owner = deal_samples(manifest, samples, group, n_ranks)
    placement = place(manifest, units, samples, group, owner, [_LARGE] * n_ranks)
    for unit, row in enumerate(units.row.tolist()):
        assert 0 <= placement.home[unit] < n_ranks
        if manifest.size_of[row] <= EXTENT_BYTES:
            assert placement.home[unit] == owner[samples.of_row[row]]


def test_a_file_of_one_byte_more_is_spread_over_the_ranks() -> None:
    manifest = manifest_of({b"a.bin": 4 * EXTENT_BYTES, b"a.json": 10, b"b.bin": EXTENT_BYTES})
    samples, units = find_samples(manifest), Units.of(manifest)
    group = group_samples(manifest, samples, "off")
    owner = deal_samples(manifest, samples, group, 4)
    placement = place(manifest, units, samples, group, owner, [_LARGE] * 4)
    extents = np.flatnonzero(manifest.sizes[units.row] > EXTENT_BYTES)
    assert sorted(placement.home[extents].tolist()) == [0, 1, 2, 3]


def test_what_does_not_fit_with_its_owner_lies_nowhere_and_keeps_its_owner() -> None:
    manifest = manifest_of({b"%d.bin" % i: 1000 for i in range(4)})
    samples, units = find_samples(manifest), Units.of(manifest)
    group = group_samples(manifest, samples, "all")
    owner = deal_samples(manifest, samples, group, 2)
    placement = place(manifest, units, samples, group, owner, [0, _LARGE])
    assert sorted(owner.tolist()) == [0, 0, 1, 1]
    assert placement.home.tolist() == [NOWHERE if rank == 0 else 1 for rank in owner.tolist()]


def test_a_sample_is_dealt_by_the_bytes_of_all_its_files() -> None:
    manifest = manifest_of({b"a.jpg": 10, b"a.json": 1000, b"b.jpg": 500, b"b.json": 10, b"c.jpg": 10, b"c.json": 400,
                            b"d.jpg": 10, b"d.json": 10})  # fmt: skip
    samples = find_samples(manifest)
    owner = deal_samples(manifest, samples, group_samples(manifest, samples, "all"), 2)
    assert [owner[sample] for sample in range(4)] == [0, 1, 1, 0]
