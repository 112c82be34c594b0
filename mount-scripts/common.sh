# shellcheck shell=bash
# What deepiofs-prolog, deepiofs-epilog and deepiofs-taskprolog share, to be sourced.

declare -A setting=(
    [PYTHON]='' [MANAGER]='' [SOURCE]='' [MOUNTPOINT]='' [OPTIONS]='' [WAIT_FOR]=mounted [TIMEOUT]=120
    [END_TIMEOUT]=10 [ON_FAILURE]=fail [KEY]=/etc/deepiofs/deepiofs.key [PORTS]=20000-29999 [ENVIRONMENT]=''
    [LOG_DIR]='' [STATE_DIR]='' [SHARED_DIR]='' [HOSTFILE]='' [JOB_ID]='' [RSH]='ssh -o BatchMode=yes'
)

say() {
    echo "${0##*/}: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

# Whether this runs as the site's script, as root before or after the job, and not within it.
is_site() {
    [[ ${1:-} == --site || ${SLURM_SCRIPT_CONTEXT:-} == @(prolog|epilog)_slurmd ]]
}

# Of the site only the file counts: some managers run its scripts with the job's environment, which is the user's.
# Within the job the environment overrides the file.
load_settings() {
    local way=$1 file='' name variable
    file=$(settings_file "$way")
    [[ -z $file ]] || read_settings "$file"
    if [[ $way == site ]]; then
        : "${setting[LOG_DIR]:=/var/log/deepiofs}" "${setting[STATE_DIR]:=/run/deepiofs}"
    else
        # The site's folders are root's.
        [[ -n ${DEEPIOFS_CONF:-} ]] || setting[LOG_DIR]='' setting[STATE_DIR]=''
        for name in "${!setting[@]}"; do
            variable=DEEPIOFS_$name
            [[ -z ${!variable+set} ]] || setting[$name]=${!variable}
        done
        : "${setting[SHARED_DIR]:=${HOME:?}/.deepiofs}" "${setting[STATE_DIR]:=/tmp/deepiofs-$UID}"
        : "${setting[LOG_DIR]:=${setting[SHARED_DIR]}/logs}"
    fi
    : "${setting[PYTHON]:=$(python_of_deepiofs)}"
    # The epilog must not fail for it.
    [[ ${setting[END_TIMEOUT]} =~ ^[0-9]+$ ]] || setting[END_TIMEOUT]=10
}

settings_file() {
    local file
    local -a places=(/etc/deepiofs/deepiofs.conf "$here/deepiofs.conf")
    [[ $1 == site || -z ${DEEPIOFS_CONF:-} ]] || places=("$DEEPIOFS_CONF")
    for file in "${places[@]}"; do
        [[ -e $file ]] || continue
        if [[ $1 == site && -n $(find -L "$file" \( ! -user root -o -perm /022 \) 2>/dev/null) ]]; then
            fail "$file can be written by others than root; chown root, chmod go-w"
        fi
        echo "$file"
        return
    done
    [[ $1 == site || -z ${DEEPIOFS_CONF:-} ]] || fail "DEEPIOFS_CONF=$DEEPIOFS_CONF: no such file"
}

# Lines NAME=VALUE, taken as they are: nothing in them is executed.
read_settings() {
    local line name value
    while IFS= read -r line || [[ -n $line ]]; do
        [[ ! $line =~ ^[[:space:]]*(#.*)?$ ]] || continue
        [[ $line =~ ^DEEPIOFS_([A-Z_]+)=(.*)$ ]] || fail "$1: expected DEEPIOFS_NAME=VALUE: $line"
        name=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
        [[ -n ${setting[$name]+set} ]] || fail "$1: unknown setting DEEPIOFS_$name; known: ${!setting[*]}"
        [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]] && value=${BASH_REMATCH[1]}
        setting[$name]=$value
    done <"$1"
}

check_settings() {
    [[ -x ${setting[PYTHON]} ]] || fail "DEEPIOFS_PYTHON='${setting[PYTHON]}': set it to the Python that has deepiofs"
    [[ ${setting[TIMEOUT]} =~ ^[0-9]+$ ]] || fail "DEEPIOFS_TIMEOUT=${setting[TIMEOUT]}: expected seconds"
    [[ ${setting[WAIT_FOR]} == @(mounted|warm) ]] || fail "DEEPIOFS_WAIT_FOR=${setting[WAIT_FOR]}: expected mounted or warm"
    [[ ${setting[ON_FAILURE]} == @(fail|bind) ]] || fail "DEEPIOFS_ON_FAILURE=${setting[ON_FAILURE]}: expected fail or bind"
}

python_of_deepiofs() {
    local command
    command=$(command -v deepiofs) && echo "$(dirname "$command")/python"
}

# The functions of managers/NAME.sh; without a name, of the one whose job this is.
choose_manager() {
    local name=${setting[MANAGER]}
    [[ -n $name ]] || name=$(find_manager)
    [[ $name =~ ^[a-z]+$ && -r $here/managers/$name.sh ]] || fail "DEEPIOFS_MANAGER=$name: expected $(manager_names)"
    # What a site's prolog needs beside the four functions; a manager's file may know better.
    # shellcheck disable=SC2317
    manager_owner() { id -u; }
    # shellcheck disable=SC2317
    manager_request() { echo "${DEEPIOFS_SOURCE:-} ${DEEPIOFS_MOUNTPOINT:-} ${DEEPIOFS_OPTIONS:-}"; }
    # shellcheck source=/dev/null
    source "$here/managers/$name.sh"
    setting[MANAGER]=$name
}

find_manager() {
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        echo slurm
    elif [[ -n ${PBS_JOBID:-} ]]; then
        echo pbs
    elif [[ -n ${LSB_JOBID:-} ]]; then
        echo lsf
    elif [[ -n ${FLUX_JOB_ID:-}${FLUX_URI:-} ]]; then
        echo flux
    else
        echo hostfile
    fi
}

manager_names() {
    local -a files=("$here"/managers/*.sh)
    files=("${files[@]##*/}")
    echo "${files[*]%.sh}"
}

# Job and nodes, as the manager tells them. The job's name goes into paths.
find_job() {
    job=$(manager_job_id)
    [[ -n $job ]] || fail "this is no job of ${setting[MANAGER]}; see docs/MOUNTING.md"
    job=${setting[MANAGER]}-${job//[^A-Za-z0-9._-]/_}
    mapfile -t nodes < <(manager_nodes)
    ((${#nodes[@]})) || fail "${setting[MANAGER]} tells no nodes of job $job"
}

# shellcheck disable=SC2034
# Which of the nodes this is: managers and hosts do not agree on whether names have a domain.
find_node() {
    local mine each
    for mine in "${DEEPIOFS_NODE:-}" "${SLURMD_NODENAME:-}" "$(hostname)"; do
        for each in "${nodes[@]}"; do
            if [[ -n $mine && ($each == "$mine" || ${each%%.*} == "${mine%%.*}") ]]; then
                node=$each
                return
            fi
        done
    done
    fail "this host, $(hostname), is none of the job's nodes: ${nodes[*]}"
}

# For managers whose tool starts a program on one host, as rsh does: on all at once, and end with them.
on_each_node() {
    local each
    trap 'kill $(jobs -p) 2>/dev/null' TERM
    for each in "${nodes[@]}"; do
        "$1" "$each" "${@:2}" &
    done
    wait
}

# Runs a command, or function, for so many seconds at most.
bounded() {
    local seconds=$1 pid
    shift
    ("$@") </dev/null &
    pid=$!
    if ! wait_for_end "$pid" "$seconds"; then
        kill -TERM "$pid" 2>/dev/null
        wait_for_end "$pid" 2 || kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        return 124
    fi
    wait "$pid"
}

wait_for_end() {
    local tenths=$(($2 * 10))
    while is_running "$1"; do
        ((tenths-- > 0)) || return 1
        sleep 0.1
    done
}

# Numbers of processes come again: a time of start, if given, has to be that process's.
is_running() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    read -ra stat <<<"${stat##*) }"
    [[ ${stat[0]} != [ZX] && (-z ${2:-} || ${stat[19]} == "$2") ]]
}

start_time() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    read -ra stat <<<"${stat##*) }"
    echo "${stat[19]}"
}

as_user() {
    local uid=$1 entry home name gid
    shift
    entry=$(getent passwd "$uid") || return 1
    IFS=: read -r name _ _ gid _ home _ <<<"$entry"
    setpriv --reuid "$uid" --regid "$gid" --init-groups --inh-caps=-all \
        env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME="$home" USER="$name" LOGNAME="$name" "$@"
}
