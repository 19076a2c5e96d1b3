"""Every nanosecond of the steps with its one class, its cause if nothing runs, and its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mfu_torch.insight.breakdown.codes import (
    ATTENTION,
    BASE_BUCKETS,
    COMMUNICATION,
    CONV,
    COPY,
    FIRST_IDLE,
    GEMM,
    IDLE,
    OTHER,
    UNKNOWN,
)
from mfu_torch.insight.breakdown.edges import Edges
from mfu_torch.insight.breakdown.idle import causes, gaps_of, host_of
from mfu_torch.insight.breakdown.intervals import ascending, between, covering
from mfu_torch.insight.trace.events import Ints, Trace

__all__ = ["BASE_BUCKETS", "Labels", "label"]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Segment i is [bounds_ns[i], bounds_ns[i + 1]); in it nothing begins or ends that matters.

    Attributes:
        edges: The steps.
        bounds_ns: One more than there are segments, ascending, from the first edge to the last.
        time_class: What is on top: GEMM .. IDLE.
        cause: Of idle time: DATA_WAIT .. UNKNOWN; else -1.
        step: Index into ``edges.names``.
        work: What is on top, of several in one class the one that started first; of idle time the
            work that ends it. Index into ``trace.work`` (:attr:`of_ops`: into ``trace.ops``, the
            innermost op); -1: none.
        communicates: Whether communication runs, also beside compute.
        work_class: Class of each entry of ``trace.work`` (``trace.ops``).
        of_ops: There is no device work: the segments are those of the main thread.
    """

    edges: Edges
    bounds_ns: Ints
    time_class: Ints
    cause: Ints
    step: Ints
    work: Ints
    communicates: np.ndarray
    work_class: Ints
    of_ops: bool = False

    @cached_property
    def length_ns(self) -> Ints:
        """Of each segment; all together are the wall time of the steps."""
        return np.diff(self.bounds_ns)

    @cached_property
    def bucket(self) -> Ints:
        """Index into :data:`BASE_BUCKETS` of each segment."""
        busy = np.maximum(self.time_class - ATTENTION, 0)
        return np.where(self.time_class == IDLE, FIRST_IDLE + self.cause, busy)

    def per_step_ns(self, mask: np.ndarray) -> Ints:
        """Time of the segments under ``mask`` in each step."""
        return _sums(self.step[mask], self.length_ns[mask], len(self.edges.names))

    def per_work_ns(self, mask: np.ndarray) -> Ints:
        """Time of the segments under ``mask`` by their :attr:`work`."""
        mask = mask & (self.work >= 0)
        return _sums(self.work[mask], self.length_ns[mask], len(self.work_class))


def label(trace: Trace, edges: Edges, work_class: Ints) -> Labels:
    """Labels of a trace with device work.

    Work without a length fills no time and ends no gap.

    Args:
        trace: It.
        edges: Its steps.
        work_class: Class of each entry of ``trace.work``.
    """
    work, gaps, host = trace.work, gaps_of(trace.work), host_of(trace)
    low, high = edges.bounds_ns[0], edges.bounds_ns[-1]
    launches = gaps.launch_ns[(gaps.launch_ns > gaps.start_ns) & (gaps.launch_ns < gaps.end_ns)]
    held = np.concatenate([launches, host.moments_ns()])
    held = held[covering(work.start_ns, work.end_ns, held) < 0]
    moments = np.concatenate([work.start_ns, work.end_ns, held])
    bounds = ascending(edges.bounds_ns, between(moments, low, high))
    begins = bounds[:-1]
    top = np.full(len(begins), -1, np.int64)
    time_class = np.full(len(begins), IDLE, np.int64)
    communicates = np.zeros(len(begins), bool)
    for code in (COPY, COMMUNICATION, OTHER, ATTENTION, CONV, GEMM):  # the later on top
        mine = np.flatnonzero(work_class == code)
        running = covering(work.start_ns[mine], work.end_ns[mine], begins)
        on = running >= 0
        top[on], time_class[on] = mine[running[on]], code
        if code == COMMUNICATION:
            communicates = on
    cause = np.full(len(begins), -1, np.int64)
    idle = time_class == IDLE
    cause[idle], top[idle] = causes(begins[idle], gaps, host)
    if trace.kept is not None:  # what ran in a gap may be left out, and so may what the host did
        cause[idle] = UNKNOWN
    return Labels(
        edges=edges,
        bounds_ns=bounds,
        time_class=time_class,
        cause=cause,
        step=np.searchsorted(edges.bounds_ns, begins, side="right") - 1,
        work=top,
        communicates=communicates,
        work_class=work_class,
    )


def _sums(index: Ints, length_ns: Ints, count: int) -> Ints:
    # float64 holds whole numbers up to 2^53 ns, 104 days.
    return np.bincount(index, length_ns, count).astype(np.int64)
