"""Shared memory: sealed, mapped by descriptor or through another process, gone with its processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from deepiofs.errors import NotEnoughMemoryError
from deepiofs.memory.segments import Segment

_CHILD = """
import sys
from deepiofs.memory.segments import Segment
segment = Segment.of_process(int(sys.argv[1]), int(sys.argv[2]))
sys.stdout.buffer.write(segment.view[:5])
try:
    segment.view[0] = 1
except TypeError:
    print(" read-only", end="")
"""


@pytest.mark.parametrize(("asked", "size"), [(0, 1), (1, 1), (mmap.PAGESIZE, 1), (mmap.PAGESIZE + 1, 2)])
def test_a_segment_has_whole_pages_and_at_least_one(asked: int, size: int) -> None:
    segment = Segment.create("test", asked)
    assert segment.size == len(segment.view) == size * mmap.PAGESIZE
    segment.close()


def test_a_new_segment_is_zero() -> None:
    segment = Segment.create("test", 10_000)
    assert bytes(segment.view) == bytes(segment.size)
    segment.close()


def test_a_segment_cannot_be_resized_under_its_readers() -> None:
    segment = Segment.create("test", 8192)
    for size in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    segment.close()


def test_an_attached_segment_shows_what_is_written_later() -> None:
    segment = Segment.create("test", 1)
    reader = Segment.attach(os.dup(segment.fd))
    segment.view[:5] = b"later"
    assert bytes(reader.view[:5]) == b"later"
    segment.close()
    reader.close()


def test_an_attached_segment_is_read_only_unless_asked() -> None:
    segment = Segment.create("test", 1)
    reader = Segment.attach(os.dup(segment.fd))
    with pytest.raises(TypeError, match="read-only"):
        reader.view[0] = 1
    writer = Segment.attach(os.dup(segment.fd), writable=True)
    writer.view[0] = 7
    assert segment.view[0] == 7
    for each in (segment, reader, writer):
        each.close()


def test_another_process_maps_it_read_only_through_proc() -> None:
    segment = Segment.create("test", 1)
    segment.view[:5] = b"child"
    command = [sys.executable, "-c", _CHILD, str(os.getpid()), str(segment.fd)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"child read-only"
    segment.close()


def test_a_process_that_is_gone_is_an_os_error() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match="No such"):
        Segment.of_process(child.pid, 3)


def test_a_closed_segment_stays_mapped() -> None:
    segment = Segment.create("test", 1)
    segment.view[:4] = b"stay"
    segment.close()
    segment.close()
    assert bytes(segment.view[:4]) == b"stay"
    assert segment.fd == -1


def test_pages_that_are_unmapped_keep_their_bytes() -> None:
    segment = Segment.create("test", 1 << 20)
    segment.view[-4:] = b"tail"
    segment.unmap_pages()
    assert bytes(segment.view[-4:]) == b"tail"
    segment.close()


def test_descriptors_are_not_inherited() -> None:
    segment = Segment.create("test", 1)
    assert not os.get_inheritable(segment.fd)
    segment.close()


def test_what_cannot_be_mapped_is_an_error_that_names_the_size() -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(NotEnoughMemoryError, match="4096 bytes"):
        Segment(read_end, 4096)
    os.close(read_end)
    os.close(write_end)
