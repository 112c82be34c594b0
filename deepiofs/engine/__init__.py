"""The MPI process: it scans and loads the source, owns the window, and fetches from the peers.

The mount's child: a dying MPI takes its process along, and a mount must not go with it. Nothing else of the
project imports mpi4py, and this does only when a launcher is there.
"""
