"""Labels of a trace without a device: what the main thread of the host did."""

from __future__ import annotations

import numpy as np

from mfu_torch.insight.breakdown.codes import COMMUNICATION, DATA_WAIT, IDLE, UNKNOWN
from mfu_torch.insight.breakdown.edges import Edges
from mfu_torch.insight.breakdown.host_collectives import host_collectives
from mfu_torch.insight.breakdown.intervals import ascending, between, covered, covering
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.trace.climbing import first_open
from mfu_torch.insight.trace.events import Ints, Trace

MAIN_THREAD = (
    "the time is that of the main thread, by its operators; idle/unknown is time without one "
    "(Python, or waiting for other threads)"
)
COLLECTIVES_MEAN = (
    "collectives that the host runs (gloo) have threads of their own: while one of them runs and "
    "the main thread runs no operator, the time is exposed communication"
)
IDLE_MEANS = f"there is no device in this trace: {MAIN_THREAD}"


def label_ops(trace: Trace, edges: Edges, op_class: Ints) -> Labels:
    """Labels by the innermost op of the main thread.

    While the loop waits for its loader it is data wait, also where the loader runs ops itself.
    While the main thread runs no op, and another one a collective, it is communication: its work
    is the op that asked for it.

    Args:
        trace: It.
        edges: Its steps.
        op_class: Class of each entry of ``trace.ops``.
    """
    main = main_thread(trace)
    mine = np.flatnonzero(trace.ops.thread == main)
    waits = trace.data_waits.thread == main
    wait_start, wait_end = trace.data_waits.start_ns[waits], trace.data_waits.end_ns[waits]
    sent = host_collectives(trace)
    moments = np.concatenate(
        [
            *(trace.ops.start_ns[mine], trace.ops.end_ns[mine], wait_start, wait_end),
            *(sent.start_ns, sent.end_ns),
        ]
    )
    inside = between(moments, edges.bounds_ns[0], edges.bounds_ns[-1])
    bounds = ascending(edges.bounds_ns, inside)
    begins = bounds[:-1]
    op = _innermost(trace, mine, begins)
    waiting = covered(wait_start, wait_end, begins)
    call = covering(sent.start_ns, sent.end_ns, begins)
    sending = (call >= 0) & (op < 0) & ~waiting
    op = np.where(sending, np.append(sent.op, -1)[call], op)
    idle = waiting | ((op < 0) & ~sending)
    time_class = np.where(idle, IDLE, np.append(op_class, IDLE)[op])
    time_class[sending] = COMMUNICATION
    return Labels(
        edges=edges,
        bounds_ns=bounds,
        time_class=time_class,
        cause=np.select([waiting, idle], [DATA_WAIT, UNKNOWN], -1),
        step=np.searchsorted(edges.bounds_ns, begins, side="right") - 1,
        work=np.where(idle, -1, op),
        communicates=(time_class == COMMUNICATION) | (call >= 0),
        work_class=op_class,
        of_ops=True,
    )


def main_thread(trace: Trace) -> int:
    """The thread of the steps; without steps, the one with most time in ops."""
    if len(trace.steps):
        return int(np.bincount(trace.steps.thread).argmax())
    outer = trace.ops.parent < 0
    took = (trace.ops.end_ns - trace.ops.start_ns)[outer]
    return int(np.bincount(trace.ops.thread[outer], took).argmax())


def _innermost(trace: Trace, mine: Ints, at_ns: Ints) -> Ints:
    """The innermost op of one thread at each moment; -1: none. Ops of a thread are nested."""
    last_begun = np.searchsorted(trace.ops.start_ns[mine], at_ns, side="right") - 1
    op = np.append(mine, -1)[last_begun]
    return first_open(op, at_ns + 1, trace.ops.end_ns, trace.ops.parent)
