"""LMDBs for tests, made by the library, and what it reads from them."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
from PIL import Image

from deepiofs.dataset.sources.lmdb import datum

_MAP_BYTES = 1 << 26


def write(path: Path, values: Mapping[bytes, bytes], subdir: bool = True, **how: Any) -> Path:
    """An environment, or more in one that is there."""
    with (
        lmdb.open(str(path), map_size=_MAP_BYTES, subdir=subdir, lock=subdir, **how) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key, value)
    return path


@contextlib.contextmanager
def opened(path: Path, **how: Any) -> Iterator[Any]:
    """An environment, to be read as its users do."""
    with lmdb.open(str(path), readonly=True, lock=False, **how) as environment:
        yield environment


def read(path: Path, **how: Any) -> dict[bytes, bytes]:
    """All records of the main database."""
    with opened(path, **how) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


@functools.cache
def image(i: int, form: str = "JPEG") -> bytes:
    """A small one that is like no other."""
    sink = io.BytesIO()
    Image.effect_noise((32 + i % 7, 32), 60 + i).save(sink, form)
    return sink.getvalue()


def datum_of(label: int, data: bytes, **fields: Any) -> bytes:
    """A serialized Datum. fields: `encoded`, `channels` ..."""
    message = datum.message_class()(label=label, data=data, **fields)
    done: bytes = message.SerializeToString()
    return done


def encoded(count: int, labels: int = 3) -> dict[bytes, bytes]:
    """Datums as Caffe's convert_imageset writes them."""
    return {
        b"%08d_class%d/img%d.JPEG" % (i, i % labels, i): datum_of(i % labels, image(i), encoded=True)
        for i in range(count)
    }
