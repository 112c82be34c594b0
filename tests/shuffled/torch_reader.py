"""An unmodified PyTorch reader: ImageFolder, DistributedSampler, DataLoader.

Its argument is JSON: mountpoint, rank, world, epochs, workers, drop_last, batches (stop each epoch after so many, 0 for
all), output. Writes a line per image: epoch, label, digest of its pixels.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]


def digest(image: torch.Tensor) -> str:
    """Of an image's pixels."""
    return hashlib.md5(image.numpy().tobytes()).hexdigest()


def to_tensor(image: object) -> torch.Tensor:
    """Pixels as they are."""
    import numpy as np

    return torch.from_numpy(np.asarray(image).copy())


def main() -> None:
    how = json.loads(sys.argv[1])
    dataset = ImageFolder(how["mountpoint"], transform=to_tensor)
    sampler = DistributedSampler(dataset, how["world"], how["rank"], seed=1, drop_last=how["drop_last"])
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=how["workers"])
    with Path(how["output"]).open("w") as output:
        for epoch in range(how["epochs"]):
            sampler.set_epoch(epoch)
            for i, (images, labels) in enumerate(loader):
                for image, label in zip(images, labels.tolist(), strict=True):
                    output.write(f"{epoch} {label} {digest(image)}\n")
                if how["batches"] and i + 1 == how["batches"]:
                    break


if __name__ == "__main__":
    main()
