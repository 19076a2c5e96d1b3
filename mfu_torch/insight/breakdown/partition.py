"""The labels of any trace, with or without a device."""

from __future__ import annotations

from mfu_torch.insight.breakdown.class_table import ClassTable
from mfu_torch.insight.breakdown.classes import op_classes, work_classes
from mfu_torch.insight.breakdown.edges import find_edges
from mfu_torch.insight.breakdown.host_labels import label_ops
from mfu_torch.insight.breakdown.labels import Labels, label
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.events import Trace


def labels_of(
    trace: Trace, *, edges: str = "gpu", steps: str | None = None, table: ClassTable | None = None
) -> Labels:
    """Find the steps, classify what runs, and label every nanosecond.

    Raises:
        TraceError: Nothing runs in it.
        ValueError: ``edges`` or ``steps`` cannot be followed.
    """
    if not len(trace.work) and not len(trace.ops):
        raise TraceError(
            f"{trace.file} has neither kernels nor operators; expected a trace of torch.profiler "
            "with activities=[CPU, CUDA]"
        )
    found = find_edges(trace, edges, steps)
    if found.bounds_ns[-1] <= found.bounds_ns[0]:
        raise TraceError(f"{trace.file}: its steps take no time; nothing runs in them")
    if len(trace.work):
        return label(trace, found, work_classes(trace, table))
    return label_ops(trace, found, op_classes(trace, table))
