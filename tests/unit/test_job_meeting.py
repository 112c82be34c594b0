"""The ranks of a job meet: PMI's state machine, sealed lines, and what is decided for all nodes together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from deepiofs.cli.job.keys import job_secret, ports, read_key
from deepiofs.cli.job.meeting import Meeting, Result, attend
from deepiofs.cli.job.pmi import Exchange
from deepiofs.cli.job.sealed import Line, NotOfThisJobError, call, greet
from deepiofs.errors import EnvironmentFault

_SECRET = b"s" * 32


def test_what_one_rank_puts_all_can_get_after_the_barrier() -> None:
    exchange = Exchange(2)
    assert exchange.answer(0, "cmd=init pmi_version=1 pmi_subversion=1")[0][1].endswith("rc=0")
    exchange.answer(1, "cmd=put kvsname=deepiofs key=P1-card value=tcp://a b=c")
    assert exchange.answer(0, "cmd=barrier_in") == []
    assert exchange.answer(1, "cmd=barrier_in") == [(0, "cmd=barrier_out rc=0"), (1, "cmd=barrier_out rc=0")]
    got = exchange.answer(0, "cmd=get kvsname=deepiofs key=P1-card")
    assert got == [(0, "cmd=get_result rc=0 msg=success value=tcp://a b=c")]


def test_each_rank_is_on_a_node_of_its_own_and_an_unknown_key_or_command_is_said_to_be() -> None:
    exchange = Exchange(3)
    mapping = exchange.answer(2, "cmd=get kvsname=deepiofs key=PMI_process_mapping")
    assert mapping[0][1].endswith("value=(vector,(0,3,1))")
    assert "rc=-1" in exchange.answer(2, "cmd=get kvsname=deepiofs key=other")[0][1]
    assert exchange.answer(2, "cmd=spawn") == [(2, "cmd=spawn_result rc=-1 msg=unknown_command")]


async def _pair(mine: bytes = _SECRET, its: bytes = _SECRET, rank: int = 1) -> tuple[Line, Line]:
    ours, theirs = trio.testing.memory_stream_pair()
    ends: dict[str, Line] = {}

    async def serve() -> None:
        ends["server"] = await greet(ours, mine, 2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        ends["client"] = await call(theirs, its, rank)
    return ends["server"], ends["client"]


async def _both_ways() -> None:
    server, client = await _pair()
    assert server.rank == 1
    for sender, receiver in ((server, client), (client, server)):
        await sender.send("pmi", "a line")
        await sender.send("outcome", {"node1": "why"})
        assert [await receiver.receive(), await receiver.receive()] == [
            ["pmi", "a line"],
            ["outcome", {"node1": "why"}],
        ]


def test_lines_go_both_ways_between_those_who_know_the_secret() -> None:
    trio.run(_both_ways)


@pytest.mark.parametrize(("its", "rank"), [(b"x" * 32, 1), (_SECRET, 2)], ids=["secret", "rank"])
def test_whoever_does_not_know_the_secret_or_is_no_rank_is_hung_up_on(its: bytes, rank: int) -> None:
    async def meet() -> None:
        await _pair(its=its, rank=rank)

    with pytest.raises(BaseExceptionGroup) as raised:
        trio.run(meet)
    assert not raised.value.split(NotOfThisJobError)[1]


async def _altered(change: Callable[[bytes], bytes]) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    server = Line(ours, b"k" * 32, True, bytearray(), 0)
    client = Line(theirs, b"k" * 32, False, bytearray(), 0)
    await server.send("pmi", "cmd=barrier_out")
    data = await theirs.receive_some()
    client._rest += change(data)
    await client.receive()


@pytest.mark.parametrize(
    "change",
    [lambda data: data.replace(b"out", b"oot"), lambda data: b"0" * 64 + data[64:], lambda data: b"hello\n"],
    ids=["content", "seal", "other protocol"],
)
def test_a_line_that_was_changed_is_not_taken(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(NotOfThisJobError):
        trio.run(_altered, change)


def test_a_line_that_is_played_again_is_not_taken() -> None:
    with pytest.raises(NotOfThisJobError):
        trio.run(_played_again)


async def _played_again() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    server = Line(ours, b"k" * 32, True, bytearray(), 0)
    client = Line(theirs, b"k" * 32, False, bytearray(), 0)
    await server.send("pmi", "x")
    data = await theirs.receive_some()
    client._rest += data + data
    assert await client.receive() == ["pmi", "x"]
    await client.receive()


async def _outcome(results: dict[int, Result | None], limit_s: float = 30) -> dict[str, Any]:
    """What rank 0 is told when ranks call and say these results; None: nothing more than a call."""
    nodes, secret = ["n0", "n1", "n2"], b"o" * 32
    meeting = Meeting(nodes, secret, limit_s)
    places = ports(secret, 21000, 29000)
    told: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(meeting.hold, places)
        lines = {rank: await attend("localhost", places, secret, rank) for rank in results}
        for rank, result in results.items():
            if result:
                await lines[rank].send("result", {"up": result.up, "text": result.text, "blame": result.blame})
        kind, told = await lines[0].receive()
        assert kind == "outcome"
        nursery.cancel_scope.cancel()
    return told


_UP, _ALONG = Result(True), Result(False, "the mount ended: exit status 3", blame=False)


@pytest.mark.parametrize(
    ("results", "limit_s", "said"),
    [
        ({0: _UP, 1: _UP, 2: _UP}, 30, {}),
        ({0: _ALONG, 1: Result(False, "no such directory"), 2: _ALONG}, 30, {"n1": "no such directory"}),
        ({0: None, 1: Result(False, "no fuse"), 2: None}, 30, {"n1": "no fuse"}),
        ({0: _UP, 1: _UP}, 0.3, {"n2": "has not answered after 0 s"}),
        ({0: None, 1: None}, 0.3, {"n2": "has not answered after 0 s"}),
        ({0: _UP, 1: None, 2: None}, 0.3, {f"n{i}": "has not answered after 0 s" for i in (1, 2)}),
        ({0: _ALONG, 1: _ALONG, 2: _ALONG}, 30, {f"n{i}": _ALONG.text for i in range(3)}),
    ],
)
def test_the_mount_is_up_when_it_is_up_on_all_nodes_and_else_those_to_blame_are_named(
    results: dict[int, Result | None], limit_s: float, said: dict[str, str]
) -> None:
    assert trio.run(_outcome, results, limit_s) == said


def test_a_job_s_secret_is_its_own() -> None:
    site = b"k" * 64
    secrets = {
        job_secret(site, job, uid, nodes)
        for job in ("slurm-1", "slurm-2")
        for uid in (1, 2)
        for nodes in (["a", "b"], ["a"], ["ab"])
    }
    assert len(secrets) == 12
    assert ports(_SECRET, 20000, 29999) == ports(_SECRET, 20000, 29999)
    assert all(20000 <= port <= 20003 for port in ports(_SECRET, 20000, 20003))


def test_a_key_that_others_can_read_or_that_is_short_or_missing_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    with pytest.raises(EnvironmentFault, match="No such file"):
        read_key(str(key))
    key.write_bytes(b"k" * 64)
    key.chmod(0o640)
    with pytest.raises(EnvironmentFault, match="can be read by others"):
        read_key(str(key))
    key.chmod(0o600)
    assert read_key(str(key)) == b"k" * 64
    key.write_bytes(b"k" * 31)
    with pytest.raises(EnvironmentFault, match="32 are the least"):
        read_key(str(key))
