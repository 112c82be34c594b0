"""Anonymous shared memory: memfd segments, mapped by both processes of a rank and by the ranks of its node.

A memfd is not limited by the size of /dev/shm, leaves nothing behind when processes are killed, and its
descriptor can be passed on (memfd_create(2)). Segments are sealed against resizing, so that no reader can be hit
by SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from deepiofs.errors import NotEnoughMemoryError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """A mapped memfd. `view` is all of it, as writable bytes unless it was attached read-only."""

    def __init__(self, fd: int, size: int, writable: bool = True) -> None:
        self.fd = fd
        self.size = size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
        except OSError as error:
            raise NotEnoughMemoryError(f"cannot map {size} bytes of shared memory: {error.strerror}") from None
        self.view = memoryview(self.map)

    @classmethod
    def create(cls, name: str, size: int) -> Segment:
        """A zeroed segment of at least one page; pages are taken as they are written."""
        size = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        fd = os.memfd_create(f"deepiofs-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, size)

    @classmethod
    def attach(cls, fd: int, writable: bool = False) -> Segment:
        """Map a descriptor that another process gave; it is owned from now on."""
        return cls(fd, os.fstat(fd).st_size, writable)

    @classmethod
    def of_process(cls, pid: int, fd: int) -> Segment:
        """Map another process's segment, read-only, through /proc/PID/fd (proc(5)); OSError if it may not be."""
        return cls.attach(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))

    def unmap_pages(self) -> None:
        """Drop this process's page table entries; the memory, being shared, stays (madvise(2), MADV_DONTNEED)."""
        self.map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
