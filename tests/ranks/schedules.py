"""Fault schedules: what a seed says happens to a job of ranks while it is read from, and what has to be true then.

Readers compare every byte. Meanwhile engines are killed or stopped, a rank is killed, links are cut and slowed, one
after another and over each other. Whatever comes: no wrong byte, no error, no read beyond `timeout` + 2 s, memory
within its bound, and an unmount that leaves nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.lab import HOSTS, Lab
from tests.launchers import Launcher
from tests.mounts import Journal, MpiMount, ending, is_running, mpi_mounted, wait_until
from tests.ranks.reader_program import __name__ as reader_program

TIMEOUT_S = 1
CACHE_BYTES, STAGING_BYTES = 64 << 20, 8 << 20
OPTIONS = (f"timeout={TIMEOUT_S}", "linger=1", f"staging={STAGING_BYTES >> 20}M")
# Beside cache and staging: two Pythons with numpy, trio and, in one, MPI.
PROGRAM_BYTES = 250 << 20
READERS = 4
_FAULTS = 3
_AFTER_S = 1.0
_SAMPLE_S = 0.5
_READER_ENDS_S = 30.0
_SLOW = "tbf rate 20mbit burst 64kb latency 400ms"

# What can happen to a host's link: how it begins, how it ends. A delay line has its place here.
LINKS: dict[str, tuple[Callable[[Lab, str], None], Callable[[Lab, str], None]]] = {
    "link cut": (lambda lab, host: lab.link(host, up=False), lambda lab, host: lab.link(host, up=True)),
    "link slow": (lambda lab, host: lab.shape(host, _SLOW), lambda lab, host: lab.unshape(host)),
}
KILLS = ("engine killed", "rank killed")
# What passes is the harder: after a kill there is only the source left.
_WEIGHTS = {"engine killed": 1, "rank killed": 1, "engine stopped": 3, **dict.fromkeys(LINKS, 2)}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that happens; lasts_s: 0 for ever."""

    at_s: float
    kind: str
    rank: int
    lasts_s: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f}" if self.lasts_s else ""
        return f"{self.at_s:.1f} s: {self.kind} {self.rank}{lasts}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """All that happens. Readers are on ranks that live; rank 0's mount always does."""

    seed: int
    ranks: int
    faults: tuple[Fault, ...]

    @property
    def living(self) -> list[int]:
        """Ranks whose mounts no fault kills."""
        killed = {fault.rank for fault in self.faults if fault.kind == "rank killed"}
        return [rank for rank in range(self.ranks) if rank not in killed]

    @property
    def lasts_s(self) -> float:
        return max(fault.at_s + fault.lasts_s for fault in self.faults) + _AFTER_S


def draw(seed: int, ranks: int = 2) -> Schedule:
    """What a seed says. Nothing happens to what is killed already, or twice at once to one place."""
    generator = random.Random(seed)
    faults: list[Fault] = []
    at_s = 0.0
    while len(faults) < _FAULTS:
        at_s += generator.uniform(0.2, 1.5)
        fault = _draw_one(generator, at_s, ranks)
        if not any(_excludes(earlier, fault) for earlier in faults):
            faults.append(fault)
    return Schedule(seed, ranks, tuple(faults))


def _draw_one(generator: random.Random, at_s: float, ranks: int) -> Fault:
    kind = generator.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    rank = generator.randrange(1 if kind == "rank killed" else 0, ranks)
    return Fault(round(at_s, 2), kind, rank, 0.0 if kind in KILLS else round(generator.uniform(0.3, 2.0), 2))


def _excludes(earlier: Fault, fault: Fault) -> bool:
    if earlier.kind in LINKS and fault.kind in LINKS:
        return earlier.rank % len(HOSTS) == fault.rank % len(HOSTS) and fault.at_s <= earlier.at_s + earlier.lasts_s
    if earlier.rank != fault.rank or fault.kind in LINKS:
        return False
    return earlier.kind in KILLS or (earlier.kind == fault.kind and fault.at_s <= earlier.at_s + earlier.lasts_s)


