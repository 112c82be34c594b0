"""Samples and groups: what is shuffled as one unit, and what the user declared interchangeable.

A sample is the files of one directory that share their name up to the first dot; its signature is the set of its
suffixes. Samples of different signature are never in one group.

Names are compared by 64-bit digests, computed for all rows at once: sums of bytes times fixed random odd-spread
weights, one per place in the name (multilinear hashing: two different strings of one length collide with
probability 2^-64), mixed with the length.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import CONTROL_NAME, ROOT, Manifest
from deepiofs.dataset.selection import Globs

ALONE = -1

_NAME_MAX = 255
_DOT = ord(".")
_CHUNK_ROWS = 1 << 13  # letters and weights of so many names stay in a core's cache
_THREADS = 4
_ODD = np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = np.random.Generator(np.random.Philox(20181001)).integers(0, 1 << 64, _NAME_MAX + 1, np.uint64)

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Samples:
    """The samples of a dataset, numbered by their first row.

    of_row: int32 (n_rows,), the sample of each file, ALONE for directories. first: int64 (n + 1,) into rows: uint32,
    the files of each sample in order of their suffixes, so that the k-th files of two samples of one signature
    correspond. signature: uint64 (n,), equal for equal sets of suffixes. stem: uint64 (n,), equal for equal stems.
    """

    of_row: npt.NDArray[np.int32]
    first: Ints
    rows: npt.NDArray[np.uint32]
    signature: Words
    stem: Words

    def __len__(self) -> int:
        return len(self.signature)


def find_samples(manifest: Manifest) -> Samples:
    """Put the files of a dataset together."""
    files = np.flatnonzero(manifest.is_regular)
    stems, suffixes = _digests(manifest, files)
    keys = stems ^ _mixed(manifest.parents[files].astype(np.uint64) + np.uint64(1))
    # No suffix at all has the digest 0, which must count in the sum as well.
    suffixes = _mixed(suffixes + _ODD)
    sample = _numbered(keys)
    of_row = np.full(manifest.n_rows, ALONE, np.int32)
    of_row[files] = sample
    n = int(sample.max(initial=-1)) + 1
    if n == len(files):
        return Samples(of_row, np.arange(n + 1), files.astype(np.uint32), suffixes, stems)
    order = np.argsort(sample, kind="stable")
    signature = np.zeros(n, np.uint64)
    np.add.at(signature, sample, suffixes)
    begin = np.concatenate(([0], np.cumsum(np.bincount(sample, minlength=n))))
    return Samples(of_row, begin, files[order].astype(np.uint32), signature, stems[order[begin[:-1]]])


def _numbered(keys: Words) -> Ints:
    """The number of each key's value, int64, as keys; values are numbered by first appearance, so that neighbours
    stay neighbours."""
    ordered = np.sort(keys)  # far faster than finding where each comes from, and mostly all differ
    if not (ordered[1:] == ordered[:-1]).any():
        return np.arange(len(keys))
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[back.reshape(-1)]


def group_samples(
    manifest: Manifest, samples: Samples, shuffle: str, shuffle_only: tuple[str, ...] = ()
) -> npt.NDArray[np.int32]:
    """The group of each sample, int32 (n_samples,), numbered by first sample; ALONE for those that keep their names.

    shuffle: as the option. All files of a sample must be meant by shuffle_only, and by a REGEX, alike: its first
    file decides.
    """
    leaders = samples.rows[samples.first[:-1]].astype(np.int64)
    group = np.full(len(samples), ALONE, np.int32)
    if shuffle == "off":
        return group
    keys, meant = _keys(manifest, leaders, shuffle)
    meant &= meant_samples(manifest, leaders, shuffle_only)
    chosen = np.flatnonzero(meant)
    group[chosen] = _numbered(_mixed(keys[chosen]) + samples.signature[chosen])
    return group


def meant_samples(
    manifest: Manifest, leaders: npt.NDArray[Any], shuffle_only: tuple[str, ...]
) -> npt.NDArray[np.bool_]:
    """Which samples `shuffle_only` selects, bool (n_samples,), judged by their first files, the `leaders` (rows).

    Never those that the control directory hides.
    """
    meant = np.ones(len(leaders), bool)
    if shuffle_only:
        globs = Globs(shuffle_only)
        meant &= np.fromiter((globs.cover(manifest.path(row)) for row in leaders.tolist()), bool, len(leaders))
    if manifest.lookup(ROOT, CONTROL_NAME) is not None:
        meant &= np.fromiter((not _is_hidden(manifest.path(row)) for row in leaders.tolist()), bool, len(leaders))
    return meant


def _is_hidden(path: bytes) -> bool:
    """Whether no name outside `.deepiofs/exact` leads there: such samples must not be served under others' names."""
    return path == CONTROL_NAME or path.startswith(CONTROL_NAME + b"/")


