"""Caffe's `Datum`, the message that its LMDBs hold: label, and an image, encoded or raw.

The message is that of Caffe's `src/caffe/proto/caffe.proto`; its descriptor is built here, so that no generated file is
needed. protobuf parses all of it but `data`, which is skipped: of a large value only the pages of its two ends are
touched, and the place of `data` within it is known, which protobuf does not tell.

**Threading.** Stateless.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from deepiofs.dataset.sources.registry import require

# Fields that every writer puts before `data`: channels, height, width, as tags of varints.
_BEFORE_DATA = (0x08, 0x10, 0x18)
_DATA = 0x22
_LONGEST_VARINT = 10
# What OpenCV, which decodes Caffe's Datums, writes and reads: the first bytes, and the suffix of such files.
_IMAGES = (
    (b"\xff\xd8\xff", b".jpg"),
    (b"\x89PNG\r\n\x1a\n", b".png"),
    (b"GIF8", b".gif"),
    (b"BM", b".bmp"),
    (b"II*\0", b".tif"),
    (b"MM\0*", b".tif"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", b".jp2"),
    (b"P5", b".pgm"),
    (b"P6", b".ppm"),
)
_IMAGE_SUFFIXES = (b".jpeg", b".jpe", b".tiff", b".webp", b".jp2", *(suffix for _, suffix in _IMAGES))
_LONGEST_MAGIC = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Datum:
    """at, size: bytes of `data` in the value. image: the suffix that fits `data`, None if it is no image.

    raw: whether it holds as many pixels as it says.
    """

    label: int
    encoded: bool
    raw: bool
    at: int
    size: int
    image: bytes | None


class DatumReader:
    """Parses values. EnvironmentFault without protobuf."""

    def __init__(self) -> None:
        self._kind = message_class()
        self._unknown = require("google.protobuf.unknown_fields", "lmdb").UnknownFieldSet
        self._error = require("google.protobuf.message", "lmdb").DecodeError

    def read(self, value: memoryview) -> Datum | None:
        """None if the value is no Datum: unknown fields, neither data nor floats, or raw and not as large as it says.

        An image whose `encoded` is not set, and the opposite, are Datums: whoever reads them is to be told.
        """
        at, size, rest = _without_data(value)
        message = self._parse(rest)
        if message is None:
            return None
        if message.data:  # not where writers put it: parsed as a whole
            at, size = bytes(value).find(message.data), len(message.data)
        image = image_suffix(bytes(value[at : at + min(size, _LONGEST_MAGIC)]))
        raw = _is_raw(message, size)
        if not (message.encoded and size) and not image and not raw:
            return None
        return Datum(message.label, message.encoded, raw, at, size, image)

    def _parse(self, data: bytes) -> Any:
        try:
            message = self._kind.FromString(data)
        except self._error:
            return None
        return None if len(self._unknown(message)) else message


def image_suffix(head: bytes) -> bytes | None:
    """The suffix of an image that begins so."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return b".webp"
    return next((suffix for magic, suffix in _IMAGES if head.startswith(magic)), None)


def named_as_image(name: bytes) -> bool:
    """Whether a name ends as those of images do."""
    return name.lower().endswith(_IMAGE_SUFFIXES)


def _is_raw(message: Any, size: int) -> bool:
    shape = (message.channels, message.height, message.width)
    count: int = shape[0] * shape[1] * shape[2]
    return min(shape) > 0 and count == (size or len(message.float_data))


def _without_data(value: memoryview) -> tuple[int, int, bytes]:
    """Place and size of `data`, and the message without it; the whole message if `data` is not where it should be."""
    at = 0
    while (tag := _varint(value, at)) and tag[0] in _BEFORE_DATA and (number := _varint(value, tag[1])):
        at = number[1]
    length = _varint(value, tag[1]) if tag and tag[0] == _DATA else None
    if length is None or length[0] > len(value) - length[1]:
        return 0, 0, bytes(value)
    size, begin = length
    return begin, size, bytes(value[:at]) + bytes(value[begin + size :])


def _varint(value: memoryview, at: int) -> tuple[int, int] | None:
    """A number, and the byte behind it; None if the value ends in it."""
    number = 0
    for i, byte in enumerate(value[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    return None


def message_class() -> Any:
    """The class of the messages."""
    descriptors = require("google.protobuf.descriptor_pb2", "lmdb")
    pools = require("google.protobuf.descriptor_pool", "lmdb")
    factory = require("google.protobuf.message_factory", "lmdb")
    field = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="deepiofs/datum.proto", package="deepiofs", syntax="proto2")
    message = file.message_type.add(name="Datum")
    for number, (name, kind) in enumerate(
        (
            ("channels", field.TYPE_INT32),
            ("height", field.TYPE_INT32),
            ("width", field.TYPE_INT32),
            ("data", field.TYPE_BYTES),
            ("label", field.TYPE_INT32),
            ("float_data", field.TYPE_FLOAT),
            ("encoded", field.TYPE_BOOL),
        ),
        start=1,
    ):
        repeated = field.LABEL_REPEATED if name == "float_data" else field.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=repeated)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("deepiofs.Datum"))
