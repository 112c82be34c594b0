"""The formats of streams, by name; one whose library is missing is left out, with a line in the log."""

from __future__ import annotations

import logging

from deepiofs.dataset.tfrecords import load_crc
from deepiofs.errors import EnvironmentFault
from deepiofs.fs.streams.layout import Format
from deepiofs.fs.streams.listing import Listing
from deepiofs.fs.streams.tar import Tar
from deepiofs.fs.streams.tfrecord import TfRecord
from deepiofs.fs.tree import Tree

log = logging.getLogger(__name__)


def formats_of(tree: Tree) -> dict[str, Format]:
    """What this mount can make streams of."""
    formats: list[Format] = [Listing(tree.manifest), Tar(tree)]
    try:
        formats.append(TfRecord(tree.manifest, load_crc()))
    except EnvironmentFault as error:
        log.info("no streams of TFRecord: %s", error)
    return {form.name: form for form in formats}
