# shellcheck shell=bash disable=SC2154  # `nodes` is of common.sh
# Flux: in `flux batch` and `flux alloc`, whose instance is the job. Run with doubles of the commands only.

# The instance's own number, as the one above it counts; an instance that is no job is known by its place.
manager_job_id() {
    flux getattr jobid 2>/dev/null || echo "${FLUX_URI:-}"
}

manager_nodes() {
    flux hostlist --expand --delimiter=$'\n' instance | awk '!seen[$1]++'
}

# Past the scheduler, as for tools: it takes no cores from the job.
manager_launch() {
    exec flux exec --noinput "$@"
}

# The job is one of the instance above.
manager_terminate() {
    local id
    id=$(flux getattr jobid) && flux --parent cancel --message="$1" "$id"
}
