"""Matrix kernels of the steps, each with its op, and the FLOPs of every op once."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from mfu_torch.insight.breakdown.codes import ATTENTION, OTHER
from mfu_torch.insight.breakdown.formulas.work import Work
from mfu_torch.insight.breakdown.host_labels import main_thread
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.optimizers import of_optimizers
from mfu_torch.insight.breakdown.recompute import in_compiled_backward, is_recomputed
from mfu_torch.insight.breakdown.shapes import OpWork
from mfu_torch.insight.breakdown.unrun import did_not_run
from mfu_torch.insight.trace.events import Ints, Trace

CUT = "the first or last edge of the steps cuts the op"

TF32_UNKNOWN = (
    "fp32 operands may be multiplied as TF32, and a trace tells only where the kernel's name does: "
    "the other fp32 FLOPs are measured against the peak of fp32 itself"
)

# Tensor cores take fp32 operands as TF32 only: an s1688 or tensorop kernel over fp32 is one.
_TF32 = re.compile(r"tf32|xf32|s1688|s16816|tensorop", re.IGNORECASE)
_FP32 = re.compile(r"simt|sgemm|scudnn|ffma|f32f32_f32f32|gemv|dot_kernel|_SB_|volta_")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOp:
    """An op whose FLOPs count, once, however many kernels it launched.

    Attributes:
        op: Index into ``trace.ops``.
        step: In which its first kernel starts; -1: in none.
        work: Its FLOPs and bytes.
        dtype: In which it runs: TF32 where a kernel's name proves it.
        certain: False for fp32 of which nothing tells whether it runs as TF32.
        recompute: It repeats a forward.
        optimizer: The step of an optimizer runs it.
        time_ns: Of its kernels in the steps, only what no other matrix kernel hides.
    """

    op: int
    step: int
    work: Work
    dtype: str | None
    certain: bool
    recompute: bool
    optimizer: bool
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What is known of the matrix time.

    Attributes:
        ops: Whose FLOPs count, in the order of the trace.
        time_ns: Matrix time in which each entry of ``trace.work`` is on top (``trace.ops`` in a
            trace of a CPU alone).
        known: Whether the FLOPs of this entry are known; false for what is no matrix work.
        of_work: Index into :attr:`ops`; -1 without.
        why_unknown: Reason -> time of the kernels whose FLOPs are not known.
        compiled: Some of the ops lie in a backward that torch.compile made.
        left_out: Name -> FLOPs of ops none of whose kernels is classed as matrix work.
    """

    ops: tuple[CountedOp, ...]
    time_ns: Ints
    known: np.ndarray
    of_work: Ints
    why_unknown: dict[str, int]
    compiled: bool = False
    left_out: dict[str, int] = field(default_factory=dict)


def count(trace: Trace, labels: Labels) -> Counted:
    """FLOPs of the matrix kernels that run in the steps.

    An op that an edge of the traced time cuts does not count: its kernels' time in the steps is
    that of unknown FLOPs.

    Args:
        trace: It.
        labels: Its labels.
    """
    work = OpWork(trace)
    time_ns = labels.per_work_ns(labels.time_class <= ATTENTION)
    entries = _entries(trace, labels, time_ns)
    distinct, inverse = np.unique(entries.launched_by, return_inverse=True)
    counted = np.array([work.counted_op(op) for op in distinct.tolist()], np.int64)[inverse]
    cut = np.isin(counted, counted[entries.cut & (counted >= 0)])  # of an op all kernels or none
    counted[cut] = -1
    leaves = np.array(work.counted_ops(set(counted.tolist()) - {-1}), np.int64)
    if labels.of_ops:
        leaves = leaves[~did_not_run(trace, leaves)]
    of_work = np.full(len(time_ns), -1, np.int64)
    of_work[entries.matrix] = _position(leaves, counted)
    known = np.zeros(len(time_ns), bool)
    known[entries.matrix[counted >= 0]] = True
    ops = _ops(trace, labels, work, leaves, of_work, time_ns)
    why: dict[str, int] = defaultdict(int)
    rest = np.flatnonzero(~known[entries.matrix])
    parts = (time_ns[entries.matrix], entries.launched_by, cut)
    for ns, op, is_cut in zip(*(part[rest].tolist() for part in parts), strict=True):
        why[CUT if is_cut else work.why_not(op)] += ns
    return Counted(
        ops=ops,
        time_ns=time_ns,
        known=known,
        of_work=of_work,
        why_unknown=dict(why),
        compiled=in_compiled_backward(trace, work, (one.op for one in ops)),
        left_out=_left_out(trace, work, leaves, entries.others),
    )


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """Kernels in the steps (ops of the main thread, in a trace of a CPU alone).

    Attributes:
        matrix: Those that multiply: indices into ``trace.work`` (``trace.ops``).
        launched_by: The innermost op of each of them; -1 without.
        cut: Whether an edge cuts it, or its op has matrix kernels beyond the edges.
        others: Innermost ops of all other kernels.
    """

    matrix: Ints
    launched_by: Ints
    cut: np.ndarray
    others: Ints


