"""Samples and groups of any names, against slow versions of the same rules."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import ALONE, Samples, find_samples, group_samples
from tests.doubles import manifest_of

_FORBIDDEN = bytes.maketrans(b"\0/", b"\1\\")
_STEMS = st.sampled_from([b"a", b"b", b"a-b", b"a b", b"A", b".a", b"..", b"a" * 100, b"\xff", b"0"])
_SUFFIXES = st.sampled_from([b"", b".jpg", b".json", b".seg.png", b".JPG", b".", b"..", b".x" * 70])
_NAMES = st.one_of(
    st.builds(bytes.__add__, _STEMS, _SUFFIXES),
    st.binary(min_size=1, max_size=255).map(lambda name: name.translate(_FORBIDDEN)),
    st.binary(min_size=255, max_size=255).map(lambda name: name.translate(_FORBIDDEN)),
).filter(lambda name: name not in (b".", b".."))
_DIRECTORIES = st.sampled_from([b"", b"x/", b"y/", b"x.jpg/", b"x/deep/"])
# What the control directory hides is never shuffled, see the test of it.
_PATHS = st.builds(bytes.__add__, _DIRECTORIES, _NAMES).filter(lambda path: path != b".deepiofs")


def _manifest(paths: Iterable[bytes]) -> Manifest:
    return manifest_of(dict.fromkeys(paths, 1))


def _is_tree(paths: list[bytes]) -> bool:
    """Whether no file is a directory of another."""
    above = {path[:at] for path in paths for at in range(len(path)) if path[at : at + 1] == b"/"}
    return not above & set(paths)


_TREES = st.lists(_PATHS, unique=True, max_size=30).filter(_is_tree)


def _split(path: bytes) -> tuple[bytes, bytes, bytes]:
    """Directory, stem, suffix."""
    directory, _, name = path.rpartition(b"/")
    dot = name.find(b".", 1)
    return (directory, name, b"") if dot < 0 else (directory, name[:dot], name[dot:])


def _slow_samples(paths: Iterable[bytes]) -> dict[tuple[bytes, bytes], list[bytes]]:
    """(directory, stem) -> the paths of the sample, in order of their suffixes."""
    samples: dict[tuple[bytes, bytes], list[bytes]] = {}
    for path in sorted(paths, key=lambda path: _split(path)[2]):
        samples.setdefault(_split(path)[:2], []).append(path)
    return samples


def _members(manifest: Manifest, samples: Samples, sample: int) -> list[bytes]:
    """The paths of a sample's files, in its order."""
    rows = samples.rows[samples.first[sample] : samples.first[sample + 1]]
    return [manifest.path(row) for row in rows.tolist()]


def _suffixes(paths: list[bytes]) -> tuple[bytes, ...]:
    return tuple(_split(path)[2] for path in paths)


def _groups(
    paths: Iterable[bytes], shuffle: str, shuffle_only: tuple[str, ...] = ()
) -> tuple[set[frozenset[bytes]], set[bytes]]:
    """First files of the samples of each group, and of those in none."""
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, shuffle, shuffle_only).tolist()
    firsts = [_members(manifest, samples, sample)[0] for sample in range(len(samples))]
    alone = {path for path, number in zip(firsts, group, strict=True) if number == ALONE}
    numbers = {number for number in group if number != ALONE}
    return {frozenset(p for p, g in zip(firsts, group, strict=True) if g == n) for n in numbers}, alone


def _slow_groups(paths: Iterable[bytes], key: str) -> set[frozenset[bytes]]:
    """The same for `dir` and `all`."""
    groups: dict[tuple[bytes, tuple[bytes, ...]], set[bytes]] = {}
    for (directory, _), members in _slow_samples(paths).items():
        label = directory if key == "dir" else b""
        groups.setdefault((label, _suffixes(members)), set()).add(members[0])
    return {frozenset(group) for group in groups.values()}


# --- Samples ---------------------------------------------------------------------------------------------------------


@given(_TREES)
@example([b"a", b"a-b", b"a.jpg"])
@example([b"a-b.jpg", b"a.jpg", b"a-b.json", b"a.json"])
def test_samples_are_the_files_of_a_directory_with_one_stem(paths: list[bytes]) -> None:
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    found = [_members(manifest, samples, sample) for sample in range(len(samples))]
    assert sorted(found) == sorted(_slow_samples(paths).values())


