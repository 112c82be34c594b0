"""PMI-1, the protocol by which MPICH's ranks find each other (its wire form: one line `cmd=... key=value` each way).

A pure state machine: lines in, lines out. After MPICH's `src/pmi` and Hydra's `pmiserv`, where they are defined.
"""

from __future__ import annotations

_MAXES = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096"
_VERSION = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
_KVS = "deepiofs"


class Exchange:
    """The key-value space and the barrier of `size` ranks, each on a node of its own.

    **Invariants.** A barrier ends when all ranks have entered it; what was put before can be got after.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        # One rank per node, in blocks of one: (first node, nodes, ranks of each).
        self._values = {"PMI_process_mapping": f"(vector,(0,{size},1))"}
        self._waiting: set[int] = set()
        self._fixed = {
            "init": _VERSION,
            "get_maxes": _MAXES,
            "get_appnum": "cmd=appnum appnum=0",
            "get_universe_size": f"cmd=universe_size size={size}",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={_KVS}",
            "finalize": "cmd=finalize_ack rc=0",
        }

    def answer(self, rank: int, line: str) -> list[tuple[int, str]]:
        """Which ranks are told what, now that this one has said a line."""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            return self._enter(rank)
        if command == "abort":  # it is about to end; nobody answers it
            return []
        if command == "put":
            # A value may hold blanks and equals signs: it is the rest of the line.
            self._values[words["key"]] = line.partition(" value=")[2]
            return [(rank, "cmd=put_result rc=0 msg=success")]
        if command == "get":
            return [(rank, self._got(words.get("key", "")))]
        return [(rank, self._fixed.get(command, f"cmd={command}_result rc=-1 msg=unknown_command"))]

    def _enter(self, rank: int) -> list[tuple[int, str]]:
        self._waiting.add(rank)
        if len(self._waiting) < self._size:
            return []
        self._waiting.clear()
        return [(each, "cmd=barrier_out rc=0") for each in range(self._size)]

    def _got(self, key: str) -> str:
        value = self._values.get(key)
        if value is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"
