"""A task of a job: read a dataset through its mount with PyTorch, over and over, and compare all bytes with the source.

`read_with_torch.py MOUNTPOINT SOURCE SIGNS`: after each round it leaves SIGNS/HOST with the number of rounds; it ends
after the round in which SIGNS/stop is there. Exit status 0 only if all was right.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[tuple[str, torch.Tensor]]):
    """The files below a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: Sequence[str] = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> tuple[str, torch.Tensor]:
        content = bytearray((self._folder / self.names[number]).read_bytes())
        return self.names[number], torch.frombuffer(content, dtype=torch.uint8)


def main() -> None:
    mountpoint, source, signs = map(Path, sys.argv[1:])
    sign = signs / socket.gethostname()
    files = Files(mountpoint)
    assert files.names == Files(source).names, "the names differ"
    rounds = 0
    while True:
        stop = (signs / "stop").exists()
        for name, content in DataLoader(files, batch_size=None, shuffle=True, num_workers=2):
            assert content.numpy().tobytes() == (source / name).read_bytes(), f"{name} differs"
        rounds += 1
        sign.with_suffix(".part").write_text(str(rounds))
        os.replace(sign.with_suffix(".part"), sign)
        if stop:
            print(f"{socket.gethostname()}: {len(files)} files right", flush=True)
            return


if __name__ == "__main__":
    main()
