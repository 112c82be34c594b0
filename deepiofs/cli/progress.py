"""Showing how far loading is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

import trio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from deepiofs.errors import EngineLostError
from deepiofs.fs.enginelink import EngineLink
from deepiofs.memory.board import Counter

_EVERY_S = 0.05
_LINE_PERCENT = 10


async def wait_warm(link: EngineLink, show: bool) -> None:
    """Return when all ranks have loaded; EngineLostError if the engine ends before.

    show: whether this rank is the one that tells the user.
    """
    if show and sys.stderr.isatty():
        await _with_bar(link)
    else:
        await _with_lines(link, show)


async def _with_bar(link: EngineLink) -> None:
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        while not _warm(link):
            bar.update(task, total=link.board[Counter.OWN_BYTES], completed=link.board[Counter.LOADED_BYTES])
            await trio.sleep(_EVERY_S)


async def _with_lines(link: EngineLink, show: bool) -> None:
    said = 0
    while not _warm(link):
        total = link.board[Counter.OWN_BYTES]
        percent = 100 * link.board[Counter.LOADED_BYTES] // total if total else 0
        if show and percent >= said + _LINE_PERCENT:
            said = percent - percent % _LINE_PERCENT
            print(f"deepiofs: loading {said} % of {total / 1e6:.1f} MB", file=sys.stderr)
        await trio.sleep(_EVERY_S)


def _warm(link: EngineLink) -> bool:
    if not link.running:
        raise EngineLostError("the engine ended while it was loading; see the log")
    return bool(link.board[Counter.STATE_WARM])
