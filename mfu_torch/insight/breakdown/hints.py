"""One sentence per bucket: the evidence first, then what to try. No evidence, no sentence."""

from __future__ import annotations

from collections.abc import Callable

from mfu_torch.insight.breakdown import (
    hints_communication,
    hints_idle,
    hints_matrix,
    hints_work,
)
from mfu_torch.insight.breakdown.evidence import Evidence
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix import MatrixSplit, split
from mfu_torch.insight.trace.events import Trace
from mfu_torch.records.breakdown import Breakdown, Bucket

LEAST_SHARE = 0.01
"""Of the wall time; a smaller bucket is not worth a sentence."""

_HINTS: dict[str, Callable[[Evidence, Bucket], str]] = {
    "matrix": hints_matrix.whole,
    "matrix/recompute": hints_matrix.recompute,
    "matrix/optimizer": hints_matrix.optimizer,
    "matrix/beside_model": hints_matrix.beside_model,
    "matrix/low_rate_dtype": hints_matrix.low_rate_dtype,
    "matrix/unknown_flops": hints_matrix.unknown_flops,
    "matrix/below_peak": hints_matrix.below_peak,
    "other_compute": hints_work.other_compute,
    "exposed_communication": hints_communication.exposed_communication,
    "exposed_memcpy": hints_work.exposed_memcpy,
    "idle/data_wait": hints_idle.data_wait,
    "idle/host_sync": hints_idle.host_sync,
    "idle/alloc": hints_idle.alloc,
    "idle/launch_bound": hints_idle.launch_bound,
    "idle/device_gap": hints_idle.device_gap,
    "idle/queued_wait": hints_idle.queued_wait,
    "idle/unknown": hints_idle.unknown,
}


def hints(
    trace: Trace, labels: Labels, breakdown: Breakdown, matrix: MatrixSplit | None = None
) -> dict[str, str]:
    """Name of a bucket -> its sentence; only those of at least 1 % of the time with evidence.

    Args:
        trace: It.
        labels: Its labels.
        breakdown: Its breakdown.
        matrix: Its matrix time; divided once more where it is not given.
    """
    if not breakdown.wall_ns:
        return {}
    matrix = split(trace, labels, peak=breakdown.peak) if matrix is None else matrix
    evidence = Evidence(trace=trace, labels=labels, breakdown=breakdown, matrix=matrix)
    found = {
        bucket.name: _HINTS[bucket.name](evidence, bucket)
        for bucket in breakdown.buckets
        if bucket.name in _HINTS and bucket.time_ns >= LEAST_SHARE * breakdown.wall_ns
    }
    return {name: sentence for name, sentence in found.items() if sentence}
