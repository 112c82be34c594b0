"""Who may read all files of a group, against the slow and obvious way for every user."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest, build_columns
from deepiofs.fs.access import mixed_groups, readable_by_all
from deepiofs.options import Settings

_DIRECTORY, _REGULAR = 0o040000, 0o100000
_USERS = [(user, group) for user in range(3) for group in range(3)]
_BITS = st.sampled_from([0o755, 0o644, 0o600, 0o640, 0o711, 0o604, 0o044, 0o700, 0o555, 0o000])
_ROW = st.tuples(_BITS, st.integers(0, 1), st.integers(0, 1))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A root, two directories below it, and four files in each."""
    rows = [draw(_ROW) for _ in range(11)]
    facts = {
        "parent": np.array([0, 0, 0] + [1] * 4 + [2] * 4),
        "size": np.zeros(11, np.int64),
        "mtime_ns": np.zeros(11, np.int64),
        "mode": np.array([(_DIRECTORY if i < 3 else _REGULAR) | row[0] for i, row in enumerate(rows)]),
        "uid": np.array([row[1] for row in rows]),
        "gid": np.array([row[2] for row in rows]),
        "nlink": np.ones(11, np.int64),
    }
    names = [b"", *(b"%d" % row for row in range(1, 11))]
    return Manifest({}, build_columns(names, facts, np.array([[0, row] for row in range(11)])))


def _may(manifest: Manifest, row: int, wanted: int, user: int, group: int) -> bool:
    own, shared = manifest.uid_of[row] == user, manifest.gid_of[row] == group
    bits = manifest.mode_of[row] >> (6 if own else 3 if shared else 0)
    return bits & wanted == wanted


def _reads(manifest: Manifest, row: int, user: tuple[int, int]) -> bool:
    above = manifest.parent_of[row]
    return all(
        (_may(manifest, row, 4, *user), _may(manifest, above, 1, *user), _may(manifest, 0, 1, *user)),
    )


@given(manifests(), st.lists(st.integers(-1, 2), min_size=8, max_size=8))
def test_names_that_are_not_mixed_tell_nobody_a_secret(manifest: Manifest, group: list[int]) -> None:
    mixed = mixed_groups(manifest, Settings(), np.array([-1, -1, -1, *group], np.int32))
    assert not mixed[:3].any()
    for row in range(3, 11):
        fellows = [other for other in range(3, 11) if group[other - 3] == group[row - 3] >= 0]
        if group[row - 3] < 0:
            assert not mixed[row]
        elif not mixed[row]:
            for user in _USERS:
                assert len({_reads(manifest, other, user) for other in fellows}) == 1


@given(manifests())
def test_what_is_for_all_is_for_everyone(manifest: Manifest) -> None:
    if readable_by_all(manifest, Settings()):
        for user in _USERS:
            assert all(_reads(manifest, row, user) for row in range(3, 11))
            assert all(_may(manifest, row, 5, *user) for row in range(3))


@given(manifests())
def test_owners_and_modes_that_are_given_replace_those_of_the_source(manifest: Manifest) -> None:
    alike = Settings(uid=7, gid=7, umask=0o077)
    assert not mixed_groups(manifest, alike, np.zeros(11, np.int32)).any()
    assert not readable_by_all(manifest, alike)
    assert readable_by_all(manifest, Settings(umask=0o022))


def test_no_names_no_groups() -> None:
    facts = {name: np.zeros(1, np.int64) for name in ("parent", "size", "mtime_ns", "uid", "gid", "nlink")}
    facts["mode"] = np.array([_DIRECTORY | 0o755])
    manifest = Manifest({}, build_columns([b""], facts, np.zeros((1, 2), np.int64)))
    assert mixed_groups(manifest, Settings(), np.array([-1], np.int32)).tolist() == [False]
