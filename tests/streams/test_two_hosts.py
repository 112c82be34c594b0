"""Streams over two hosts: what the other holds comes by MPI, whole, ahead, and as much of it as was foretold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MpiMountFactory
from tests.lab import Lab
from tests.mounts import ending
from tests.streams.conftest import quiet

pytestmark = [pytest.mark.mounted, pytest.mark.mpi, pytest.mark.lab]

_SAMPLES, _BATCH = 2048, 64

# Reads a stream to its end while it is open, and prints `stats` of that moment.
_READ = """
import shutil, sys
with open(sys.argv[1] + "/.deepiofs/stream/" + sys.argv[2], "rb") as stream, open(sys.argv[3], "wb") as copy:
    shutil.copyfileobj(stream, copy, 1 << 20)
    print(open(sys.argv[1] + "/.deepiofs/stats").read())
"""


def test_the_share_from_peers_is_the_overhang_and_the_bytes_are_right(
    mpi_mount: MpiMountFactory, lab: Lab, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(_SAMPLES):
        (source / f"{i:04}.bin").write_bytes(i.to_bytes(2, "little") * 2000)
    mounted = mpi_mount(2, source, f"batch={_BATCH}", lab=lab)
    before = [mounted.stats(rank) for rank in range(2)]
    name = "tar/epoch-1/0-of-1.tar"
    readers = []
    for rank, place in enumerate(mounted.places):
        line = [sys.executable, "-c", _READ, str(mounted.mountpoints[rank]), name, str(tmp_path / f"copy{rank}")]
        readers.append(place.start(line, stdout=subprocess.PIPE))
    shares, from_peers = [], 0
    for rank, reader in enumerate(readers):
        with ending(reader):
            said = json.loads(reader.communicate(timeout=120)[0])
            shares.append(said["stream_peer_share"][name])
            from_peers += said["served_bytes"]["peer"] - before[rank]["served_bytes"]["peer"]
            assert said["served_bytes"]["source"] == before[rank]["served_bytes"]["source"]
    # sqrt(2/(pi B)) / 2 for two nodes: 5.0 %, with a spread of 0.7 % over 32 batches.
    assert abs(sum(shares) / 2 - 0.05) < 0.025
    assert from_peers > 0
    (tmp_path / "extracted").mkdir()
    for rank in range(2):
        quiet("tar", "-xf", str(tmp_path / f"copy{rank}"), "-C", str(tmp_path / "extracted"))
    assert quiet("diff", "-r", str(source), str(tmp_path / "extracted")) == ""
