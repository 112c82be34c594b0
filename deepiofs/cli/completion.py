"""`python -m deepiofs.cli.completion bash|zsh`: the files in mount-scripts/completion, from the parser and the options.

shtab makes the completion of commands and arguments out of the parser; what follows `-o` comes from the one table of
options. The files need nothing but the shell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from deepiofs.cli.main import command_parser
from deepiofs.errors import EnvironmentFault, UsageError
from deepiofs.options import option_rows

_DIRECTORIES = ("source", "mountpoint", "mountpoints")
_FILES = ("plot",)
_FILE_OPTIONS = ("index", "log", "order_log")
_CHOICES_OF = {"re:REGEX": "re:", "flag": ""}

_BASH = r"""
# What may follow -o: names of options, each with what it can be.
declare -gA _deepiofs_values=(
@VALUES@
)

# $1: what is typed of an argument of -o
_deepiofs_options() {
  local typed=$1 item=${1##*,} candidates name
  local before=${typed%"$item"}
  if [[ $item == *=* ]]; then
    name=${item%%=*}
    before+="$name="
    if [[ ${_deepiofs_values[$name]-} == FILE ]]; then
      candidates=$(compgen -f -- "${item#*=}")
    else
      candidates=$(compgen -W "${_deepiofs_values[$name]-}" -- "${item#*=}")
    fi
  else
    candidates=$(compgen -W "@NAMES@" -- "$item")
  fi
  # bash replaces only what follows the last character at which it breaks words
  [[ $COMP_WORDBREAKS == *=* ]] && before=${before:${#typed}-$(_deepiofs_tail "$typed")}
  COMPREPLY=()
  while IFS= read -r item; do [[ -n $item ]] && COMPREPLY+=("$before$item"); done <<<"$candidates"
  compopt -o nospace 2>/dev/null || :
}

# How many characters of $1 follow its last = or :
_deepiofs_tail() {
  local tail=${1##*[=:]}
  echo ${#tail}
}

_deepiofs() {
  local words=() word joined=
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ ${#words[@]} -gt 0 && ( $word == [=:]* || -n $joined ) ]]; then
      words[${#words[@]}-1]+=$word
    else
      words+=("$word")
    fi
    joined=
    [[ $word == *[=:] ]] && joined=1
  done
  local last=$((${#words[@]} - 1))
  if [[ ${words[last-1]} == -o ]]; then
    _deepiofs_options "${words[last]}"
  else
    COMP_WORDS=("${words[@]}") COMP_CWORD=$last
    _shtab_deepiofs
  fi
}
"""

_ZSH = r"""
_deepiofs_options() {
  _values -s , 'mount option' \
@VALUES@
}
"""


def script(shell: str) -> str:
    """The text of the file for `bash` or `zsh`. EnvironmentFault if shtab is missing, UsageError for other shells."""
    try:
        import shtab
    except ImportError:
        raise EnvironmentFault("completion files are made with shtab; install deepiofs[test]") from None
    if shell not in ("bash", "zsh"):
        raise UsageError("completion: expected bash or zsh")
    parser = command_parser()
    for action in _actions(parser):
        if action.dest in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "options":
            action.complete = {"zsh": "_deepiofs_options"}  # type: ignore[attr-defined]
    preamble: Any = {"bash": _bash(), "zsh": _zsh()}  # shtab takes both, and says str
    made = shtab.complete(parser, shell, root_prefix="deepiofs", preamble=preamble)
    text = "".join(f"{line.rstrip()}\n" for line in made.splitlines()).rstrip("\n") + "\n"
    return text + "complete -o bashdefault -F _deepiofs deepiofs\n" if shell == "bash" else text


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _values(name: str, values: str) -> list[str]:
    """What an option can be, as far as it can be listed."""
    listed = [_CHOICES_OF.get(value, value) for value in values.split(", ")]
    return [value for value in listed if value] if len(listed) > 1 and name not in _FILE_OPTIONS else []


def _bash() -> str:
    rows = [(name, values) for name, values, _, _ in option_rows()]
    lines = [
        f'  [{name}]="{"FILE" if name in _FILE_OPTIONS else " ".join(_values(name, values))}"' for name, values in rows
    ]
    names = " ".join(name if values == "flag" else f"{name}=" for name, values in rows)
    return _BASH.replace("@VALUES@", "\n".join(lines)).replace("@NAMES@", names)


def _zsh() -> str:
    lines = []
    for name, values, _, meaning in option_rows():
        said = _escaped(meaning.replace("'", "'\\''").replace("[", "(").replace("]", ")"))
        offered = "_files" if name in _FILE_OPTIONS else f"({_escaped(' '.join(_values(name, values)))})"
        value = "" if values == "flag" else f":{_escaped(values)}:{offered}"
        lines.append(f"    '{name}[{said}]{value}'")
    return _ZSH.replace("@VALUES@", " \\\n".join(lines))


def _escaped(text: str) -> str:
    return text.replace(":", "\\:")


if __name__ == "__main__":
    print(script(sys.argv[1]), end="")
