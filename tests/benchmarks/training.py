"""Does training through the shuffled view learn as well? `python -m tests.benchmarks.training [SEEDS]`.

A softmax regression on scikit-learn's digits (1,437 to train on, 360 held out), by four data-parallel ranks: each
reads its part through its own mount with PyTorch's ImageFolder, DistributedSampler and DataLoader; a step takes the
mean gradient of the four. The four ranks are made four nodes, so that at `entropy=0` each only ever sees its own
quarter. Beside it the same program on the plain directory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.launchers import installed_launchers
from tests.mounts import mpi_mounted

sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
from torchvision.datasets import ImageFolder  # type: ignore[import-untyped] # noqa: E402

_RANKS, _EPOCHS, _BATCH, _RATE = 4, 8, 8, 0.5
_TRAINED_ON = 1437


def write(root: Path, first: int, last: int) -> None:
    """Some digits as PNG files in class directories."""
    digits = load_digits()
    for i in range(first, last):
        path = root / str(digits.target[i]) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).save(path)


def to_vector(image: Any) -> torch.Tensor:
    """64 numbers from 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), np.float32).reshape(-1) / 255)


def train(roots: Iterable[Path], held_out: Path, seed: int) -> float:
    """Accuracy on the held-out digits after training through these directories, one per rank."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
    loaders = []
    for rank, root in enumerate(roots):
        dataset = ImageFolder(str(root), transform=to_vector)
        sampler = DistributedSampler(dataset, _RANKS, rank, seed=seed, drop_last=True)
        loaders.append((sampler, DataLoader(dataset, batch_size=_BATCH, sampler=sampler)))
    for epoch in range(_EPOCHS):
        for sampler, _ in loaders:
            sampler.set_epoch(epoch)
        for parts in zip(*(loader for _, loader in loaders), strict=True):
            images, labels = (torch.cat([part[i] for part in parts]) for i in range(2))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        schedule.step()
    return _accuracy(model, held_out)


def _accuracy(model: torch.nn.Module, root: Path) -> float:
    images, labels = zip(*ImageFolder(str(root), transform=to_vector), strict=True)
    with torch.no_grad():
        return float((model(torch.stack(images)).argmax(1) == torch.tensor(labels)).float().mean())


def main() -> None:
    seeds = range(int(sys.argv[1]) if sys.argv[1:] else 5)
    launcher = next(launcher for launcher in installed_launchers() if launcher.name == "mpich")
    nodes = {"MPIR_CVAR_NOLOCAL": "1"}  # MPICH then takes each rank for a node
    with tempfile.TemporaryDirectory(prefix="deepiofs-bench-") as name:
        folder = Path(name)
        write(folder / "train", 0, _TRAINED_ON)
        write(folder / "test", _TRAINED_ON, 1797)
        results = {"plain directory": [train([folder / "train"] * _RANKS, folder / "test", seed) for seed in seeds]}
        for bound in (0.0, 0.9, 1.0):
            (folder / f"e{bound}").mkdir()
            options = ("shuffle=dir", f"entropy={bound}")
            with mpi_mounted(
                launcher, _RANKS, folder / "train", folder / f"e{bound}", *options, environment=nodes
            ) as mounted:
                assert mounted.stats(0)["nodes"] == _RANKS
                key = f"entropy={bound:g}, planned E {mounted.stats(0)['entropy']['planned']:.3f}"
                results[key] = [train(mounted.mountpoints, folder / "test", seed) for seed in seeds]
        _print(results)


def _print(results: dict[str, list[float]]) -> None:
    plain = results["plain directory"]
    error = statistics.stdev(plain) / len(plain) ** 0.5
    print("| read through | accuracy | standard error | difference, in standard errors |\n|---|---|---|---|")
    for name, accuracies in results.items():
        mean = statistics.mean(accuracies)
        own = statistics.stdev(accuracies) / len(accuracies) ** 0.5
        apart = abs(mean - statistics.mean(plain)) / ((error**2 + own**2) ** 0.5)
        print(f"| {name} | {mean:.4f} | {own:.4f} | {apart:.2f} |")


if __name__ == "__main__":
    main()
