"""An object store, or anything else that fsspec reads, as sources need it: listed, looked at, read in ranges.

Nothing is kept that could be stale: listings are not cached, archives are opened anew when they change, fsspec's
caching layers are refused. The file system of fsspec is made by the first thread that needs it: it brings a thread
with an event loop, which would not live through a fork.

**Threading.** Everything may be called from any thread but the event loop's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from deepiofs.dataset.sources.registry import require
from deepiofs.dataset.sources.stores import reads
from deepiofs.dataset.sources.stores.errors import as_os_error
from deepiofs.dataset.sources.stores.facts import Info, digest_of
from deepiofs.errors import DeepiofsError, EnvironmentFault, SourceChangedError, SourceError

# One request. A library that waits longer for an answer waits for a server that is gone.
REQUEST_S = 30.0
# Requests at once, of one call.
_AT_ONCE = 16
# One request brings about 100 MB/s at most; larger ranges are cut up and read side by side.
_RANGE_BYTES = 4 << 20
# Each of these may hand out bytes of an earlier version.
_CACHES = frozenset({"simplecache", "filecache", "blockcache", "cached"})
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http", "hf": "hf",
    "abfs": "azure", "abfss": "azure", "az": "azure",
}  # fmt: skip

T = TypeVar("T")
Outcome = OSError | DeepiofsError | None


class Range(NamedTuple):
    """Bytes of an object from `at` on, as many as the buffer takes; digest: what it was when it was indexed."""

    path: str
    at: int
    buffer: memoryview
    digest: int


class Store:
    """What a URL names, and what is below it. url: any that fsspec knows, with `::` for archives within others."""

    def __init__(self, url: str) -> None:
        self.url = url
        require("fsspec", "fsspec")
        self.scheme = url.partition("::")[0].partition("://")[0].lower()
        self._check_scheme()
        below = url.partition("::")[2]
        self._below = Store(below) if below else None
        self._lock = threading.Lock()
        self._made: tuple[Any, str, int] | None = None

    @property
    def is_http(self) -> bool:
        """Whether it is the web: paths are URLs, and a directory is a page of links."""
        return self.scheme in ("http", "https")

    @property
    def fs(self) -> Any:
        """fsspec's file system. OSError if it cannot be made."""
        return self._open()[0]

    @property
    def path(self) -> str:
        """The URL as the file system says it."""
        return self._open()[1]

    def info(self, path: str) -> Info:
        """What the store says of a path now. OSError."""
        with as_errors():
            fs = self.fs
            if hasattr(fs, "_info"):
                found: Info = self.run(reads.info, fs, path, timeout_s=REQUEST_S)
            else:
                found = reads.info_sync(fs, path)
        return found

    def digest(self, info: Info) -> int:
        """64 bits that say which version of an object, and of the archive around it, is meant. OSError."""
        return digest_of(info, self.below())

    def below(self) -> int:
        """The version of the archive that holds all this; 0 without one. OSError."""
        if self._below is None:
            return 0
        return self._below.digest(self._below.info(self._below.path))

    def check(self, path: str, digest: int) -> None:
        """SourceChangedError if it is not what was indexed, OSError if it cannot be looked at."""
        if self.digest(self.info(path)) != digest:
            raise changed(path)

    def read(self, ranges: Sequence[Range]) -> list[Outcome]:
        """Fill all buffers, many at once; for each None, or why it is not filled."""
        with as_errors():
            fs = self.fs
            if self._below or not hasattr(fs, "_cat_file"):
                return [self._read_sync(fs, one) for one in ranges]
            # Each request has its own limit; this one is for an event loop that is stuck.
            limit_s = REQUEST_S * (2 + len(ranges))
            outcomes: list[Outcome] = self.run(self._read_all, fs, ranges, timeout_s=limit_s)
        return outcomes

    def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, timeout_s: float | None = None) -> T:
        """A coroutine in fsspec's event loop. TimeoutError if it takes longer."""
        from fsspec.asyn import sync

        found: T = sync(self.fs.loop, call, *arguments, timeout=timeout_s)
        return found

    def close(self) -> None:
        """Give back connections; it may be used again."""
        self._forget()
        if self._below:
            self._below.close()

    async def _read_all(self, fs: Any, ranges: Sequence[Range]) -> list[Outcome]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def read(one: Range) -> Outcome:
            parts = [
                Range(one.path, one.at + at, one.buffer[at : at + _RANGE_BYTES], one.digest)
                for at in range(0, len(one.buffer), _RANGE_BYTES)
            ]
            outcomes = await asyncio.gather(*(self._read_one(gate, fs, part) for part in parts))
            return next((outcome for outcome in outcomes if outcome), None)

        return list(await asyncio.gather(*map(read, ranges)))

    async def _read_one(self, gate: asyncio.Semaphore, fs: Any, one: Range) -> Outcome:
        async with gate:
            try:
                reading: Awaitable[Info] = reads.reader_of(self.scheme)(fs, one.path, one.at, one.buffer)
                info = await asyncio.wait_for(reading, REQUEST_S)
            except Exception as error:
                return as_os_error(error)
            return None if digest_of(info) == one.digest else changed(one.path)

    def _read_sync(self, fs: Any, one: Range) -> Outcome:
        """The check comes after the bytes: they may be a mixture, if it is written meanwhile."""
        failure: Outcome = None
        try:
            with as_errors():
                reads.read_sync(fs, one.path, one.at, one.buffer)
        except OSError as error:
            failure = error
        try:
            self.check(one.path, one.digest)
        except (OSError, SourceChangedError) as error:
            return error
        return failure

    def _open(self) -> tuple[Any, str]:
        """The file system; an archive's anew when the archive is another."""
        with self._lock:
            below = self.below()
            if self._made is None or self._made[2] != below:
                with as_errors():
                    self._made = (*_made(self.url, self.scheme), below)
            return self._made[:2]

    def _forget(self) -> None:
        with self._lock:
            self._made = None

    def _check_scheme(self) -> None:
        """EnvironmentFault without its library, SourceError if there is none for it, or it may not be used."""
        if self.scheme in _CACHES:
            raise SourceError(f"source {self.url}: {self.scheme}:: may give stale bytes; leave it out")
        try:
            _find_library(self.scheme)
        except ValueError:
            raise SourceError(f"source {self.url}: fsspec knows no {self.scheme}://; check the URL") from None
        except ImportError as error:
            extra = _EXTRAS.get(self.scheme)
            hint = f": pip install 'deepiofs[{extra}]'" if extra else ""
            raise EnvironmentFault(f"source {self.url}: a Python package is missing ({error}){hint}") from None


