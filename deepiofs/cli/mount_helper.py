"""`mount.deepiofs`: what mount(8) calls for `mount -t deepiofs` and for lines of fstab(5)."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from deepiofs.cli.main import _Parser, given_options, guarded, mount
from deepiofs.errors import EXIT_OK
from deepiofs.options import Settings


def main() -> NoReturn:
    """Mount as mount(8) asks: `mount.deepiofs SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type]`."""
    parser = _Parser(prog="mount.deepiofs", description="mount a dataset, as a helper of mount(8)")
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS")
    parser.add_argument("-f", dest="fake", action="store_true", help="check the options, do not mount")
    for flag in "snv":
        parser.add_argument(f"-{flag}", dest=f"ignored_{flag}", action="store_true", help=argparse.SUPPRESS)
    for flag in "Nt":
        parser.add_argument(f"-{flag}", dest=f"ignored_{flag}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.exit(guarded(lambda: _run(args), args.options))


def _run(args: argparse.Namespace) -> int:
    options = given_options(args.options)
    Settings.from_strings(options)
    return EXIT_OK if args.fake else mount(args.source, args.mountpoint, options, foreground=False)
