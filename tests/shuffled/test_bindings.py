"""S3 to S6 and S8 by real system calls: which bytes a name gives, and that sizes and bytes always agree."""

from __future__ import annotations

import concurrent.futures
import hashlib
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import MountFactory
from tests.readers import readers
from tests.shuffled.conftest import Digits, order_of

pytestmark = [pytest.mark.mounted]

SIZES = (5000, 9000, 100, 0, 200_000, 4096)


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """60 files of very different sizes, each recognisable by its bytes."""
    source = tmp_path / "uneven"
    (source / "c").mkdir(parents=True)
    for i in range(60):
        size = SIZES[i % len(SIZES)] + i
        (source / "c" / f"{i:02}.bin").write_bytes(hashlib.sha256(bytes([i])).digest() * (size // 32 + 1))
        os.truncate(source / "c" / f"{i:02}.bin", size)
    return source


@pytest.fixture
def paired(tmp_path: Path) -> Path:
    """40 samples of three files: image, text and a mask, each naming its sample."""
    source = tmp_path / "paired"
    (source / "c").mkdir(parents=True)
    for i in range(40):
        for suffix in ("jpg", "json", "seg.png"):
            (source / "c" / f"s{i:02}.{suffix}").write_text(f"{i} {suffix} " + "x" * (i * 37))
    return source


def digests(source: Path) -> dict[bytes, int]:
    """Digest of each file to its size."""
    files = [path.read_bytes() for path in source.rglob("*") if path.is_file()]
    return {hashlib.md5(data).digest(): len(data) for data in files}


def test_sizes_and_bytes_agree_by_stat_fstat_read_pread_and_mmap(mount: MountFactory, uneven: Path) -> None:
    ours = mount(uneven, "shuffle=dir")
    known = digests(uneven)
    names = sorted(path.name for path in (uneven / "c").iterdir())
    generator = random.Random(3)
    for _ in range(1500):
        path = ours.point / "c" / generator.choice(names)
        size = path.stat().st_size
        fd = os.open(path, os.O_RDONLY)
        try:
            assert os.fstat(fd).st_size == size
            data = os.pread(fd, size + 4096, 0)
            assert known[hashlib.md5(data).digest()] == size == len(data)
            assert os.read(fd, size + 1) == data
            if size:
                with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == data
        finally:
            os.close(fd)


def test_a_mapping_keeps_its_bytes_while_others_open_the_name(mount: MountFactory, uneven: Path) -> None:
    ours = mount(uneven, "shuffle=dir")
    path = ours.point / "c" / "04.bin"
    with path.open("rb") as file:
        data = file.read()
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if data else None
    for other in sorted((ours.point / "c").iterdir()):
        other.read_bytes()
    if mapped is not None:
        assert mapped[:] == data
        # S3: the mapping keeps the handle open, so the name is still bound.
        assert path.read_bytes() == data
        mapped.close()


def test_stat_then_open_verify_reopen_see_one_sample(mount: MountFactory, digits: Digits, tmp_path: Path) -> None:
    log = tmp_path / "order"
    ours = mount(digits.root, "shuffle=dir", f"order_log={log}")
    for name in digits.names[:200]:
        path = ours.point / name
        size = path.stat().st_size
        first = path.read_bytes()
        with Image.open(path) as image:
            image.verify()
        with Image.open(path) as image:
            image.load()
        assert path.read_bytes() == first
        assert len(first) == size
    assert len(order_of([log])[0]) == 200


def test_members_read_in_turn_are_of_one_sample(mount: MountFactory, paired: Path, tmp_path: Path) -> None:
    log = tmp_path / "order"
    ours = mount(paired, "shuffle=dir", f"order_log={log}")
    seen = []
    for _ in range(2):
        for i in range(40):
            texts = [(ours.point / "c" / f"s{i:02}.{suffix}").read_text() for suffix in ("jpg", "json", "seg.png")]
            fields = [text.split(" ")[:2] for text in texts]
            assert {number for number, _ in fields} == {fields[0][0]}
            assert [suffix for _, suffix in fields] == ["jpg", "json", "seg.png"]
            seen.append(fields[0][0])
    assert sorted(seen[:40]) == sorted(seen[40:]) == sorted(str(i) for i in range(40))
    passes = order_of([log])
    assert [len(draws) for draws in passes.values()] == [40, 40]


def test_members_opened_by_different_processes_are_of_one_sample(mount: MountFactory, paired: Path) -> None:
    ours = mount(paired, "shuffle=dir")
    for i in range(10):
        heads = [
            subprocess.run(["head", "-c", "3", f"{ours.point}/c/s{i:02}.{suffix}"], capture_output=True, check=True)
            for suffix in ("jpg", "json", "seg.png")
        ]
        assert len({head.stdout.split()[0] for head in heads}) == 1


def test_eight_threads_and_a_hundred_thousand_operations_see_whole_samples(mount: MountFactory, paired: Path) -> None:
    ours = mount(paired, "shuffle=dir")
    sizes = {path.read_bytes(): path.stat().st_size for path in (paired / "c").iterdir()}

    def work(seed: int) -> int:
        generator = random.Random(seed)
        for _ in range(2500):
            stem = f"{ours.point}/c/s{generator.randrange(40):02}"
            size = os.stat(f"{stem}.jpg").st_size
            with open(f"{stem}.jpg", "rb") as image, open(f"{stem}.json", "rb") as text:
                both = image.read(), text.read()
            assert all(sizes[data] == len(data) for data in both)
            # The name is open: it stands for one sample, whatever the other threads do.
            assert both[0].split()[0] == both[1].split()[0]
            assert size >= 0
        return 2500

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 20_000  # each of them five operations


def test_a_scan_draws_nothing_and_loses_nothing(mount: MountFactory, digits: Digits, tmp_path: Path) -> None:
    log = tmp_path / "order"
    ours = mount(digits.root, "shuffle=dir", f"order_log={log}")
    for scan in (["find", str(ours.point), "-ls"], ["du", "-s", str(ours.point)], ["ls", "-lR", str(ours.point)]):
        subprocess.run(scan, stdout=subprocess.DEVNULL, check=True)
    sizes = [os.stat(ours.point / name).st_size for name in digits.names]
    assert all(sizes)
    assert ours.stats()["draws"] == 0
    program = "import sys\nfor line in sys.stdin: open(sys.argv[1] + '/' + line[:-1], 'rb').read()"
    text = "".join(f"{name}\n" for name in digits.names)
    subprocess.run([sys.executable, "-c", program, str(ours.point)], input=text, text=True, check=True)
    assert sorted(draw.sample for draw in order_of([log])[0]) == digits.names


def test_the_attribute_names_the_sample_that_was_read(mount: MountFactory, digits: Digits) -> None:
    ours = mount(digits.root, "shuffle=dir")
    for name in digits.names[:50]:
        with (ours.point / name).open("rb") as file:
            data = file.read()
            sample = os.getxattr(ours.point / name, "user.deepiofs.sample").decode()
            assert (digits.root / sample).read_bytes() == data
        assert (ours.point / ".deepiofs/exact" / name).read_bytes() == (digits.root / name).read_bytes()


def test_tensorflow_reads_whole_samples(mount: MountFactory, digits: Digits, tmp_path: Path) -> None:
    tensorflow = readers("tensorflow")
    log = tmp_path / "order"
    ours = mount(digits.root, "shuffle=dir", f"order_log={log}")
    program = """
import hashlib, sys
import tensorflow as tf
root = sys.argv[1]
paths = sorted(tf.io.gfile.glob(root + "/*/*.png"))
data = tf.data.Dataset.from_tensor_slices(paths).map(lambda p: (p, tf.io.read_file(p)), num_parallel_calls=4)
for path, png in data.as_numpy_iterator():
    print(path.decode().split("/")[-2], hashlib.md5(png).hexdigest())
"""
    (said,) = tensorflow.run([program, str(ours.point)])
    classes: dict[str, set[str]] = {}
    for name in digits.names:
        digest = hashlib.md5((digits.root / name).read_bytes()).hexdigest()
        classes.setdefault(digest, set()).add(name.split("/")[0])
    seen = [line.split() for line in said.splitlines()]
    assert len(seen) == len(digits.names)
    assert all(label in classes[digest] for label, digest in seen)
    assert sorted(draw.sample for draw in order_of([log])[0]) == digits.names


def test_two_halves_of_the_same_samples_refuse_to_mount(mount: MountFactory, tmp_path: Path) -> None:
    source = tmp_path / "halves"
    for half, suffix in (("images", "jpg"), ("masks", "png")):
        (source / half).mkdir(parents=True)
        for i in range(20):
            (source / half / f"{i:03}.{suffix}").write_text(f"{half} {i}")
    point = tmp_path / "point"
    point.mkdir()
    command = [str(Path(sys.executable).parent / "deepiofs"), "mount", str(source), str(point), "-o"]
    for shuffle in ("dir", "all"):
        refused = subprocess.run([*command, f"shuffle={shuffle}"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert all(word in refused.stderr for word in ("images", "masks", "shuffle_only"))
    ours = mount(source, "shuffle=dir", "shuffle_only=images/**")
    for i in range(20):
        assert (ours.point / f"masks/{i:03}.png").read_text() == f"masks {i}"
    seen = sorted((ours.point / f"images/{i:03}.jpg").read_text() for i in range(20))
    assert seen == sorted(f"images {i}" for i in range(20))
