"""Why the device stands empty: what held up the work that ends each gap.

The gap before work k, launched at L:

    gap begins ------------------ L ------------------ k starts
      data wait > host sync           device gap (<= 10 us)
        > alloc > launch-bound         or queued wait

L is the begin of the call that launched k; where k starts much later, the end of that call: until
then the host is still at it (it loads the kernel's module, or stages a copy).

Without a launch record of k it is unknown. After the last work nothing is launched any more: L is
never. Only the host threads that drive the device count: a loader's worker that pins memory, or a
watchdog that waits for an event, holds nothing up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mfu_torch.insight.breakdown.codes import (
    ALLOC,
    DATA_WAIT,
    DEVICE_GAP,
    HOST_SYNC,
    LAUNCH_BOUND,
    QUEUED_WAIT,
    UNKNOWN,
)
from mfu_torch.insight.breakdown.intervals import covered
from mfu_torch.insight.trace.events import DeviceWork, Ints, Spans, Trace

__all__ = [
    "ALLOC",
    "DATA_WAIT",
    "DEVICE_GAP",
    "DEVICE_GAP_NS",
    "DRAINED_NS",
    "HOST_SYNC",
    "LAUNCH_BOUND",
    "QUEUED_WAIT",
    "UNKNOWN",
    "Gaps",
    "Host",
    "causes",
    "gaps_of",
    "host_of",
]

DEVICE_GAP_NS = 10_000
"""From its launch to its start, work takes up to that long; more is no matter of the launch."""

DRAINED_NS = 20_000
"""A sync that returns at most that long before a gap drained the queue: the clocks of host and
device agree no better."""

_EVER = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Times without work on the device; the first begins and the last ends never.

    Attributes:
        start_ns: When the last work before it ended, ascending.
        end_ns: When the next work starts.
        ender: That work; of several that start at once, the one launched first. -1: none follows.
        launch_ns: When it was launched, L; -1 without a record.
    """

    start_ns: Ints
    end_ns: Ints
    ender: Ints
    launch_ns: Ints


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the threads that drive the device were doing."""

    data_waits: Spans
    syncs: Spans
    allocs: Spans

    def moments_ns(self) -> Ints:
        """All begins and ends."""
        spans = (self.data_waits, self.syncs, self.allocs)
        return np.concatenate([side for one in spans for side in (one.start_ns, one.end_ns)])


def gaps_of(work: DeviceWork) -> Gaps:
    """All gaps between work that has a length."""
    lasting = np.flatnonzero(work.end_ns > work.start_ns)
    launch = np.where(work.launch_ns < 0, _EVER, work.launch_ns)[lasting]
    order = lasting[np.lexsort((launch, work.start_ns[lasting]))]
    starts = np.append(work.start_ns[order], _EVER)
    reach = np.maximum.accumulate(np.append(-_EVER, work.end_ns[order]))
    at = np.flatnonzero(starts > reach)
    ender, start, end = np.append(order, -1)[at], reach[at], starts[at]
    launched = work.launch_ns[ender]
    if work.launch_end_ns is not None:
        late = (launched >= 0) & (end - np.maximum(launched, start) > DEVICE_GAP_NS)
        launched = np.where(late, work.launch_end_ns[ender], launched)
    return Gaps(
        start_ns=start,
        end_ns=end,
        ender=ender,
        launch_ns=np.where(ender < 0, _EVER, launched),
    )


def host_of(trace: Trace) -> Host:
    """The host's side of the gaps.

    Data waits count on the threads of the steps (without steps: of the launches), calls of the
    runtime on those of the launches, too.
    """
    launching = np.unique(trace.work.launch_thread[trace.work.launch_ns >= 0])
    stepping = np.unique(trace.steps.thread)
    driving = np.union1d(launching, stepping)
    return Host(
        data_waits=_on(trace.data_waits, stepping if len(stepping) else driving),
        syncs=_on(trace.syncs, driving),
        allocs=_on(trace.allocs, driving),
    )


def causes(at_ns: Ints, gaps: Gaps, host: Host) -> tuple[Ints, Ints]:
    """Cause of each idle moment, and the work that ends its gap.

    Args:
        at_ns: Begins of segments in which nothing runs, no launch that ends a gap happens and the
            host does one thing.
        gaps: Of the device.
        host: What it did.
    """
    gap = np.searchsorted(gaps.start_ns, at_ns, side="right") - 1
    launch = gaps.launch_ns[gap]
    waited = gaps.end_ns - np.maximum(gaps.launch_ns, gaps.start_ns)
    after_launch = np.where(waited <= DEVICE_GAP_NS, DEVICE_GAP, QUEUED_WAIT)[gap]
    # In order: the first that holds.
    cause = np.select(
        [
            launch < 0,
            at_ns >= launch,
            _during(host.data_waits, at_ns),
            _during(host.syncs, at_ns) | _drained(gaps, host.syncs)[gap],
            _during(host.allocs, at_ns),
        ],
        [UNKNOWN, after_launch, DATA_WAIT, HOST_SYNC, ALLOC],
        LAUNCH_BOUND,
    )
    return cause, gaps.ender[gap]


def _during(spans: Spans, at_ns: Ints) -> np.ndarray:
    return covered(spans.start_ns, spans.end_ns, at_ns)


def _drained(gaps: Gaps, syncs: Spans) -> np.ndarray:
    """Whether a sync that began before the gap returned in it, or just before it."""
    # The sync lasts until its end and the tolerance; that covers the begin of the gap.
    return covered(syncs.start_ns, syncs.end_ns + DRAINED_NS + 1, gaps.start_ns)


def _on(spans: Spans, threads: Ints) -> Spans:
    mine = np.isin(spans.thread, threads)
    return Spans(
        start_ns=spans.start_ns[mine],
        end_ns=spans.end_ns[mine],
        name=spans.name[mine],
        thread=spans.thread[mine],
    )
