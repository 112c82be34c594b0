"""How much memory a node can give, and the check that what is promised fits.

Sources: MemAvailable of proc(5); memory.max and memory.current of cgroup v2, memory.limit_in_bytes and
memory.usage_in_bytes of v1 (Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from deepiofs.errors import NotEnoughMemoryError
from deepiofs.options import Settings

_CGROUP = Path("/sys/fs/cgroup")
_FILES = (("memory.max", "memory.current", "inactive_file"),
          ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one rank may use, in bytes."""

    cache: int
    staging: int


def plan_budget(settings: Settings, ranks_on_node: int, available: int | None = None) -> Budget:
    """Fill in percentages and check that cache and staging fit this rank's part of the node.

    NotEnoughMemoryError names what was asked for and what there is.
    """
    available = node_available() if available is None else available
    part = available // ranks_on_node
    budget = Budget(settings.cache.of(part), settings.staging.bytes)
    if budget.cache + budget.staging > part:
        raise NotEnoughMemoryError(
            f"cache {_mib(budget.cache)} and staging {_mib(budget.staging)} exceed the {_mib(part)} that this node "
            f"can give a rank ({ranks_on_node} on the node); lower cache= or staging="
        )
    return budget


def node_available() -> int:
    """Bytes that can be taken now without swapping or hitting a control group's limit."""
    return min([_mem_available(), *_cgroup_rooms()])


def _mem_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise NotEnoughMemoryError("/proc/meminfo has no MemAvailable")


def _cgroup_rooms() -> list[int]:
    """What each control group above this process has left: a limit may be set at any height."""
    rooms = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            top = _CGROUP / controllers if controllers else _CGROUP
            here = top / name.lstrip("/")
            rooms += [room for group in (here, *here.parents) if (room := _room(group)) is not None]
    return rooms


def _room(group: Path) -> int | None:
    """Limit less use, where what is only page cache counts as free; None without a limit."""
    for limit_name, usage_name, cache_name in _FILES:
        try:
            limit = (group / limit_name).read_text().strip()
            usage = int((group / usage_name).read_text())
            pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit != "max":
            return max(0, int(limit) - usage + int(pages.get(cache_name, 0)))
    return None


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f}M"
