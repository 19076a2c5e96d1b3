"""``mfu-torch compare``: whether two runs can be compared, and what changed."""

from __future__ import annotations

import argparse

from mfu_torch.cli.output import print_json, unnamed, wrong_usage


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch compare``."""
    add = parser.add_argument
    add("a", metavar="A", help="the run before: a run.jsonl, or the directory that holds it")
    add("b", metavar="B", help="the run after")
    add(
        "--attention",
        choices=("full", "causal"),
        help="read both runs under this convention; by default each under its own",
    )
    parser.epilog = (
        "Exit codes: 0 the runs are comparable, by MFU and by throughput; 1 they are not, or a run "
        "cannot be read; 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    """Print the comparison of two runs; 1 where they are not comparable."""
    from mfu_torch.insight.plausible import plausible
    from mfu_torch.run.runfile import read_run

    if unnamed(args.a, args.b):
        return wrong_usage(args, "an empty name is given; expected that of a run")
    runs = [
        plausible(read_run(path), path) for path in (args.a, args.b)
    ]  # numpy can wait until both are there

    from mfu_torch.insight.compare import compare
    from mfu_torch.insight.compare.text import render_comparison

    found = compare(*runs, names=(args.a, args.b), attention=args.attention)
    if args.json:
        print_json(found)
    else:
        print(render_comparison(found), end="")
    return 0 if found.comparable else 1
