"""Unmodified WebDataset and tf.data over streams: every sample exactly once per epoch, and it trains."""

from __future__ import annotations

import hashlib
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import MountFactory, MpiMountFactory
from tests.launchers import one_mpi
from tests.readers import readers
from tests.streams.conftest import STREAM, parts

pytestmark = [pytest.mark.mounted]

_READER = Path(__file__).parent / "wds_reader.py"

# Prints the digest of each record, as JSON.
_TF_READER = """
import hashlib, json, sys
import tensorflow as tf
data = tf.data.TFRecordDataset(sys.argv[1:], num_parallel_reads=2)
print(json.dumps([hashlib.md5(record.numpy()).hexdigest() for record in data]))
"""


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Images and labels in one directory per class; (label, digest of the image) by key."""
    generator = random.Random(3)
    found = {}
    for i in range(203):
        folder = tmp_path / "pairs" / f"c{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = generator.randbytes(generator.randrange(1, 9000))
        (folder / f"{i:04}.jpg").write_bytes(image)
        (folder / f"{i:04}.cls").write_text(str(i % 3))
        found[f"c{i % 3}/{i:04}"] = (str(i % 3), hashlib.md5(image).hexdigest())
    return found


@pytest.mark.mpi
@one_mpi()
def test_webdataset_on_two_ranks_sees_every_sample_once_per_epoch(
    mpi_mount: MpiMountFactory, pairs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    torch = readers("torch", "webdataset")
    mounted = mpi_mount(2, tmp_path / "pairs", "batch=16")
    orders = []
    for epoch in range(2):
        outputs = [tmp_path / f"read-{epoch}-{rank}" for rank in range(2)]
        urls = [f"{point}/{STREAM}/tar/epoch-{epoch}/{{0..3}}-of-4.tar" for point in mounted.mountpoints]
        program = _READER.read_text()
        torch.run(*([program, url, "2", str(output)] for url, output in zip(urls, outputs, strict=True)))
        lines = [line.split() for output in outputs for line in output.read_text().splitlines()]
        assert sorted((key, label, digest) for key, label, digest in lines) == sorted(
            (key, *value) for key, value in pairs.items()
        )
        orders.append([key for key, _, _ in lines])
    assert orders[0] != orders[1]


@pytest.mark.mpi
@one_mpi()
def test_tf_data_on_two_ranks_reads_each_record_once(
    mpi_mount: MpiMountFactory, pairs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    tensorflow = readers("tensorflow")
    mounted = mpi_mount(2, tmp_path / "pairs", "shuffle_only=*.cls:*.jpg")
    files = [str(part) for part in parts(mounted.mountpoints, "tfrecord", 3, 3)]
    (said,) = tensorflow.run([_TF_READER, *files])
    expected = [digest for _, digest in pairs.values()]
    expected += [hashlib.md5(label.encode()).hexdigest() for label, _ in pairs.values()]
    assert sorted(json.loads(said)) == sorted(expected)


def test_a_stream_of_images_and_labels_trains(mount: MountFactory, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits  # takes a second, which only tests that need it should wait for

    wds = pytest.importorskip("webdataset")
    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
        path = tmp_path / f"digits/{label}/{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(path)
        path.with_suffix(".cls").write_text(str(label))
    view = mount(tmp_path / "digits", "batch=40")
    weights = np.zeros((65, 10))
    for epoch in range(8):
        url = f"file:{view.point}/{STREAM}/tar/epoch-{epoch}/0-of-1.tar"
        samples = list(wds.WebDataset(url, shardshuffle=False))
        assert len(samples) == 600
        for at in range(0, 600, 40):
            images = [np.asarray(Image.open(io.BytesIO(s["png"]))).reshape(-1) / 255 for s in samples[at : at + 40]]
            inputs = np.concatenate((np.array(images), np.ones((len(images), 1))), 1)
            labels = np.eye(10)[[int(s["cls"]) for s in samples[at : at + 40]]]
            scores = np.exp(inputs @ weights)
            weights += 0.02 * inputs.T @ (labels - scores / scores.sum(1, keepdims=True))
    inputs = np.concatenate((digits.images[600:1000].reshape(-1, 64) * 15.9 // 1 / 255, np.ones((400, 1))), 1)
    assert ((inputs @ weights).argmax(1) == digits.target[600:1000]).mean() > 0.85
