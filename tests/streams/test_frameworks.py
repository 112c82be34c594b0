"""Unmodified WebDataset and tf.data over streams: every sample exactly once per epoch, and it trains."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.conftest import MountFactory, MpiMountFactory
from tests.launchers import installed_launchers
from tests.mounts import ending
from tests.streams.conftest import STREAM, parts

pytestmark = [pytest.mark.mounted]

# Which MPI carries the bytes is nothing to a framework, and each start of one takes long.
_ONE_MPI = pytest.mark.parametrize("launcher", installed_launchers()[:1], indirect=True, ids=str)
_READER = Path(__file__).parent / "wds_reader.py"
_READER_S = 180

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
@_ONE_MPI
def test_webdataset_on_two_ranks_sees_every_sample_once_per_epoch(
    mpi_mount: MpiMountFactory, pairs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("webdataset")
    mounted = mpi_mount(2, tmp_path / "pairs", "batch=16")
    orders = []
    for epoch in range(2):
        outputs = [tmp_path / f"read-{epoch}-{rank}" for rank in range(2)]
        processes = []
        for point, output in zip(mounted.mountpoints, outputs, strict=True):
            urls = f"{point}/{STREAM}/tar/epoch-{epoch}/{{0..3}}-of-4.tar"
            processes.append(subprocess.Popen([sys.executable, str(_READER), urls, "2", str(output)], text=True))
        for process in processes:
            with ending(process):
                assert process.wait(_READER_S) == 0
        lines = [line.split() for output in outputs for line in output.read_text().splitlines()]
        assert sorted((key, label, digest) for key, label, digest in lines) == sorted(
            (key, *value) for key, value in pairs.items()
        )
        orders.append([key for key, _, _ in lines])
    assert orders[0] != orders[1]


@pytest.mark.mpi
@_ONE_MPI
def test_tf_data_on_two_ranks_reads_each_record_once(
    mpi_mount: MpiMountFactory, pairs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow")
    mounted = mpi_mount(2, tmp_path / "pairs", "shuffle_only=*.cls:*.jpg")
    files = [str(part) for part in parts(mounted.mountpoints, "tfrecord", 3, 3)]
    done = subprocess.run(
        [sys.executable, "-c", _TF_READER, *files], capture_output=True, text=True, check=True, timeout=_READER_S
    )
    expected = [digest for _, digest in pairs.values()]
    expected += [hashlib.md5(label.encode()).hexdigest() for label, _ in pairs.values()]
    assert sorted(json.loads(done.stdout)) == sorted(expected)


def test_a_stream_of_images_and_labels_trains(mount: MountFactory, tmp_path: Path) -> None:
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
