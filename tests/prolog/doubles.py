"""Doubles of managers' commands, for PATH; each records its call, and refuses what the real one would.

What they hold to is the documentation: pbs_tmrsh, pbsdsh, qdel and the variables of qsub(1B) of OpenPBS and Torque;
blaunch(8), bkill(1) and the environment variables of IBM Spectrum LSF 10.1; flux-exec(1), flux-hostlist(1),
flux-cancel(1) and `jobid` of flux-broker-attributes(7). A remote program runs on this machine, with the environment
that it would have there, and is told by DEEPIOFS_NODE which host it is on.
"""

from __future__ import annotations

from pathlib import Path

HOSTS = ("localhost", "elsewhere")

_HEAD = """#!/bin/bash
echo "${{0##*/}} $*" >>"{folder}/calls"
refuse() {{ echo "${{0##*/}}: $*" >&2; exit 96; }}
needs() {{ for name; do [[ -n ${{!name:-}} ]] || refuse "outside of a job: $name is not set"; done; }}
# What a remote daemon starts has nothing of the caller's environment but what the manager gives it.
remotely() {{
    local host=$1; shift
    exec env -i HOME="$HOME" PATH=/usr/bin:/bin PYTHONPATH="$PYTHONPATH" DEEPIOFS_TEST_MARK="$DEEPIOFS_TEST_MARK" \\
        DEEPIOFS_NODE="$host" "$@"
}}
"""
_COMMANDS = {
    "pbs_tmrsh": """needs PBS_JOBID PBS_NODEFILE
(($# >= 2)) || refuse "usage: pbs_tmrsh host command [args]"
grep -qx -- "$1" "$PBS_NODEFILE" || refuse "$1 is not of job $PBS_JOBID"
remotely "$1" PBS_JOBID="$PBS_JOBID" "${@:2}"
""",
    "pbsdsh": """needs PBS_JOBID PBS_NODEFILE
[[ $1 == -h && $# -ge 3 ]] || refuse "usage: pbsdsh -h hostname program [args]"
grep -qx -- "$2" "$PBS_NODEFILE" || refuse "$2 is not of job $PBS_JOBID"
remotely "$2" PBS_JOBID="$PBS_JOBID" "${@:3}"
""",
    "qdel": """[[ $# == 1 && $1 =~ ^[0-9]+(\\[[0-9]*\\])?(\\..+)?$ ]] || refuse "illegally formed job identifier: $*"
""",
    "blaunch": """needs LSB_JOBID LSB_MCPU_HOSTS
[[ $1 != -* && $# -ge 2 ]] || refuse "usage: blaunch host_name command [argument ...]"
[[ " $LSB_MCPU_HOSTS " == *" $1 "* ]] || refuse "$1 is not allocated to job $LSB_JOBID"
remotely "$1" LSB_JOBID="$LSB_JOBID" LSB_MCPU_HOSTS="$LSB_MCPU_HOSTS" "${@:2}"
""",
    "bkill": """[[ $# == 1 && $1 =~ ^[0-9]+(\\[[0-9]+\\])?$ ]] || refuse "$1: Illegal job ID"
""",
    "scontrol": """case "$*" in
    "update JobId="*" AdminComment="*) ;;
    "show config") echo "TaskProlog              = $TASKPROLOG" ;;
    *) refuse "invalid entity: $*" ;;
esac
""",
    "scancel": """[[ $# == 1 && $1 =~ ^[0-9]+$ ]] || refuse "Invalid job id $*"
""",
    "flux": """needs FLUX_URI
case "$*" in
    "getattr jobid") echo f2Bxyz ;;
    "hostlist --expand --delimiter="$'\\n'" instance") printf '%s\\n' {hosts} ;;
    "--parent cancel --message="*" f2Bxyz") ;;
    "exec --noinput "*)
        for host in {hosts}; do remotely "$host" FLUX_URI="$FLUX_URI" "${@:3}" & done
        trap 'kill $(jobs -p)' TERM
        wait ;;
    *) refuse "unknown: $*" ;;
esac
""",
}


def install(folder: Path, *commands: str) -> None:
    """Write these commands into a folder, for PATH."""
    folder.mkdir(exist_ok=True)
    for name in commands:
        body = _COMMANDS[name].replace("{hosts}", " ".join(HOSTS))
        (folder / name).write_text(_HEAD.format(folder=folder) + body)
        (folder / name).chmod(0o755)


def calls(folder: Path) -> list[str]:
    """What was called, in order."""
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []
