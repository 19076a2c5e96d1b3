"""The rules of the breakdown once more, moment by moment, in loops over all events.

Written from the rules and not from the code that it checks: slow, and without arrays.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from hand_trace import ATTENTION, CONV, GEMM, MAIN, NCCL, OTHER, Hand, Span, Work

from mfu_torch.insight.trace.events import KERNEL

US = 1000
PRIORITY = (
    ({GEMM}, "gemm"),
    ({CONV}, "conv"),
    ({ATTENTION}, "attention"),
    ({OTHER}, "other_compute"),
    ({NCCL}, "exposed_communication"),
)


def class_of(work: Work) -> str:
    """Class of the names that random traces use; the rest are copies."""
    return next((name for names, name in PRIORITY if work.name in names), "exposed_memcpy")


def gpu_edges(hand: Hand) -> tuple[list[str], list[int]]:
    """Names of the steps that launched work, and where they begin; then the end of all.

    A step waits until the stream on which the steps launched most kernels is free of what runs
    there before the step.
    """
    steps = real_steps(hand)
    ends = [step.start for step in steps[1:]] + [steps[-1].end]
    of_step = [
        [work for work in hand.work if step.start <= work.launch < end]
        for step, end in zip(steps, ends, strict=True)
    ]
    ours = [work for works in of_step for work in works]
    if not ours:
        return [], []
    counted = [work.stream for work in ours if work.kind == KERNEL] or [
        work.stream for work in ours
    ]
    main = min(set(counted), key=lambda stream: (-counted.count(stream), stream))
    names, bounds = [], []
    for i, step in enumerate(steps):
        if of_step[i]:
            later = [work for works in of_step[i:] for work in works]
            here = min((work.start for work in later if work.stream == main), default=10**18)
            here_or_end = min(here, max(work.end for work in ours))
            before = [w.end for w in hand.work if w.stream == main and w.start < here]
            names.append(step.name)
            bounds.append(min(here_or_end, max([min(work.start for work in later), *before])))
    return names, [*bounds, max(work.end for work in ours)]


def cpu_edges(hand: Hand) -> tuple[list[str], list[int]]:
    """From annotation to annotation, to the end of the last."""
    steps = real_steps(hand)
    return [step.name for step in steps], [step.start for step in steps] + [steps[-1].end]


def real_steps(hand: Hand) -> list[Span]:
    """Without a last step that is shorter than a tenth of the median of the others."""
    steps = sorted(hand.steps, key=lambda step: step.start)
    lengths = [later.start - step.start for step, later in pairwise(steps)]
    last = steps[-1].end - steps[-1].start
    return steps[:-1] if lengths and last * 10 < median(lengths) else steps


def bucket_at(hand: Hand, t: int) -> str:
    """Where the moment ``t`` goes."""
    running = {class_of(work) for work in hand.work if work.start <= t < work.end}
    for name in [name for _, name in PRIORITY] + ["exposed_memcpy"]:
        if name in running:
            return "matrix" if name in ("gemm", "conv", "attention") else name
    return f"idle/{_cause(hand, t)}"


def ender_at(hand: Hand, t: int) -> Work | None:
    """The next work after an idle moment; of several at once the one launched first."""
    later = [work for work in hand.work if work.start > t and work.end > work.start]
    if not later:
        return None
    start = min(work.start for work in later)
    return min(
        (work for work in later if work.start == start),
        key=lambda work: (work.launch < 0, work.launch),
    )


def host_bucket_at(hand: Hand, t: int) -> str:
    """Where a moment of the main thread goes in a trace without a device."""
    if _any(hand.data_waits, t, {MAIN}):
        return "idle/data_wait"
    running = {op.name for op in hand.ops if op.thread == MAIN and op.start <= t < op.end}
    if not running:
        return "idle/unknown"
    return "matrix" if running & {"aten::mm", "aten::conv2d"} else "other_compute"


def _cause(hand: Hand, t: int) -> str:
    before = [work.end for work in hand.work if work.end <= t and work.end > work.start]
    gap = max(before) if before else None
    ender = ender_at(hand, t)
    if ender is not None and ender.launch < 0:
        return "unknown"
    if ender is not None:
        launched = ender.launch
        ready = launched if gap is None else max(gap, launched)
        if ender.start - ready > 10 * US:  # the host is at it until its call returns
            launched = min(ender.launch + ender.call, ender.start)
            ready = launched if gap is None else max(gap, launched)
        if t >= launched:
            return "device_gap" if ender.start - ready <= 10 * US else "queued_wait"
    if _any(hand.data_waits, t, _step_threads(hand)):
        return "data_wait"
    driving = _step_threads(hand) | {work.thread for work in hand.work if work.launch >= 0}
    if _any(hand.syncs, t, driving):
        return "host_sync"
    for sync in hand.syncs:
        if sync.thread in driving and gap is not None and sync.start <= gap <= sync.end + 20 * US:
            return "host_sync"
    return "alloc" if _any(hand.allocs, t, driving) else "launch_bound"


def _step_threads(hand: Hand) -> set[str]:
    stepping = {step.thread for step in hand.steps}
    return stepping or {work.thread for work in hand.work if work.launch >= 0}


def _any(spans: list[Span], t: int, threads: set[str]) -> bool:
    return any(one.start <= t < one.end and one.thread in threads for one in spans)
