"""Small directory trees: random ones, and the hand that writes and reads them."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo
from deepiofs.dataset.sources.directory import DirectorySource

Tree: TypeAlias = Mapping[bytes, Any]  # name -> bytes of a file, or the tree of a directory

_NOBODY = 65534
_FORBIDDEN = bytes.maketrans(b"\0/", b"\1\\")
NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"a.jpg", b"a.json", b".hidden", b"...", b"\xff\xfe", b"new\nline", b"A", b"x" * 255]),
    st.binary(min_size=1, max_size=255).map(lambda name: name.translate(_FORBIDDEN)),
).filter(lambda name: name not in (b".", b".."))
_ENTRIES = st.recursive(
    st.binary(max_size=20), lambda below: st.dictionaries(NAMES, below, max_size=6), max_leaves=25
)  # fmt: skip
TREES: st.SearchStrategy[Tree] = st.dictionaries(NAMES, _ENTRIES, max_size=6)


def write(root: bytes | Path, tree: Tree) -> None:
    """Make the tree below a directory."""
    for name, what in tree.items():
        path = os.path.join(os.fsencode(root), name)
        if isinstance(what, bytes):
            with open(path, "wb") as file:
                file.write(what)
        else:
            os.mkdir(path)
            write(path, what)


def walk(tree: Tree, above: bytes = b"") -> Iterator[tuple[bytes, bytes | Tree]]:
    """Every path of a tree, the root not among them, and what is there."""
    for name, what in tree.items():
        path = above + b"/" + name if above else name
        yield path, what
        if not isinstance(what, bytes):
            yield from walk(what, path)


@contextlib.contextmanager
def on_disk(tree: Tree) -> Iterator[Path]:
    """The tree in a directory of its own that others can enter, removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="deepiofs-test-"))
    root.chmod(0o755)
    try:
        write(root, tree)
        yield root
    finally:
        _make_removable(root)
        shutil.rmtree(os.fsencode(root))


def _make_removable(root: Path) -> None:
    for _, names, _, fd in os.fwalk(os.fsencode(root)):
        for name in names:
            if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.chmod(name, 0o755, dir_fd=fd)


def scanned(root: Path, **selection: Any) -> Manifest:
    """The manifest of a directory, as one process finds it."""
    source = DirectorySource(str(root))
    found = source.scan(Selection(**selection), Solo())
    source.close()
    assert found is not None
    return Manifest(*found)


def paths(manifest: Manifest) -> set[bytes]:
    """All paths, the root not among them."""
    return {manifest.path(row) for row in range(1, manifest.n_rows)}


def as_nobody(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in a process that file modes apply to."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            result = work()
        except BaseException as error:
            result = error
        with os.fdopen(writer, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        sent = file.read()
    os.waitpid(pid, 0)
    result = pickle.loads(sent)
    if isinstance(result, BaseException):
        raise result
    return result
