"""Who may read what has not its name's own bytes: shuffled names, and streams. Modes and owners are the view's.

The kernel checks a name's own mode. That is enough where the bytes are the name's own; where they are another file's,
a name of mode 0644 would hand out a file of mode 0600. Pure numpy, read-only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepiofs.dataset.manifest import Manifest
from deepiofs.options import Settings

# All three classes: one who is in a file's group is judged by the group's bits, whatever all others may.
_READ, _SEARCH, _LIST = 0o444, 0o111, 0o555
_OPEN_WAY = -1
Column = npt.NDArray[np.int64]


def readable_by_all(manifest: Manifest, settings: Settings) -> bool:
    """Whether everyone may list every directory and read every file, from the root on."""
    modes = _modes(manifest, settings)
    needed = np.where(manifest.is_regular, _READ, _LIST)
    return bool(((modes & needed) == needed).all())


def mixed_groups(manifest: Manifest, settings: Settings, group_of_row: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """bool (n_rows,): names whose group has files that not the same users may read.

    group_of_row: int32 (n_rows,), below 0 for names that are not shuffled.
    """
    rows = np.flatnonzero(group_of_row >= 0)
    groups = group_of_row[rows]
    one_of = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
    one_of[groups] = rows  # any of each group: all must be like it
    like = one_of[groups]
    differs = np.zeros(len(rows), np.bool_)
    for column in _readers(manifest, settings):
        differs |= column[rows] != column[like]
    mixed = np.zeros(len(one_of), np.bool_)
    mixed[groups[differs]] = True
    found = np.zeros(manifest.n_rows, np.bool_)
    found[rows] = mixed[groups]
    return found


def _readers(manifest: Manifest, settings: Settings) -> tuple[Column, ...]:
    """Columns (n_rows,) that agree on two files only if the same users may read both: mode, user, group, way there."""
    read = _modes(manifest, settings) & _READ
    closed = read != _READ
    users, groups = _owners(manifest, settings)
    return read, np.where(closed, users, 0), np.where(closed, groups, 0), _ways(manifest, settings)


def _ways(manifest: Manifest, settings: Settings) -> Column:
    """int64 (n_rows,): equal only if the same users may pass all directories on the way; a directory's row, or open."""
    directories = np.flatnonzero(~manifest.is_regular)
    search = (_modes(manifest, settings) & _SEARCH)[directories]
    users, groups = (column[directories] for column in _owners(manifest, settings))
    alike = all((column == column[0]).all() for column in (search, users, groups))
    if alike or (search == _SEARCH).all():
        return np.full(manifest.n_rows, _OPEN_WAY, np.int64)
    return manifest.parents.astype(np.int64)


def _modes(manifest: Manifest, settings: Settings) -> Column:
    if settings.umask is not None:
        return np.full(manifest.n_rows, 0o777 & ~settings.umask, np.int64)
    return manifest.modes.astype(np.int64)


def _owners(manifest: Manifest, settings: Settings) -> tuple[Column, Column]:
    columns = ((settings.uid, manifest.columns["uid"]), (settings.gid, manifest.columns["gid"]))
    users, groups = (
        column.astype(np.int64) if given is None else np.full(manifest.n_rows, given, np.int64)
        for given, column in columns
    )
    return users, groups
