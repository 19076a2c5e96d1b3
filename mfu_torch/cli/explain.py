"""``mfu-torch explain``: where the time of traced steps went, and what to fix first."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    add("traces", metavar="TRACE", nargs="*", help="a file; several, or a folder: ranks of a job")
    add("--peak", metavar="RATE", help='"989 TFLOP/s": of the device; by its name if not given')
    add("--dtype", metavar="D", help="of the peak; by default that of most matrix work")
    add("--device", metavar="NAME", help="of the peak, where the trace names none or another")
    add("--model-flops", metavar="F", help='of a step of one device, e.g. 2.4e15 or "2.4 PFLOP"')
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


class _UsageError(Exception):
    """What is wrong with the arguments. A ValueError of anything else is a fault of ours."""


def run(args: argparse.Namespace) -> int:
    """Print what the traces say."""
    from mfu_torch.insight.breakdown.edges import NoSuchSteps

    try:
        return _run(args)
    except (_UsageError, NoSuchSteps) as problem:
        return wrong_usage(args, str(problem))


def _run(args: argparse.Namespace) -> int:
    if args.json and (args.csv or args.md):
        raise _UsageError("--json, --csv and --md exclude each other; give one")
    paths = [*args.traces, *(args.diff or ())]
    if not paths:
        raise _UsageError("no trace is given; expected a file that torch.profiler wrote")
    if unnamed(*paths, args.scrub):
        raise _UsageError("an empty name is given; expected that of a file or folder")
    top = _read("--top", _whole, args.top)
    if args.scrub is not None:
        return _scrub(args)
    if args.force:
        raise _UsageError("--force is for --scrub OUT")
    options = _options(args)
    if args.diff is None:
        return _explain(args, options, top)
    if len(paths) != 2:
        raise _UsageError(f"--diff compares 2 traces and {len(paths)} are given")
    return _diff(args, [_total(path, args, options) for path in paths])


# --- what is asked ---------------------------------------------------------------------------


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Of ``analyse``, read from texts; what is wrong with one names its flag."""
    from mfu_torch.units import parse_flops, parse_flops_per_s

    options: dict[str, Any] = {"edges": args.edges, "steps": args.steps}
    if args.peak is not None:
        options["peak"] = _read("--peak", parse_flops_per_s, args.peak)
    if args.dtype is not None:
        options["dtype"] = _read("--dtype", _dtype, args.dtype)
    if args.device is not None:
        _read("--device", _known_device, args.device)
    if args.model_flops is not None:
        options["model_flops"] = round(_read("--model-flops", parse_flops, args.model_flops))
    if args.classes is not None:
        options["classes"] = args.classes
    return options


def _read(flag: str, reader: Callable[[Any], Any], text: Any) -> Any:
    try:
        return reader(text)
    except (ValueError, OverflowError) as problem:
        raise _UsageError(f"{flag}: {problem}") from None


def _dtype(text: str) -> str:
    from mfu_torch.peak.names import canonical_dtype

    return canonical_dtype(text)


def _known_device(name: str) -> None:
    from mfu_torch.peak.rows import find_rows
    from mfu_torch.records import Device

    if not find_rows(Device(name=name, kind="")):
        raise ValueError(
            f"{name[:60]!r} is not in the table of devices; mfu-torch peak --list has all, and "
            "--peak takes the figure itself"
        )


def _pattern(text: str) -> str:
    import re

    if not text:
        raise ValueError("it is empty, and would be found in every annotation")
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"{text[:40]!r} is no regular expression: {problem}") from None
    return text


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text[:40]!r} is no whole number; expected e.g. 5")
    return int(text)


def _bytes(text: str) -> int:
    import re

    said = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]{1,2})?)\s*([kmgt]?)(i?)b?\s*", text, re.I)
    if said is None:
        raise ValueError(f'{text[:40]!r} is no number of bytes; expected e.g. "8 GB" or 8e9')
    number, prefix, binary = said.groups()
    if binary and not prefix:
        raise ValueError(f'{text[:40]!r} is no number of bytes; expected e.g. "8 GiB"')
    found = float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
    if found < 1:
        raise ValueError(f"{text[:40]!r} is less than a byte")
    return int(found)


