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
from tests.readers import readers
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

_LSUN = """
import hashlib, sys
from torchvision.datasets import LSUN
for image, label in LSUN(sys.argv[1], classes=["bedroom_val"]):
    print(image.size, hashlib.sha256(image.tobytes()).hexdigest(), label)
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


def test_it_can_be_read_without_a_lock_file_and_not_written(mount: MountFactory, root: Path) -> None:
    """On a read-only file system the library goes on without the lock that it was not forbidden to take."""
    point = mount(root).point / "values"
    with lmdb.open(str(point), readonly=True, lock=True) as environment, environment.begin() as transaction:
        assert dict(transaction.cursor()) == read(root / "values")
    with pytest.raises(lmdb.Error, match="Read-only file system"):
        lmdb.open(str(point), lock=False)


def test_torchvision_reads_lsun_as_on_the_source(mount: MountFactory, root: Path, tmp_path: Path) -> None:
    over, plain = (lsun(place, tmp_path / str(i)) for i, place in enumerate((mount(root).point, root)))
    assert over == plain
    assert len(over.splitlines()) == 40


def lsun(root: Path, folder: Path) -> str:
    """What torchvision reads; it keeps a list of keys in its working directory."""
    folder.mkdir()
    return readers("torch").run([_LSUN, str(root)], cwd=folder)[0]
