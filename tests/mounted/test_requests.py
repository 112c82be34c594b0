"""How many requests of the kernel an open, a read and a close take: counted, as time would tell nothing in a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import Mount, mounted, wait_until

pytestmark = pytest.mark.mounted

_FILES = 50
_TRIES = 3
_SIZES = (1, 100_000)
_NAMES = [f"{i}.bin" for i in range(_FILES)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of both sizes in one directory."""
    folder = tmp_path / "source"
    folder.mkdir()
    for i, name in enumerate(_NAMES):
        (folder / name).write_bytes(bytes(_SIZES[i % len(_SIZES)]))
    (folder / "first.txt").write_text("x")
    (tmp_path / "mnt").mkdir()
    return folder


def _requests_of(mount: Mount, work: Callable[[], object]) -> int:
    """How many requests some work takes. The kernel sends the last ones when it likes: until no more come."""

    def count() -> int:
        requests: int = mount.stats()["requests"]
        return requests

    first = count()
    asking = count() - first
    work()
    found = [-1]

    def have_ended() -> bool:
        found.append(count() - first - asking * (len(found) + 1))
        return found[-1] == found[-2]

    wait_until(have_ended, lambda: f"the requests have come to an end: {found}")
    return found[-1]


def _read_all(mount: Mount) -> None:
    for name in _NAMES:
        descriptor = os.open(mount.point / name, os.O_RDONLY)
        os.read(descriptor, 1 << 20)
        os.close(descriptor)


def _forget_pages(mount: Mount) -> None:
    for name in _NAMES:
        descriptor = os.open(mount.point / name, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _on_a_quiet_machine(measure: Callable[[], list[int]], expected: list[int]) -> None:
    """Whoever drops the kernel's caches meanwhile, a benchmark say, makes it ask again: then once more."""
    found: list[int] = []
    for _ in range(_TRIES):
        found = measure()
        if found == expected:
            return
    assert found == expected


def test_an_exact_file_takes_four_requests_cold_two_warm_three_without_its_pages(source: Path) -> None:
    def measure() -> list[int]:
        with mounted(source, source.parent / "mnt") as mount:
            (mount.point / "first.txt").read_text()  # the kernel learns that FLUSH is not answered
            found = [_requests_of(mount, lambda: _read_all(mount)) for _ in range(2)]
            _forget_pages(mount)
            return [*found, _requests_of(mount, lambda: _read_all(mount))]

    _on_a_quiet_machine(measure, [4 * _FILES, 2 * _FILES, 3 * _FILES])


def test_a_shuffled_file_takes_four_requests(source: Path) -> None:
    def measure() -> list[int]:
        with mounted(source, source.parent / "mnt", "shuffle=dir", "shuffle_only=*.bin") as mount:
            (mount.point / "first.txt").read_text()
            return [_requests_of(mount, lambda: _read_all(mount)) for _ in range(2)]

    _on_a_quiet_machine(measure, [4 * _FILES, 4 * _FILES])


def test_a_listing_is_asked_for_once(source: Path) -> None:
    def measure() -> list[int]:
        with mounted(source, source.parent / "mnt") as mount:
            names = os.listdir(mount.point)
            os.listdir(mount.point)  # asks for the attributes again: the listing before has changed the atime
            again: list[str] = []
            found = _requests_of(mount, lambda: again.extend(os.listdir(mount.point)))
            assert again == names
            return [found]

    _on_a_quiet_machine(measure, [2])  # OPENDIR and RELEASEDIR
