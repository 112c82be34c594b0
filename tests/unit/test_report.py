"""What a mount says of itself when something is degraded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deepiofs.dataset.manifest import Manifest
from deepiofs.fs.report import Identity, Report
from deepiofs.fs.sourcereads import SourceReads
from deepiofs.fs.streams.ahead import Ahead
from deepiofs.fs.streams.orders import Orders
from deepiofs.fs.streams.tree import Streams
from deepiofs.fs.tree import Tree
from deepiofs.memory.board import Counter
from deepiofs.options import Settings
from tests.doubles import in_trio, in_trio_time
from tests.unit.jobs import Mounted

_FILES = {b"%d" % i: b"%d" % i * 1000 for i in range(4)}


def _report(mounted: Mounted) -> Report:
    manifest: Manifest = mounted.link.manifest
    reads = SourceReads(mounted.source, manifest)
    tree = Tree(manifest, Settings(), lambda row: False)
    streams = Streams(tree, True, {}, _no_orders, mounted.reader, Ahead(mounted.link, 0, 0), lambda: 0)
    return Report(Identity(0, 2, 0, 1, 1), mounted.link, mounted.counts, reads, streams)


def _no_orders() -> Orders:
    raise AssertionError("no stream is asked for")


def _count(counter: Counter) -> Callable[[Mounted], None]:
    return lambda mounted: mounted.link.board.add(counter, 3)


def _engine_late(mounted: Mounted) -> None:
    mounted.counts.engine_timeouts = 3


def _digest_differed(mounted: Mounted) -> None:
    mounted.counts.verify_failures = 3


@pytest.mark.parametrize(
    ("degrade", "line"),
    [
        (_count(Counter.PEERS_SUSPECT), "3 peers do not answer; their samples come from the source"),
        (_count(Counter.QUARANTINED_BYTES), "3 bytes of staging wait for gets and source reads that were given up"),
        (_count(Counter.BROKEN_UNITS), "3 units could not be loaded from the source; see the log"),
        (_count(Counter.SOURCE_HANGS), "3 reads of the source hang; see the log for the files"),
        (_count(Counter.VERIFY_FAILURES), "3 digests differed; these samples came from the source"),
        (_digest_differed, "3 digests differed; these samples came from the source"),
        (_count(Counter.MPI_ERRORS), "3 gets failed in MPI"),
        (_engine_late, "3 requests were not answered by the engine"),
    ],
)
def test_each_thing_that_is_degraded_has_a_line(degrade: Callable[[Mounted], None], line: str) -> None:
    @in_trio
    async def main() -> None:
        mounted = Mounted(_FILES)
        async with mounted.running():
            report = _report(mounted)
            assert report.health_text() == "ok\n"
            degrade(mounted)
            assert report.health_text() == line + "\n"

    main()


@in_trio_time
async def test_a_lost_engine_has_a_line_and_hangs_in_nothing() -> None:
    mounted = Mounted(_FILES)
    async with mounted.running():
        report = _report(mounted)
        mounted.link.board.add(Counter.SOURCE_HANGS, 1)
        mounted.kill_engine()
        await mounted.fetch(0)
        assert report.complaints() == ["engine lost: serving resident memory and the source, no peers"]
