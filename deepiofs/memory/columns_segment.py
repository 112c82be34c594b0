"""Columns in shared memory: what one process computes and others read without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from deepiofs.dataset import columns
from deepiofs.memory.segments import Segment


def create(name: str, meta: Mapping[str, Any], arrays: columns.Arrays) -> Segment:
    """A segment with the packed columns."""
    segment = Segment.create(name, columns.packed_size(meta, arrays))
    columns.pack_into(segment.view, meta, arrays)
    return segment


def read(segment: Segment) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """`meta` and arrays, as views of the segment."""
    return columns.unpack(segment.view)


def copy_of(name: str, content: memoryview) -> Segment:
    """A segment with columns that were packed before (an index file)."""
    segment = Segment.create(name, len(content))
    segment.view[: len(content)] = content
    return segment
