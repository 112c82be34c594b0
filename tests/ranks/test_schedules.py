"""Whatever a schedule of faults does to a job, who reads from a mount that lives sees right bytes in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab
from tests.launchers import installed_launchers
from tests.mounts import Journal, nothing_left
from tests.ranks.schedules import draw, run, write_dataset

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.lab, pytest.mark.alone]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all sizes."""
    source = tmp_path_factory.mktemp("mixed")
    write_dataset(source)
    return source


# The seeds have each kind of fault between them.
@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_of_faults_costs_a_reader_more_than_time(
    lab: Lab, mixed: Path, tmp_path: Path, journal: Journal, seed: int
) -> None:
    schedule = draw(seed)
    with nothing_left():
        outcome = run(schedule, installed_launchers()[0], lab, mixed, tmp_path, journal)
    assert outcome.problems == [], f"seed {seed}: {'; '.join(map(str, schedule.faults))}"
    assert outcome.reads > 0
