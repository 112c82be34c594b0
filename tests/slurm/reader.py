"""A task of a job: read a dataset through its mount, over and over, and compare all bytes with the source.

`reader.py MOUNTPOINT SOURCE SIGNS [torch]`, with `torch` by PyTorch's DataLoader with two workers: after each round it
leaves SIGNS/HOST with the number of rounds; it ends after the round in which SIGNS/stop is there. Exit status 0 only
if all was right.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    mountpoint, source, signs = map(Path, sys.argv[1:4])
    read = read_with_torch if sys.argv[4:] == ["torch"] else read_plainly
    sign = signs / socket.gethostname()
    names = names_below(source)
    assert names_below(mountpoint) == names, "the names differ"
    rounds = 0
    while True:
        stop = (signs / "stop").exists()
        for name, content in read(mountpoint, names):
            assert content == (source / name).read_bytes(), f"{name} differs"
        rounds += 1
        sign.with_suffix(".part").write_text(str(rounds))
        os.replace(sign.with_suffix(".part"), sign)
        if stop:
            print(f"{socket.gethostname()}: {len(names)} files right", flush=True)
            return


def names_below(folder: Path) -> list[str]:
    """Of all files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read_plainly(folder: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """One by one."""
    for name in names:
        yield name, (folder / name).read_bytes()


def read_with_torch(folder: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """In random order, as tensors."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset[tuple[str, torch.Tensor]]):
        def __len__(self) -> int:
            return len(names)

        def __getitem__(self, number: int) -> tuple[str, torch.Tensor]:
            content = bytearray((folder / names[number]).read_bytes())
            return names[number], torch.frombuffer(content, dtype=torch.uint8)

    for name, tensor in DataLoader(Files(), batch_size=None, shuffle=True, num_workers=2):
        yield name, tensor.numpy().tobytes()


if __name__ == "__main__":
    main()
