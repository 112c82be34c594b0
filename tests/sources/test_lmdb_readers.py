"""Programs that map LMDBs read them over a mount of the directory that holds them: same results as on the source."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from tests.conftest import MountFactory
from tests.mounts import ending
from tests.sources.lmdbs import image, read, write

pytestmark = pytest.mark.mounted

# Reads all records in an order of its own through the map; prints a digest.
_READER = """
import hashlib, lmdb, random, sys
environment = lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=sys.argv[2] == "0")
with environment.begin(buffers=True) as transaction:
    keys = [bytes(key) for key in transaction.cursor().iternext(values=False)]
    random.Random(int(sys.argv[2])).shuffle(keys)
    values = {key: hashlib.sha256(transaction.get(key)).hexdigest() for key in keys}
print(hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with LMDBs of values small and large, and one as LSUN's."""
    root = tmp_path_factory.mktemp("lmdbs")
    generator = random.Random(4)
    values = {b"%06d" % i: generator.randbytes(generator.choice([10, 3000, 50_000])) for i in range(400)}
    write(root / "values", values)
    write(
        root / "bedroom_val_lmdb", {hashlib.sha1(b"%d" % i).hexdigest().encode(): image(i, "WEBP") for i in range(40)}
    )
    return root


def test_several_processes_map_it_at_once(mount: MountFactory, root: Path) -> None:
    mounted = mount(root)
    values = {key: hashlib.sha256(value).hexdigest() for key, value in read(root / "values").items()}
    expected = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, str(mounted.point / "values"), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for reader in readers:
        with ending(reader):
            assert reader.communicate(timeout=60)[0].strip() == expected


def test_a_lock_cannot_be_had(mount: MountFactory, root: Path) -> None:
    """Its file would be written to, though the environment is not."""
    point = mount(root).point / "values"
    with pytest.raises(lmdb.Error, match="Read-only file system"):
        lmdb.open(str(point), readonly=True)
    with pytest.raises(lmdb.Error, match="Read-only file system"):
        lmdb.open(str(point), lock=False)


def test_torchvision_reads_lsun_as_on_the_source(
    mount: MountFactory, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.chdir(tmp_path)  # it keeps a list of keys there
    over = datasets.LSUN(str(mount(root).point), classes=["bedroom_val"])
    plain = datasets.LSUN(str(root), classes=["bedroom_val"])
    assert len(over) == len(plain) == 40
    for (one, label), (other, other_label) in zip(over, plain, strict=True):
        assert (one.tobytes(), label) == (other.tobytes(), other_label)
