"""The command line. Every command imports what it needs when it is called, so help is instant.

Exit codes: 0 done, 1 the answer is no or the input cannot be read, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mfu_torch


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
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. What is still buffered goes nowhere, so that
        # the interpreter does not complain when it flushes on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (mfu_torch.MFUError, OSError) as problem:
        print(f"mfu-torch {args.command}: {problem}", file=sys.stderr)
        return 1
    return code


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


def _print_json(value: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run.jsonl, or the directory that holds it")


def _report(args: argparse.Namespace) -> int:
    from mfu_torch.insight.report import render_report
    from mfu_torch.insight.summary import summary
    from mfu_torch.run.runfile import read_run

    run = read_run(args.path)
    if args.json:
        _print_json(summary(run))
    else:
        print(render_report(run), end="")
    return 0


def _number(most: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}; expected a whole number from 1 to {most}"
            )
        return value

    return whole_number


def _count_arguments(parser: argparse.ArgumentParser) -> None:
    add, length = parser.add_argument, _number(10**8)
    add("path", metavar="CONFIG", help="a transformers config.json, or the directory that holds it")
    add("--batch", metavar="B", type=_number(10**6), default=1, help="samples; 1 by default")
    add("--seq", metavar="S", type=length, help="tokens of a text, samples or frames of sound")
    add("--target-seq", metavar="T", type=length, help="tokens of a decoder; as --seq by default")
    add("--train", action="store_true", help="count forward and backward, not the forward alone")
    add("--checkpoint", action="store_true", help="with --train: layers run again in the backward")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="bf16 by default")
    add("--attention", choices=("sdpa", "eager"), help="by default what transformers picks")
    add("--crosscheck", action="store_true", help="beside other counters, forward alone")


def _count(args: argparse.Namespace) -> int:
    from mfu_torch.insight.count_table import render, summary
    from mfu_torch.integrations.configs import build
    from mfu_torch.integrations.counting import count_model, crosscheck_model
    from mfu_torch.integrations.meta_run import LengthMissing, inputs_for

    if args.checkpoint and not args.train:
        return _usage(args, "--checkpoint repeats layers in the backward; give --train as well")
    built = build(args.path, dtype=args.dtype, attention=args.attention, train=args.train)
    try:
        inputs = inputs_for(built.model, args.batch, args.seq, args.target_seq)
    except LengthMissing as missing:
        return _usage(args, str(missing))
    if args.crosscheck:
        checked = crosscheck_model(built, inputs)
        _print_json(checked) if args.json else print(_rendered_crosscheck(checked))
        return 0
    found = count_model(
        built, inputs, dtype=args.dtype, train=args.train, checkpoint=args.checkpoint
    )
    if args.json:
        _print_json(summary(found))
    else:
        print(render(found), end="")
    return 0


def _usage(args: argparse.Namespace, problem: str) -> int:
    print(f"mfu-torch {args.command}: {problem}", file=sys.stderr)
    return 2


def _rendered_crosscheck(checked: Any) -> str:
    from mfu_torch.flops.crosscheck import render

    return render(checked)


COMMANDS: dict[str, Command] = {
    "report": Command("report on one run", _report_arguments, _report),
    "count": Command("count the FLOPs of a transformers config", _count_arguments, _count),
}
