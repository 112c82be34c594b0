"""Several mounts' shuffled views in one process: whatever readers do, each pass is every sample once.

The mounts ask each other through `_Job`, which delays questions and answers, or loses questions, as engines do. The
clock jumps. Threads are numbers to the view, except that it looks whether they live: so readers have the numbers of
threads that do.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import numpy as np
import pytest
import trio
from trio._core import _run

from deepiofs.dataset.samples import find_samples, group_samples
from deepiofs.fs.prefetch import Prefetcher, Queues
from deepiofs.fs.rollcall import RollCall
from deepiofs.fs.shuffle import Bound, Roster, Shuffle
from deepiofs.memory.placement import deal_samples
from deepiofs.order.entropy import least_exchange
from deepiofs.order.plan import Membership, Plan
from deepiofs.order.queues import Answer
from tests.doubles import in_trio_time, manifest_of

_READERS = 24
# Above the largest thread number of any Linux.
_DEAD = (1 << 22) + 1
_TIMEOUT_S = 5.0


@pytest.fixture(scope="module", name="threads")
def _threads() -> Iterator[list[int]]:
    """Numbers of living threads."""
    end = threading.Event()
    living = [threading.Thread(target=end.wait, daemon=True) for _ in range(_READERS)]
    for thread in living:
        thread.start()
    yield [thread.native_id or 0 for thread in living]
    end.set()
    for thread in living:
        thread.join()


@pytest.fixture(autouse=True)
def _same_schedule() -> None:
    """Trio runs tasks that are ready in random order; here in the same one each time."""
    _run._r.seed(1)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A draw as the order log has it."""

    rank: int
    group: int
    number: int
    name: bytes
    sample: bytes


def _classes(n_classes: int, size: int) -> dict[bytes, int]:
    """Files of different sizes."""
    return {b"%02d/%04d.jpg" % (c, i): 1 + c * size + i for c in range(n_classes) for i in range(size)}


class _Ahead(Prefetcher):
    """Fetches nothing: a share of the samples, chosen by chance, is there only when it was waited for."""

    def __init__(self, late: float, rank: int) -> None:
        self.window = 8 if late else 1
        self._late, self._random = late, random.Random(rank)
        self._is_there: dict[int, bool] = {}
        self._upcoming: Queues | None = None

    def begin(self, queues: Queues, sizes: Sequence[int]) -> None:
        self._upcoming = queues

    def ready(self, sample: int) -> bool:
        return self._is_there.setdefault(sample, self._random.random() >= self._late)

    def drawn(self, group: int, sample: int) -> None:
        self._is_there.pop(sample, None)

    def taken(self, group: int) -> None:
        """Nothing is counted."""

    def returned(self, group: int, sample: int) -> None:
        """Nothing is counted."""

    def changed(self, group: int) -> None:
        """Nothing is fetched."""

    def gone(self, sample: int) -> None:
        self._is_there.pop(sample, None)

    def restart(self) -> None:
        self._is_there.clear()

    async def wait(self, group: int, wanted: int) -> None:
        assert self._upcoming is not None
        first = self._upcoming.upcoming(group, wanted)[:wanted]
        await trio.sleep(self._random.random())
        self._is_there.update(dict.fromkeys(first, True))


