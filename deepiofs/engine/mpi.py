"""The world as MPI has it: start-up's collectives, one copy of the manifest per node, and an end that cannot hang."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

from deepiofs.engine.napping import epolls  # noqa: E402
from deepiofs.engine.peers import Peers  # noqa: E402
from deepiofs.engine.window import MpiPeers  # noqa: E402
from deepiofs.engine.world import settings_of_ucx  # noqa: E402
from deepiofs.errors import MpiUnavailableError  # noqa: E402
from deepiofs.memory.segments import Segment  # noqa: E402

# Counts in MPI-3 are ints; also a broadcast in pieces keeps its temporary buffers small.
_PIECE_BYTES = 64 << 20
# MPI_Finalize hangs when a peer or the launcher is gone (measured): after this the process ends all the same.
_FINALIZE_S = 3.0
_MPICH_SHARED = "/dev/shm/mpich_shm_"


class MpiWorld:
    """COMM_WORLD, its nodes, and what start-up needs. All methods are **collective** and block."""

    def __init__(self) -> None:
        others = epolls()
        for name, value in settings_of_ucx(os.environ).items():
            os.environ[name] = value
        provided = MPI.Init_thread(MPI.THREAD_FUNNELED)
        if provided < MPI.THREAD_FUNNELED:
            raise MpiUnavailableError("this MPI library gives no thread support; use one built with it")
        self._comm = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self._comm.rank
        self.size = self._comm.size
        self.host = socket.gethostname()
        self._node_comm = self._find_node()
        self.node_ranks: list[int] = self._node_comm.allgather(self.rank)
        leader = self._node_comm.rank == 0
        self._leaders = self._comm.Split(0 if leader else MPI.UNDEFINED, self.rank)
        place = (self._leaders.rank, self._leaders.size) if leader else None
        self.node, self.nodes = self._node_comm.bcast(place)
        self._peers: MpiPeers | None = None
        self._arrivals = sorted(epolls() - others)
        self._node_comm.Barrier()
        _unlink_shared_files()

    def _find_node(self) -> MPI.Comm:
        """The ranks whose memory can be mapped here; ranks in containers of their own may share a host and not that."""
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        probe = Segment.create("probe", 1)
        key = os.urandom(16)
        probe.view[:16] = key
        offers = node.allgather((os.getpid(), probe.fd, key))
        mapped = all(_can_map(*offer) for offer in offers)
        together = node.allreduce(mapped, MPI.LAND)
        probe.close()
        return node if together else self._comm.Split(self.rank, self.rank)

    def scatter(self, parts: list[Any] | None) -> Any:
        return self._comm.scatter(parts)

    def gather(self, part: Any) -> list[Any] | None:
        return self._comm.gather(part)

    def bcast(self, value: Any) -> Any:
        return self._comm.bcast(value)

    def allgather(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    def share_manifest(self, segment: Segment | None) -> Segment:
        if self._node_comm.rank == 0:
            segment = self._copy_between_leaders(segment)
        return self._map_of_node(segment, 0) if self._node_comm.rank else self._offer(segment)

    def share_stores(self, store: Segment) -> dict[int, Segment]:
        offers = self._node_comm.allgather((os.getpid(), store.fd))
        stores = {
            rank: store if rank == self.rank else Segment.of_process(*offer)
            for rank, offer in zip(self.node_ranks, offers, strict=True)
        }
        self._node_comm.Barrier()
        return stores

    def peers(self, store: Segment) -> Peers:
        try:
            self._peers = MpiPeers(self._comm, store, self._arrivals)
        except MPI.Exception as error:
            raise MpiUnavailableError(
                f"this MPI cannot make a window ({error}); with Open MPI 4 launch with --mca pml ob1 --mca osc pt2pt"
            ) from None
        self._node_comm.Barrier()
        _unlink_shared_files()
        return self._peers

    def leave(self, in_time: bool) -> None:
        """End MPI in order if all ranks have left, else just end: a collective would wait for the others for ever."""
        if not in_time:
            os._exit(0)
        threading.Timer(_FINALIZE_S, os._exit, (0,)).start()
        if self._peers:
            self._peers.close()
        MPI.Finalize()
        # Not os._exit: MPICH says farewell to its launcher in libc's exit handlers, and without it Hydra kills the
        # other ranks (measured). Python's own shutdown adds nothing here and may hang in a thread.
        ctypes.CDLL(None).exit(0)

    def _copy_between_leaders(self, segment: Segment | None) -> Segment:
        size = self._leaders.bcast(segment.size if segment else 0)
        segment = segment or Segment.create("manifest", size)
        for at in range(0, size, _PIECE_BYTES):
            self._leaders.Bcast(segment.view[at : at + _PIECE_BYTES])
        return segment

    def _offer(self, segment: Segment | None) -> Segment:
        assert segment is not None
        self._node_comm.bcast((os.getpid(), segment.fd))
        self._node_comm.Barrier()
        return segment

    def _map_of_node(self, segment: Segment | None, leader: int) -> Segment:
        segment = Segment.of_process(*self._node_comm.bcast(None, leader))
        self._node_comm.Barrier()
        return segment


def _unlink_shared_files() -> None:
    """Take the names of MPICH's shared memory away once all ranks of the node have mapped it.

    MPICH does so only in MPI_Finalize: of ranks that are killed the file would stay (2 MB each, measured).
    """
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith(_MPICH_SHARED):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _can_map(pid: int, fd: int, key: bytes) -> bool:
    """Whether that process's segment can be mapped, and is the one meant: pids of another namespace mislead."""
    try:
        segment = Segment.of_process(pid, fd)
    except (OSError, ValueError):
        return False
    found = bytes(segment.view[:16]) == key
    segment.close()
    return found
