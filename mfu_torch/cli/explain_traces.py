"""The traces that ``mfu-torch explain`` is given: a file, the ranks of a job, or a run's folder."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfu_torch.cli.explain_flags import UsageError, reading_options

if TYPE_CHECKING:
    from mfu_torch.insight.breakdown.explain import Analysis
    from mfu_torch.insight.breakdown.ranks import Job
    from mfu_torch.insight.trace.events import Trace
    from mfu_torch.records.breakdown import Breakdown

_NAMED = 6  # traces in a sentence


def explained(
    paths: Sequence[str], args: argparse.Namespace, options: dict[str, Any]
) -> Analysis | Job:
    """One trace, or the ranks of a job: of each the trace is read, and little of it kept."""
    from msgspec.structs import replace

    from mfu_torch.insight.breakdown.ranks import combine, rank_trace
    from mfu_torch.insight.trace.errors import TraceError

    files, notes = _files(paths)
    if len(files) == 1:
        return _said(_analysis(files[0][0], args, options), notes=notes)
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
        return _said(last, left_out, notes)
    job = combine(ranks)
    return replace(job, total=_with(job.total, left_out, notes))


def total(path: str, args: argparse.Namespace, options: dict[str, Any]) -> Breakdown:
    """Of one of the two that are compared; of several ranks their sum."""
    from mfu_torch.insight.breakdown.ranks import Job

    found = explained([path], args, options)
    return found.total if isinstance(found, Job) else found.breakdown


def _files(paths: Sequence[str]) -> tuple[list[tuple[Path, bool]], tuple[str, ...]]:
    """Each file and whether it was named itself; and which of a run's recordings it is."""
    from mfu_torch.insight.trace_files import newest_recording, trace_files

    files, notes = [], []
    for path in paths:
        found = trace_files(path)
        if found == [Path(path)]:
            files.append((found[0], True))
            continue
        newest, others = newest_recording(found)
        files += [(file, False) for file in newest]
        if others:
            notes.append(_which(path, newest, others))
    return files, tuple(notes)


def _which(path: str, newest: Sequence[Path], others: Sequence[Path]) -> str:
    listed = ", ".join(str(file.relative_to(path)) for file in others[:_NAMED])
    more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    shown = ", ".join(str(file.relative_to(path)) for file in newest[:_NAMED])
    are = "is" if len(newest) == 1 else "are"
    return f"{shown} {are} the newest recording in {path}; also there: {listed}{more}"


def _analysis(path: Path, args: argparse.Namespace, options: dict[str, Any]) -> Analysis:
    from mfu_torch.insight.breakdown.explain import analyse
    from mfu_torch.insight.trace.reading import read_trace

    trace = read_trace(path, **reading_options(args))
    if args.device is not None:
        trace = _on_device(trace, args)
    return analyse(trace, **options)


def _on_device(trace: Trace, args: argparse.Namespace) -> Trace:
    """The trace as one of the device that is given.

    Raises:
        UsageError: Several devices have that name, and their peaks differ.
    """
    from mfu_torch.peak.rows import find_rows, handle
    from mfu_torch.records import Device

    rows = find_rows(Device(name=args.device, kind=""))
    of_size = tuple(row for row in rows if row.sm_count == trace.sm_count)
    rows = of_size or rows
    named = ", ".join(map(handle, rows))
    if args.peak is None and any(row.flops_per_s != rows[0].flops_per_s for row in rows):
        raise UsageError(
            f"--device: {args.device!r} is a name of {len(rows)} devices with unlike peaks; say "
            f"which: {named}"
        )
    said = f"the trace says {trace.device_name}" if trace.device_name else "the trace names none"
    note, name = f"the device is as given by --device; {said}", args.device
    if args.peak is None and len(rows) > 1:
        note += f"; {name} is any of {named}, whose peaks are the same"
    elif len(rows) == 1 and len(find_rows(Device(name=name, kind=""))) > 1:
        note += f"; by its {trace.sm_count} multiprocessors {name} is the {named}"
        name = named
    return dataclasses.replace(trace, device_name=name, notes=(*trace.notes, note))


def _said(found: Analysis, warnings: Sequence[str] = (), notes: Sequence[str] = ()) -> Analysis:
    return dataclasses.replace(found, breakdown=_with(found.breakdown, warnings, notes))


def _with(found: Breakdown, warnings: Sequence[str], notes: Sequence[str]) -> Breakdown:
    from msgspec.structs import replace

    return replace(found, warnings=(*warnings, *found.warnings), notes=(*notes, *found.notes))
