# shellcheck shell=bash disable=SC2154  # `setting` and `nodes` are of common.sh
# No manager, or one that is not known here: DEEPIOFS_HOSTFILE lists the hosts, one per line (more words on it, and
# repeated hosts, are passed over), DEEPIOFS_RSH starts a program on one of them.

# Two jobs with one host file at a time need names of their own.
manager_job_id() {
    [[ -z ${setting[HOSTFILE]} ]] || echo "${setting[JOB_ID]:-$(cksum <<<"$UID ${setting[HOSTFILE]}" | cut -d' ' -f1)}"
}

manager_nodes() {
    awk '!/^[[:space:]]*(#|$)/ && !seen[$1]++ { print $1 }' "${setting[HOSTFILE]}"
}

manager_launch() {
    on_each_node remote "$@"
}

# As ssh does, the remote end makes one line of its arguments and has a shell read it.
remote() {
    local -a rsh
    local line
    read -ra rsh <<<"${setting[RSH]}"
    printf -v line '%q ' "${@:2}"
    exec "${rsh[@]}" "$1" "$line"
}

# There is no job to end but the script that called.
manager_terminate() {
    return 1
}
