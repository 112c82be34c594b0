# shellcheck shell=bash disable=SC2154  # `nodes` is of common.sh
# Slurm. Run with Slurm 22.05.

manager_job_id() {
    echo "${SLURM_JOB_ID:-}"
}

# SLURM_JOB_NODELIST is not set in Prolog and Epilog of 22.05; `show hostnames` asks nobody.
manager_nodes() {
    scontrol show hostnames "${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}"
}

# A step beside the job's own. --mpi=none: the ranks find each other by themselves. -K0: the loss of one is not the
# others' end.
manager_launch() {
    exec srun --quiet --overlap --mpi=none --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --nodes="${#nodes[@]}" \
        --ntasks="${#nodes[@]}" --ntasks-per-node=1 --job-name=deepiofs "$@"
}

# The job, not the node, is at fault: a Prolog that exits with an error would drain it. A TaskProlog fails the job's
# first task, and writes why into the job's output; without one the job is cancelled, and has no output.
manager_terminate() {
    scontrol update JobId="$SLURM_JOB_ID" AdminComment="$1"
    has_taskprolog || scancel "$SLURM_JOB_ID"
}

has_taskprolog() {
    local file
    file=$(scontrol show config | sed -n 's/^TaskProlog *= *//p')
    [[ $file == */deepiofs-taskprolog ]] || grep -qs deepiofs-taskprolog "$file"
}

manager_owner() {
    echo "${SLURM_JOB_UID:?}"
}

# --comment="deepiofs SOURCE MOUNTPOINT [OPTIONS]": the Prolog does not see the job's environment.
manager_request() {
    scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Comment=deepiofs //p'
}
