"""The labels added up: buckets with their time in each step and what took most of it."""

from __future__ import annotations

import numpy as np

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS, MATRIX
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix import MatrixSplit
from mfu_torch.insight.breakdown.top import top_kernels
from mfu_torch.insight.trace.events import Trace
from mfu_torch.records.breakdown import BUCKETS, Bucket


def buckets_of(trace: Trace, labels: Labels, matrix: MatrixSplit) -> tuple[Bucket, ...]:
    """All that hold time, in the order of :data:`BUCKETS`; they sum to every step.

    Args:
        trace: It.
        labels: Its labels.
        matrix: What the matrix time is made of; without buckets it stays one.
    """
    found = [*_matrix(trace, labels, matrix)] if matrix.buckets else []
    bucket = labels.bucket
    for code, name in enumerate(BASE_BUCKETS):
        if name == "matrix" and matrix.buckets:
            continue
        mask = bucket == code
        per_step = labels.per_step_ns(mask)
        if per_step.any():
            found.append(
                Bucket(
                    name=name,
                    time_ns=int(per_step.sum()),
                    per_step_ns=tuple(per_step.tolist()),
                    top=top_kernels(trace, labels, labels.per_work_ns(mask)),
                )
            )
    return tuple(found)


def _matrix(trace: Trace, labels: Labels, matrix: MatrixSplit) -> list[Bucket]:
    time = labels.per_step_ns(np.isin(labels.time_class, MATRIX))
    parts = sum(np.array(part, np.int64) for part in matrix.buckets.values())
    assert np.array_equal(parts, time), f"matrix buckets {parts} are not the matrix time {time}"
    found = []
    for name in BUCKETS:
        per_step = matrix.buckets.get(name, ())
        if any(per_step):
            work_ns = matrix.top_work.get(name)
            top = () if work_ns is None else top_kernels(trace, labels, work_ns)
            found.append(
                Bucket(name=name, time_ns=sum(per_step), per_step_ns=tuple(per_step), top=top)
            )
    return found
