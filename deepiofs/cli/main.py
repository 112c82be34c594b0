"""The `deepiofs` command: arguments, exit codes, and errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from deepiofs import __version__
from deepiofs.errors import EXIT_OK, DeepiofsError, UsageError
from deepiofs.options import Settings, option_rows, parse_option_string


class _Parser(argparse.ArgumentParser):
    """Wrong usage is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(UsageError.exit_code, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit."""
    args = command_parser().parse_args(arguments)
    sys.exit(guarded(lambda: int(args.run(args) or EXIT_OK), getattr(args, "options", [])))


def guarded(command: Callable[[], int], options: Sequence[str] = ()) -> int:
    """The exit code of a command; an error is told in one line, with a traceback only at `loglevel=debug`."""
    try:
        return command()
    except DeepiofsError as error:
        if getattr(error, "speak", True):
            _tell(str(error), options)
        return error.exit_code
    except KeyboardInterrupt:
        return DeepiofsError.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DeepiofsError.exit_code
    except Exception as error:
        _tell(f"internal error: {type(error).__name__}: {error}; run with -o loglevel=debug and report it", options)
        return DeepiofsError.exit_code


def _tell(text: str, options: Sequence[str]) -> None:
    if "loglevel=debug" in ",".join(options).split(","):
        traceback.print_exc()
    print("deepiofs: " + " ".join(text.split("\n")), file=sys.stderr)


def given_options(option_strings: Sequence[str]) -> dict[str, str]:
    """All `-o` together; the last value of an option wins."""
    return {name: value for text in option_strings for name, value in parse_option_string(text).items()}


def mount(source: str, mountpoint: str, options: dict[str, str], foreground: bool) -> int:
    """Mount and serve; in the background, only the child comes back from `detach`."""
    settings = Settings.from_strings(options)
    from deepiofs.cli import mount as mounting
    from deepiofs.cli.daemon import detach
    from deepiofs.dataset.sources import absolute_name
    from deepiofs.engine.world import launched

    # A launcher waits for the process that it started, and signals it: it must not go to the background.
    background = not foreground and (settings.mpi == "off" or not launched())
    log = {"log": os.path.abspath(settings.log)} if settings.log else {}
    index = {"index": os.path.abspath(settings.index)} if settings.index else {}
    order = {"order_log": os.path.abspath(settings.order_log)} if settings.order_log else {}
    options = {**options, **log, **index, **order}
    request = mounting.Request(absolute_name(source), mountpoint, options, Settings.from_strings(options), background)
    live = detach() if background else lambda mountpoint: None
    mounting.run(request, live)
    return EXIT_OK


def _mount(args: argparse.Namespace) -> int:
    return mount(args.source, args.mountpoint, given_options(args.options), args.foreground)


def _umount(args: argparse.Namespace) -> int:
    from deepiofs.cli.umount import umount

    return umount(args.mountpoints)


def _wait(args: argparse.Namespace) -> int:
    from deepiofs.cli.inspect import wait

    return wait(args.mountpoint, args.what, args.timeout)


def _status(args: argparse.Namespace) -> int:
    from deepiofs.cli.inspect import status

    return status(args.mountpoint, args.json, args.watch)


def _index(args: argparse.Namespace) -> int:
    from deepiofs.cli.index import build

    return build(args.source, Settings.from_strings(given_options(args.options)))


def _plan(args: argparse.Namespace) -> int:
    from deepiofs.cli.plan import plan

    return plan(args, Settings.from_strings(given_options(args.options)))


def _check(args: argparse.Namespace) -> int:
    from deepiofs.cli.check import check

    return check(args.mountpoint, args.sample)


def option_help() -> str:
    """The table of options, for `--help`."""
    rows = [f"  {name:<15} {values} ({default}): {meaning}" for name, values, default, meaning in option_rows()]
    return "mount options:\n" + "\n".join(rows)


def command_parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="deepiofs", description="A dataset held once in the joint memory of a job's nodes.")
    parser.add_argument("--version", action="version", version=f"deepiofs {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, epilog: str | None = None
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, formatter_class=raw, epilog=epilog)
        sub.set_defaults(run=run)
        return sub

    def options(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS", help="comma-separated")

    sub = command("mount", _mount, "mount a dataset", epilog=option_help())
    sub.add_argument("source", metavar="SOURCE", help="the dataset")
    sub.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory; %%r rank, %%l local rank, %%h host")
    options(sub)
    sub.add_argument("-f", dest="foreground", action="store_true", help="stay in the foreground")
    sub = command("umount", _umount, "unmount; no error if nothing is mounted, clears a dead mount")
    sub.add_argument("mountpoints", nargs="+", metavar="MOUNTPOINT")
    sub = command("wait", _wait, "wait until a mount answers")
    sub.add_argument("mountpoint", metavar="MOUNTPOINT")
    sub.add_argument("--for", dest="what", choices=("mounted", "warm"), default="mounted", help="(mounted)")
    sub.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="(300)")
    sub = command("status", _status, "what a mount is doing")
    sub.add_argument("mountpoint", metavar="MOUNTPOINT")
    sub.add_argument("--json", action="store_true", help="the stats as they are")
    sub.add_argument("--watch", action="store_true", help="again every second")
    sub = command("index", _index, "build the index file ahead of the jobs", epilog=option_help())
    sub.add_argument("source", metavar="SOURCE")
    options(sub)
    sub = command("plan", _plan, "what an ordering costs and gives, before a job is spent on it")
    sub.add_argument("source", metavar="SOURCE", nargs="?", help="the dataset, or --samples")
    sub.add_argument("--samples", type=int, metavar="N", help="how many samples, without a dataset")
    sub.add_argument("--groups", type=int, default=1, metavar="G", help="in how many equal groups (1)")
    sub.add_argument("--sample-bytes", metavar="SIZE", help="of a sample, without a dataset")
    sub.add_argument("--nodes", type=int, required=True, metavar="M")
    sub.add_argument("--ranks-per-node", type=int, default=1, metavar="K", help="(1)")
    sub.add_argument("--entropy", type=float, default=0.9, metavar="E", help="the bound (0.9)")
    sub.add_argument("--batch", type=int, default=0, metavar="B", help="global batch size")
    sub.add_argument("--plot", metavar="FILE", help="draw E against the share read from peers")
    sub.add_argument("--json", action="store_true", help="the figures as JSON")
    options(sub)
    sub = command("check", _check, "compare a mount with its source, byte for byte")
    sub.add_argument("mountpoint", metavar="MOUNTPOINT")
    sub.add_argument("--sample", type=int, metavar="N", help="only N files, drawn at random")
    return parser


if __name__ == "__main__":
    main()
