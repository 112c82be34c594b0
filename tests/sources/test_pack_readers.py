"""Unmodified readers: of containers as plain files of a mounted directory, and of records as a tree of images."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import MountFactory
from tests.packs import dataset, tar_member
from tests.readers import readers

pytestmark = pytest.mark.mounted

# Prints the digests of all records, of plain and of compressed files, for each of two folders, as JSON.
_TF_READER = """
import glob, hashlib, json, sys
import tensorflow as tf
found = []
for folder in sys.argv[1:]:
    for kind, ending in (("", "tfrecord"), ("GZIP", "gz")):
        data = tf.data.TFRecordDataset(sorted(glob.glob(f"{folder}/*/*.{ending}")), kind)
        found.append([hashlib.md5(record.numpy()).hexdigest() for record in data])
print(json.dumps(found))
"""


def test_tf_data_reads_the_files_of_a_mounted_directory_and_finds_what_the_source_does(
    mount: MountFactory, tmp_path: Path
) -> None:
    tensorflow = readers("tensorflow")
    (tmp_path / "data").mkdir()
    made = [dataset(kind, tmp_path / "data" / kind) for kind in ("tfrecord", "gzip")]
    view = mount(tmp_path / "data")
    (said,) = tensorflow.run([_TF_READER, str(tmp_path / "data"), str(view.point)])
    plain, packed, *seen = json.loads(said)
    assert seen == [plain, packed]
    # Tensorflow finds in them what the records of the source are.
    for digests, one in zip((plain, packed), made, strict=True):
        assert digests == [hashlib.md5(data).hexdigest() for _, data in sorted(one.files.items())]


def test_webdataset_reads_the_tars_of_a_mounted_directory(mount: MountFactory, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    made = dataset("tar", tmp_path / "data")
    view = mount(made.folder)

    def read(folder: Path) -> dict[bytes, bytes]:
        samples = wds.WebDataset(f"{folder}/{{0..2}}.tar", shardshuffle=False)
        return {f"{one['__key__']}.bin".encode(): one["bin"] for one in samples}

    assert read(view.point) == read(made.folder) == made.files


# Prints a label and the digest of an image for each that a loader's epoch brings.
_IMAGE_READER = """
import hashlib, sys
import numpy as np, torch
from PIL import Image
from torchvision.datasets import ImageFolder
folder = ImageFolder(sys.argv[1], lambda image: torch.from_numpy(np.array(image.convert("L"))))
for images, labels in torch.utils.data.DataLoader(folder, batch_size=32, shuffle=True, num_workers=2):
    for image, label in zip(images, labels):
        print(folder.classes[label], hashlib.md5(image.numpy().tobytes()).hexdigest())
"""


def test_image_folder_over_a_tar_sees_each_image_once_under_its_label(mount: MountFactory, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits  # takes a second, which only tests that need it should wait for

    torch = readers("torch")
    digits = load_digits()
    members, expected = [], []
    for i, (image, label) in enumerate(zip(digits.images[:300], digits.target[:300], strict=True)):
        pixels, file = (image * 15.9).astype(np.uint8), io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        members.append(tar_member(f"./{label}/{i:04}.png", file.getvalue()))
        expected.append(f"{label} {hashlib.md5(pixels.tobytes()).hexdigest()}")
    (tmp_path / "digits.tar").write_bytes(b"".join([*members, bytes(1024)]))
    view = mount(Path(f"tar:{tmp_path}/digits.tar"), "shuffle=dir", f"order_log={tmp_path}/order")
    (said,) = torch.run([_IMAGE_READER, str(view.point)])
    assert sorted(said.splitlines()) == sorted(expected)
    rows = [line.split(",") for line in (tmp_path / "order").read_text().splitlines()[1:]]
    assert any(name != sample for _, _, name, sample, *_ in rows)
