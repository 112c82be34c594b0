"""The double that the engine's tests use instead of MPI keeps the same contract, and breaks it only on command."""

from __future__ import annotations

import errno

from deepiofs.engine.peers import Note, NoteKind
from deepiofs.memory.segments import Segment
from tests.contracts.peers import STORE_BYTES, PeersContract, Scenario, get_bytes, poll_until
from tests.doubles import LocalJob, in_trio


class _Other:
    """Rank 1 of a job in this process."""

    rank, asker = 1, 0

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._peers = job.peers[1]
        self._heard: list[tuple[int, Note]] = []
        self._peers.on_note = lambda rank, note: self._heard.append((rank, note))

    async def write(self, at: int, data: bytes) -> None:
        self._job.stores[1].view[at : at + len(data)] = data

    async def tell(self, notes: list[Note]) -> None:
        for note in notes:
            self._peers.send(self.asker, note)

    async def heard(self, count: int) -> list[tuple[int, Note]]:
        await poll_until(self._peers, lambda: len(self._heard) >= count)
        heard, self._heard = self._heard, []
        return heard

    async def enter(self, name: str) -> None:
        (self._peers.enter_warm if name == "warm" else self._peers.enter_leave)()


def _job() -> LocalJob:
    return LocalJob([Segment.create("store", STORE_BYTES) for _ in range(2)])


class TestLocalPeers(PeersContract):
    def run(self, scenario: Scenario) -> None:
        @in_trio
        async def main() -> None:
            job = _job()
            await scenario(job.peers[0], _Other(job))
            for store in job.stores:
                store.close()

        main()


@in_trio
async def test_a_silent_rank_completes_no_get_until_it_answers() -> None:
    job = _job()
    peers = job.peers[0]
    peers.silent.add(1)
    get = peers.get(1, 0, memoryview(bytearray(8)))
    for _ in range(10):
        assert not peers.poll()
    assert not get.over
    assert peers.busy()
    peers.answer(1)
    assert peers.poll()
    assert get.over


@in_trio
async def test_a_failure_ends_one_get_only() -> None:
    job = _job()
    peers = job.peers[0]
    job.stores[1].view[:4] = b"good"
    for at_once in (False, True):
        error = OSError(errno.EIO, "broken")
        peers.fail_next(error, at_once=at_once)
        get = peers.get(1, 0, memoryview(bytearray(4)))
        assert get.over == at_once
        peers.poll()
        assert get.error is error
    assert await get_bytes(peers, 1, 0, 4) == b"good"


@in_trio
async def test_a_corruption_flips_one_byte_of_one_get() -> None:
    job = _job()
    peers = job.peers[0]
    peers.corrupt_next(2)
    assert await get_bytes(peers, 1, 0, 4) == b"\0\0\xff\0"
    assert await get_bytes(peers, 1, 0, 4) == bytes(4)


@in_trio
async def test_a_deaf_rank_hears_nothing() -> None:
    job = _job()
    job.peers[0].deaf.add(1)
    heard: list[Note] = []
    job.peers[1].on_note = lambda rank, note: heard.append(note)
    job.peers[0].send(1, Note(NoteKind.WAKE))
    assert not job.peers[1].poll()
    assert heard == []
