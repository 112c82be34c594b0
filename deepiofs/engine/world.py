"""The ranks, and what they agree on before serving: a world of one, or MPI's (`engine.mpi`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from deepiofs.dataset.sources import Solo, Team
from deepiofs.engine.peers import NoPeers, Peers
from deepiofs.errors import DeepiofsError, MpiUnavailableError
from deepiofs.memory.segments import Segment

# What a launcher leaves in the environment of a rank: PMI (hydra, Slurm's pmi2), PMIx (Open MPI, Slurm's pmix).
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK")
# Of UCX over TCP: its pieces have 8 KB, so that a file of 100 KB costs a dozen system calls at the end that sends it.
# With these a get takes half of the processor time (measured: 276 and 305 against 120 and 150 us).
_TCP_PIECES = {"UCX_TCP_TX_SEG_SIZE": "128k", "UCX_TCP_RX_SEG_SIZE": "128k"}


def launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as a rank."""
    return any(name in environment for name in _RANK_VARIABLES)


def settings_of_ucx(environment: Mapping[str, str]) -> Mapping[str, str]:
    """What is to be added to the environment before MPI begins: nothing if the user has an opinion on any of it.

    One alone would not do: UCX refuses to send larger pieces than it receives.
    """
    return {} if environment.keys() & _TCP_PIECES else _TCP_PIECES


class World(Team, Protocol):
    """All ranks. Its methods block, and are called during start-up only."""

    node: int
    nodes: int
    node_ranks: list[int]
    host: str

    def allgather(self, value: Any) -> list[Any]:
        """**Collective.** The values of all ranks, in order."""

    def share_manifest(self, segment: Segment | None) -> Segment:
        """**Collective.** From rank 0's segment to one copy per node, which its ranks map."""

    def share_stores(self, store: Segment) -> dict[int, Segment]:
        """**Collective.** The stores of this node's ranks, by world rank."""

    def peers(self, store: Segment) -> Peers:
        """**Collective.** Expose the store to all ranks."""

    def leave(self, in_time: bool) -> None:
        """End MPI; only if all ranks have left is it orderly."""


class SoloWorld(Solo):
    """One rank, no MPI."""

    node = 0
    nodes = 1
    node_ranks: list[int]

    def __init__(self) -> None:
        self.node_ranks = [0]
        self.host = socket.gethostname()

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def share_manifest(self, segment: Segment | None) -> Segment:
        assert segment is not None
        return segment

    def share_stores(self, store: Segment) -> dict[int, Segment]:
        return {0: store}

    def peers(self, store: Segment) -> Peers:
        return NoPeers()

    def leave(self, in_time: bool) -> None:
        """Nothing to end."""


def enter_world(mpi: str) -> World:
    """The world that the `mpi` option and the environment ask for. **Collective** under MPI."""
    if mpi == "off" or (mpi == "auto" and not launched()):
        return SoloWorld()
    try:
        from deepiofs.engine.mpi import MpiWorld
    except (ImportError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else "not found"
        raise MpiUnavailableError(
            f"no MPI library can be loaded ({text}); install deepiofs[mpich], load the site's MPI, or set mpi=off"
        ) from None
    return MpiWorld()


def agree(world: World, error: DeepiofsError | None) -> None:
    """**Collective.** Return if no rank has an error, else raise the one of the lowest such rank on all of them.

    Raises the error with attribute `rank`: the rank whose mount is to tell the user.
    """
    mine = None if error is None else (error.exit_code, str(error))
    every = world.allgather(mine)
    failed = [(rank, *found) for rank, found in enumerate(every) if found]
    if failed:
        raise StartError(*failed[0])


class StartError(DeepiofsError):
    """Start-up failed on rank `rank`, with this exit code."""

    def __init__(self, rank: int, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
        self.exit_code = exit_code