@given(_TREES)
def test_each_file_knows_its_sample_and_directories_have_none(paths: list[bytes]) -> None:
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    for row in range(manifest.n_rows):
        sample = int(samples.of_row[row])
        if manifest.is_directory(row):
            assert sample == ALONE
        else:
            assert manifest.path(row) in _members(manifest, samples, sample)


@given(_TREES)
def test_samples_are_numbered_by_their_first_file(paths: list[bytes]) -> None:
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    firsts = [int(np.flatnonzero(samples.of_row == sample)[0]) for sample in range(len(samples))]
    assert firsts == sorted(firsts)
    assert samples.rows[samples.first[:-1]].tolist() == firsts


@given(_TREES)
@example([b"a", b"a.jpg", b"b.jpg"])
@example([b"a", b"a.jpg", b"b.jpg", b"c"])
def test_signatures_are_equal_where_the_sets_of_suffixes_are(paths: list[bytes]) -> None:
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    suffixes = [_suffixes(_members(manifest, samples, sample)) for sample in range(len(samples))]
    signatures = samples.signature.tolist()
    assert len(set(zip(suffixes, signatures, strict=True))) == len(set(suffixes)) == len(set(signatures))


def test_a_name_up_to_its_first_dot_is_the_stem_and_a_leading_dot_belongs_to_it() -> None:
    manifest = _manifest([b".a.jpg", b".a", b"a.b.c", b"a", b"..jpg", b"a.b.d"])
    samples = find_samples(manifest)
    found = [_members(manifest, samples, sample) for sample in range(len(samples))]
    assert found == [[b"..jpg"], [b".a", b".a.jpg"], [b"a", b"a.b.c", b"a.b.d"]]


def test_names_that_differ_in_one_byte_anywhere_are_different_samples() -> None:
    base = b"x" * 255
    names = [base, *(base[:at] + b"y" + base[at + 1 :] for at in range(255)), *(base[:at] for at in range(1, 255))]
    assert len(find_samples(_manifest(names))) == len(names) == 510


def test_equal_stems_in_different_directories_are_different_samples() -> None:
    assert len(find_samples(_manifest([b"x/a.jpg", b"y/a.json", b"a.png"]))) == 3


def test_many_samples_are_told_apart() -> None:
    assert len(find_samples(_manifest(b"%d/%d.jpg" % (i % 10, i) for i in range(20_000)))) == 20_000


def test_a_dataset_without_files_has_no_samples() -> None:
    samples = find_samples(_manifest([]))
    assert (len(samples), samples.first.tolist(), samples.rows.tolist()) == (0, [0], [])


# --- Groups ----------------------------------------------------------------------------------------------------------


@given(_TREES, st.sampled_from(["dir", "all"]))
@example([b"a", b"a.jpg", b"b.jpg"], "dir")
def test_groups_are_samples_of_one_directory_and_one_signature(paths: list[bytes], shuffle: str) -> None:
    assert _groups(paths, shuffle) == (_slow_groups(paths, shuffle), set())


@given(_TREES, st.sampled_from(["dir", "all"]))
@example([b"a", b"a.jpg", b"b.jpg"], "all")
@example([b"a-b.json", b"a.jpg", b"a-b.jpg", b"a.json"], "dir")
def test_members_of_samples_of_one_group_correspond(paths: list[bytes], shuffle: str) -> None:
    manifest = _manifest(paths)
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, shuffle).tolist()
    suffixes: dict[int, set[tuple[bytes, ...]]] = {}
    for sample, number in enumerate(group):
        suffixes.setdefault(number, set()).add(_suffixes(_members(manifest, samples, sample)))
    assert all(len(different) == 1 for different in suffixes.values())


@given(_TREES)
def test_groups_are_numbered_without_gaps_by_their_first_sample(paths: list[bytes]) -> None:
    manifest = _manifest(paths)
    group = group_samples(manifest, find_samples(manifest), "dir").tolist()
    assert list(dict.fromkeys(group)) == list(range(len(set(group))))


@given(_TREES)
def test_off_means_that_all_keep_their_names(paths: list[bytes]) -> None:
    assert _groups(paths, "off")[0] == set()


