"""``mfu-torch report``: one run as text, JSON or a page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mfu_torch.cli.output import print_json, unnamed, wrong_usage

if TYPE_CHECKING:
    from mfu_torch.records import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch report``."""
    add = parser.add_argument
    add("path", metavar="RUN", help="a run.jsonl, or the directory that holds it")
    add(
        "--html",
        metavar="FILE",
        help="write the report to one page that needs nothing else: curves, ladder, waterfall, and "
        "where every number comes from; an earlier page is written over, no other file",
    )
    add("--force", action="store_true", help="with --html: write over any file")
    parser.epilog = (
        "Exit codes: 0 done; 1 the run cannot be read, or the page cannot be written; 2 wrong "
        "usage, or FILE exists and is no page of mfu-torch."
    )


def run(args: argparse.Namespace) -> int:
    """Print the report of one run, or write it to a page."""
    from mfu_torch.insight.plausible import plausible
    from mfu_torch.insight.report import render_report
    from mfu_torch.insight.summary import summary
    from mfu_torch.records.losses import printable
    from mfu_torch.run.runfile import read_run

    if args.force and args.html is None:
        return wrong_usage(args, "--force is for --html FILE")
    if unnamed(args.path, args.html):
        return wrong_usage(args, "an empty name is given; expected that of a run or file")
    recorded = plausible(read_run(args.path), args.path)
    if args.html is not None:
        problem = _write(args, recorded)
        if problem:
            return wrong_usage(args, problem)
    if args.json:
        print_json(summary(recorded))
    elif args.html is None:
        print("\n".join(map(printable, render_report(recorded).split("\n"))), end="")
    else:
        print(f"{args.html} written")
    return 0


def _write(args: argparse.Namespace, recorded: Run) -> str:
    """Write the page; why not, if another file is in its way."""
    from mfu_torch.insight.html import NotOurs, render_page, write_page

    try:
        write_page(args.html, render_page(recorded), force=args.force)
    except NotOurs as problem:
        return str(problem)
    return ""
