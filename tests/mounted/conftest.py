"""Mounts that many tests read, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted import trees
from tests.mounts import Journal, Mount, Namespace, mounted, unavailable


@pytest.fixture(scope="package")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """The nasty tree of `trees`; the cache is too small for all of it, so that some bytes come from the source."""
    if reason := unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("nasty")
    source = trees.build(folder)
    (folder / "mount").mkdir()
    journal = Journal(folder)
    with mounted(source, folder / "mount", journal.option(), "cache=200M") as mount:
        yield mount
    journal.check()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where there are no mount namespaces."""
    if reason := Namespace.unavailable():
        pytest.skip(reason)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A dataset of a few small files."""
    source = tmp_path / "source"
    for name in ("a/one.jpg", "a/two.jpg", "b/three.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"the bytes of {name}")
    return source
