"""What the tests do without: a source in memory, peers in one process, a team of threads, a clock that jumps."""

from __future__ import annotations

import collections
import errno
import functools
import itertools
import os
import pickle
import stat
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from deepiofs.dataset.manifest import ROOT, Manifest, build_columns
from deepiofs.dataset.selection import Globs
from deepiofs.dataset.sources import Selection, SourceFile, Team
from deepiofs.engine.peers import Get, Note
from deepiofs.errors import SourceChangedError
from deepiofs.memory.segments import Segment

P = ParamSpec("P")
T = TypeVar("T")

# Nothing in a test takes this long; what does has hung.
HUNG_S = 20.0
_MOCKED_HUNG_S = 86400.0


def in_trio(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """An async function as a plain test."""
    return _run_with(test, lambda: None)


def in_trio_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """The same, with a clock that jumps whenever all tasks wait; not for tests whose worker threads are waited for."""
    return _run_with(test, lambda: trio.testing.MockClock(autojump_threshold=0))


def _run_with(
    test: Callable[P, Awaitable[None]], clock: Callable[[], trio.testing.MockClock | None]
) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        mocked = clock()

        async def main() -> None:
            with trio.fail_after(_MOCKED_HUNG_S if mocked else HUNG_S):
                await test(*args, **kwargs)

        trio.run(main, clock=mocked)

    return run


# --- A source in memory ----------------------------------------------------------------------------------------------


def columns_of(files: Mapping[bytes, tuple[int, int]]) -> dict[str, npt.NDArray[Any]]:
    """A manifest's columns for files given as path -> (size, mtime_ns), with the directories that they imply."""
    directories: dict[bytes, set[bytes]] = {b"": set()}
    for path in files:
        while path:
            above, _, name = path.rpartition(b"/")
            directories.setdefault(above, set()).add(name)
            path = above
    paths, parents = [b""], [ROOT]
    for row, path in enumerate(paths):  # grows while it is walked: breadth first
        below = sorted(directories.get(path, ()))
        paths += [path + b"/" + name if path else name for name in below]
        parents += [row] * len(below)
    is_file = [path in files for path in paths]
    n = len(paths)
    facts = {
        "parent": np.array(parents),
        "size": np.array([files[path][0] if path in files else 0 for path in paths]),
        "mtime_ns": np.array([files[path][1] if path in files else 0 for path in paths]),
        "mode": np.array([stat.S_IFREG | 0o644 if file else stat.S_IFDIR | 0o755 for file in is_file]),
        "uid": np.zeros(n, np.int64),
        "gid": np.zeros(n, np.int64),
        "nlink": np.ones(n, np.int64),
    }
    identity = np.stack([np.zeros(n, np.int64), np.arange(n)], axis=1)
    return build_columns([path.rpartition(b"/")[2] for path in paths], facts, identity)


def manifest_of(sizes: Mapping[bytes, int]) -> Manifest:
    """A manifest of files that have a size and no bytes."""
    return Manifest({}, columns_of({path: (size, 0) for path, size in sizes.items()}))


class Gate:
    """A place where worker threads wait until the test lets them on."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def open(self) -> None:
        """Let all through, now and later."""
        self._opened.set()

    def stop(self) -> None:
        """For the worker: wait here."""
        self._reached.set()
        if not self._opened.wait(HUNG_S):
            raise AssertionError("nobody opened the gate")

    async def reached(self) -> None:
        """Wait until a worker is here."""
        arrived = await trio.to_thread.run_sync(self._reached.wait, HUNG_S, abandon_on_cancel=True)
        assert arrived, "nobody came to the gate"


class MemorySource:
    """Files in a dict, and faults on demand.

    `reads` is every (path, at, size) that was read; `opened` how many files were opened, `open_now` how many still are.
    `open_errors`, `read_errors`: path -> errno; `errors_left`: path -> how many reads fail, if not all. `cut`: path ->
    where reads end, before the end that the size says.
    `open_gates`, `read_gates`: path -> where a thread that opens or reads it waits.
    """

    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self.files = {path: (data, 1) for path, data in files.items()}
        self.reads: list[tuple[bytes, int, int]] = []
        self.opened = 0
        self.open_now = 0
        self.open_errors: dict[bytes, int] = {}
        self.read_errors: dict[bytes, int] = {}
        self.errors_left: dict[bytes, int] = {}
        self.cut: dict[bytes, int] = {}
        self.open_gates: dict[bytes, Gate] = {}
        self.read_gates: dict[bytes, Gate] = {}
        self._count = threading.Lock()

    def scan(self, selection: Selection, team: Team) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if team.rank != 0:
            return None
        include, exclude = Globs(selection.include), Globs(selection.exclude)
        chosen = {
            path: (len(data), version)
            for path, (data, version) in self.files.items()
            if not exclude.cover(path) and (not include or include.cover(path))
        }
        return {"left_out": {}}, columns_of(chosen)

    def unchanged(self, manifest: Manifest, team: Team) -> str | None:
        was = {
            manifest.path(row): (manifest.size_of[row], manifest.mtime_ns_of[row])
            for row in np.flatnonzero(manifest.is_regular).tolist()
        }
        now = {path: (len(data), version) for path, (data, version) in self.files.items()}
        different = sorted(path for path in was.keys() | now.keys() if was.get(path) != now.get(path))
        found = f"{os.fsdecode(different[0])}: changed since" if different else None
        every = team.gather(found)
        first: str | None = team.bcast(every[0] if every else None)
        return first

    def open(self, manifest: Manifest, row: int) -> SourceFile:
        path = manifest.path(row)
        if path in self.open_gates:
            self.open_gates[path].stop()
        if path in self.open_errors:
            raise OSError(self.open_errors[path], os.strerror(self.open_errors[path]))
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        data, version = self.files[path]
        if (len(data), version) != (manifest.size_of[row], manifest.mtime_ns_of[row]):
            raise SourceChangedError(f"{os.fsdecode(path)}: changed")
        self.count_open(1)
        return _MemoryFile(self, path, version)

    def close(self) -> None:
        """Nothing is held."""

    def change(self, path: bytes, data: bytes) -> None:
        """Give a file other bytes, as an editor does."""
        self.files[path] = (data, self.files[path][1] + 1)

    def count_open(self, change: int) -> None:
        with self._count:
            self.open_now += change
            self.opened += change > 0


class _MemoryFile:
    def __init__(self, source: MemorySource, path: bytes, version: int) -> None:
        self._source, self._path, self._version = source, path, version
        self._data = source.files[path][0]
        self._closed = False

    def read_into(self, buffer: memoryview, at: int) -> int:
        source, path = self._source, self._path
        source.reads.append((path, at, len(buffer)))
        if path in source.read_gates:
            source.read_gates[path].stop()
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if path in source.read_errors:
            number = source.read_errors[path]
            if path in source.errors_left:
                source.errors_left[path] -= 1
                if not source.errors_left[path]:
                    del source.read_errors[path], source.errors_left[path]
            raise OSError(number, os.strerror(number))
        if source.files.get(path, (b"", self._version))[1] != self._version:
            raise SourceChangedError(f"{os.fsdecode(path)}: changed")
        data = self._data[: source.cut.get(path)]
        piece = data[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._source.count_open(-1)


# --- Peers in one process --------------------------------------------------------------------------------------------


class LocalJob:
    """The ranks of a job in one process: their stores, their peers, and a pump for all of them."""

    def __init__(self, stores: Sequence[Segment]) -> None:
        self.stores = stores
        self.entered: dict[str, set[int]] = {"warm": set(), "leave": set()}
        self.stirred = trio.Event()
        self.peers = [LocalPeers(self, rank) for rank in range(len(stores))]

    def stir(self) -> None:
        """Something can be polled."""
        self.stirred.set()

    async def pump(self) -> None:
        """Poll all ranks whenever something was begun; runs until cancelled, and lets a mocked clock jump."""
        while True:
            self.stirred = trio.Event()
            while sum(peers.poll() for peers in self.peers):
                await trio.lowlevel.checkpoint()
            await self.stirred.wait()


class LocalPeers:
    """One rank's view of the others. Gets are copied from the other's store when polled.

    Faults, each until it is taken back: `silent`, ranks that do not answer gets (`answer` wakes them), `deaf`, ranks
    that notes do not reach. For one get each: `fail_next`, `corrupt_next`.
    """

    def __init__(self, job: LocalJob, rank: int) -> None:
        self.on_note: Callable[[int, Note], None] = lambda rank, note: None
        self.arrivals: Sequence[int] = ()
        self.rank = rank
        self.silent: set[int] = set()
        self.deaf: set[int] = set()
        self.sent: list[tuple[int, Note]] = []
        self.gets_begun = 0
        self._job = job
        self._mail: collections.deque[tuple[int, Note]] = collections.deque()
        self._gets: list[tuple[Get, int, memoryview, int | None]] = []
        self._failures: collections.deque[tuple[Exception, bool]] = collections.deque()
        self._corruptions: collections.deque[int] = collections.deque()

    def fail_next(self, error: Exception, *, at_once: bool = False) -> None:
        """The next get ends with this error; at_once: already when it is begun."""
        self._failures.append((error, at_once))

    def corrupt_next(self, place: int) -> None:
        """The next get brings this byte of its range flipped."""
        self._corruptions.append(place)

    def answer(self, rank: int) -> None:
        """A silent rank answers again."""
        self.silent.discard(rank)
        self._job.stir()

    def get(self, rank: int, at: int, into: memoryview) -> Get:
        assert 0 <= rank < len(self._job.stores)
        assert 0 <= at <= at + len(into) <= self._job.stores[rank].size
        get = Get(rank)
        self.gets_begun += 1
        if self._failures and self._failures[0][1]:
            get.finish(self._failures.popleft()[0])
            return get
        self._gets.append((get, at, into, self._corruptions.popleft() if self._corruptions else None))
        self._job.stir()
        return get

    def send(self, rank: int, note: Note) -> None:
        assert 0 <= rank < len(self._job.stores)
        self.sent.append((rank, note))
        if rank not in self.deaf:
            self._job.peers[rank]._mail.append((self.rank, note))
            self._job.stir()

    def poll(self) -> bool:
        moved = False
        while self._mail:
            self.on_note(*self._mail.popleft())
            moved = True
        begun, self._gets = self._gets, []
        for entry in begun:
            if entry[0].rank in self.silent:
                self._gets.append(entry)
            else:
                self._complete(*entry)
                moved = True
        return moved

    def busy(self) -> bool:
        return bool(self._gets)

    def enter_warm(self) -> LocalBarrier:
        return LocalBarrier(self._job, "warm", self.rank)

    def enter_leave(self) -> LocalBarrier:
        return LocalBarrier(self._job, "leave", self.rank)

    def _complete(self, get: Get, at: int, into: memoryview, corrupt: int | None) -> None:
        if self._failures:
            get.finish(self._failures.popleft()[0])
            return
        into[:] = self._job.stores[get.rank].view[at : at + len(into)]
        if corrupt is not None:
            into[corrupt] ^= 0xFF
        get.finish()


class LocalBarrier:
    """Passed when every rank of the job has entered it."""

    def __init__(self, job: LocalJob, name: str, rank: int) -> None:
        self._entered, self._size = job.entered[name], len(job.stores)
        self._entered.add(rank)

    def passed(self) -> bool:
        return len(self._entered) == self._size


# --- A team of threads -----------------------------------------------------------------------------------------------


class LeftWaitingError(AssertionError):
    """A rank waits in a collective for one that has returned or raised; under MPI it would wait for ever."""


class _Meeting:
    """Where the ranks of a team exchange values; as with MPI, what is exchanged is pickled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, bytes]] = {}
        self._gone: set[int] = set()

    def exchange(self, rank: int, number: int, value: Any) -> list[Any]:
        """The values of all ranks, in their exchange of this number."""
        with self._changed:
            given = self._rounds.setdefault(number, {})
            given[rank] = pickle.dumps(value)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(given) == self._size or self._gone - given.keys(), HUNG_S)
            if len(given) < self._size:
                raise LeftWaitingError(f"rank {rank} waits for ranks {self._gone - given.keys()}")
        return [pickle.loads(given[each]) for each in range(self._size)]

    def leave(self, rank: int) -> None:
        """The rank takes part in no more exchanges."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()


class ThreadTeam:
    """One rank of a team, each in its own thread."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, size
        self._meeting = meeting
        self._numbers = itertools.count()

    def scatter(self, parts: list[Any] | None) -> Any:
        return self._exchange(parts if self.rank == 0 else None)[0][self.rank]

    def gather(self, part: Any) -> list[Any] | None:
        every = self._exchange(part)
        return every if self.rank == 0 else None

    def bcast(self, value: Any) -> Any:
        return self._exchange(value)[0]

    def _exchange(self, value: Any) -> list[Any]:
        return self._meeting.exchange(self.rank, next(self._numbers), value)


def as_team(size: int, work: Callable[[Team], T]) -> list[T | BaseException]:
    """What `work` returned or raised on each rank of a team; the ranks that one has left waiting raise too."""
    meeting = _Meeting(size)
    results: list[T | BaseException] = [AssertionError("did not run")] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadTeam(rank, size, meeting))
        except BaseException as error:
            results[rank] = error
        finally:
            meeting.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * HUNG_S)
    assert not any(thread.is_alive() for thread in threads)
    return results
