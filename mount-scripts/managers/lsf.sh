# shellcheck shell=bash disable=SC2154  # `nodes` is of common.sh
# IBM Spectrum LSF. Run with doubles of the commands only.

manager_job_id() {
    [[ -z ${LSB_JOBID:-} ]] || echo "$LSB_JOBID${LSB_JOBINDEX:+.$LSB_JOBINDEX}"
}

# LSB_MCPU_HOSTS has "host slots host slots ..."; LSB_HOSTS, one name per slot, is not set for large jobs.
manager_nodes() {
    local -a pairs
    local i
    read -ra pairs <<<"${LSB_MCPU_HOSTS:?}"
    for ((i = 0; i < ${#pairs[@]}; i += 2)); do
        echo "${pairs[i]}"
    done | awk '!seen[$1]++'
}

# blaunch takes the place of rsh. -z would take all hosts at once, but -u and -z differ between versions.
manager_launch() {
    on_each_node blaunch "$@"
}

manager_terminate() {
    if [[ ${LSB_JOBINDEX:-0} == 0 ]]; then
        bkill "$LSB_JOBID"
    else
        bkill "${LSB_JOBID}[$LSB_JOBINDEX]"
    fi
}