class _Job:
    """The mounts of a job, and the messages between them.

    delay: seconds that a message takes. lost: whether a question never arrives.
    """

    def __init__(
        self,
        sizes: dict[bytes, int],
        node: Sequence[int],
        *,
        entropy: float = 1.0,
        seed: int = 7,
        shuffle: str = "dir",
        late: float = 0.0,
        rollcall: Callable[[int], RollCall | None] = lambda rank: None,
    ) -> None:
        """late: the share of samples that are not there when they could first be drawn."""
        self.manifest = manifest_of(sizes)
        samples = find_samples(self.manifest)
        self.group = group_samples(self.manifest, samples, shuffle)
        self.owner = deal_samples(self.manifest, samples, self.group, len(node))
        self.node = list(node)
        self.names = sorted(sizes)
        self.row = {path: self.manifest.find(path) or 0 for path in sizes}
        self.sample_of = {path: int(samples.of_row[row]) for path, row in self.row.items()}
        self.delay: Callable[[], float] = lambda: 0.0
        self.lost: Callable[[], bool] = lambda: False
        self.drawn: list[_Drawn] = []
        self.late = 0
        self._nursery: trio.Nursery | None = None
        plan = Plan(Membership(self.group, self.owner, np.array(node, np.int32)), seed, entropy)
        roster = Roster(samples.of_row, samples.first, samples.rows, self.group)
        self.mounts = [
            Shuffle(
                self.manifest, roster, plan, _Ahead(late, rank),
                rank=rank, n_ranks=len(node), seed=seed, ask=functools.partial(self._ask, rank),
                rollcall=rollcall(rank),
            )
            for rank in range(len(node))
        ]  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Messages travel inside; at the end all have arrived."""
        async with trio.open_nursery() as self._nursery:
            yield

    async def open(self, rank: int, thread: int, name: bytes) -> Bound:
        """A lookup and an open, as the kernel makes them."""
        mount, row = self.mounts[rank], self.row[name]
        looked = await mount.look(thread, row)
        await trio.sleep(self.delay() / 10)
        bound = await mount.open(thread, row)
        if bound.announced:
            assert self.manifest.size_of[looked] == self.manifest.size_of[bound.row]
        sample = self.manifest.path(bound.row)
        if bound.draws:
            group = int(self.group[self.sample_of[name]])
            self.drawn.append(_Drawn(rank, group, bound.number, name, sample))
        return bound

    async def read(self, rank: int, thread: int, names: Sequence[bytes]) -> None:
        """A reader: opens names in turn and closes them."""
        for name in names:
            bound = await self.open(rank, thread, name)
            try:
                await trio.sleep(self.delay() / 10)
            finally:
                self.mounts[rank].close(bound)

    async def look_at_all(self, rank: int, thread: int) -> None:
        """`ls -l` in every directory."""
        for name in self.names:
            await self.mounts[rank].look(thread, self.row[name])
            await trio.lowlevel.checkpoint()  # each lookup is a request of its own

    def passes(self) -> dict[int, list[bytes]]:
        """The samples drawn in each pass, sorted."""
        passes: dict[int, list[bytes]] = collections.defaultdict(list)
        for drawn in self.drawn:
            passes[drawn.number].append(drawn.sample)
        return {number: sorted(samples) for number, samples in sorted(passes.items())}

    def order(self, rank: int) -> list[tuple[int, bytes]]:
        """(pass, sample) in the order in which a rank drew."""
        return [(drawn.number, drawn.sample) for drawn in self.drawn if drawn.rank == rank]

    def homed_elsewhere(self) -> int:
        """Draws of samples whose owner is on another node."""
        home = [self.node[self.owner[self.sample_of[drawn.sample]]] for drawn in self.drawn]
        return sum(self.node[drawn.rank] != node for drawn, node in zip(self.drawn, home, strict=True))

    @property
    def steals(self) -> int:
        return sum(mount.steals for mount in self.mounts)

    async def _ask(self, asker: int, rank: int, group: int, number: int) -> Answer | None:
        """As `EngineLink.ask`: the answer goes to `stolen`, in time or late; None if it is not in time."""
        assert self._nursery is not None
        done = trio.Event()
        answers: list[Answer] = []
        self._nursery.start_soon(self._travel, asker, rank, group, number, answers, done)
        with trio.move_on_after(_TIMEOUT_S):
            await done.wait()
        return answers[0] if answers else None

    async def _travel(
        self, asker: int, rank: int, group: int, number: int, answers: list[Answer], done: trio.Event
    ) -> None:
        begun = trio.current_time()
        await trio.sleep(self.delay())
        if self.lost():
            return
        answer = self.mounts[rank].asked(asker, group, number)
        await trio.sleep(self.delay())
        self.late += trio.current_time() - begun > _TIMEOUT_S
        self.mounts[asker].stolen(rank, group, number, answer)
        answers.append(answer)
        done.set()


def _dealt(names: Sequence[bytes], shares: Sequence[int]) -> list[list[bytes]]:
    """Names cut into parts whose sizes are as the shares."""
    ends = (np.cumsum(shares) * len(names) / sum(shares)).round().astype(int).tolist()
    return [list(names[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


async def _epoch(
    job: _Job, threads: Sequence[int], shares: Sequence[int], chance: random.Random | None, readers: int = 1
) -> None:
    """Every name once, in random order (or as listed), dealt over the ranks and their readers."""
    names = list(job.names)
    if chance:
        chance.shuffle(names)
    numbers = iter(threads)
    async with trio.open_nursery() as nursery:
        for rank, part in enumerate(_dealt(names, shares)):
            for reader in range(readers):
                nursery.start_soon(job.read, rank, next(numbers), part[reader::readers])


async def _even_epoch(job: _Job, threads: Sequence[int]) -> None:
    """Every name once, each rank as many of each class as it owns: nothing is stolen."""
    async with trio.open_nursery() as nursery:
        for rank, thread in zip(range(len(job.mounts)), threads, strict=False):
            nursery.start_soon(job.read, rank, thread, job.names[rank :: len(job.mounts)])


def _delays(chance: random.Random, longest_s: float) -> Callable[[], float]:
    return lambda: chance.random() * longest_s


def _assert_exactly_once(job: _Job, n_passes: int) -> None:
    """The first passes are whole, and no later one has a sample twice."""
    passes = job.passes()
    for number in range(n_passes):
        assert passes.get(number) == job.names
    for samples in passes.values():
        assert len(samples) == len(set(samples))


# --- Each pass exactly once ------------------------------------------------------------------------------------------

_SHARES = {
    "even": [1, 1, 1, 1],
    "uneven": [1, 5, 2, 8],
    "one rank never reads": [1, 1, 0, 1],
    "one rank alone reads": [0, 0, 1, 0],
}


@pytest.mark.parametrize("order", ["random", "listing"])
@pytest.mark.parametrize("shares", _SHARES.values(), ids=_SHARES)
@in_trio_time
async def test_an_epoch_is_a_pass_however_it_is_dealt(threads: list[int], shares: list[int], order: str) -> None:
    job = _Job(_classes(4, 30), [0, 0, 1, 1])
    async with job.running():
        await _epoch(job, threads, shares, random.Random(1) if order == "random" else None, readers=2)
    assert job.passes() == {0: job.names}
    assert sum(mount.draws for mount in job.mounts) == len(job.names)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shares", _SHARES.values(), ids=_SHARES)
@in_trio_time
async def test_an_epoch_is_a_pass_however_long_messages_take(threads: list[int], shares: list[int], seed: int) -> None:
    chance = random.Random(seed)
    job = _Job(_classes(3, 25), [0, 0, 1, 1], seed=seed)
    job.delay = _delays(chance, 1.0)
    async with job.running():
        await _epoch(job, threads, shares, chance, readers=3)
    assert job.passes() == {0: job.names}


@pytest.mark.parametrize("late", [0.3, 1.0])
@pytest.mark.parametrize("shares", _SHARES.values(), ids=_SHARES)
@in_trio_time
async def test_an_epoch_is_a_pass_though_samples_are_late(threads: list[int], shares: list[int], late: float) -> None:
    chance = random.Random(2)
    job = _Job(_classes(3, 25), [0, 0, 1, 1], late=late)
    job.delay = _delays(chance, 1.0)
    async with job.running():
        for _ in range(2):
            await _epoch(job, threads, shares, chance, readers=3)
    _assert_exactly_once(job, 1)
    assert sum(mount.draws for mount in job.mounts) >= 2 * len(job.names) - len(threads)
    assert all(mount.stalls > 0 for mount, share in zip(job.mounts, shares, strict=True) if share and late == 1)
    assert all(mount.stall_s > 0 for mount in job.mounts if mount.stalls)


@in_trio_time
async def test_a_draw_comes_before_its_turn_by_less_than_the_window_and_without_need_not_at_all(
    threads: list[int],
) -> None:
    sizes = _classes(1, 200)
    job, planned = _Job(sizes, [0], late=0.5), _Job(sizes, [0])
    for each in (job, planned):
        async with each.running():
            await _epoch(each, threads, [1], None)
    turn = {sample: place for place, (_, sample) in enumerate(planned.order(0))}
    early = [turn[sample] - place for place, (_, sample) in enumerate(job.order(0))]
    assert job.passes() == planned.passes() == {0: job.names}
    assert 0 < max(early) < job.mounts[0]._ahead.window
    assert planned.mounts[0].stalls == 0
    assert [sample for _, sample in planned.order(0)] == [
        planned.manifest.path(planned.mounts[0]._rows[sample]) for sample in planned.mounts[0].plan.queue(0, 0, 0)
    ]


@pytest.mark.parametrize("shares", _SHARES.values(), ids=_SHARES)
@in_trio_time
async def test_epoch_after_epoch_each_pass_is_every_sample_once(threads: list[int], shares: list[int]) -> None:
    chance = random.Random(3)
    job = _Job(_classes(4, 25), [0, 1, 2, 3], entropy=0.9)
    job.delay = _delays(chance, 0.5)
    async with job.running():
        for _ in range(5):
            await _epoch(job, threads, shares, chance, readers=2)
    # A thread that begins an epoch with the name it ended the last one with draws nothing (S4).
    _assert_exactly_once(job, 4)


@pytest.mark.parametrize("seed", range(4))
@in_trio_time
async def test_late_answers_and_lost_questions_lose_no_sample(threads: list[int], seed: int) -> None:
    """Ranks that do not hear of each other end a pass apart; the samples that come late are drawn late."""
    chance = random.Random(seed)
    job = _Job(_classes(2, 40), [0, 0, 1, 1], seed=seed)
    job.delay = lambda: chance.choice([0.1, 0.1, 4.0])
    job.lost = lambda: chance.random() < 0.1
    async with job.running():
        for _ in range(6):
            await _epoch(job, threads, [2, 3, 2, 3], chance, readers=2)
        job.delay, job.lost = (lambda: 0.0), (lambda: False)
        for _ in range(2):
            await _epoch(job, threads, [1, 1, 1, 1], chance)
    assert job.late > 0
    _assert_exactly_once(job, 5)


@in_trio_time
async def test_readers_that_start_again_in_the_middle_of_an_epoch_go_on_in_its_pass(threads: list[int]) -> None:
    chance = random.Random(5)
    job = _Job(_classes(3, 40), [0, 0, 1, 1])
    job.delay = _delays(chance, 0.2)
    async with job.running():
        with trio.move_on_after(0.5) as killed:
            await _epoch(job, range(_DEAD, _DEAD + 8), [1, 1, 1, 1], chance, readers=2)
        assert killed.cancelled_caught
        before = len(job.drawn)
        assert 0 < before < len(job.names)
        for _ in range(2):
            await _epoch(job, threads, [1, 1, 1, 1], chance, readers=2)
    assert {drawn.number for drawn in job.drawn[:before]} == {0}
    _assert_exactly_once(job, 2)


@in_trio_time
async def test_threads_that_fuse_does_not_know_draw_each_sample_once(threads: list[int]) -> None:
    chance = random.Random(6)
    job = _Job(_classes(3, 30), [0, 0, 1])
    job.delay = _delays(chance, 0.1)
    async with job.running():
        await _epoch(job, [0] * 6, [1, 2, 1], chance, readers=2)
        await _epoch(job, threads, [1, 1, 1], chance)
    _assert_exactly_once(job, 1)


@in_trio_time
async def test_several_members_of_a_sample_are_one_draw_and_of_one_sample(threads: list[int]) -> None:
    sizes = {b"c/%02d%s" % (i, suffix): 1 + i for i in range(30) for suffix in (b".jpg", b".json")}
    job = _Job(sizes, [0, 1])
    async with job.running(), trio.open_nursery() as nursery:
        for rank, part in enumerate(_dealt(job.names, [20, 40])):
            nursery.start_soon(job.read, rank, threads[rank], part)
    assert sorted(drawn.sample for drawn in job.drawn) == [name for name in job.names if name.endswith(b".jpg")]


@in_trio_time
async def test_both_members_come_from_one_sample(threads: list[int]) -> None:
    job = _Job({b"%02d%s" % (i, suffix): 1 + i for i in range(20) for suffix in (b".jpg", b".json")}, [0])
    async with job.running():
        for i in range(20):
            bounds = [await job.open(0, threads[0], b"%02d%s" % (i, suffix)) for suffix in (b".json", b".jpg")]
            assert [bound.draws for bound in bounds] == [True, False]
            assert len({job.manifest.path(bound.row).partition(b".")[0] for bound in bounds}) == 1
            for bound in bounds:
                job.mounts[0].close(bound)


@in_trio_time
async def test_classes_are_never_mixed(threads: list[int]) -> None:
    job = _Job(_classes(6, 11), [0, 0, 1, 1])
    async with job.running():
        for _ in range(3):
            await _epoch(job, threads, [1, 4, 2, 2], random.Random(2), readers=2)
    assert all(drawn.name.split(b"/")[0] == drawn.sample.split(b"/")[0] for drawn in job.drawn)
    assert any(drawn.name != drawn.sample for drawn in job.drawn)


@in_trio_time
async def test_all_as_one_group_mixes_classes_and_is_exactly_once(threads: list[int]) -> None:
    job = _Job(_classes(6, 11), [0, 0, 1, 1], shuffle="all")
    async with job.running():
        await _epoch(job, threads, [1, 4, 2, 2], random.Random(2), readers=2)
    assert job.passes() == {0: job.names}
    assert any(drawn.name.split(b"/")[0] != drawn.sample.split(b"/")[0] for drawn in job.drawn)


# --- A scan draws nothing and loses nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["alive", "dead"])
@in_trio_time
async def test_a_scan_reserves_one_sample_and_draws_none(threads: list[int], state: str) -> None:
    job = _Job(_classes(4, 25), [0, 1])
    async with job.running():
        await job.look_at_all(0, threads[-1] if state == "alive" else _DEAD)
    assert sum(mount.draws for mount in job.mounts) == job.steals == 0
    assert sum(job.mounts[0].peek(row) != row or job.mounts[0]._binder.peek(job.sample_of[name]) is not None
               for name, row in job.row.items()) == 1  # fmt: skip


@pytest.mark.parametrize("readers_of_its_rank", [True, False])
@pytest.mark.parametrize("state", ["alive", "dead"])
@in_trio_time
async def test_an_epoch_after_a_scan_is_whole(threads: list[int], state: str, readers_of_its_rank: bool) -> None:
    """The last name's sample is reserved by a thread that never opens it."""
    job = _Job(_classes(4, 25), [0, 0, 1])
    async with job.running():
        await job.look_at_all(0, threads[-1] if state == "alive" else _DEAD)
        await trio.sleep(60)
        await _epoch(job, threads, [1 if readers_of_its_rank else 0, 1, 1], random.Random(1))
    assert job.passes() == {0: job.names}


