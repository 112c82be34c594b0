"""What a section of `tests/benchmarks/run` measures, and how much of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

SIZES = {"4 KB": 4_000, "100 KB": 100_000, "1 MB": 1_000_000}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured."""

    files: Mapping[str, int]
    readers: Sequence[int]
    repetitions: int
    names: int
    stream_bytes: int
    load_files: int


FULL = Scale({"4 KB": 3000, "100 KB": 2000, "1 MB": 300}, (1, 4, 16), 7, 100_000, 400 << 20, 5000)
QUICK = Scale({"100 KB": 400}, (1, 4), 2, 5_000, 64 << 20, 500)


@dataclasses.dataclass(frozen=True)
class Row:
    """One view in one case. rates: of each repetition, in `unit`; `reference` is the view that its ratio is to."""

    section: str
    case: str
    view: str
    unit: str
    rates: Sequence[float]
    reference: str


Rows = Iterator[Row]
