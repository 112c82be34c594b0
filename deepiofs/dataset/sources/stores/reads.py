"""Reading a range of an object, together with what the store says of the very object that the bytes are from.

S3 and HTTP say with the bytes which version they are of (ETag, Last-Modified, size): one request, and no mixture of
two versions can pass. Of other stores the object is looked at after the bytes: a second request.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from deepiofs.dataset.sources.stores.errors import is_range_error
from deepiofs.dataset.sources.stores.facts import Info

Read = Callable[[Any, str, int, memoryview], Coroutine[Any, Any, Info]]


def reader_of(scheme: str) -> Read:
    """How a scheme's ranges are read; the coroutine fills the buffer and returns the facts."""
    return {"s3": _read_s3, "s3a": _read_s3, "http": _read_http, "https": _read_http}.get(scheme, _read_any)


async def info(fs: Any, path: str) -> Info:
    """The facts of an object, by a request of their own."""
    found: Info = await fs._info(path, **_refresh(fs._info))
    return found


def info_sync(fs: Any, path: str) -> Info:
    """`info` of a file system that has no event loop."""
    found: Info = fs.info(path, **_refresh(fs.info))
    return found


def read_sync(fs: Any, path: str, at: int, buffer: memoryview) -> None:
    """Fill the buffer, by a file system that has no event loop."""
    # huggingface_hub would read 5 MB ahead at each call.
    options = {"cache_type": "none"} if type(fs).__name__ == "HfFileSystem" else {}
    _fill(buffer, fs.cat_file(path, start=at, end=at + len(buffer), **options))


async def _read_s3(fs: Any, path: str, at: int, buffer: memoryview) -> Info:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html"""
    bucket, key, version = fs.split_path(path)
    wanted = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}
    try:
        answer = await fs._call_s3("get_object", **wanted, Range=f"bytes={at}-{at + len(buffer) - 1}")
    except Exception as error:
        if not is_range_error(error):
            raise
        return await info(fs, path)
    body = answer["Body"]
    try:
        total = _total(answer.get("ContentRange"), answer["ContentLength"])
        facts = {"ETag": answer.get("ETag"), "LastModified": answer["LastModified"], "size": total}
        if answer["ContentLength"] == len(buffer):
            _fill(buffer, await body.read())
        elif answer.get("ContentRange") is None:
            raise _no_ranges(answer["ContentLength"], len(buffer))
        return facts  # of another size than was asked for, it is another object: the facts tell
    finally:
        body.close()


async def _read_http(fs: Any, path: str, at: int, buffer: memoryview) -> Info:
    """RFC 9110, section 14. A server may ignore the range: then a whole file is the only range there is."""
    session = await fs.set_session()
    options = dict(fs.kwargs)
    span = {"Range": f"bytes={at}-{at + len(buffer) - 1}", "Accept-Encoding": "identity"}
    options["headers"] = {**options.get("headers", {}), **span}
    async with session.get(fs.encode_url(path), **options) as answer:
        if answer.status == 416:
            return await info(fs, path)
        fs._raise_not_found_for_status(answer, path)
        length = int(answer.headers.get("Content-Length", len(buffer)))
        ranged = answer.status == 206
        total = _total(answer.headers.get("Content-Range"), length) if ranged else length
        facts = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
        if not ranged and (at or length != len(buffer)):
            raise _no_ranges(length, len(buffer))
        if length == len(buffer):
            _fill(buffer, await answer.content.read())
        return {**facts, "size": total}


async def _read_any(fs: Any, path: str, at: int, buffer: memoryview) -> Info:
    data = await fs._cat_file(path, start=at, end=at + len(buffer))
    facts = await info(fs, path)
    if facts.get("size") is None or facts["size"] >= at + len(buffer):
        _fill(buffer, data)
    return facts


def _fill(buffer: memoryview, data: bytes) -> None:
    if len(data) != len(buffer):
        raise _no_ranges(len(data), len(buffer))
    buffer[:] = data


def _no_ranges(got: int, wanted: int) -> OSError:
    why = "the server does not serve ranges" if got > wanted else "the answer was cut short"
    return OSError(errno.EIO, f"{got} bytes where {wanted} were asked for: {why}")


def _total(content_range: str | None, length: int) -> int:
    """The size of the whole object: `bytes 0-9/100`."""
    size = (content_range or "").rpartition("/")[2]
    return int(size) if size.isdigit() else length


def _refresh(call: Any) -> dict[str, bool]:
    """Libraries that keep what they have seen of an object have a parameter against that."""
    parameters = inspect.signature(call).parameters
    return {"refresh": True} if "refresh" in parameters else {}
