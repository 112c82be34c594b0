"""Which samples there are, their groups, and which file of a sample a name is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Roster:
    """Columns as in `dataset.samples.Samples`, and the group of each sample. Read-only."""

    def __init__(
        self,
        of_row: npt.NDArray[np.int32],
        first: npt.NDArray[np.int64],
        rows: npt.NDArray[np.uint32],
        group: npt.NDArray[np.int32],
    ) -> None:
        # One element of a memoryview costs less than one of an array, and is a plain number.
        self.sample_of, self._group = of_row.data, group.data
        self._first, self._rows = first.data, rows.data

    def covers(self, row: int) -> bool:
        """Whether the name of a row is shuffled."""
        sample = self.sample_of[row]
        return sample >= 0 and self._group[sample] >= 0

    def group_of(self, row: int) -> int:
        """The group of a name that is shuffled."""
        return self._group[self.sample_of[row]]

    def files(self, sample: int) -> int:
        """How many files a sample has."""
        return self._first[sample + 1] - self._first[sample]

    def member_of(self, row: int) -> int:
        """The place of a file in its sample."""
        first = self._first[self.sample_of[row]]
        place = 0  # most samples are one file
        while self._rows[first + place] != row:
            place += 1
        return place

    def row(self, sample: int, member: int) -> int:
        """The file at a place in a sample."""
        return self._rows[self._first[sample] + member]
