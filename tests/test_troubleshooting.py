"""docs/TROUBLESHOOTING.md and the code know of the same messages."""

from __future__ import annotations

import ast
import errno
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepiofs import errors
from deepiofs.options import Settings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/TROUBLESHOOTING.md"
# What these say must be in the page: the user has to mend the machine, or the source.
CODES = (3, 4)
_LEAST = 4
_VARIES = "\0"


@dataclass(frozen=True)
class Said:
    """A text of the code; NUL stands for what varies. `kind`: the error's class, if it is raised with it here."""

    where: str
    text: str
    kind: str = ""

    @property
    def parts(self) -> list[str]:
        """What does not vary, without punctuation at the ends."""
        return fixed_parts(self.text.split(_VARIES))


def fixed_parts(pieces: list[str]) -> list[str]:
    stripped = [piece.strip(" '\"`:;,.()=") for piece in pieces]
    return [piece for piece in stripped if len(piece) >= _LEAST]


@functools.cache
def all_said() -> tuple[Said, ...]:
    return tuple(said for path in sorted((ROOT / "deepiofs").rglob("*.py")) for said in of_module(path))


def of_module(path: Path) -> Iterator[Said]:
    tree = ast.parse(path.read_text())
    nodes, file = list(ast.walk(tree)), path.relative_to(ROOT)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            for text in texts_of(node.args[0], constants, functions):
                yield Said(where, text, node.func.id)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in prose:
            yield from (Said(where, text) for text in texts_of(node, constants, {}))


def texts_of(node: ast.expr, constants: dict[str, str], functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """The texts that an expression may be: a function of the module is what it returns."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(piece_of(value, constants) for value in values)
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            for inner in ast.walk(functions[name]):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from texts_of(inner.value, constants, {})


def piece_of(value: ast.expr, constants: dict[str, str]) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name)) if name in constants:
            return constants[name]
    return _VARIES


def documented() -> list[str]:
    """The messages in the first column of the page's tables."""
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


def codes() -> dict[str, int]:
    return {name: kind.exit_code for name, kind in vars(errors).items() if hasattr(kind, "exit_code")}


SYSTEM = {os.strerror(number) for number in errno.errorcode}
MESSAGES = documented()


def owed() -> list[Said]:
    """What the page has to have."""
    return [said for said in all_said() if codes().get(said.kind) in CODES and said.parts]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_in_the_page_is_one_of_the_code(message: str) -> None:
    known = {said.text for said in all_said()} | SYSTEM | set(Settings.__dataclass_fields__)
    for part in fixed_parts(re.split(r"\.\.\.", message)):
        assert any(part in text for text in known), part


def test_every_error_of_the_machine_and_of_the_source_is_in_the_page() -> None:
    page = PAGE.read_text()
    missing = [f"{said.where}: {part}" for said in owed() for part in said.parts if part not in page]
    assert missing == []


def test_the_errors_of_the_code_are_found() -> None:
    # Without this an empty list would prove everything.
    assert len(owed()) > 20
    assert any("user_allow_other" in said.text for said in owed())
    assert any("nodev" in said.text for said in owed())
    assert len(MESSAGES) > 60
