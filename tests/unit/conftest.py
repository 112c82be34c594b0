"""What all tests here share: how hypothesis runs, and that no segment outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from deepiofs.memory.segments import Segment

# No time limit per example, as examples touch the disk; nothing is left behind.
settings.register_profile("unit", deadline=None, max_examples=30, database=None)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def _close_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Segments live as long as their process; here, as long as their test."""
    made: list[Segment] = []
    map_segment = Segment.__init__

    def recorded(segment: Segment, fd: int, size: int, writable: bool = True) -> None:
        map_segment(segment, fd, size, writable)
        made.append(segment)

    monkeypatch.setattr(Segment, "__init__", recorded)
    yield
    for segment in made:
        segment.close()