@pytest.mark.parametrize("state", ["alive", "dead"])
@in_trio_time
async def test_scans_in_the_middle_of_an_epoch_lose_nothing(threads: list[int], state: str) -> None:
    chance = random.Random(4)
    job = _Job(_classes(4, 25), [0, 0, 1])
    job.delay = _delays(chance, 0.1)
    scanning = threads[-1] if state == "alive" else _DEAD

    async def scan_now_and_then() -> None:
        while True:
            await job.look_at_all(1, scanning)
            await trio.sleep(0.3)

    async with job.running():
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scan_now_and_then)
                await _epoch(job, threads, [1, 1, 1], chance, readers=2)
                nursery.cancel_scope.cancel()
    _assert_exactly_once(job, 2)


@in_trio_time
async def test_a_thread_that_looks_at_one_name_again_and_again_holds_nobody_up(threads: list[int]) -> None:
    job = _Job(_classes(1, 10), [0])

    async def look_again_and_again() -> None:
        while True:
            await job.mounts[0].look(threads[-1], job.row[job.names[0]])
            await trio.sleep(0.3)

    async with job.running(), trio.open_nursery() as nursery:
        nursery.start_soon(look_again_and_again)
        with trio.move_on_after(60):
            await job.read(0, threads[0], job.names[1:])
            await job.read(0, threads[1], job.names[1:2])
        nursery.cancel_scope.cancel()
    assert job.passes() == {0: job.names}