def test_dir_never_mixes_directories_and_all_does() -> None:
    paths = [b"cat/1.jpg", b"cat/2.jpg", b"dog/1.jpg"]
    assert _groups(paths, "dir") == ({frozenset(paths[:2]), frozenset(paths[2:])}, set())
    assert _groups(paths, "all") == ({frozenset(paths)}, set())


def test_a_regular_expression_groups_by_what_it_captures_and_leaves_the_rest_alone() -> None:
    paths = [b"train/cat_1.jpg", b"val/cat_2.jpg", b"train/dog_3.jpg", b"readme"]
    assert _groups(paths, r"re:(cat|dog)_") == (
        {frozenset([paths[0], paths[1]]), frozenset([paths[2]])}, {b"readme"}
    )  # fmt: skip


def test_all_captured_parts_must_agree() -> None:
    paths = [b"train/cat_1.jpg", b"val/cat_2.jpg", b"train/dog_3.jpg", b"train/cat_4.jpg"]
    groups, _ = _groups(paths, r"re:^(\w+)/(cat|dog)_")
    assert groups == {frozenset([paths[0], paths[3]]), frozenset([paths[1]]), frozenset([paths[2]])}


def test_an_expression_that_captures_nothing_groups_by_what_it_matches() -> None:
    paths = [b"a1.jpg", b"b1.jpg", b"a2.jpg"]
    assert _groups(paths, "re:^[ab]")[0] == {frozenset([b"a1.jpg", b"a2.jpg"]), frozenset([b"b1.jpg"])}


def test_an_expression_does_not_mix_signatures() -> None:
    paths = [b"1.jpg", b"2.png", b"3.jpg", b"3.json"]
    assert _groups(paths, "re:(.*)/|^")[0] == {frozenset([b"1.jpg"]), frozenset([b"2.png"]), frozenset([b"3.jpg"])}


def test_an_expression_can_name_bytes_that_are_no_utf8() -> None:
    byte = "\udcff"  # as the command line decodes them
    assert _groups([b"\xff1", b"\xff2", b"3"], f"re:^{byte}") == ({frozenset([b"\xff1", b"\xff2"])}, {b"3"})


@given(_TREES, st.sampled_from(["re:^(x|y)/", "re:(a+)", "re:[.](.)"]))
def test_an_expression_agrees_with_matching_path_by_path(paths: list[bytes], shuffle: str) -> None:
    expression = re.compile(shuffle.removeprefix("re:").encode())
    expected: dict[tuple[bytes, tuple[bytes, ...]], set[bytes]] = {}
    alone = set()
    for members in _slow_samples(paths).values():
        if match := expression.search(members[0]):
            expected.setdefault((match[1], _suffixes(members)), set()).add(members[0])
        else:
            alone.add(members[0])
    assert _groups(paths, shuffle) == (set(map(frozenset, expected.values())), alone)


@pytest.mark.parametrize(
    ("globs", "shuffled"),
    [
        (("train",), {b"train/1.jpg", b"train/2.jpg"}),
        (("train/**",), {b"train/1.jpg", b"train/2.jpg"}),
        (("*/1.jpg",), {b"train/1.jpg", b"val/1.jpg"}),
        (("train/2.jpg", "val"), {b"train/2.jpg", b"val/1.jpg"}),
        (("nothing",), set()),
    ],
)
def test_shuffle_only_leaves_the_others_their_names(globs: tuple[str, ...], shuffled: set[bytes]) -> None:
    paths = {b"train/1.jpg", b"train/2.jpg", b"val/1.jpg"}
    groups, alone = _groups(paths, "dir", globs)
    assert set().union(*groups) == shuffled
    assert alone == paths - shuffled


def test_the_first_file_of_a_sample_decides_for_all_of_them() -> None:
    paths = [b"1.jpg", b"1.json", b"2.jpg", b"2.json"]
    assert _groups(paths, "dir", ("*.jpg",)) == ({frozenset([b"1.jpg", b"2.jpg"])}, set())
    assert _groups(paths, "dir", ("*.json",)) == (set(), {b"1.jpg", b"2.jpg"})


def test_what_the_control_directory_hides_is_never_drawn_for_another_name() -> None:
    paths = [b".deepiofs/mine", b".deepiofs.txt", b"a", b"b"]
    groups, alone = _groups(paths, "all")
    assert alone == {b".deepiofs/mine"}
    assert frozenset([b"a", b"b"]) in groups
