"""The framing of TFRecord files, for those that are read and those that are made.

    u64 length, u32 masked CRC-32C of the length, data, u32 masked CRC-32C of the data     (tensorflow/core/lib/io)

The CRC is the library `crc32c`'s (the extra `tfrecord`).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable

from deepiofs.errors import EnvironmentFault

LENGTH = struct.Struct("<Q")
SUM = struct.Struct("<I")
HEAD = struct.Struct("<QI")

_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFFFFFF

# Of some bytes, going on from the CRC of those before.
Crc = Callable[[memoryview | bytes, int], int]


def load_crc() -> Crc:
    """CRC-32C of the library. EnvironmentFault, which names the extra, if it is not installed."""
    try:
        crc: Crc = importlib.import_module("crc32c").crc32c
    except ImportError:
        text = "TFRecord needs the Python package crc32c: pip install 'deepiofs[tfrecord]'"
        raise EnvironmentFault(text) from None
    return crc


def masked(crc: int) -> int:
    """As it is stored: a CRC of data that holds CRCs would be weak."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _WORD