def _find_library(scheme: str) -> None:
    """ImportError, ValueError as of get_filesystem_class; s3fs and its like, slow to load, are only looked for."""
    from fsspec import get_filesystem_class
    from fsspec.registry import known_implementations, registry

    known = known_implementations.get(scheme, {"class": "fsspec."})
    module = known["class"].partition(".")[0]
    if scheme in registry or module == "fsspec" or importlib.util.find_spec(module) is None:
        get_filesystem_class(scheme)


def changed(path: str) -> SourceChangedError:
    """The error of an object that is not what was indexed."""
    return SourceChangedError(f"{path}: changed in the source since it was indexed; mount again")


@contextlib.contextmanager
def as_errors() -> Iterator[None]:
    """Whatever a library raises leaves as an OSError; the project's own errors as they are."""
    try:
        yield
    except DeepiofsError:
        raise
    except Exception as error:
        raise as_os_error(error) from None


def unreadable(url: str, error: OSError) -> SourceError:
    """The error of a store that cannot be listed or looked at, in one line."""
    hints = {
        errno.ENOENT: "; check the URL",
        errno.EACCES: "; check the credentials and what they may read",
        errno.EIO: "; check the URL, the network and the server",
        errno.ETIMEDOUT: "; check the URL, the network and the server",
    }
    number = error.errno or errno.EIO
    return SourceError(f"source {url}: {error.strerror or os.strerror(number)}{hints.get(number, '')}")


def _made(url: str, scheme: str) -> tuple[Any, str]:
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme in ("s3", "s3a"):
        options["config_kwargs"] = _s3_options(fsspec.config.conf)
    fs, path = fsspec.core.url_to_fs(url, **options)
    if scheme in ("s3", "s3a"):
        fs.retries = 1  # its own, on top of botocore's and of `retry`, take longer than a reader waits
    return fs, path


def _s3_options(conf: dict[str, Any]) -> dict[str, Any]:
    """No retries, as `retry` makes them, unless the user says how many; a connection for each request."""
    given = dict(conf.get("s3", {}).get("config_kwargs", {}))
    given.setdefault("max_pool_connections", 4 * _AT_ONCE)
    if not os.environ.keys() & {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"}:
        given.setdefault("retries", {"mode": "standard", "total_max_attempts": 1})
    return given
