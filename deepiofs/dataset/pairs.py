"""Directories that look like two halves of the same samples (`images/` and `masks/`).

Shuffled each by itself they would give an image with another image's mask, and no error: so the mount is refused
until the user says which of them is shuffled.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import ALONE, Samples, Words
from deepiofs.dataset.scan import stem
from deepiofs.errors import OptionError

# Of the smaller directory's names, how many must be in the other too.
_SHARE = 0.5
_FEWEST = 2
_PROBES = 16
# Names that datasets give to the other half; a directory called so beside one with the same stems is a partner.
_PARTNERS = re.compile(
    rb"(?i)(^|[-_.])(masks?|labels?|annot(ation)?s?|seg(mentation)?s?(class|object)?|gt|ground[-_]?truth|targets?|"
    rb"depths?|captions?|bbox(es)?|boxes|mattes?|alphas?|edges?|normals?|json|xml|txt)([-_.]|\d*$)"
)


def refuse_pairs(manifest: Manifest, samples: Samples, group: npt.NDArray[np.int32], shuffle: str) -> None:
    """OptionError that names the two directories, if two that are shuffled look like halves of the same samples.

    With `re:` the user has said what belongs together.
    """
    if shuffle.startswith("re:"):
        return
    stems = _stems(manifest, samples, group)
    if len(stems) < 2:
        return
    looks = _looks(manifest, samples, stems.keys())
    for one, other in _meetings(stems, looks):
        if looks[one].is_half_of(looks[other]) and _share_most(stems[one], stems[other]):
            here, there = (os.fsdecode(manifest.path(row)) or "." for row in (one, other))
            raise OptionError(
                f"{here} and {there} look like two halves of the same samples: shuffled apart, one half would get "
                "another's other half; put the files of a sample into one directory, or leave both out with "
                f"shuffle_only=, or, if they are no halves, name one with shuffle_only={here} or say with "
                "shuffle=re:REGEX what is interchangeable"
            )


def _stems(manifest: Manifest, samples: Samples, group: npt.NDArray[np.int32]) -> dict[int, Words]:
    """The digests of the stems of each directory's shuffled samples, ascending."""
    shuffled = np.flatnonzero(group != ALONE)
    if not len(shuffled):
        return {}
    leaders = samples.rows[samples.first[shuffled]]
    directory, stem = manifest.parents[leaders], samples.stem[shuffled]
    order = np.lexsort((stem, directory))
    names, begin = np.unique(directory[order], return_index=True)
    return dict(zip(names.tolist(), np.split(stem[order], begin[1:]), strict=True))


def _looks(manifest: Manifest, samples: Samples, directories: Iterable[int]) -> dict[int, _Looks]:
    """How each of the directories looks; of the samples with one signature in it, one tells the suffixes."""
    parent = manifest.parents[samples.rows[samples.first[:-1]]]
    order = np.lexsort((samples.signature, parent))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(parent[order]) != 0) | (np.diff(samples.signature[order]) != 0)
    suffixes: dict[int, set[bytes]] = {directory: set() for directory in directories}
    for sample in order[is_first].tolist():
        found = suffixes.get(int(parent[sample]))
        if found is not None:
            names = map(manifest.name, samples.rows[samples.first[sample] : samples.first[sample + 1]].tolist())
            found.update(name[len(stem(name)) :].lower() for name in names)
    return {
        directory: _Looks(frozenset(manifest.path(directory).split(b"/")), frozenset(found))
        for directory, found in suffixes.items()
    }


def _meetings(stems: dict[int, Words], looks: dict[int, _Looks]) -> Iterator[tuple[int, int]]:
    """Pairs of directories that have one of a few stems of either in common, and do not look like two classes.

    Not all are compared with all: of two halves, nearly each name of one is in the other. Classes whose files are
    numbered alike would meet in hundreds of thousands of pairs, so those that look alike are put together first.
    """
    alike: dict[object, list[int]] = collections.defaultdict(list)
    for directory in stems:
        alike[looks[directory].kind].append(directory)
    if len(alike) < 2:
        return
    homes = {kind: _homes(stems, directories) for kind, directories in alike.items()}
    seen: set[tuple[int, int]] = set()
    for directory, of_directory in stems.items():
        probes = of_directory[:_PROBES]
        for kind, (there, home) in homes.items():
            if kind == looks[directory].kind:
                continue
            first, last = np.searchsorted(there, probes, "left"), np.searchsorted(there, probes, "right")
            for begin, end in zip(first.tolist(), last.tolist(), strict=True):
                for other in home[begin:end].tolist():
                    pair = (min(directory, other), max(directory, other))
                    if pair not in seen:
                        seen.add(pair)
                        yield pair


def _homes(stems: dict[int, Words], directories: list[int]) -> tuple[Words, npt.NDArray[np.int64]]:
    """All stems of some directories, ascending, and the directory of each."""
    stem = np.concatenate([stems[directory] for directory in directories])
    home = np.repeat(directories, [len(stems[directory]) for directory in directories])
    order = np.argsort(stem, kind="stable")
    return stem[order], home[order]


def _share_most(one: Words, other: Words) -> bool:
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared >= _FEWEST and shared >= _SHARE * min(len(one), len(other))


@dataclasses.dataclass(frozen=True)
class _Looks:
    """What a directory's own path and its files' suffixes say of it."""

    parts: frozenset[bytes]
    suffixes: frozenset[bytes]

    @functools.cached_property
    def kind(self) -> object:
        """Equal for directories that cannot be halves of each other: same suffixes, and no name of another half."""
        named = frozenset(part for part in self.parts if _PARTNERS.search(part))
        return self.suffixes, named

    def is_half_of(self, other: _Looks) -> bool:
        """Whether the suffixes differ, or exactly one of the two is named like the other half."""
        if not self.suffixes & other.suffixes:
            return True
        named = [any(map(_PARTNERS.search, parts)) for parts in (self.parts - other.parts, other.parts - self.parts)]
        return named[0] != named[1]
