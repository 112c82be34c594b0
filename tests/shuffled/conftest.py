"""The digits, and readers of them."""

from __future__ import annotations

import collections
import csv
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.readers import readers

READER = Path(__file__).parent / "torch_reader.py"


@dataclass(frozen=True)
class Digits:
    """The 1,797 digits of scikit-learn as PNG files in ten class directories, and their pixels' classes."""

    root: Path
    classes: dict[str, set[int]]

    @property
    def names(self) -> list[str]:
        """All paths from the root, sorted."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("*/*"))


def pixels(path: Path) -> str:
    """Digest of an image as ImageFolder decodes it."""
    with Image.open(path) as image:
        return hashlib.md5(np.asarray(image.convert("RGB")).tobytes()).hexdigest()


def write_digits(root: Path, limit: int = 1797) -> Digits:
    """Write the first `limit` digits."""
    from sklearn.datasets import load_digits  # takes a second, which only tests that need it should wait for

    digits = load_digits()
    classes: dict[str, set[int]] = collections.defaultdict(set)
    for i, (image, label) in enumerate(zip(digits.images[:limit], digits.target[:limit], strict=True)):
        path = root / str(label) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(path)
        classes[pixels(path)].add(int(label))
    return Digits(root, classes)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """All of them."""
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """As many as do not divide evenly."""
    return write_digits(tmp_path_factory.mktemp("few"), 331)


@dataclass(frozen=True)
class Read:
    """What a reader saw of one image."""

    epoch: int
    label: int
    digest: str


def read_with_torch(
    mountpoints: Iterable[Path],
    folder: Path,
    *,
    epochs: int = 1,
    workers: int = 0,
    drop_last: bool = False,
    batches: int = 0,
) -> list[list[Read]]:
    """One reader process per mount point, all at once; what each saw."""
    points = list(mountpoints)
    lines = []
    for rank, point in enumerate(points):
        how = {
            "mountpoint": str(point), "rank": rank, "world": len(points), "epochs": epochs, "workers": workers,
            "drop_last": drop_last, "batches": batches, "output": str(folder / f"read-{rank}"),
        }  # fmt: skip
        lines.append([READER.read_text(), json.dumps(how)])
    readers("torch").run(*lines)
    return [_parsed(folder / f"read-{rank}") for rank in range(len(points))]


def _parsed(path: Path) -> list[Read]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [Read(int(epoch), int(label), digest) for epoch, label, digest in lines]


@dataclass(frozen=True)
class Drawn:
    """A line of an order log."""

    number: int
    position: int
    name: str
    sample: str
    origin: str


def order_of(logs: Iterable[Path]) -> dict[int, list[Drawn]]:
    """The draws of several mounts, by pass."""
    passes: dict[int, list[Drawn]] = collections.defaultdict(list)
    for log in logs:
        with log.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            for row in csv.DictReader(file):
                draw = Drawn(int(row["pass"]), int(row["position"]), row["name"], row["sample"], row["origin"])
                passes[draw.number].append(draw)
    return dict(passes)


def assert_exactly_once(passes: dict[int, list[Drawn]], names: list[str], complete: int) -> None:
    """The first `complete` passes hold every sample once; no later one holds a sample twice."""
    for number, draws in passes.items():
        samples = sorted(draw.sample for draw in draws)
        assert len(samples) == len(set(samples)), f"pass {number} repeats"
        if number < complete:
            assert samples == names, f"pass {number} lacks {set(names) - set(samples)}"
        assert all(draw.name.split("/")[0] == draw.sample.split("/")[0] for draw in draws), "a class was mixed"
    assert set(range(complete)) <= passes.keys()