@dataclasses.dataclass
class Outcome:
    """What was seen. `problems`: what should not have been, in words."""

    schedule: Schedule
    reads: int = 0
    bytes: int = 0
    longest_s: float = 0.0
    wrong: int = 0
    errors: int = 0
    most_rss_bytes: int = 0
    from_peers: int = 0
    from_source: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def add(self, said: dict[str, Any]) -> None:
        """A reader's report."""
        self.reads += said["reads"]
        self.bytes += said["bytes"]
        self.longest_s = max(self.longest_s, said["longest_s"])
        self.wrong += said["wrong"]
        self.errors += said["errors"]
        self.problems += said["examples"]


def write_dataset(source: Path) -> None:
    """Files of 1 byte to 300 KB, and two larger than a unit: about 32 MB."""
    generator = random.Random(4)
    for i in range(120):
        path = source / f"d{i % 4}/{i:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.randbytes(round(300_000 ** generator.random())))
    for i in range(60):
        (source / f"d{i % 4}/large{i:03}.bin").write_bytes(generator.randbytes(generator.randrange(100_000, 300_000)))
    (source / "nine.bin").write_bytes(generator.randbytes((9 << 20) + 12_345))
    (source / "five.bin").write_bytes(generator.randbytes(5 << 20))
    (source / "empty.bin").write_bytes(b"")


def run(schedule: Schedule, launcher: Launcher, lab: Lab, source: Path, folder: Path, journal: Journal) -> Outcome:
    """Mount, read while it happens, unmount."""
    journal.allow("the engine is lost|did not answer|MPI failed|does not answer|the engine ends")
    outcome = Outcome(schedule)
    with mpi_mounted(launcher, schedule.ranks, source, folder, journal.option(), *OPTIONS, lab=lab) as mounted:
        job = _Job(mounted, lab)
        before = job.descriptors(schedule.living)
        with _readers(schedule, mounted) as readers:
            _let_happen(schedule, job, outcome)
            _gather(readers, outcome)
        _judge(schedule, job, outcome, before)
    return outcome