@in_trio_time
async def test_who_needs_the_last_sample_waits_for_a_lookup_to_become_an_open(threads: list[int]) -> None:
    job = _Job({b"a": 1, b"b": 2}, [0])
    async with job.running():
        first = await job.mounts[0].look(threads[0], job.row[b"a"])
        job.mounts[0].close(await job.open(0, threads[1], b"b"))

        async def open_soon() -> None:
            await trio.sleep(0.5)
            bound = await job.mounts[0].open(threads[0], job.row[b"a"])
            assert (bound.row, bound.number, bound.draws) == (first, 0, True)
            job.mounts[0].close(bound)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_soon)
            bound = await job.open(0, threads[2], b"b")
    assert bound.number == 1
    assert trio.current_time() >= 0.5


# --- A pass begun by command -----------------------------------------------------------------------------------------


@in_trio_time
async def test_a_pass_begun_by_command_while_readers_wait_for_samples_is_whole(threads: list[int]) -> None:
    job = _Job(_classes(2, 40), [0, 1], late=1.0)
    async with job.running():
        with trio.move_on_after(5):
            await _epoch(job, range(_DEAD, _DEAD + 8), [1, 1], random.Random(1), readers=4)
        assert 0 < len(job.drawn) < len(job.names)
        for mount in job.mounts:
            mount.begin(3)
        await _epoch(job, threads, [1, 1], random.Random(2), readers=4)
    assert job.passes()[3] == job.names


