"""What a hint may look at: a breakdown, and the labels and the trace that it was made from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix import MatrixSplit
from mfu_torch.insight.breakdown.printed import printed_shares
from mfu_torch.insight.breakdown.top import short
from mfu_torch.insight.trace.events import DeviceWork, Ints, Ops, Spans, Trace
from mfu_torch.records.breakdown import Breakdown, Bucket
from mfu_torch.units import percent, seconds

_LONGEST_NAME = 64
_TRAINS = re.compile(r"^(autograd::engine|Optimizer\.)|Backward\d*$")
_NODE = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of the steps, and how to say it.

    Attributes:
        trace: It.
        labels: Its labels.
        breakdown: Its breakdown.
        matrix: Its matrix time.
    """

    trace: Trace
    labels: Labels
    breakdown: Breakdown
    matrix: MatrixSplit

    def share(self, time_ns: float) -> str:
        """Of the wall time: ``"51.1 %"``."""
        return percent(time_ns / self.breakdown.wall_ns)

    def share_of(self, bucket: Bucket) -> str:
        """Of the wall time, as a table with one decimal has it, whose parts add up."""
        return f"{self._printed[bucket.name]} %"

    @cached_property
    def _printed(self) -> dict[str, str]:
        return printed_shares(self.breakdown, 1)

    @property
    def spans(self) -> DeviceWork | Ops:
        """What the labels are of: the work of the device, or the ops where there is none."""
        return self.trace.ops if self.labels.of_ops else self.trace.work

    def segments(self, bucket: str) -> Ints:
        """Which segments a bucket is made of."""
        return np.flatnonzero(self.labels.bucket == BASE_BUCKETS.index(bucket))

    def gaps(self, bucket: str) -> tuple[Ints, Ints]:
        """Of an idle bucket: time of each gap in it, and the work that ends the gap (-1: none)."""
        mine = self.segments(bucket)
        length, ender = self.labels.length_ns[mine], self.labels.work[mine]
        distinct, inverse = np.unique(ender, return_inverse=True)
        return np.bincount(inverse, length, len(distinct)).astype(np.int64), distinct

    def entries(self, bucket: str) -> tuple[Ints, Ints]:
        """Of a busy bucket: each entry of ``trace.work`` that is on top in it, and for how long."""
        mask = self.labels.bucket == BASE_BUCKETS.index(bucket)
        time_ns = self.labels.per_work_ns(mask)
        found = np.flatnonzero(time_ns)
        return found, time_ns[found]

    def name(self, index: int) -> str:
        """A name of the trace, as short as a sentence needs it."""
        text = short(readable(self.trace.names[index]))
        return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."

    def outer_op(self, op: int) -> int:
        """The outermost op of torch around one: what the user's code called, or autograd's node."""
        ops, found = self.trace.ops, op
        for _ in range(len(ops)):  # a damaged trace may nest in a circle
            if op < 0:
                break
            if "::" in self.trace.names[ops.name[op]]:
                found = op
            op = int(ops.parent[op])
        return found

    def op_at(self, thread: int, time_ns: int) -> int:
        """The innermost op that runs on a thread at a moment; -1: none."""
        ops = self.trace.ops
        mine = (ops.thread == thread) & (ops.start_ns <= time_ns) & (ops.end_ns >= time_ns)
        found = np.flatnonzero(mine)
        return int(found[np.argmax(ops.start_ns[found])]) if len(found) else -1

    def by_span(self, spans: Spans, bucket: str) -> list[tuple[int, int]]:
        """(span, time): each segment of a bucket to the span that began last before its end."""
        mine = self.segments(bucket)
        if not len(spans) or not len(mine):
            return []
        begun = np.searchsorted(spans.start_ns, self.labels.bounds_ns[mine + 1], side="left") - 1
        length = self.labels.length_ns[mine]
        sums = np.bincount(begun[begun >= 0], length[begun >= 0], len(spans)).astype(np.int64)
        order = np.argsort(-sums, kind="stable")
        return [(int(i), int(sums[i])) for i in order[: np.count_nonzero(sums)]]

    def each(self, count: int, noun: str) -> str:
        """``"1,258 kernels a step"``; ``"2 kernels in 3 steps"`` where it is not once in each."""
        steps = 1 if self.labels.edges.mode == "trace" else len(self.labels.edges.names)
        if steps < 2:
            return times(count, noun)
        if count < steps:
            return f"{times(count, noun)} in {steps} steps"
        return f"{times(round(count / steps), noun)} a step"

    def each_of(self, count: int, noun: str, total_ns: float) -> str:
        """``"1,258 kernels a step, 43.8 us on average"``; ``"4 waits of 123 ms on average"``."""
        text = self.each(count, noun)
        between = " of" if text == times(count, noun) else ","
        return f"{text}{between} {mean_us(total_ns, count)} on average"

    def most(self, bucket: Bucket) -> str:
        """Name of the kernel with most time in a bucket; empty where none is listed."""
        return bucket.top[0].name if bucket.top else ""


def trains(trace: Trace) -> bool:
    """Whether there is a backward or an optimizer in it."""
    return any(_TRAINS.search(name) for name in trace.names)


def readable(name: str) -> str:
    """A node of autograd without what every one begins with: ``"AccumulateGrad"``."""
    return _NODE.sub("", name) or name


def mean_us(time_ns: float, count: int) -> str:
    """``"7.2 us"``, ``"1.90 ms"``."""
    return seconds(time_ns / max(count, 1) / 1e9)


def listed(parts: Iterable[str]) -> str:
    """``"a, b and c"``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def times(count: int, noun: str) -> str:
    """``"1 kernel"``, ``"1,200 kernels"``, ``"3 copies"``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