# --- traces ----------------------------------------------------------------------------------


def _reading(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if args.step_name is not None:
        options["step_name"] = _read("--step-name", _pattern, args.step_name)
    if args.max_raw_bytes is not None:
        options["max_raw_bytes"] = _read("--max-raw-bytes", _bytes, args.max_raw_bytes)
    return options


def _analysis(path: Path, args: argparse.Namespace, options: dict[str, Any]) -> Analysis:
    from mfu_torch.insight.breakdown.explain import analyse
    from mfu_torch.insight.trace.reading import read_trace

    trace = read_trace(path, **_reading(args))
    if args.device is not None:
        said = (
            f"the trace says {trace.device_name}" if trace.device_name else "the trace names none"
        )
        note = f"the device is as given by --device; {said}"
        trace = dataclasses.replace(trace, device_name=args.device, notes=(*trace.notes, note))
    return analyse(trace, **options)


def _found(
    paths: Sequence[str], args: argparse.Namespace, options: dict[str, Any]
) -> Analysis | Job:
    """One trace, or the ranks of a job: of each the trace is read, and little of it kept."""
    from msgspec.structs import replace

    from mfu_torch.insight.breakdown.ranks import combine, rank_trace
    from mfu_torch.insight.trace.errors import TraceError
    from mfu_torch.insight.trace_files import trace_files

    files = [(file, file == Path(path)) for path in paths for file in trace_files(path)]
    if len(files) == 1:
        return _analysis(files[0][0], args, options)
    ranks, problems, last = [], [], None
    for file, is_named in files:
        try:
            last = _analysis(file, args, options)
        except TraceError as problem:
            if is_named:
                raise
            problems.append(problem)  # a folder may hold other JSON; it is said below
        else:
            ranks.append(rank_trace(last))
    if last is None:
        raise problems[0]
    left_out = tuple(f"left out: {problem}" for problem in problems)
    if len(ranks) == 1:
        return dataclasses.replace(last, breakdown=_warned(last.breakdown, left_out))
    job = combine(ranks)
    return replace(job, total=_warned(job.total, left_out))


def _warned(found: Breakdown, warnings: tuple[str, ...]) -> Breakdown:
    from msgspec.structs import replace

    return replace(found, warnings=(*warnings, *found.warnings))


def _total(path: str, args: argparse.Namespace, options: dict[str, Any]) -> Breakdown:
    from mfu_torch.insight.breakdown.ranks import Job

    found = _found([path], args, options)
    return found.total if isinstance(found, Job) else found.breakdown


# --- answers ---------------------------------------------------------------------------------


def _explain(args: argparse.Namespace, options: dict[str, Any], top: int) -> int:
    from mfu_torch.insight.breakdown.ranks import Job

    found = _found(args.traces, args, options)
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
_NOT_OF_SCRUB = ("csv", "md", "peak", "dtype", "device", "model_flops", "steps", "classes")


def _scrub(args: argparse.Namespace) -> int:
    from mfu_torch.insight.text import wrap
    from mfu_torch.insight.trace.scrub import scrub
    from mfu_torch.records.losses import printable

    if args.diff is not None or len(args.traces) != 1:
        raise _UsageError("--scrub OUT cleans 1 trace; give one, without --diff")
    for name in _NOT_OF_SCRUB:
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise _UsageError(f"--scrub OUT copies the whole trace; {flag} would change nothing")
    trace, out = Path(args.traces[0]), Path(args.scrub)
    if not out.absolute().parent.is_dir():
        raise _UsageError(f"--scrub: there is no folder {out.parent}; make it first")
    same = out.exists() and trace.exists() and out.samefile(trace)
    if out.is_file() and not args.force and not same:
        raise _UsageError(f"--scrub: {out} exists; give another name, or --force to write over it")
    if out.exists() and not out.is_file():
        raise _UsageError(f"--scrub: {args.scrub} is no file; give the name of a file to write")
    scrub(trace, out, force=args.force, **_reading(args))
    if args.json:
        print_json({"file": str(out), "kept": _KEPT})
    else:
        print(printable(f"{out}: a clean copy of {trace.name}"))
        print("\n".join(wrap(f"Kept, so look at them if they are secret: {_KEPT}")))
    return 0