@in_trio_time
async def test_an_epoch_begun_by_command_on_every_mount_is_whole(threads: list[int]) -> None:
    """The rest of the epoch before was dropped (drop_last)."""
    job = _Job(_classes(2, 25), [0, 1])
    async with job.running():
        await job.read(0, threads[0], job.names[:7])
        for number in (1, 2):
            for mount in job.mounts:
                mount.begin(number)
            await _epoch(job, threads[2 * number :], [1, 3], random.Random(number))
    assert job.passes()[1] == job.passes()[2] == job.names


@in_trio_time
async def test_a_lookup_before_a_pass_is_begun_by_command_loses_no_sample_of_it(threads: list[int]) -> None:
    """All is drawn, someone lists the directory (and so reserves of pass 1), then `epoch` is written."""
    job = _Job(_classes(2, 25), [0, 1])
    async with job.running():
        await _epoch(job, threads, [1, 1], random.Random(0))
        await job.look_at_all(0, threads[-1])
        for mount in job.mounts:
            mount.begin(1)
        await _epoch(job, threads[4:], [1, 1], random.Random(1))
    assert job.passes() == {0: job.names, 1: job.names}


@in_trio_time
async def test_a_pass_begun_again_on_every_mount_is_the_same_again(threads: list[int]) -> None:
    job = _Job(_classes(2, 24), [0, 1])
    orders = []
    async with job.running():
        for attempt in range(2):
            job.drawn.clear()
            for mount in job.mounts:
                mount.begin(0)
            for epoch in range(2):
                await _even_epoch(job, threads[4 * attempt + 2 * epoch :])
            orders.append([job.order(rank) for rank in range(2)])
            assert job.passes() == {0: job.names, 1: job.names}
    assert orders[0] == orders[1]


