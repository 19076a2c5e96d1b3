"""What has to be said beside a breakdown: what may mislead, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS
from mfu_torch.insight.breakdown.host_labels import IDLE_MEANS, MAIN_THREAD
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.printed import short_share
from mfu_torch.insight.trace.events import Trace
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.units import percent

_MUCH = 0.05
"""Share of the time from which what is not explained is a warning."""

_FEW_LAUNCHES = 0.9
_SLOW = 2.0
"""Times the median step; a step that takes longer did something else, too."""

RECORD = "torch.profiler.profile(record_shapes=True), with warm-up steps"

DILATION = (
    "a profiled step is slower than others; by how much is not in the trace: compare with the "
    "step time without the profiler"
)


def warnings_on(trace: Trace, labels: Labels) -> tuple[str, ...]:
    """What may make the breakdown wrong or hard to read."""
    found = (_launches(trace, labels), _unexplained(labels), _uneven(labels))
    return (
        *_thinned(trace),
        *_slowed(trace),
        *trace.warnings,
        *labels.edges.warnings,
        *(text for texts in found for text in texts),
    )


def notes_on(trace: Trace, labels: Labels) -> tuple[str, ...]:
    """What else has to be said."""
    on_cpu = ((MAIN_THREAD if trace.warnings else IDLE_MEANS),) if labels.of_ops else ()
    return (*labels.edges.notes, *on_cpu, *trace.notes, DILATION)


def launch_records(trace: Trace, labels: Labels) -> tuple[int, int]:
    """How many kernels and copies inside the steps have a record of their launch; and all."""
    work = trace.work
    low, high = labels.edges.bounds_ns[0], labels.edges.bounds_ns[-1]
    inside = (work.start_ns < high) & (work.end_ns > low)
    return int((inside & (work.launch_ns >= 0)).sum()), int(inside.sum())


def _thinned(trace: Trace) -> Iterator[str]:
    if trace.kept is not None:
        yield (
            f"only {percent(trace.kept)} of the ops, by their numbers, are in the file: it was "
            "thinned out. Idle time is where something was left out, too, so its causes are not "
            "told; FLOPs, MFU and shares are those of what is left"
        )


def _slowed(trace: Trace) -> Iterator[str]:
    """Both options cost time on the host for each call or allocation; the device loses none."""
    if not trace.recorded_with:
        return
    options = " and ".join(f"{one}=True" for one in trace.recorded_with)
    yield (
        f"recorded with {options}, which slows the host, Python up to several times, by how much "
        "is not in the trace: shares of host time (launch-bound, data wait, a CPU's idle time) are "
        f"exaggerated; for shares record without: {RECORD}"
    )


def _launches(trace: Trace, labels: Labels) -> Iterator[str]:
    known, total = launch_records(trace, labels)
    if known < _FEW_LAUNCHES * total:
        yield (
            f"only {known} of {total} kernels and copies have a launch record (the others were "
            "launched before the recording began, or CPU activity was not recorded): idle time "
            "before them is idle/unknown, and their class is by name alone"
        )


def _unexplained(labels: Labels) -> Iterator[str]:
    share = _share(labels, "idle/queued_wait")
    if share > _MUCH:
        yield (
            f"why work is queued and not begun for {percent(share)} of the time is not in the trace"
        )


def _uneven(labels: Labels) -> Iterator[str]:
    step_ns = np.diff(labels.edges.bounds_ns)
    slow = np.flatnonzero(step_ns > _SLOW * np.median(step_ns))
    if len(step_ns) > 2 and len(slow):
        named = ", ".join(f"{labels.edges.names[i]} ({step_ns[i] / 1e6:.1f} ms)" for i in slow[:3])
        yield (
            f"{named} took more than {_SLOW:.0f} times the median step of "
            f"{np.median(step_ns) / 1e6:.1f} ms (compilation, an evaluation, a checkpoint?); "
            'steps="A:B" leaves steps out'
        )


def _share(labels: Labels, bucket: str) -> float:
    mask = labels.bucket == BASE_BUCKETS.index(bucket)
    return float(np.sum(labels.length_ns[mask]) / labels.length_ns.sum())


def thinned_hint(found: Breakdown) -> str:
    """On idle time, whose causes are not told."""
    return (
        f"{short_share(found, 'idle/unknown')} of the time nothing runs that is in the file, which "
        "was thinned out: what ran meanwhile, or what the host did, may be left out. Record fewer "
        "steps, and keep all of them"
    )
