"""Leaving when a rank is lost: nobody lingers for those that are gone."""

from __future__ import annotations

from collections.abc import Callable

from deepiofs.engine.farewell import Farewell
from deepiofs.engine.peers import Note, NoteKind
from deepiofs.memory.segments import Segment
from tests.doubles import LocalJob, in_trio


def _hearer(farewell: Farewell) -> Callable[[int, Note], None]:
    return lambda rank, note: farewell.heard(rank) if note.kind is NoteKind.LEFT else None


def _job(n_ranks: int) -> tuple[LocalJob, list[Farewell]]:
    job = LocalJob([Segment.create("store", 4096) for _ in range(n_ranks)])
    farewells = [Farewell(rank, n_ranks, peers) for rank, peers in enumerate(job.peers)]
    for peers, farewell in zip(job.peers, farewells, strict=True):
        peers.on_note = _hearer(farewell)
    return job, farewells


def _poll(job: LocalJob) -> None:
    while sum(peers.poll() for peers in job.peers):
        continue


@in_trio
async def test_with_a_loss_a_rank_lingers_until_all_others_have_left() -> None:
    job, farewells = _job(4)
    for farewell in farewells[:3]:
        farewell.out.add(3)
    for rank in (0, 1):
        farewells[rank].leave()
        _poll(job)
    assert [farewell.complete() for farewell in farewells[:2]] == [False] * 2
    farewells[2].leave()
    _poll(job)
    assert [farewell.complete() for farewell in farewells[:3]] == [True] * 3
    assert 3 not in {rank for peers in job.peers for rank, _ in peers.sent}


@in_trio
async def test_who_left_unaware_of_the_loss_is_not_waited_for() -> None:
    job, farewells = _job(3)
    farewells[0].leave()
    farewells[1].out.add(2)
    farewells[1].leave()
    _poll(job)
    assert farewells[1].complete()
    assert not farewells[0].complete()


@in_trio
async def test_without_a_loss_nobody_says_anything() -> None:
    job, farewells = _job(3)
    for farewell in farewells:
        farewell.leave()
    assert all(peers.sent == [] for peers in job.peers)
    assert not any(farewell.complete() for farewell in farewells)
