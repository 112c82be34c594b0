"""What is in an HDF5 file: the datasets whose rows become files, and what is left out.

Runs in the child process (`hdf5.child`), which has h5py.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from deepiofs.dataset.sources.containers import OpenContainer
from deepiofs.errors import SourceError

_DEEPEST = 255
# Groups by all their names: hard links can make many paths of a few groups.
_MOST_GROUPS = 1 << 20
_SAVED_BYTES = 1 << 20


def describe_all(file: h5py.File, opened: OpenContainer) -> Iterator[dict[str, Any]]:
    """Each dataset (`dataset`), and each object that is left out with its reason (`left_out`, `path`, `records`).

    SourceError, naming the object, where the file is damaged.
    """
    own = h5py.h5o.get_info(file.id).fileno
    pending: list[tuple[str, Any, tuple[int, ...]]] = [("", file, ())]
    seen = 0
    while pending:
        path, group, above = pending.pop()
        seen += 1
        if seen > _MOST_GROUPS or len(above) > _DEEPEST:
            raise SourceError(f"{path}: groups are nested in too many ways")
        here = (*above, _address(group))
        with _naming(path):
            names = sorted(group)
        yield {"alive": True}
        for name in names:
            below = f"{path}/{name}"
            with _naming(below):
                found, reason = _follow(group, name, own)
                if reason is None and isinstance(found, h5py.Group):
                    if _address(found) in here:
                        reason = "looping"
                    else:
                        pending.append((below, found, here))
                elif reason is None and isinstance(found, h5py.Dataset):
                    yield _describe(found, below, opened)
            if reason:
                yield {"left_out": reason, "path": below, "records": 1}


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Whatever h5py raises of an object that is damaged is an error that names it."""
    try:
        yield
    except (SourceError, GeneratorExit):
        raise
    except Exception as error:
        if getattr(error, "errno", None):
            raise
        raise SourceError(f"{path or '/'}: {error}") from None


def _address(thing: Any) -> int:
    return int(h5py.h5o.get_info(thing.id).addr)


def _follow(group: Any, name: str, own: int) -> tuple[Any, str | None]:
    """What a name stands for, or why it is left out: what lies in other files is not known to be unchanged."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        return None, "external"
    try:
        found = group[name]
    except (KeyError, OSError, RuntimeError):
        if isinstance(link, h5py.SoftLink):
            return None, "dangling"
        raise
    return found, "external" if h5py.h5o.get_info(found.id).fileno != own else None


def _describe(dataset: Any, path: str, opened: OpenContainer) -> dict[str, Any]:
    shape, dtype, reason = dataset.shape, None, None
    try:
        dtype = dataset.dtype
    except TypeError:
        reason = "types"
    if not shape:
        reason = "empty" if shape is None else "scalars"
    elif dataset.is_virtual or dataset.external:
        reason = "external"
    elif dtype is not None and dtype.hasobject:
        reason = "variable-length"
    elif not _has_filters(dataset):
        reason = "filters"
    if reason or dtype is None:
        return {"left_out": reason, "path": path, "records": shape[0] if shape else 1}
    header = _npy_header(shape[1:], dtype)
    if header is None:
        return {"left_out": "types", "path": path, "records": shape[0]}
    offset = _offset(dataset, dtype, opened)
    return {
        "dataset": path,
        "address": _address(dataset),
        "shape": shape,
        "chunks": dataset.chunks,
        "itemsize": dtype.itemsize,
        "header": header.decode("latin-1"),
        "offset": offset,
        "begin": _begin(dataset) if offset is None else offset,
        "stored": dataset.id.get_storage_size(),
    }


def _has_filters(dataset: Any) -> bool:
    plist = dataset.id.get_create_plist()
    codes = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    return all(h5py.h5z.filter_avail(code) for code in codes)


def _npy_header(shape: Sequence[int], dtype: np.dtype[Any]) -> bytes | None:
    """What `numpy.save` writes before the elements of one row; None if it has no way to say this type."""
    base, inner = dtype.subdtype or (dtype, ())
    full = (*shape, *inner)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that h5py's marks on a dtype are not saved
        try:
            if math.prod(full) * base.itemsize <= _SAVED_BYTES:
                np.save(file, np.zeros(full, base))
                return file.getvalue()[: len(file.getvalue()) - math.prod(full) * base.itemsize]
            said = np.lib.format.header_data_from_array_1_0(np.broadcast_to(np.zeros((), base), full))
            np.lib.format.write_array_header_1_0(file, {**said, "fortran_order": False})
        except ValueError:
            return None
    return file.getvalue()


def _offset(dataset: Any, dtype: np.dtype[Any], opened: OpenContainer) -> int | None:
    """The byte of the file where the rows lie one after the other, as numpy has them; None if they do not."""
    plist = dataset.id.get_create_plist()
    if plist.get_layout() != h5py.h5d.CONTIGUOUS or plist.get_nfilters():
        return None
    offset = dataset.id.get_offset()
    same = h5py.h5t.py_create(dtype, logical=True) == dataset.id.get_type()
    if offset is None or not same or not _agrees(dataset, dtype, offset, opened):
        return None
    return int(offset)


def _agrees(dataset: Any, dtype: np.dtype[Any], offset: int, opened: OpenContainer) -> bool:
    """Whether the first and the last row's first element are there. The library's word is not all there is."""
    row_bytes = math.prod(dataset.shape[1:]) * dtype.itemsize
    if not row_bytes:
        return False
    for row in (0, dataset.shape[0] - 1) if dataset.shape[0] else ():
        there = bytearray(dtype.itemsize)
        if opened.read_into([memoryview(there)], offset + row * row_bytes) != len(there):
            raise SourceError(f"row {row} lies behind the end of the file, at byte {offset + row * row_bytes}")
        # Slices, not numbers: a single element comes in this machine's byte order.
        if dataset[(slice(row, row + 1), *[slice(0, 1)] * (dataset.ndim - 1))].tobytes() != bytes(there):
            return False
    return True


def _begin(dataset: Any) -> int:
    """About where the file has it: the byte of the first chunk. It only orders what is read."""
    try:
        if dataset.chunks and dataset.id.get_num_chunks():
            return int(dataset.id.get_chunk_info(0).byte_offset or 0)
    except (OSError, RuntimeError, ValueError):
        pass
    return 0