class _Job:
    """The processes of a mount in a lab, by the machine's numbers, and what is done to them."""

    def __init__(self, mounted: MpiMount, lab: Lab) -> None:
        self.mounted, self._lab = mounted, lab
        stats = [mounted.stats(rank) for rank in range(len(mounted.places))]
        self.mounts = [self._machine_pid(rank, said["pid"]) for rank, said in enumerate(stats)]
        self.engines = [self._machine_pid(rank, said["engine_pid"]) for rank, said in enumerate(stats)]

    def begin(self, fault: Fault) -> None:
        host = HOSTS[fault.rank % len(HOSTS)]
        if fault.kind in LINKS:
            LINKS[fault.kind][0](self._lab, host)
        elif fault.kind == "rank killed":
            self._signal(self.mounts[fault.rank], signal.SIGKILL)
            self._signal(self.engines[fault.rank], signal.SIGKILL)
        else:
            how = signal.SIGKILL if fault.kind == "engine killed" else signal.SIGSTOP
            self._signal(self.engines[fault.rank], how)

    def end(self, fault: Fault) -> None:
        if fault.kind in LINKS:
            LINKS[fault.kind][1](self._lab, HOSTS[fault.rank % len(HOSTS)])
        elif fault.kind == "engine stopped":
            self._signal(self.engines[fault.rank], signal.SIGCONT)

    def descriptors(self, ranks: list[int]) -> dict[int, int]:
        """Of the mounts' processes, by rank."""
        return {rank: len(os.listdir(f"/proc/{self.mounts[rank]}/fd")) for rank in ranks}

    def _machine_pid(self, rank: int, own: int) -> int:
        """A process that calls itself `own` in its host's numbers."""
        for pid in self._lab.processes(HOSTS[rank % len(HOSTS)]):
            with suppress(OSError):
                numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
                if numbers[-1] == str(own):
                    return pid
        raise AssertionError(f"no process {own} on the host of rank {rank}")

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def _readers(schedule: Schedule, mounted: MpiMount) -> Iterator[list[subprocess.Popen[str]]]:
    """Readers at work, dealt over the ranks whose mounts live."""
    with ExitStack() as stack:
        readers = []
        for i in range(READERS):
            rank = schedule.living[i % len(schedule.living)]
            line = ["-m", reader_program, mounted.source, mounted.mountpoints[rank], schedule.seed * READERS + i]
            process = mounted.places[rank].start(
                [sys.executable, *map(str, line)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            readers.append(stack.enter_context(ending(process)))
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        yield readers


def _let_happen(schedule: Schedule, job: _Job, outcome: Outcome) -> None:
    """All of it, in its time, with a look at memory in between; whatever has not ended by then is ended."""
    events: list[tuple[float, Callable[[Fault], None], Fault]] = []
    for fault in schedule.faults:
        events.append((fault.at_s, job.begin, fault))
        if fault.lasts_s:
            events.append((fault.at_s + fault.lasts_s, job.end, fault))
    events.sort(key=lambda event: event[0])
    events.append((schedule.lasts_s, lambda fault: None, schedule.faults[-1]))
    started = time.monotonic()
    for at_s, happen, fault in events:
        while (left_s := started + at_s - time.monotonic()) > _SAMPLE_S:
            _sample(schedule, job, outcome)
            time.sleep(min(_SAMPLE_S, max(left_s - _SAMPLE_S, 0)))
        time.sleep(max(started + at_s - time.monotonic(), 0))
        happen(fault)


def _sample(schedule: Schedule, job: _Job, outcome: Outcome) -> None:
    for rank in schedule.living:
        said = job.mounted.stats(rank)
        outcome.most_rss_bytes = max(outcome.most_rss_bytes, said["rss_bytes"])
        if said["staged_bytes"] > STAGING_BYTES:
            outcome.problems.append(f"rank {rank} has staged {said['staged_bytes']} bytes")


def _gather(readers: list[subprocess.Popen[str]], outcome: Outcome) -> None:
    """Stop the readers and hear them."""
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.close()
        reader.stdin = None
    for reader in readers:
        try:
            said, _ = reader.communicate(timeout=_READER_ENDS_S)
            outcome.add(json.loads(said))
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            outcome.problems.append(f"a reader did not end: {error}")


def _judge(schedule: Schedule, job: _Job, outcome: Outcome, before: dict[int, int]) -> None:
    """What has to be true when all is over; the readers' own complaints are there already."""
    bound = CACHE_BYTES + STAGING_BYTES + PROGRAM_BYTES
    _sample(schedule, job, outcome)
    if outcome.longest_s > TIMEOUT_S + 2:
        outcome.problems.append(f"a read took {outcome.longest_s:.2f} s")
    if outcome.most_rss_bytes > bound:
        outcome.problems.append(f"{outcome.most_rss_bytes >> 20} MB of memory, more than {bound >> 20}")
    for rank in schedule.living:
        said = job.mounted.stats(rank)
        outcome.from_peers += said["served"]["peer"]
        outcome.from_source += said["served"]["source"]
        if said["errors"]:
            outcome.problems.append(f"rank {rank} counts errors: {said['errors']}")
        if not is_running(job.mounts[rank]):
            outcome.problems.append(f"the mount of rank {rank} has ended")
    try:
        wait_until(lambda: _no_more(job.descriptors(schedule.living), before), "", 10)
    except AssertionError:
        outcome.problems.append(f"descriptors before {before}, after {job.descriptors(schedule.living)}")


def _no_more(now: dict[int, int], before: dict[int, int]) -> bool:
    return all(now[rank] <= before[rank] for rank in before)
