"""Directories that look like two halves of the same samples are refused, others are not."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.pairs import refuse_pairs
from deepiofs.dataset.samples import find_samples, group_samples
from deepiofs.errors import OptionError
from tests.doubles import manifest_of

_N = 20


def _numbered(directory: bytes, suffix: bytes, numbers: Iterable[int] = range(_N)) -> list[bytes]:
    return [b"%s/%05d%s" % (directory, number, suffix) for number in numbers]


def _check(paths: Iterable[bytes], shuffle: str = "dir", shuffle_only: tuple[str, ...] = ()) -> None:
    manifest: Manifest = manifest_of(dict.fromkeys(paths, 1))
    samples = find_samples(manifest)
    refuse_pairs(manifest, samples, group_samples(manifest, samples, shuffle, shuffle_only), shuffle)


def _refusal(paths: Iterable[bytes], shuffle: str = "dir", shuffle_only: tuple[str, ...] = ()) -> str:
    with pytest.raises(OptionError) as caught:
        _check(paths, shuffle, shuffle_only)
    return str(caught.value)


@pytest.mark.parametrize(
    "partner",
    [b"masks", b"mask", b"labels", b"Annotations", b"annots", b"gt", b"ground_truth", b"depth", b"SegmentationClass",
     b"train_labels", b"masks2", b"captions", b"targets"],
)  # fmt: skip
def test_a_conventional_name_is_refused_though_suffixes_agree(partner: bytes) -> None:
    _refusal(_numbered(b"images", b".png") + _numbered(partner, b".png"))


@pytest.mark.parametrize(
    ("one", "other"), [(b".jpg", b".png"), (b".jpg", b".json"), (b".jpg", b""), (b".jpg", b".seg.png")]
)
def test_other_suffixes_are_refused_whatever_the_names(one: bytes, other: bytes) -> None:
    _refusal(_numbered(b"left", one) + _numbered(b"right", other))


@pytest.mark.parametrize("shuffle", ["dir", "all"])
def test_halves_are_refused_in_any_grouping_by_signature(shuffle: str) -> None:
    _refusal(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"), shuffle)


@pytest.mark.parametrize("nested", [(b"train/images", b"train/masks"), (b"images/train", b"masks/train"),
                                    (b"a/b/images/c", b"a/b/masks/c")])  # fmt: skip
def test_halves_are_refused_at_any_depth(nested: tuple[bytes, bytes]) -> None:
    message = _refusal(_numbered(nested[0], b".png") + _numbered(nested[1], b".png"))
    assert nested[0].decode() in message
    assert nested[1].decode() in message


def test_halves_are_refused_where_only_some_have_a_partner() -> None:
    _refusal(_numbered(b"images", b".jpg", range(1000)) + _numbered(b"masks", b".png", range(500, 520)))


def test_a_half_in_the_root_is_called_so() -> None:
    message = _refusal([b"%05d.jpg" % i for i in range(_N)] + _numbered(b"masks", b".png"))
    assert message.startswith(". and masks look like two halves")


def test_the_message_names_both_directories_and_the_way_out() -> None:
    message = _refusal(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"))
    assert "images and masks look like two halves of the same samples" in message
    assert "shuffle_only=" in message
    assert "shuffle=re:" in message


# --- Not refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle_only", [("images",), ("train/images", "images"), ("masks",)])
def test_shuffle_only_resolves(shuffle_only: tuple[str, ...]) -> None:
    _check(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"), shuffle_only=shuffle_only)


def test_shuffle_only_of_both_does_not_resolve() -> None:
    _refusal(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"), shuffle_only=("images", "masks"))


def test_shuffle_only_resolves_one_pair_of_two() -> None:
    train, val = range(_N), range(_N, 2 * _N)
    paths = _numbered(b"train/images", b".jpg", train) + _numbered(b"train/masks", b".png", train)
    paths += _numbered(b"val/images", b".jpg", val) + _numbered(b"val/masks", b".png", val)
    message = _refusal(paths, shuffle_only=("train/images", "val"))
    assert "val/images and val/masks" in message


def test_a_regular_expression_resolves() -> None:
    _check(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"), shuffle="re:(images|masks)")


def test_off_is_not_refused() -> None:
    _check(_numbered(b"images", b".jpg") + _numbered(b"masks", b".png"), shuffle="off")


def test_classes_whose_files_are_numbered_alike_are_not_refused() -> None:
    _check(path for label in (b"cat", b"dog", b"horse") for path in _numbered(label, b".jpg"))


@pytest.mark.parametrize("classes", [(b"mask", b"no_mask"), (b"with_mask", b"without_mask")])
def test_classes_of_conventional_names_are_not_refused_as_both_have_one(classes: tuple[bytes, bytes]) -> None:
    _check(path for label in classes for path in _numbered(label, b".jpg"))


def test_training_and_validation_of_numbered_files_are_not_refused() -> None:
    _check(_numbered(b"train", b".jpg") + _numbered(b"val", b".jpg"))


def test_the_same_masks_for_training_and_validation_are_not_a_pair() -> None:
    _check(_numbered(b"train/masks", b".png") + _numbered(b"val/masks", b".png"))


def test_a_few_names_in_common_are_no_pair() -> None:
    _check(_numbered(b"images", b".jpg", range(100)) + _numbered(b"masks", b".png", range(97, 200)))


def test_one_name_in_common_is_no_pair() -> None:
    _check([b"images/readme.txt", b"masks/readme.md", *_numbered(b"images", b".jpg")])


def test_both_halves_in_one_directory_are_one_sample_and_fine() -> None:
    _check(_numbered(b"train", b".jpg") + _numbered(b"train", b".png"))


def test_a_thousand_classes_numbered_alike_are_checked_in_seconds() -> None:
    paths = [path for label in range(1000) for path in _numbered(b"%04d" % label, b".jpg", range(100))]
    manifest = manifest_of(dict.fromkeys(paths, 1))
    samples = find_samples(manifest)
    group = group_samples(manifest, samples, "dir")
    started = time.process_time()
    refuse_pairs(manifest, samples, group, "dir")
    assert time.process_time() - started < 5
