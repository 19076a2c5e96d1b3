"""A trace in, its breakdown out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from mfu_torch.insight.breakdown.buckets import buckets_of
from mfu_torch.insight.breakdown.class_table import Classes, ClassTable
from mfu_torch.insight.breakdown.codes import ATTENTION, OTHER
from mfu_torch.insight.breakdown.hints import hints
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix import MatrixSplit, split
from mfu_torch.insight.breakdown.partition import labels_of
from mfu_torch.insight.breakdown.precision import precision
from mfu_torch.insight.breakdown.ranks import combine, rank_trace
from mfu_torch.insight.breakdown.remarks import launch_records, notes_on, thinned_hint, warnings_on
from mfu_torch.insight.trace.events import Trace
from mfu_torch.insight.trace.reading import no_collection, read_trace
from mfu_torch.records import Peak
from mfu_torch.records.breakdown import Breakdown, Coverage


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A breakdown with what it was made from, for those who ask further."""

    trace: Trace
    labels: Labels
    matrix: MatrixSplit
    breakdown: Breakdown


Source = str | PathLike[str] | Trace
"""Path of a trace, or a trace."""


def explain(
    traces: Source | Sequence[Source],
    *,
    peak: Peak | float | str | None = None,
    dtype: str | None = None,
    edges: str = "gpu",
    model_flops: float | None = None,
    classes: Classes | None = None,
    steps: str | None = None,
    recompute_flops: float | None = None,
) -> Breakdown:
    """Where the time of a profiler trace went: every nanosecond in exactly one bucket.

    Args:
        traces: Path of a trace of ``torch.profiler`` (``.json``, ``.json.gz``), or one that was
            read. Several are the ranks of one job, and summed
            (:func:`~mfu_torch.insight.breakdown.ranks.combine` says more of them).
        peak: Of the device, in FLOP/s; by default by its name.
        dtype: The one that the matrix work should run in; by default the one with most
            FLOPs.
        edges: ``gpu``: a step begins with the first work that it launched; ``cpu``: with its
            annotation; ``trace``: the whole trace is one step.
        model_flops: Of one step, where they are known better than the trace shows them.
        classes: Your own classes of kernels: path of a TOML file, or regular expression of names
            -> ``gemm``, ``conv``, ``attention``, ``other``, ``communication`` or ``copy``.
        steps: Which, e.g. ``"3:8"``; by default all.
        recompute_flops: Of one step, beside ``model_flops``: what a counter saw computed twice.

    Raises:
        TraceError: The file is no trace, or nothing runs in it.
        ClassTableError: The table of classes cannot be used.
        NotOneJob: Several traces are not of different ranks of one job.
        ValueError: ``edges`` or ``steps`` cannot be followed.
    """
    one = partial(
        analyse,
        peak=peak,
        dtype=dtype,
        edges=edges,
        model_flops=model_flops,
        classes=classes,
        steps=steps,
        recompute_flops=recompute_flops,
    )
    if isinstance(traces, (str, PathLike, Trace)):
        return one(traces).breakdown
    return combine([rank_trace(one(trace)) for trace in traces]).total


def analyse(
    trace: Source,
    *,
    peak: Peak | float | str | None = None,
    dtype: str | None = None,
    edges: str = "gpu",
    model_flops: float | None = None,
    classes: Classes | None = None,
    steps: str | None = None,
    recompute_flops: float | None = None,
) -> Analysis:
    """As :func:`explain`, with the labels of every nanosecond."""
    table = ClassTable(classes)
    with no_collection():
        trace = trace if isinstance(trace, Trace) else read_trace(Path(trace))
        labels = labels_of(trace, edges=edges, steps=steps, table=table)
        matrix = split(
            trace,
            labels,
            peak=peak,
            dtype=dtype,
            model_flops=model_flops,
            recompute_flops=recompute_flops,
        )
        return _analysed(trace, labels, matrix)


def _analysed(trace: Trace, labels: Labels, matrix: MatrixSplit) -> Analysis:
    breakdown = _breakdown(trace, labels, matrix)
    sentences = hints(trace, labels, breakdown, matrix)
    if trace.kept is not None:
        sentences["idle/unknown"] = thinned_hint(breakdown)
    hinted = (replace(one, hint=sentences.get(one.name, "")) for one in breakdown.buckets)
    breakdown = replace(breakdown, buckets=tuple(hinted))
    return Analysis(trace=trace, labels=labels, matrix=matrix, breakdown=breakdown)


def _breakdown(trace: Trace, labels: Labels, matrix: MatrixSplit) -> Breakdown:
    buckets = buckets_of(trace, labels, matrix)
    step_ns = np.diff(labels.edges.bounds_ns)
    sums = np.sum([one.per_step_ns for one in buckets], axis=0, dtype=np.int64)
    assert np.array_equal(sums, step_ns), f"the buckets sum to {sums}, the steps are {step_ns} ns"
    communicates = labels.communicates
    return Breakdown(
        file=trace.file,
        device=trace.device_name,
        rank=trace.rank,
        edges=labels.edges.mode,
        steps=labels.edges.names,
        step_ns=tuple(step_ns.tolist()),
        wall_ns=int(step_ns.sum()),
        buckets=buckets,
        peak=matrix.peak,
        model_flops=matrix.model_flops,
        hardware_flops=matrix.hardware_flops,
        communication_ns=int(labels.length_ns[communicates].sum()),
        overlapped_ns=int(labels.length_ns[communicates & (labels.time_class <= OTHER)].sum()),
        coverage=_coverage(trace, labels, matrix.known_ns),
        warnings=(*warnings_on(trace, labels), *matrix.warnings),
        notes=(*notes_on(trace, labels), *matrix.notes),
        precision=precision(trace, labels, matrix.counted),
    )


def _coverage(trace: Trace, labels: Labels, known_ns: int) -> Coverage:
    launches, work = launch_records(trace, labels)
    return Coverage(
        launches=launches,
        work=work,
        matrix_known_ns=known_ns,
        matrix_ns=int(labels.length_ns[labels.time_class <= ATTENTION].sum()),
    )
