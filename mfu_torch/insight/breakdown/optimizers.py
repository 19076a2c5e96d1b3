"""Which ops the step of an optimizer runs: torch annotates it as ``Optimizer.step#Muon.step``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.events import Ints, Trace

_STEP = "Optimizer.step"
_ENGINE = "autograd::engine"


def of_optimizers(trace: Trace, ops: Ints) -> npt.NDArray[np.bool_]:
    """Of each op whether it begins inside the step of an optimizer, on the same thread.

    A closure runs forward and backward inside of it, before the optimizer's own work: what
    comes before the end of the last node of autograd is the closure's.

    Args:
        trace: It.
        ops: Indices into ``trace.ops``.
    """
    spans = trace.annotations
    mine = np.flatnonzero(_named(trace, _STEP)[spans.name])
    found = np.zeros(len(ops), np.bool_)
    if not len(mine) or not len(ops):
        return found
    node_end = np.sort(trace.ops.end_ns[_named(trace, _ENGINE)[trace.ops.name]])
    start, thread = trace.ops.start_ns[ops], trace.ops.thread[ops]
    for at in mine.tolist():
        low, high = int(spans.start_ns[at]), int(spans.end_ns[at])
        before = int(np.searchsorted(node_end, high, side="right")) - 1
        low = max(low, int(node_end[before])) if before >= 0 else low
        found |= (thread == spans.thread[at]) & (start >= low) & (start < high)
    return found


def _named(trace: Trace, begin: str) -> npt.NDArray[np.bool_]:
    return np.array([name.startswith(begin) for name in trace.names], np.bool_)
