"""Directories that look like two halves of the same samples (`images/` and `masks/`).

Shuffled each by itself they would give an image with another image's mask, and no error: so the mount is refused
until the user says which of them is shuffled.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import os
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.samples import ALONE, Samples
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
    looks = {directory: _Looks.of(manifest, directory) for directory in stems}
    for one, other in _meetings(stems, looks):
        if looks[one].is_half_of(looks[other]) and _share_most(stems[one], stems[other]):
            here, there = (os.fsdecode(manifest.path(row)) or "." for row in (one, other))
            raise OptionError(
                f"{here} and {there} look like two halves of the same samples: shuffled apart, one half would get "
                "another's other half; put the files of a sample into one directory, or leave both out with "
                f"shuffle_only=, or, if they are no halves, name one with shuffle_only={here} or say with "
                "shuffle=re:REGEX what is interchangeable"
            )


def _stems(manifest: Manifest, samples: Samples, group: npt.NDArray[np.int32]) -> dict[int, set[bytes]]:
    """The stems of the shuffled samples of each directory."""
    stems: dict[int, set[bytes]] = collections.defaultdict(set)
    leaders = samples.rows[samples.first[:-1]]
    for row in leaders[group != ALONE].tolist():
        stems[manifest.parent_of[row]].add(stem(manifest.name(row)))
    return stems


def _meetings(stems: dict[int, set[bytes]], looks: dict[int, _Looks]) -> Iterable[tuple[int, int]]:
    """Pairs of directories that have one of a few stems of either in common, and do not look like two classes.

    Not all are compared with all: of two halves, nearly each name of one is in the other. Classes whose files are
    numbered alike would meet in hundreds of thousands of pairs, so those that look alike are put together first.
    """
    homes: dict[bytes, dict[object, list[int]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for directory, names in stems.items():
        for name in names:
            homes[name][looks[directory].kind].append(directory)
    seen: set[tuple[int, int]] = set()
    for directory, names in stems.items():
        for name in heapq.nsmallest(_PROBES, names):
            for kind, others in homes[name].items():
                for other in others if kind != looks[directory].kind else ():
                    pair = (min(directory, other), max(directory, other))
                    if pair not in seen:
                        seen.add(pair)
                        yield pair


def _share_most(one: set[bytes], other: set[bytes]) -> bool:
    shared = len(one & other)
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

    @classmethod
    def of(cls, manifest: Manifest, directory: int) -> _Looks:
        names = (manifest.name(row) for row in manifest.children(directory) if not manifest.is_directory(row))
        suffixes = frozenset(name[len(stem(name)) :].lower() for name in names)
        return cls(frozenset(manifest.path(directory).split(b"/")), suffixes)

    def is_half_of(self, other: _Looks) -> bool:
        """Whether the suffixes differ, or exactly one of the two is named like the other half."""
        if not self.suffixes & other.suffixes:
            return True
        named = [any(map(_PARTNERS.search, parts)) for parts in (self.parts - other.parts, other.parts - self.parts)]
        return named[0] != named[1]
