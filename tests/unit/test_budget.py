"""How much a node can give, on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepiofs.errors import NotEnoughMemoryError
from deepiofs.memory import budget
from deepiofs.memory.budget import Budget, node_available, plan_budget
from deepiofs.options import Settings

_M = 1 << 20


class _Machine:
    """A made-up /proc and /sys/fs/cgroup below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def proc(self, name: str, text: str) -> None:
        path = self.root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, name: str, limit: str, usage: int, pages: int = 0, *, version: int = 2) -> None:
        place = self.root / "cgroup" / name
        place.mkdir(parents=True, exist_ok=True)
        limit_name, usage_name, cache_name = {
            2: ("memory.max", "memory.current", "inactive_file"),
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        }[version]
        (place / limit_name).write_text(f"{limit}\n")
        (place / usage_name).write_text(f"{usage}\n")
        (place / "memory.stat").write_text(f"anon 1\nfile 2\n{cache_name} {pages}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    made = _Machine(tmp_path)
    made.proc("meminfo", f"MemTotal: 1 kB\nMemFree: 2 kB\nMemAvailable:   {1000 << 10} kB\n")
    made.proc("self/cgroup", "0::/job/step\n")
    (tmp_path / "cgroup").mkdir()

    def made_up(name: str) -> Path:
        return tmp_path / name.lstrip("/")

    monkeypatch.setattr(budget, "Path", made_up)
    monkeypatch.setattr(budget, "_CGROUP", tmp_path / "cgroup")
    return made


def test_without_a_limit_it_is_what_proc_says(machine: _Machine) -> None:
    assert node_available() == 1000 * _M


def test_a_limit_of_the_own_group_counts(machine: _Machine) -> None:
    machine.group("job/step", str(300 * _M), 100 * _M)
    assert node_available() == 200 * _M


def test_a_limit_at_any_height_counts(machine: _Machine) -> None:
    machine.group("job/step", "max", 10 * _M)
    machine.group("job", str(500 * _M), 100 * _M)
    assert node_available() == 400 * _M


def test_the_tightest_of_all_counts(machine: _Machine) -> None:
    machine.group("job/step", str(900 * _M), 0)
    machine.group("job", str(500 * _M), 0)
    assert node_available() == 500 * _M


def test_page_cache_of_the_group_counts_as_free(machine: _Machine) -> None:
    machine.group("job/step", str(300 * _M), 290 * _M, pages=200 * _M)
    assert node_available() == 210 * _M


def test_a_group_over_its_limit_has_nothing_left(machine: _Machine) -> None:
    machine.group("job/step", str(100 * _M), 120 * _M)
    assert node_available() == 0


def test_the_first_version_of_control_groups_counts_too(machine: _Machine) -> None:
    machine.proc("self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/job\n")
    machine.group("memory/job", str(250 * _M), 50 * _M, version=1)
    machine.group("memory", str((1 << 63) - 4096), 50 * _M, version=1)
    assert node_available() == 200 * _M


def test_a_group_that_cannot_be_read_is_passed_over(machine: _Machine) -> None:
    machine.group("job/step", str(_M), 0)
    (machine.root / "cgroup/job/step/memory.current").unlink()
    assert node_available() == 1000 * _M


def test_a_machine_that_does_not_say_is_an_error(machine: _Machine) -> None:
    machine.proc("meminfo", "MemTotal: 1 kB\n")
    with pytest.raises(NotEnoughMemoryError, match="MemAvailable"):
        node_available()


def test_a_percentage_is_of_this_ranks_part_of_the_node(machine: _Machine) -> None:
    settings = Settings.from_strings({"cache": "50%", "staging": "10M"})
    assert plan_budget(settings, 4) == Budget(cache=125 * _M, staging=10 * _M)


def test_sizes_are_taken_as_they_are() -> None:
    settings = Settings.from_strings({"cache": "60M", "staging": "40M"})
    assert plan_budget(settings, 1, available=100 * _M) == Budget(60 * _M, 40 * _M)


@pytest.mark.parametrize(("cache", "staging", "ranks"), [("61M", "40M", 1), ("100%", "1M", 1), ("30M", "30M", 2)])
def test_what_does_not_fit_is_an_error_that_names_what_was_asked_and_what_there_is(
    cache: str, staging: str, ranks: int
) -> None:
    settings = Settings.from_strings({"cache": cache, "staging": staging})
    asked = "100M" if cache == "100%" else cache
    with pytest.raises(NotEnoughMemoryError) as caught:
        plan_budget(settings, ranks, available=100 * _M)
    for part in (f"cache {asked}", f"staging {staging}", f"{100 // ranks}M", f"{ranks} on the node"):
        assert part in str(caught.value)


def test_the_real_machine_has_some_memory() -> None:
    assert node_available() > 0
