# shellcheck shell=bash disable=SC2154  # `nodes` is of common.sh
# PBS Professional, OpenPBS, Torque. Run with doubles of the commands only.

manager_job_id() {
    echo "${PBS_JOBID:-}"
}

# One line per task; the first is the host of the batch script.
manager_nodes() {
    awk 'NF && !seen[$1]++ { print $1 }' "${PBS_NODEFILE:?}"
}

# Both start a process of the job on another host: pbs_tmrsh of PBS Professional as rsh does, pbsdsh -h of Torque.
manager_launch() {
    if command -v pbs_tmrsh >/dev/null; then
        on_each_node pbs_tmrsh "$@"
    else
        on_each_node torque_rsh "$@"
    fi
}

torque_rsh() {
    pbsdsh -h "$@"
}

manager_terminate() {
    qdel "$PBS_JOBID"
}
