"""`mount.deepiofs`: what mount(8) calls for `mount -t deepiofs` and for lines of fstab(5).

Its arguments are those of mount(8), EXTERNAL HELPERS: `SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o ...] [-t type]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import NoReturn

from deepiofs.cli.main import _Parser, given_options, guarded, mount
from deepiofs.errors import EXIT_OK, UsageError
from deepiofs.options import Settings


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = _Parser(prog="mount.deepiofs", description="mount a dataset, as a helper of mount(8)")
    made.add_argument("source", metavar="SOURCE")
    made.add_argument("mountpoint", metavar="MOUNTPOINT")
    made.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS", help="comma-separated")
    made.add_argument("-f", dest="fake", action="store_true", help="check the options, do not mount")
    made.add_argument("-s", dest="sloppy", action="store_true", help="ignore options that are unknown")
    made.add_argument("-v", dest="verbose", action="store_true", help="say what is done")
    made.add_argument("-n", dest="no_mtab", action="store_true", help="without effect: no table of mounts is written")
    made.add_argument("-N", dest="namespace", metavar="NAMESPACE", help="refused: use nsenter(1)")
    made.add_argument("-t", dest="type", metavar="TYPE", help="without effect")
    return made


def main() -> NoReturn:
    """Mount as mount(8) asks, and exit."""
    args = parser().parse_args()
    sys.exit(guarded(lambda: _run(args), args.options))


def _run(args: argparse.Namespace) -> int:
    if args.namespace:
        raise UsageError("mount -N is not possible; nsenter --mount=NAMESPACE mount -t deepiofs ... is")
    if any("remount" in text.split(",") for text in args.options):
        raise UsageError(
            f"a mount cannot be changed while it is there; deepiofs umount {args.mountpoint}, and mount it again"
        )
    options = given_options(args.options)
    if args.sloppy:
        options = _known(options)
    Settings.from_strings(options)
    if args.fake:
        return EXIT_OK
    if args.verbose:
        print(f"mount.deepiofs: {args.source} at {args.mountpoint}, options {options}", flush=True)
    return mount(args.source, args.mountpoint, options, foreground=False)


def _known(options: Mapping[str, str]) -> dict[str, str]:
    names = {field.name for field in dataclasses.fields(Settings)}
    return {name: value for name, value in options.items() if name in names}
