"""An unmodified WebDataset reader of one rank. Arguments: URLs, workers, output, where it writes a line per sample."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch
import webdataset as wds  # type: ignore[import-untyped]


def main() -> None:
    urls, workers, output = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    # Each rank has a mount, and with it shards, of its own: nothing is split over nodes.
    dataset = wds.WebDataset(urls, shardshuffle=False, nodesplitter=lambda shards: shards)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    with output.open("w") as lines:
        for sample in loader:
            digest = hashlib.md5(sample["jpg"]).hexdigest()
            lines.write(f"{sample['__key__']} {sample['cls'].decode()} {digest}\n")


if __name__ == "__main__":
    main()
