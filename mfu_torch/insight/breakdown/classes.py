"""Every kernel and copy gets one class.

In this order: the user's table; copies are copies; a collective by its op or its name; names that
are no matrix work under any op; the op of torch that launched it; the kernel's name; the name of a
custom op around it; else other compute.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mfu_torch.insight.breakdown.class_table import ClassTable
from mfu_torch.insight.breakdown.codes import (
    ATTENTION,
    COMMUNICATION,
    CONV,
    COPY,
    GEMM,
    IDLE,
    MATRIX,
    OTHER,
)
from mfu_torch.insight.breakdown.kernel_names import class_of_kernel
from mfu_torch.insight.breakdown.op_names import rule_of_op
from mfu_torch.insight.trace.climbing import topmost
from mfu_torch.insight.trace.events import KERNEL, Ints, Trace

__all__ = [
    "ATTENTION",
    "COMMUNICATION",
    "CONV",
    "COPY",
    "GEMM",
    "IDLE",
    "MATRIX",
    "OTHER",
    "op_classes",
    "work_classes",
]

_NONE = -1


def work_classes(trace: Trace, table: ClassTable | None = None) -> Ints:
    """Class of each kernel and copy of ``trace.work``: GEMM .. COPY."""
    work = trace.work
    users = _by_table(trace, work.name, table)
    named = _by_name(trace, work.name, class_of_kernel)
    exact, guess = _op_evidence(trace)
    # Entry -1, of work without an op, is the last one.
    exact, guess = np.append(exact, _NONE)[work.op], np.append(guess, _NONE)[work.op]
    settled = np.isin(named, (COMMUNICATION, COPY, OTHER))
    return _first_known(
        users,
        np.where(work.kind != KERNEL, COPY, _NONE),
        np.where(exact == COMMUNICATION, exact, _NONE),
        np.where(settled, named, _NONE),
        exact,
        named,
        guess,
    )


def op_classes(trace: Trace, table: ClassTable | None = None) -> Ints:
    """Class of each op of ``trace.ops``, for time on a CPU: all that runs in a matmul is matmul.

    Only if it is known to be one. An ``aten::mul`` in a function of the user that is called
    ``MyAttention`` is other compute.
    """
    exact, _ = _op_evidence(trace, through_torch=True)
    _, guess = _op_evidence(trace)
    return _first_known(_by_table(trace, trace.ops.name, table), exact, guess)


def _first_known(*evidence: Ints) -> Ints:
    found = np.full(len(evidence[0]), OTHER, np.int64)
    for column in reversed(evidence):
        found = np.where(column != _NONE, column, found)
    return found


def _by_name(trace: Trace, name: Ints, rule: Callable[[str], int | None]) -> Ints:
    """A rule of names for each entry; it is asked once for each name."""
    answers = np.full(len(trace.names), _NONE, np.int64)
    for one in _used(trace, name):
        answer = rule(trace.names[one])
        answers[one] = _NONE if answer is None else answer
    return answers[name]


def _by_table(trace: Trace, name: Ints, table: ClassTable | None) -> Ints:
    """The user's class for each entry."""
    answers = np.full(len(trace.names), _NONE, np.int64)
    if table:
        used = _used(trace, name)
        found = table.of([trace.names[one] for one in used])
        answers[used] = [_NONE if code is None else code for code in found]
    return answers[name]


def _used(trace: Trace, name: Ints) -> list[int]:
    return np.flatnonzero(np.bincount(name, minlength=len(trace.names))).tolist()


def _op_evidence(trace: Trace, *, through_torch: bool = False) -> tuple[Ints, Ints]:
    """Class of each op by what is known of it, and by a guess; each -1 where there is none.

    Args:
        trace: It.
        through_torch: Also ops of torch that say nothing pass the question on to their parent.
    """
    name, parent = trace.ops.name, trace.ops.parent
    known = np.full(len(trace.names), _NONE, np.int64)
    guessed, asks = known.copy(), np.zeros(len(trace.names), bool)
    for one in _used(trace, name):
        rule = rule_of_op(trace.names[one])
        if rule.code is None:
            asks[one] = rule.asks_parent or through_torch
        else:
            (known if rule.exact else guessed)[one] = rule.code
    by = topmost(asks[name], parent)
    return known[name[by]], guessed[name[by]]