def _keys(manifest: Manifest, leaders: Ints, shuffle: str) -> tuple[Words, npt.NDArray[np.bool_]]:
    """What must be equal for two samples to be interchangeable, and which samples the option means at all."""
    everyone = np.ones(len(leaders), bool)
    if shuffle == "all":
        return np.zeros(len(leaders), np.uint64), everyone
    if shuffle == "dir":
        return manifest.parents[leaders].astype(np.uint64), everyone
    expression = re.compile(shuffle.removeprefix("re:").encode("utf-8", "surrogateescape"))
    labels: dict[tuple[bytes, ...], int] = {}
    keys = np.zeros(len(leaders), np.uint64)
    for i, row in enumerate(leaders.tolist()):
        if match := expression.search(manifest.path(row)):
            captured = match.groups(b"") or (match[0],)
            keys[i] = labels.setdefault(captured, len(labels))
        else:
            everyone[i] = False
    return keys, everyone


def _digests(manifest: Manifest, files: Ints) -> tuple[Words, Words]:
    """Of the stem and of the suffix of each file's name, uint64 (n_files,) each."""
    stems, suffixes = np.empty(len(files), np.uint64), np.empty(len(files), np.uint64)

    def digest(at: int) -> None:
        part = slice(at, at + _CHUNK_ROWS)
        stems[part], suffixes[part] = _digest_chunk(manifest, files[part])

    with ThreadPoolExecutor(_THREADS, "digest") as pool:  # numpy lets other threads run meanwhile
        collections.deque(pool.map(digest, range(0, len(files), _CHUNK_ROWS)), maxlen=0)
    return stems, suffixes


def _digest_chunk(manifest: Manifest, rows: Ints) -> tuple[Words, Words]:
    name_at = manifest.columns["name_at"]
    start = name_at[rows].astype(np.int64)
    length = name_at[rows + 1].astype(np.int64) - start
    begin = np.concatenate(([0], np.cumsum(length)))[:-1]
    place = np.arange(int(length.sum())) - np.repeat(begin, length)
    letters = manifest.columns["names"][np.repeat(start, length) + place]
    # A leading dot belongs to the stem; no name is empty.
    dot = np.where((letters == _DOT) & (place > 0), place, _NAME_MAX + 1)
    split = np.minimum(np.minimum.reduceat(dot, begin), length)
    in_suffix = place >= np.repeat(split, length)
    after = np.where(in_suffix, place - np.repeat(split, length), place)
    # The letter's value is never 0 in the sum, so that a letter more is another digest.
    terms = (letters.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[after]
    stem = np.add.reduceat(np.where(in_suffix, np.uint64(0), terms), begin)
    suffix = np.add.reduceat(np.where(in_suffix, terms, np.uint64(0)), begin)
    return _mixed(stem + split.astype(np.uint64)), _mixed(suffix + (length - split).astype(np.uint64))


def _mixed(words: Words) -> Words:
    """The finalizer of splitmix64: every bit of the result depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
