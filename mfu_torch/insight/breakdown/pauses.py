"""What the host does in the long gaps of the device in which nothing is launched.

Of each pause, up to the launch that ends it: the part inside that launch and the op around it, the
part inside other ops, the annotation that covers it, and else nothing that a trace shows.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mfu_torch.insight.breakdown.evidence import Evidence, readable
from mfu_torch.insight.breakdown.host_labels import main_thread
from mfu_torch.insight.breakdown.intervals import covered_ns
from mfu_torch.insight.trace.events import Ints, Spans
from mfu_torch.insight.trace.recording import STACKS
from mfu_torch.units import percent

LONG_GAP_NS = 1_000_000
"""Launching takes microseconds: the host did something else in a longer gap."""

_LOOKED_AT = 50
"""Pauses whose ops are looked up, those with most time."""

_NAMES_LOOKED_AT = 20
"""Annotations, those with most time."""

_MOSTLY = 0.5
_FIRST_STEP = 0.9
_ALIKE = 0.9
_HOOKED = "AccumulateGrad"
_SEVERAL = 2  # pauses; fewer may be the first call of a kernel

_FIRST_CALL = (
    "(a first call loads kernels, chooses an algorithm or compiles): record after some warm-up "
    "steps (schedule(wait=1, warmup=2, active=3))"
)
_COMPILER = re.compile(r"CompiledFxGraph|Torch-Compiled|Dynamo|Inductor", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """The segments of the long gaps in a bucket, each with the work that ends it.

    Attributes:
        of: All that is known of the steps.
        segment: Which segments.
        count: How many gaps they are.
    """

    of: Evidence
    segment: Ints
    count: int

    @classmethod
    def in_bucket(cls, of: Evidence, bucket: str) -> Pauses:
        """Those of at least a millisecond whose launch is known."""
        gaps, enders = of.gaps(bucket)
        long_ones = enders[(gaps >= LONG_GAP_NS) & (enders >= 0)]
        mine = of.segments(bucket)
        found = mine[np.isin(of.labels.work[mine], long_ones)]
        return cls(of=of, segment=found, count=len(long_ones))

    @cached_property
    def begin_ns(self) -> Ints:
        """Of each segment."""
        return self.of.labels.bounds_ns[self.segment]

    @cached_property
    def end_ns(self) -> Ints:
        """Of each segment."""
        return self.of.labels.bounds_ns[self.segment + 1]

    @property
    def ender(self) -> Ints:
        """The work that ends each."""
        return self.of.labels.work[self.segment]

    @property
    def time_ns(self) -> int:
        """Of all together."""
        return int((self.end_ns - self.begin_ns).sum())

    def between(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Of each, the part in an interval of its own."""
        overlap = np.minimum(self.end_ns, end_ns) - np.maximum(self.begin_ns, start_ns)
        found: Ints = np.maximum(overlap, 0)
        return found

    def under(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Of each, the part that any interval covers; they are sorted by their begin."""
        until_end = covered_ns(start_ns, end_ns, self.end_ns)
        return until_end - covered_ns(start_ns, end_ns, self.begin_ns)

    @cached_property
    def held_ns(self) -> Ints:
        """Of each, the part in the op around the launch that ends it, and in that launch."""
        work, ops = self.of.trace.work, self.of.trace.ops
        launch = work.launch_ns[self.ender]
        until = launch if work.launch_end_ns is None else work.launch_end_ns[self.ender]
        outer = self.outer
        op_start = ops.start_ns[np.maximum(outer, 0)] if len(ops) else launch
        start = np.where(outer >= 0, np.minimum(op_start, launch), launch)
        return self.between(start, np.maximum(until, launch))

    @cached_property
    def outer(self) -> Ints:
        """The outermost op around the launch that ends each; -1: none."""
        inner = self.of.trace.work.op[self.ender]
        known = {op: self.of.outer_op(op) for op in np.unique(inner).tolist()}
        return np.array([known[op] for op in inner.tolist()], np.int64)

    @cached_property
    def computing_ns(self) -> Ints:
        """Of each, the part in ops of torch that launch nothing."""
        ops, names = self.of.trace.ops, self.of.trace.names
        is_op = np.array(["::" in name for name in names], bool)
        mine = np.flatnonzero(is_op[ops.name] & np.isin(ops.thread, self.threads))
        in_ops = self.under(ops.start_ns[mine], ops.end_ns[mine])
        found: Ints = np.maximum(in_ops - self.held_ns, 0)
        return found

    @cached_property
    def threads(self) -> list[int]:
        """Those that launch, and that of the steps."""
        found = np.unique(self.of.trace.work.launch_thread[self.ender]).tolist()
        return [*found, main_thread(self.of.trace)] if len(self.of.trace.ops) else found

    def work_name(self, at: int) -> str:
        """Of what ends one: the op that launched it; the kernel where no op did."""
        trace, op = self.of.trace, int(self.outer[at])
        if op < 0:
            return self.of.name(int(trace.work.name[self.ender[at]]))
        return readable(trace.names[int(trace.ops.name[op])])[:64]


def sentence(pauses: Pauses) -> str:
    """How many they are, what the host does in them, and what to try."""
    total, count = pauses.time_ns, pauses.count
    what = f"most of it in {pauses.of.each_of(count, 'pause', total)}"
    if pauses.held_ns.sum() > _MOSTLY * total:
        return f"{what}, in which the host is inside {_held(pauses)}"
    if annotated := _annotated(pauses):
        return f"{what}; {annotated}"
    if pauses.computing_ns.sum() > _MOSTLY * total:
        return (
            f"{what}, in which the host runs ops that launch nothing, most of it "
            f"{_computing(pauses)} (arithmetic on the CPU, or a CUDA graph that is recorded): do "
            "it on the device, or in the loader's workers"
        )
    longest = int(np.argmax(pauses.end_ns - pauses.begin_ns))
    it = "it" if count == 1 else "the longest"
    return (
        f"{what}: the host does other work between ops (a loader that has no mark in the trace, "
        f"logging, a hook, other Python); {it} ends with {pauses.work_name(longest)}; "
        f"{where(pauses.of)}"
    )


def where(of: Evidence) -> str:
    """How to learn what the Python code is. Stacks slow it, so they come last, and only once."""
    if STACKS in of.trace.recorded_with:
        return "the stacks in the trace show where, in a viewer such as ui.perfetto.dev"
    return (
        'record_function("...") around parts of the loop names them here (a second trace, '
        "with_stack=True, shows the Python code in a viewer, and is slower)"
    )


def _held(pauses: Pauses) -> str:
    """Which op, and whether that is a first call or comes in every step."""
    held, by_op = pauses.held_ns, Counter[str]()
    for at in np.argsort(-held, kind="stable")[:_LOOKED_AT].tolist():
        launches = "" if pauses.outer[at] >= 0 else "the launch of "
        by_op[f"{launches}{pauses.work_name(at)}"] += int(held[at])
    (name, most), *others = by_op.most_common(3)
    text = name if most > _FIRST_STEP * held.sum() else f"ops, most of it {name}"
    if others and most <= _MOSTLY * held.sum():
        text = f"ops, most of it {name} and {others[0][0]}"
    labels = pauses.of.labels
    steps = len(labels.edges.names)
    by_step = np.bincount(labels.step[pauses.segment], held, steps)
    if steps > 1 and by_step[0] > _FIRST_STEP * by_step.sum():
        return f"{text}, hardly ever after the first step {_FIRST_CALL}"
    if name == _HOOKED and pauses.count > _SEVERAL:
        return (
            f"{text}, which is to add up gradients only: hooks on them "
            "(register_post_accumulate_grad_hook), or DDP's reducer; make them faster, or call "
            "them less often"
        )
    if steps > 1 and np.count_nonzero(by_step) == steps:
        return (
            f"{text}, in every step: it compiles or chooses an algorithm anew (do shapes change?), "
            "or does work of its own on the CPU"
        )
    return f"{text} {_FIRST_CALL}; if it stays, shapes change, or the op works on the CPU"


def _computing(pauses: Pauses) -> str:
    """The op that runs most of that time, the outermost of those that enclose each other."""
    ops, names = pauses.of.trace.ops, pauses.of.trace.names
    mine = np.flatnonzero(np.isin(ops.thread, pauses.threads))
    mine = mine[["::" in names[name] for name in ops.name[mine].tolist()]]
    start, end = ops.start_ns[mine], ops.end_ns[mine]
    by_op = Counter[str]()
    for at in np.argsort(-pauses.computing_ns, kind="stable")[:_LOOKED_AT].tolist():
        low, high = int(pauses.begin_ns[at]), int(pauses.end_ns[at])
        overlap = np.minimum(end, high) - np.maximum(start, low)
        longest = int(np.argmax(overlap))  # the first of equal ones encloses the others
        name = readable(names[int(ops.name[mine[longest]])])
        by_op[name[:64]] += int(overlap[longest])
    return by_op.most_common(1)[0][0]


def _annotated(pauses: Pauses) -> str:
    """An annotation of the user that covers most of them, and is hardly more than they."""
    spans, total = pauses.of.trace.annotations, pauses.time_ns
    mine = np.flatnonzero(np.isin(spans.thread, pauses.threads))
    name, covered = most_annotated(spans, mine, pauses.begin_ns, pauses.end_ns, own=True)
    if covered < _MOSTLY * total:
        return ""
    text = f"for {percent(covered / total)} of them the host is in {pauses.of.name(name)}"
    if _COMPILER.search(pauses.of.trace.names[name]):
        return f"{text} {_FIRST_CALL}"
    return f"{text}: make that faster, do it less often, or in another thread"


def most_annotated(
    spans: Spans, mine: Ints, begin_ns: Ints, end_ns: Ints, *, own: bool = False
) -> tuple[int, int]:
    """The annotation that runs most of some intervals, and for how long; -1: none.

    Args:
        spans: All annotations.
        mine: Which of them.
        begin_ns: Begin of each interval.
        end_ns: End of each.
        own: Only names that spend at least half of their own time there: one around the whole
            loop says nothing. Of several that cover nearly the same, the shortest.
    """
    took = np.bincount(spans.name[mine], (spans.end_ns - spans.start_ns)[mine])
    found = Counter[int]()
    for name in np.argsort(-took, kind="stable")[:_NAMES_LOOKED_AT].tolist():
        these = mine[spans.name[mine] == name]
        start, end = spans.start_ns[these], spans.end_ns[these]
        covered = covered_ns(start, end, end_ns) - covered_ns(start, end, begin_ns)
        if not own or covered.sum() >= _MOSTLY * took[name]:
            found[name] = int(covered.sum())
    if not found:
        return -1, 0
    most = found.most_common(1)[0][1]
    alike = [name for name, covered_ in found.items() if own and covered_ >= _ALIKE * most]
    name = min(alike, key=lambda one: took[one], default=found.most_common(1)[0][0])
    return name, found[name]
