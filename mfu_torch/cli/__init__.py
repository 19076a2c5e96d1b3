"""The command line. Every command imports what it needs when it is called, so help is instant.

Exit codes: 0 done, 1 the answer is no or the input cannot be read, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mfu_torch
from mfu_torch.cli import bench, calc, compare, count, explain, peak, plan, report


class Command(NamedTuple):
    """A subcommand: its line in the help, its arguments, and what it does."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse printed the help (0) or what is wrong (2)
        return int(stop.code or 0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name or note that the terminal cannot show must not cost the rest of the output.
        sys.stdout.reconfigure(errors="replace")
    try:
        code: int = args.run(args)
        if sys.stdout is not None:  # closed by the caller: prints go nowhere
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. What is still buffered goes nowhere, so that
        # the interpreter does not complain when it flushes on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"mfu-torch {args.command}: stopped by Ctrl-C", file=sys.stderr)
        return bench.INTERRUPTED
    except (mfu_torch.MFUError, OSError) as problem:
        print(f"mfu-torch {args.command}: {_visible(problem)}", file=sys.stderr)
        return 1
    return code


def _visible(problem: Exception) -> str:
    """Its text, without what a terminal obeys: a file may be called so."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in str(problem))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mfu-torch",
        description="What share of the hardware goes into the model.",
    )
    version = f"mfu-torch {mfu_torch.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        command.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the same as JSON")
        sub.set_defaults(run=command.run)
    return parser


COMMANDS: dict[str, Command] = {
    "report": Command("report on one run", report.arguments, report.run),
    "compare": Command(
        "whether two runs are comparable, and what changed", compare.arguments, compare.run
    ),
    "explain": Command(
        "where the time of profiled steps went, and what to fix first",
        explain.arguments,
        explain.run,
    ),
    "peak": Command("what a device could do; by default this machine's", peak.arguments, peak.run),
    "bench": Command("measure what a device sustains", bench.arguments, bench.run),
    "calc": Command(
        "MFU and what it implies from a log, a claim or a plan", calc.arguments, calc.run
    ),
    "plan": Command("estimate a training step before it is run", plan.arguments, plan.run),
    "count": Command("count the FLOPs of a transformers config", count.arguments, count.run),
}
