"""`deepiofs index`: the index built once, ahead of the jobs."""

from __future__ import annotations

from deepiofs.dataset.manifest import Manifest
from deepiofs.dataset.sources import Selection, Solo, open_source
from deepiofs.engine.indexing import obtain_manifest
from deepiofs.errors import EXIT_OK, UsageError
from deepiofs.journal import open_journal
from deepiofs.memory import columns_segment
from deepiofs.options import Settings


def build(source_name: str, settings: Settings) -> int:
    """Write the index of a source to `index=`, if what is there does not match."""
    if not settings.index:
        raise UsageError("index: give -o index=FILE")
    open_journal(settings, 0)
    source = open_source(source_name)
    try:
        selection = Selection(settings.include, settings.exclude, settings.links)
        segment = obtain_manifest(source, selection, settings.index, Solo())
    finally:
        source.close()
    assert segment is not None
    manifest = Manifest(*columns_segment.read(segment))
    files = manifest.is_regular
    print(
        f"{settings.index}: {int(files.sum())} files, {int(manifest.sizes[files].sum()) / 1e6:.1f} MB" + _left(manifest)
    )
    return EXIT_OK


def _left(manifest: Manifest) -> str:
    left = ", ".join(f"{count} {reason}" for reason, count in manifest.meta["left_out"].items() if count)
    return f"; left out: {left}" if left else ""
