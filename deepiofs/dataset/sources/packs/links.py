"""Symbolic links within a container: where they lead, when there is no file system to follow them.

**Threading.** One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from deepiofs.errors import SourceError

# symlink(7): the kernel gives up after as many.
_MOST_HOPS = 40
# Links to directories that hold links to directories multiply.
_MOST_FILES = 1 << 22


class Links:
    """The files of a container by path, and its symbolic links with what they say."""

    def __init__(self, files: Mapping[bytes, int], links: Mapping[bytes, bytes]) -> None:
        self._files, self._links = files, links
        self._below: dict[bytes, set[bytes]] = {b"": set()}
        for path in (*files, *links):
            self._enter(path)

    def follow(self, left_out: Counter[str]) -> dict[bytes, int]:
        """What is there by links: files, and all below the directories that they lead to.

        Links that lead nowhere or out of the container are counted as `dangling`, those into themselves as `looping`.
        """
        found: dict[bytes, int] = {}
        for path in self._links:
            for name, number in self._reached(path, left_out):
                if len(found) >= _MOST_FILES:
                    raise SourceError(f"symbolic links lead to more than {_MOST_FILES} files; mount with links=skip")
                found[name] = number
        return found

    def _enter(self, path: bytes) -> None:
        while path:
            above = path.rpartition(b"/")[0]
            is_known = above in self._below
            self._below.setdefault(above, set()).add(path)
            if is_known:
                return
            path = above

    def _reached(self, link: bytes, left_out: Counter[str]) -> Iterator[tuple[bytes, int]]:
        """Files under the name of a link."""
        # Places still to look at: the name there, what lies there, and the directories that the name goes through.
        places = [(link, link, frozenset(_above(link)))]
        while places:
            name, path, through = places.pop()
            target = self._target(path) if path in self._links else path
            if target is None:
                left_out["dangling"] += 1
            elif target in self._files:
                yield name, self._files[target]
            elif target not in self._below:
                left_out["dangling"] += 1
            elif target in through:
                left_out["looping"] += 1
            else:
                inside = through | {target}
                places += [(name + b"/" + one.rpartition(b"/")[2], one, inside) for one in self._below[target]]

    def _target(self, link: bytes) -> bytes | None:
        """The path that a link leads to; None if that is outside, or never ends."""
        here = link.split(b"/")[:-1]
        left = [*reversed(self._links[link].split(b"/"))]
        hops = 1
        if self._links[link].startswith(b"/"):
            return None
        while left:
            part = left.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here:
                    return None
                here.pop()
                continue
            said = self._links.get(b"/".join([*here, part]))
            if said is None:
                here.append(part)
                continue
            hops += 1
            if hops > _MOST_HOPS or said.startswith(b"/"):
                return None
            left += reversed(said.split(b"/"))
        return b"/".join(here)


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that a path goes through, the root too."""
    while path:
        path = path.rpartition(b"/")[0]
        yield path
