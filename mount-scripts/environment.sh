# shellcheck shell=bash
# Set-up that ./try and ../tests/run share, to be sourced:
#
#   set_up EXTRAS [COMMAND=PACKAGE ...]
#
# leaves the project, with these extras, in a virtual environment at ${DEEPIOFS_VENV:-<repository>/.venv}, first on
# PATH. What is there already is not done again. Debian packages that are missing, among them those of the COMMANDs
# that are not found, are installed if this is root, and named if not. DEEPIOFS_PYTHON names the Python to use.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${DEEPIOFS_VENV:-$repository/.venv}

set_up() {
    local extras=$1
    shift
    local stamp="$venv/.installed-$extras" want
    want=$(sha256sum <"$repository/pyproject.toml")
    install_packages "$@"
    if [[ ! -x $venv/bin/python || $(cat "$stamp" 2>/dev/null) != "$want" ]] || ! "$venv/bin/python" -c ''; then
        install_project "$extras"
        echo "$want" >"$stamp"
    fi
    PATH=$venv/bin:$PATH
    export PATH VIRTUAL_ENV=$venv
}

install_packages() {
    local -a missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        fail "install these first (Debian's names): ${missing[*]}"
    fi
    say "installing ${missing[*]}"
    apt_get update
    apt_get install --no-install-recommends "${missing[@]}"
}

missing_packages() {
    local pair
    for pair in fusermount3=fuse3 pkg-config=pkg-config gcc=gcc "$@"; do
        command -v "${pair%%=*}" >/dev/null || echo "${pair#*=}"
    done
    # pyfuse3 is built from source. gcc alone brings no libc headers.
    pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
    gcc -E -include stdio.h -x c /dev/null >/dev/null 2>&1 || echo libc6-dev
    find_python >/dev/null || printf '%s\n' python3 python3-dev python3-venv
}

# Not every Python will do: Debian's can make no virtual environment without python3-venv, and has no headers
# without python3-dev; a first one on PATH may be too old.
find_python() {
    local python
    for python in ${DEEPIOFS_PYTHON:+"$DEEPIOFS_PYTHON"} python3 python3.{13,12,11} /usr/bin/python3; do
        if "$python" - 2>/dev/null <<'END'; then
import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
END
            echo "$python"
            return
        fi
    done
    return 1
}

install_project() {
    local python
    python=$(find_python) || fail "no Python >= 3.11 with venv and headers is found; set DEEPIOFS_PYTHON to one"
    say "installing deepiofs[$1] in $venv"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "${repository}[$1]"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

say() {
    echo "${0##*/}: $*" >&2
}

fail() {
    say "$*"
    exit 1
}