def _entries(trace: Trace, labels: Labels, time_ns: Ints) -> _Entries:
    timed = trace.ops if labels.of_ops else trace.work
    low, high = labels.edges.bounds_ns[0], labels.edges.bounds_ns[-1]
    inside = (timed.start_ns < high) & (timed.end_ns > low)
    if labels.of_ops:  # the time is that of the main thread
        inside &= trace.ops.thread == main_thread(trace)
    op_of = np.arange(len(trace.ops)) if labels.of_ops else trace.work.op
    multiplies = labels.work_class <= ATTENTION
    matrix = np.flatnonzero((time_ns > 0) | (multiplies & inside))
    cut = (timed.start_ns[matrix] < low) | (timed.end_ns[matrix] > high)
    if not labels.of_ops:
        beyond = np.setdiff1d(trace.work.op[multiplies & ~inside], [-1])
        cut |= np.isin(trace.work.op[matrix], beyond)
    others = np.setdiff1d(op_of[inside & (labels.work_class == OTHER)], [-1])
    return _Entries(matrix=matrix, launched_by=op_of[matrix], cut=cut, others=others)


def _left_out(trace: Trace, work: OpWork, leaves: Ints, others: Ints) -> dict[str, int]:
    """Name -> FLOPs of ops that multiply, by their shapes, in kernels of another class alone."""
    mine = set(leaves.tolist())
    known = {op for op in others.tolist() if (of_op := work.of(op)) is not None and of_op.flops}
    found: dict[str, int] = defaultdict(int)
    for op in set(work.counted_ops(mine | known)) - mine:
        of_op = work.of(op)
        assert of_op is not None
        found[trace.names[trace.ops.name[op]]] += of_op.flops
    return dict(found)


def _position(leaves: Ints, ops: Ints) -> Ints:
    """Where each op stands in ``leaves``, which ascend; -1: it does not."""
    if not len(leaves):
        return np.full(len(ops), -1, np.int64)
    at = np.minimum(np.searchsorted(leaves, ops), len(leaves) - 1)
    return np.where(leaves[at] == ops, at, -1)


def _ops(
    trace: Trace, labels: Labels, work: OpWork, leaves: Ints, of_work: Ints, time_ns: Ints
) -> tuple[CountedOp, ...]:
    timed = trace.ops if labels.of_ops else trace.work
    entries = np.flatnonzero(of_work >= 0)
    index = of_work[entries]
    first_ns = np.full(len(leaves), np.iinfo(np.int64).max)
    np.minimum.at(first_ns, index, timed.start_ns[entries])
    steps = np.searchsorted(labels.edges.bounds_ns, first_ns, side="right") - 1
    sums_ns = np.bincount(index, time_ns[entries], len(leaves)).astype(np.int64)
    shown = [_any(index, name, len(leaves)) for name in _fp32_as_shown(trace, timed.name[entries])]
    found = []
    own = of_optimizers(trace, leaves).tolist()
    columns = (leaves.tolist(), own, steps.tolist(), sums_ns.tolist(), *shown)
    for op, is_own, step, sum_ns, as_tf32, as_fp32 in zip(*columns, strict=True):
        of_op = work.of(op)
        assert of_op is not None  # counted_op gives only ops whose work is known
        dtype, certain = of_op.dtype, True
        if dtype == "fp32":
            dtype, certain = ("tf32", True) if as_tf32 else ("fp32", as_fp32)
        found.append(
            CountedOp(
                op=op,
                step=step if step < len(labels.edges.names) else -1,
                work=of_op,
                dtype=dtype,
                certain=certain,
                recompute=not is_own and is_recomputed(trace, work, op),
                optimizer=is_own,
                time_ns=sum_ns,
            )
        )
    return tuple(found)


def _fp32_as_shown(trace: Trace, name: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Of each kernel whether its name shows that it multiplies fp32 as TF32, and as fp32 itself."""
    as_tf32, as_fp32 = np.zeros((2, len(trace.names)), bool)
    for one in np.flatnonzero(np.bincount(name)).tolist():
        as_ = _fp32_as(trace.names[one])
        as_tf32[one], as_fp32[one] = as_ == "tf32", as_ == "fp32"
    return as_tf32[name], as_fp32[name]


def _any(index: Ints, holds: np.ndarray, count: int) -> list[bool]:
    """Whether it holds for any entry of each index."""
    found: list[bool] = (np.bincount(index[holds], minlength=count) > 0).tolist()
    return found


@lru_cache(maxsize=4096)
def _fp32_as(kernel: str) -> str:
    """What a kernel over fp32 multiplies in, by its name; empty where that does not tell."""
    if _TF32.search(kernel):
        return "tf32"
    return "fp32" if _FP32.search(kernel) else ""
