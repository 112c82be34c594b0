"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import lab
from tests.launchers import Launcher, installed_launchers
from tests.mounts import Journal, Mount, MpiMount, mounted, mpi_mounted, nothing_left, unavailable
from tests.readers import no_readers_left

__all__ = ["lab"]

MountFactory = Callable[..., Mount]
MpiMountFactory = Callable[..., MpiMount]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--alone` chooses between the tests that are marked `alone` and those that may run side by side."""
    parser.addoption("--alone", choices=("no", "only", "with"), default="with")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--alone` does not mean."""
    if (chosen := config.getoption("--alone")) == "with":
        return
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        parts[item.get_closest_marker("alone") is not None].append(item)
    items[:] = parts[chosen == "only"]
    config.hook.pytest_deselected(items=parts[chosen != "only"])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a mount where none can be."""
    if item.get_closest_marker("mounted") and (reason := unavailable()):
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _no_readers_left() -> Iterator[None]:
    with no_readers_left():
        yield


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Where the mounts of a test log to; unexpected warnings fail the test."""
    folder = tmp_path / "journal"
    folder.mkdir()
    kept = Journal(folder)
    yield kept
    kept.check()


@pytest.fixture
def mount(tmp_path: Path, journal: Journal) -> Iterator[MountFactory]:
    """`mount(source, *options, **how)` makes a mount, with the parameters of `tests.mounts.mounted`."""
    with nothing_left(), contextlib.ExitStack() as stack:
        made = iter(range(1000))

        def make(source: Path, *options: str, at: Path | None = None, **how: Any) -> Mount:
            point = at or tmp_path / f"mount{next(made)}"
            point.mkdir(exist_ok=True)
            return stack.enter_context(mounted(source, point, journal.option(), *options, **how))

        yield make


@pytest.fixture(params=installed_launchers(), ids=str)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Each MPI that is installed."""
    chosen: Launcher = request.param
    return chosen


@pytest.fixture
def mpi_mount(tmp_path: Path, journal: Journal, launcher: Launcher) -> Iterator[MpiMountFactory]:
    """`mpi_mount(ranks, source, *options, **how)` makes a mount of several ranks, see `tests.mounts.mpi_mounted`."""
    with nothing_left(), contextlib.ExitStack() as stack:
        made = iter(range(1000))

        def make(ranks: int, source: Path, *options: str, **how: Any) -> MpiMount:
            folder = tmp_path / f"ranks{next(made)}"
            folder.mkdir()
            return stack.enter_context(mpi_mounted(launcher, ranks, source, folder, journal.option(), *options, **how))

        yield make
