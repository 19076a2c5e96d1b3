"""``mfu-torch explain``: where the time of traced steps went, and what to fix first."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfu_torch.cli.explain_flags import UsageError, analysis_options, reading_options, top_of
from mfu_torch.cli.explain_traces import explained, total
from mfu_torch.cli.output import errors_in_one_line, print_json, unnamed, wrong_usage

if TYPE_CHECKING:
    from mfu_torch.insight.breakdown.explain import Analysis
    from mfu_torch.insight.breakdown.ranks import Job
    from mfu_torch.records.breakdown import Breakdown

_EPILOG = """\
examples:
  mfu-torch explain trace.json.gz
  mfu-torch explain trace.json.gz --peak "989 TFLOP/s" --dtype bf16 --model-flops 2.4e15
  mfu-torch explain traces/                      # a trace of every rank of one job
  mfu-torch explain runs/mine                    # the newest that explain_every recorded
  mfu-torch explain --diff before.json.gz after.json.gz
  mfu-torch explain trace.json.gz --scrub clean.json.gz

A trace is what torch.profiler writes; docs/explain.md shows how to record one, and what each line
of the answer means.

Exit codes: 0 done; 1 a trace cannot be read, ranks are not of one job, or steps do not compare;
2 wrong usage, or OUT exists; 130 Ctrl-C.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch explain``."""
    errors_in_one_line(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "traces",
        metavar="TRACE",
        nargs="*",
        help="a file, or -: stdin; several, or a folder: ranks of a job; a run's folder",
    )
    add("--peak", metavar="RATE", help='"989 TFLOP/s": of the device; by its name if not given')
    add("--dtype", metavar="D", help="of the peak; by default that of most matrix work")
    add("--device", metavar="NAME", help="of the peak, where the trace names none or another")
    add("--model-flops", metavar="F", help='of a step of one device, e.g. 2.4e15 or "2.4 PFLOP"')
    add("--recompute-flops", metavar="F", help="beside --model-flops: what runs a second time")
    add("--edges", choices=("gpu", "cpu"), default="gpu", help="where a step begins; default gpu")
    add("--steps", metavar="A:B", help="steps A to B-1, by the numbers in their names")
    add("--step-name", metavar="REGEX", help="annotations that are steps; ProfilerStep#N if not")
    add("--classes", metavar="TOML", help="classes of kernels by name: your own kernels")
    add("--diff", metavar="TRACE", nargs="+", help="compare: --diff BEFORE AFTER")
    add("--scrub", metavar="OUT", help="write a copy without metadata, paths and host names")
    add("--force", action="store_true", help="with --scrub: write over a file that exists")
    add("--top", metavar="N", default="5", help="kernels of each large loss; default 5, 0: none")
    add("--max-raw-bytes", metavar="N", help='most JSON that is read; default 2 GiB: "8 GB"')
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--csv", action="store_true", help="print the buckets as CSV")
    shape.add_argument("--md", action="store_true", help="print markdown")


def run(args: argparse.Namespace) -> int:
    """Print what the traces say."""
    from mfu_torch.insight.breakdown.edges import NoSuchSteps

    try:
        return _run(args)
    except (UsageError, NoSuchSteps) as problem:
        return wrong_usage(args, str(problem))


def _run(args: argparse.Namespace) -> int:
    if args.json and (args.csv or args.md):
        raise UsageError("--json, --csv and --md exclude each other; give one")
    paths = [*args.traces, *(args.diff or ())]
    if not paths:
        raise UsageError("no trace is given; expected a file that torch.profiler wrote")
    if unnamed(*paths, args.scrub):
        raise UsageError("an empty name is given; expected that of a file or folder")
    top = top_of(args)
    if args.scrub is not None:
        return _scrub(args)
    if args.force:
        raise UsageError("--force is for --scrub OUT")
    options = analysis_options(args)
    if args.diff is None:
        return _explain(args, options, top)
    if len(paths) != 2:
        raise UsageError(f"--diff compares 2 traces and {len(paths)} are given")
    return _diff(args, [total(path, args, options) for path in paths])


# --- answers ---------------------------------------------------------------------------------


def _explain(args: argparse.Namespace, options: dict[str, Any], top: int) -> int:
    from mfu_torch.insight.breakdown.ranks import Job

    found = explained(args.traces, args, options)
    if isinstance(found, Job):
        _print_job(args, found, top)
    else:
        _print_one(args, found, top)
    return 0


def _print_one(args: argparse.Namespace, found: Analysis, top: int) -> None:
    from mfu_torch.insight import breakdown_export, breakdown_table, roofline_table
    from mfu_torch.insight.breakdown.roofline import roofline

    one = found.breakdown
    roofs = roofline(found.trace, found.labels, found.matrix)
    _print(
        args,
        text=lambda: breakdown_table.render(
            one, top=top, roofs=roofline_table.lines(roofs, one, top)
        ),
        markdown=lambda: breakdown_export.markdown(one, top=top),
        csv=lambda: breakdown_export.csv_text(one),
        summary=lambda: breakdown_export.summary(one, top=top, roofline=roofs),
    )


def _print_job(args: argparse.Namespace, found: Job, top: int) -> None:
    from mfu_torch.insight import ranks_table

    _print(
        args,
        text=lambda: ranks_table.render(found, top=top),
        markdown=lambda: ranks_table.markdown(found, top=top),
        csv=lambda: ranks_table.csv_text(found),
        summary=lambda: ranks_table.summary(found, top=top),
    )


def _diff(args: argparse.Namespace, pair: Sequence[Breakdown]) -> int:
    from mfu_torch.insight import diff_table
    from mfu_torch.insight.breakdown.diff import diff

    found = diff(*pair)
    _print(
        args,
        text=lambda: diff_table.render(found),
        markdown=lambda: diff_table.markdown(found),
        csv=lambda: diff_table.csv_text(found),
        summary=lambda: diff_table.summary(found),
    )
    return 0


def _print(
    args: argparse.Namespace,
    *,
    text: Callable[[], str],
    markdown: Callable[[], str],
    csv: Callable[[], str],
    summary: Callable[[], dict[str, Any]],
) -> None:
    if args.json:
        print_json(summary())
        return
    print((csv if args.csv else markdown if args.md else text)(), end="")


_KEPT = "names of kernels, operators, calls, process groups and the device"
_NOT_OF_SCRUB = (
    *("csv", "md", "peak", "dtype", "device", "model_flops", "recompute_flops", "steps"),
    "classes",
)


def _scrub(args: argparse.Namespace) -> int:
    from mfu_torch.insight.text import wrap
    from mfu_torch.insight.trace.scrub import scrub
    from mfu_torch.records.losses import printable

    if args.diff is not None or len(args.traces) != 1:
        raise UsageError("--scrub OUT cleans 1 trace; give one, without --diff")
    for name in _NOT_OF_SCRUB:
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--scrub OUT copies the whole trace; {flag} would change nothing")
    trace, out = Path(args.traces[0]), Path(args.scrub)
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--scrub: there is no folder {out.parent}; make it first")
    same = out.exists() and trace.exists() and out.samefile(trace)
    if out.is_file() and not args.force and not same:
        raise UsageError(f"--scrub: {out} exists; give another name, or --force to write over it")
    if out.exists() and not out.is_file():
        raise UsageError(f"--scrub: {args.scrub} is no file; give the name of a file to write")
    scrub(trace, out, force=args.force, **reading_options(args))
    if args.json:
        print_json({"file": str(out), "kept": _KEPT})
    else:
        print(printable(f"{out}: a clean copy of {trace.name}"))
        print("\n".join(wrap(f"Kept, so look at them if they are secret: {_KEPT}")))
    return 0
