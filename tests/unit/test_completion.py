"""Completion in the shells: the files are those that the parser and the options make, and bash offers what there is."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepiofs.cli.completion import script
from deepiofs.cli.main import command_parser
from deepiofs.options import option_rows

FOLDER = Path(__file__).parents[2] / "mount-scripts/completion"
FILES = {"bash": FOLDER / "deepiofs.bash", "zsh": FOLDER / "_deepiofs"}


@pytest.mark.parametrize("shell", FILES)
def test_the_files_are_up_to_date(shell: str) -> None:
    pytest.importorskip("shtab")
    command = f"python -m deepiofs.cli.completion {shell} > {FILES[shell].relative_to(FOLDER.parents[1])}"
    assert FILES[shell].read_text() == script(shell), f"make it anew: {command}"


@pytest.mark.parametrize("shell", FILES)
def test_the_shell_can_read_its_file(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", FILES[shell]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def offered(line: str, folder: Path) -> list[str]:
    """What bash offers at the end of a line; its words are broken as bash breaks them."""
    words = [word for word in re.split(r"\s+|([=:])", line) if word]
    if line.endswith((" ", "=")):
        words += [""] if line.endswith(" ") else []
    program = f"""source {FILES["bash"]}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_deepiofs 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return sorted(set(filter(None, done.stdout.splitlines())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("source", "somewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "saved.index").touch()
    return tmp_path


def test_commands_are_offered(folder: Path) -> None:
    actions = command_parser()._subparsers
    assert actions is not None
    commands = set(actions._group_actions[0].choices or ())
    assert commands <= set(offered("deepiofs ", folder))
    assert offered("deepiofs um", folder) == ["umount"]


def test_directories_are_offered_for_source_and_mount_point(folder: Path) -> None:
    for line in ("deepiofs mount so", "deepiofs mount source so", "deepiofs mount -o cache=1G,warm=full source so"):
        assert offered(line, folder) == ["somewhere", "source"]


def test_every_option_is_offered(folder: Path) -> None:
    names = {row[0] if row[1] == "flag" else f"{row[0]}=" for row in option_rows()}
    assert set(offered("deepiofs mount a b -o ", folder)) == names


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("shuf", ["shuffle=", "shuffle_only="]),
        ("allow_o", ["allow_other"]),
        ("allow_other,ve", ["allow_other,verify="]),
        ("cache=1G,sh", ["1G,shuffle=", "1G,shuffle_only="]),
        ("warm=", ["background", "demand", "full"]),
        ("warm=f", ["full"]),
        ("cache=1G,warm=f", ["full"]),
        ("shuffle=re:x,links=s", ["skip"]),
        ("index=sav", ["saved.index"]),
        ("seed=", []),
        ("nonsense", []),
    ],
)
def test_options_and_their_values_are_offered_after_o(folder: Path, typed: str, expected: list[str]) -> None:
    assert offered(f"deepiofs mount a b -o {typed}", folder) == expected


class Terminal:
    """An interactive bash."""

    def __init__(self, folder: Path) -> None:
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.chdir(folder)
            os.environ.update(TERM="dumb", PS1="", INPUTRC="/dev/null", HISTFILE="/dev/null")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])

    def type(self, keys: str, until: str) -> str:
        """Type, and wait for a text that the typing itself does not show; what came before it."""
        os.write(self._fd, keys.encode())
        seen, deadline = "", time.monotonic() + 20
        while until not in seen:
            assert select.select([self._fd], [], [], deadline - time.monotonic())[0], seen
            seen += os.read(self._fd, 4096).decode(errors="replace")
        return seen

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    made = Terminal(folder)
    made.type(f"source {FILES['bash']}; deepiofs() {{ printf '<%s>' \"$@\"; echo END''; }}; echo READ''Y\n", "READY")
    yield made
    made.close()


def test_the_tab_key_completes_a_whole_line(terminal: Terminal) -> None:
    line = "deepiofs mou\tsour\t som\t -o warm=f\t,verify=al\t,allow_o\t -f\n"
    said = terminal.type(line, "END")
    assert "<mount><source/><somewhere/><-o><warm=full,verify=always,allow_other><-f>" in said
