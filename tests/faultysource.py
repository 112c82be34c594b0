"""A source that fails on command: a folder behind a FUSE file system of its own, in a process of its own.

    with FaultySource(folder, point) as source:
        source.fail("a/*.jpg", errno.EIO, times=1)
        ... point/a/one.jpg ...
        source.heal()

Nothing is kept by the kernel (direct I/O, no names, no attributes): each request of a reader reaches the process, which
counts it. A hang is one that nobody can interrupt (the request is with the process), so that whoever reads is in state
D until `heal`; `stop` is one that SIGKILL ends (requests that the process has not taken). At the end all are freed.

**Threading.** The process has one trio thread, in which faults and counts are as the last command left them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileInfo, FileNameT, FlagT, InodeT, ReaddirToken, RequestContext

from deepiofs.cli.mountpoints import mounted_at, unmount

READ, OPEN, CLOSE = "read", "open", "close"
_START_S = 20.0


@dataclasses.dataclass
class Fault:
    """What happens to requests of one kind on the files that a glob means. `left`: to so many more; None: to all.

    An open is asked for twice by the kernel if the first answer is ESTALE.
    """

    files: str
    kind: str
    number: int = 0  # an errno
    cut: int | None = None  # reads end here
    hang: bool = False
    delay_s: float = 0.0
    left: int | None = None

    def strikes(self, path: str, kind: str) -> bool:
        """Whether it happens to this request; one fewer is left then."""
        if kind != self.kind or self.left == 0 or not fnmatch.fnmatchcase(path, self.files):
            return False
        if self.left is not None:
            self.left -= 1
        return True


class FaultySource:
    """Context manager for a folder that is seen, read-only and faulty, at a mount point; commands to its process.

    Globs are fnmatch's, of paths from the root: `*` matches `/` too. A command is in force when it returns.
    """

    def __init__(self, folder: Path, point: Path) -> None:
        self.folder, self.point = folder, point

    def __enter__(self) -> Self:
        self.point.mkdir(exist_ok=True)
        self._socket, its = socket.socketpair()
        with its:
            command = [sys.executable, "-m", "tests.faultysource", str(self.folder), str(self.point)]
            self._process = subprocess.Popen(
                [*command, str(its.fileno())], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket.settimeout(_START_S)
        self._replies = self._socket.makefile("r")
        try:
            assert self._replies.readline() == "ready\n", "the faulty source did not start"
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fail(self, files: str, number: int, *, kind: str = READ, times: int | None = None) -> None:
        """Requests fail with an errno."""
        self._add(Fault(files, kind, number=number, left=times))

    def cut(self, files: str, at: int, *, times: int | None = None) -> None:
        """Reads end at this byte, whatever the size is said to be."""
        self._add(Fault(files, READ, cut=at, left=times))

    def hang(self, files: str, *, kind: str = READ, times: int | None = None) -> None:
        """Requests are not answered until `heal`."""
        self._add(Fault(files, kind, hang=True, left=times))

    def delay(self, files: str, seconds: float, *, kind: str = READ) -> None:
        """Requests are answered so much later."""
        self._add(Fault(files, kind, delay_s=seconds))

    def heal(self) -> None:
        """No more faults; what hangs is answered now."""
        self._tell({"do": "heal"})

    def hanging(self) -> int:
        """Requests that hang now."""
        return int(self._tell({"do": "hanging"}))

    def opens(self, path: str) -> int:
        """How often a file was opened, in vain too."""
        return int(self._tell({"do": "opens", "path": path}))

    def reads(self, path: str) -> list[tuple[int, int]]:
        """(place, bytes answered) of each read of a file that was answered with bytes."""
        return [(at, size) for at, size in self._tell({"do": "reads", "path": path})]

    def most_read(self, path: str) -> int:
        """How often that byte of a file was read which was read most often."""
        ends = [(at, 1) for at, size in self.reads(path) if size] + [(at + n, -1) for at, n in self.reads(path) if n]
        depth = most = 0
        for _, change in sorted(ends):
            depth += change
            most = max(most, depth)
        return most

    def stop(self) -> None:
        """Answer nothing at all, not even commands, until `go_on`. Readers can be killed."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process and the mount. What hangs is answered with an error, so that no reader stays in state D."""
        self._process.kill()  # the kernel aborts the connection with its last descriptor
        self._process.wait()
        self._replies.close()
        self._socket.close()
        if mounted_at(str(self.point)):
            unmount(str(self.point), lazy=True)

    def _add(self, fault: Fault) -> None:
        self._tell({"do": "add", "fault": dataclasses.asdict(fault)})

    def _tell(self, command: dict[str, Any]) -> Any:
        self._socket.sendall(json.dumps(command).encode() + b"\n")
        return json.loads(self._replies.readline())


