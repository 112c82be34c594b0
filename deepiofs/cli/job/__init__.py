"""One node's part in mounting for a job: what `mount-scripts/deepiofs-prolog` runs on each node of it.

`__main__` takes the script's arguments, `keys` derives the job's secret, `sealed` talks with it, `pmi` and `meeting`
let the ranks find each other, `keeper` holds the mount, `guard` clears up after a keeper that was killed, `steward`
is the part that needs root.
"""
