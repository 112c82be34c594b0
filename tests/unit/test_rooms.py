"""Who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepiofs

_ROOT = Path(deepiofs.__file__).parent
_MODULES = sorted(_ROOT.rglob("*.py"))
# Room -> the rooms and single modules that it may import, beside itself. `cli` composes all of them.
_ARROWS = {
    "errors": set[str](),
    "options": {"errors"},
    "journal": {"errors", "options"},
    "dataset": {"errors"},
    "order": {"dataset", "errors"},
    "memory": {"dataset", "options", "errors"},
    "spinning": set(),
    "idling": {"spinning"},
    "engine": {"dataset", "memory", "options", "errors", "journal", "idling"},
    "fs": {"dataset", "memory", "order", "options", "errors"},
    "fuse": {"fs", "options", "errors", "idling"},
    "cli": {"errors", "options", "journal", "dataset", "order", "memory", "engine", "fs", "fuse"},
}
_ONLY_IMPORTERS = {
    "mpi4py": {"engine/mpi.py", "engine/window.py"},
    "pyfuse3": {f"fuse/{path.name}" for path in (_ROOT / "fuse").glob("*.py")},
}


def _relative(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            # `from deepiofs.memory import wire` imports deepiofs.memory.wire, `from deepiofs import x` deepiofs.x
            yield node.module
            if node.module == "deepiofs":
                yield from (f"deepiofs.{alias.name}" for alias in node.names if alias.name != "__version__")


def _room(module: str) -> str | None:
    """The room of a module of the project; None for the package itself and for others."""
    parts = module.split(".")
    return parts[1] if parts[0] == "deepiofs" and len(parts) > 1 else None


@pytest.mark.parametrize("path", _MODULES, ids=_relative)
def test_imports_follow_the_arrows(path: Path) -> None:
    here = _room(".".join(("deepiofs", *path.relative_to(_ROOT).with_suffix("").parts)))
    used = {room for module in _imports(path) if (room := _room(module))}
    if here == "__init__":
        assert used == set()
    else:
        assert here in _ARROWS, f"{here} is a new room: say what it may import"
        assert used - {here} <= _ARROWS[here]


def test_the_arrows_have_no_cycle() -> None:
    known: set[str] = set()
    while ready := {room for room, above in _ARROWS.items() if room not in known and above <= known}:
        known |= ready
    assert known == set(_ARROWS)


def test_file_system_and_engine_do_not_know_each_other() -> None:
    assert "engine" not in _ARROWS["fs"] | _ARROWS["fuse"]
    assert "fs" not in _ARROWS["engine"]


@pytest.mark.parametrize("library", _ONLY_IMPORTERS)
def test_a_library_has_few_importers(library: str) -> None:
    importers = {_relative(p) for p in _MODULES if any(m.split(".")[0] == library for m in _imports(p))}
    assert importers
    assert importers <= _ONLY_IMPORTERS[library]


def _loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_the_command_starts_without_the_heavy_libraries() -> None:
    assert _loaded_by("deepiofs.cli.main").isdisjoint({"numpy", "pyfuse3", "mpi4py", "trio", "rich"})


def test_an_engine_without_a_launcher_does_not_load_mpi() -> None:
    assert _loaded_by("deepiofs.engine.service").isdisjoint({"mpi4py", "pyfuse3"})


def test_a_mount_does_not_load_mpi() -> None:
    assert "mpi4py" not in _loaded_by("deepiofs.cli.mount")