# --- The process -----------------------------------------------------------------------------------------------------


class _Faulty(pyfuse3.Operations):
    """The folder, with what is commanded done to it."""

    supports_dot_lookup = False

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self._paths = {int(pyfuse3.ROOT_INODE): ""}
        self._inodes = {"": int(pyfuse3.ROOT_INODE)}
        self._opened: dict[int, str] = {}
        self._faults: list[Fault] = []
        self._healed = trio.Event()
        self._hanging = 0
        self._opens: dict[str, int] = {}
        self._reads: dict[str, list[tuple[int, int]]] = {}

    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(os.path.join(self._paths[parent_inode], os.fsdecode(name)))

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(self._paths[inode])

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        here = self._paths[fh]
        for number, name in enumerate(sorted(os.listdir(self._at(here))), 1):
            if number > start_id:
                attributes = self._attributes(os.path.join(here, name))
                if not pyfuse3.readdir_reply(token, FileNameT(os.fsencode(name)), attributes, number):
                    break

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        path = self._paths[inode]
        self._opens[path] = self._opens.get(path, 0) + 1
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise pyfuse3.FUSEError(errno.EROFS)
        await self._suffer(path, OPEN)
        try:
            handle = os.open(self._at(path), os.O_RDONLY)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        self._opened[handle] = path
        return FileInfo(fh=FileHandleT(handle), direct_io=True, keep_cache=False)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        path = self._opened[fh]
        cut = await self._suffer(path, READ)
        data = os.pread(fh, size if cut is None else max(min(size, cut - off), 0), off)
        self._reads.setdefault(path, []).append((off, len(data)))
        return data

    async def flush(self, fh: FileHandleT) -> None:
        await self._suffer(self._opened[fh], CLOSE)

    async def release(self, fh: FileHandleT) -> None:
        del self._opened[fh]
        os.close(fh)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        return

    async def obey(self, commands: trio.SocketStream) -> None:
        """Do what is commanded until nobody is left to command."""
        rest = b""
        async for piece in commands:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await commands.send_all(json.dumps(self._do(**json.loads(line))).encode() + b"\n")

    def _do(self, do: str, fault: dict[str, Any] | None = None, path: str = "") -> Any:
        match do:
            case "add":
                self._faults.append(Fault(**(fault or {})))
            case "heal":
                self._faults.clear()
                self._healed.set()
                self._healed = trio.Event()
            case "hanging":
                return self._hanging
            case "opens":
                return self._opens.get(path, 0)
            case "reads":
                return self._reads.get(path, [])
        return None

    async def _suffer(self, path: str, kind: str) -> int | None:
        """All that is to happen to a request; where a read ends, if not at the end."""
        cut = None
        for fault in [each for each in self._faults if each.strikes(path, kind)]:
            await trio.sleep(fault.delay_s)
            if fault.hang:
                await self._hang()
            if fault.number:
                raise pyfuse3.FUSEError(fault.number)
            cut = fault.cut if fault.cut is not None else cut
        return cut

    async def _hang(self) -> None:
        self._hanging += 1
        try:
            await self._healed.wait()
        finally:
            self._hanging -= 1

    def _at(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _attributes(self, path: str) -> pyfuse3.EntryAttributes:
        try:
            found = os.stat(self._at(path))
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        if path not in self._inodes:
            self._inodes[path] = len(self._inodes) + int(pyfuse3.ROOT_INODE)
            self._paths[self._inodes[path]] = path
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = InodeT(self._inodes[path])
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_atime_ns"):
            setattr(entry, name, getattr(found, name))
        entry.st_nlink = 1 if stat.S_ISREG(found.st_mode) else found.st_nlink
        entry.entry_timeout = entry.attr_timeout = 0
        return entry


async def _serve(folder: str, point: str, descriptor: int) -> None:
    operations = _Faulty(folder)
    pyfuse3.init(operations, point, {"default_permissions", "ro", "fsname=faulty", "subtype=faulty"})
    commands = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        await commands.send_all(b"ready\n")
        await operations.obey(commands)
        nursery.cancel_scope.cancel()


def main() -> None:
    """`python -m tests.faultysource FOLDER POINT DESCRIPTOR`."""
    folder, point, descriptor = sys.argv[1:]
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        trio.run(_serve, folder, point, int(descriptor))
    os._exit(0)  # whoever commanded is gone: what hangs is freed with this process


if __name__ == "__main__":
    main()
