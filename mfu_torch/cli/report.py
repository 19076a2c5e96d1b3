"""``mfu-torch report``: one run as text or JSON."""

from __future__ import annotations

import argparse

from mfu_torch.cli.output import print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("path", metavar="RUN", help="a run.jsonl, or the directory that holds it")


def run(args: argparse.Namespace) -> int:
    """Print the report of one run."""
    from mfu_torch.insight.report import render_report
    from mfu_torch.insight.summary import summary
    from mfu_torch.run.runfile import read_run

    recorded = read_run(args.path)
    if args.json:
        print_json(summary(recorded))
    else:
        print(render_report(recorded), end="")
    return 0
