"""What took most of a bucket."""

from __future__ import annotations

import numpy as np

from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.trace.events import Ints, Trace
from mfu_torch.records.breakdown import Kernel

TOP = 5
_LONGEST = 96


def top_kernels(trace: Trace, labels: Labels, per_work_ns: Ints) -> tuple[Kernel, ...]:
    """The names with most time, and the op that launched most of each; at most :data:`TOP`.

    Args:
        trace: It.
        labels: Its labels.
        per_work_ns: Time in a bucket of each entry of ``trace.work`` (``trace.ops``).
    """
    column = trace.ops.name if labels.of_ops else trace.work.name
    found = np.flatnonzero(per_work_ns)
    name, time = column[found], per_work_ns[found]
    sums = np.bincount(name, time, len(trace.names)).astype(np.int64)
    order = np.argsort(-sums, kind="stable")[:TOP]
    kernels = []
    for one in order[sums[order] > 0].tolist():
        of_name = found[name == one]
        kernels.append(
            Kernel(
                name=short(trace.names[one]),
                op=_op(trace, labels, of_name),
                count=len(of_name),
                time_ns=int(sums[one]),
            )
        )
    return tuple(kernels)


def short(name: str) -> str:
    """A kernel's name as one line of readable length."""
    text = " ".join(name.replace("(anonymous namespace)::", "").removeprefix("void ").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _op(trace: Trace, labels: Labels, works: Ints) -> str | None:
    if labels.of_ops:
        return None
    ops = trace.work.op[works]
    ops = ops[ops >= 0]
    if not len(ops):
        return None
    return short(trace.names[int(np.bincount(trace.ops.name[ops]).argmax())])