# --- The order -------------------------------------------------------------------------------------------------------


async def _two_epochs(threads: list[int], seed: int) -> list[list[tuple[int, bytes]]]:
    job = _Job(_classes(3, 40), [0, 1], seed=seed)
    async with job.running():
        for epoch in range(2):
            await _even_epoch(job, threads[2 * epoch :])
    return [job.order(rank) for rank in range(2)]


@in_trio_time
async def test_equal_seeds_give_equal_orders_and_others_do_not(threads: list[int]) -> None:
    first = await _two_epochs(threads, 1)
    assert await _two_epochs(threads, 1) == first
    assert await _two_epochs(threads, 2) != first


@in_trio_time
async def test_each_pass_has_an_order_of_its_own(threads: list[int]) -> None:
    for order in await _two_epochs(threads, 1):
        passes = [[sample for number, sample in order if number == each] for each in (0, 1)]
        assert passes[0] != passes[1]
        assert passes[0] != sorted(passes[0])


@in_trio_time
async def test_without_a_bound_a_rank_that_reads_its_part_gets_samples_of_its_node_only(threads: list[int]) -> None:
    job = _Job(_classes(4, 24), [0, 0, 1, 1], entropy=0.0)
    async with job.running():
        await _even_epoch(job, threads)
    assert (job.homed_elsewhere(), job.steals) == (0, 0)
    assert job.passes() == {0: job.names}


@in_trio_time
async def test_without_a_bound_only_what_is_stolen_comes_from_other_nodes(threads: list[int]) -> None:
    job = _Job(_classes(4, 24), [0, 1, 2, 3], entropy=0.0)
    async with job.running():
        await _epoch(job, threads, [1, 3, 2, 2], random.Random(1))
    assert 0 < job.homed_elsewhere() <= job.steals
    assert job.passes() == {0: job.names}


@in_trio_time
async def test_with_a_bound_the_planned_share_comes_from_other_nodes_besides_what_is_stolen(threads: list[int]) -> None:
    job = _Job(_classes(3, 1304), list(range(8)), entropy=0.9)
    async with job.running():
        await _epoch(job, threads, [1] * 8, random.Random(1))
    q = least_exchange(1304, 8, 0.9)
    share, stolen = job.homed_elsewhere() / len(job.names), job.steals / len(job.names)
    assert q == pytest.approx(0.397, abs=1e-3)
    assert stolen < 0.1
    assert q - 0.01 - stolen <= share <= q + 0.01 + stolen
