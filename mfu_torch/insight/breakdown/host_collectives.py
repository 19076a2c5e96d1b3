"""Collectives that the host runs itself (gloo, MPI): marked on threads of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mfu_torch.insight.breakdown.codes import COMMUNICATION
from mfu_torch.insight.breakdown.op_names import collective_name, rule_of_op
from mfu_torch.insight.trace.events import Ints, Trace
from mfu_torch.insight.trace.names import HOST_COLLECTIVE

_NOT_BEGUN = 4  # at the end of a recording


@dataclass(frozen=True, kw_only=True)
class HostCollectives:
    """One entry each, sorted by start; they may run side by side.

    Attributes:
        start_ns: Begin.
        end_ns: End, when the last of its group has come and all is sent.
        name: Index into ``trace.names``: ``"gloo:all_reduce"``.
        op: The op that asked for it, index into ``trace.ops``; -1 where none is found.
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    op: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def host_collectives(trace: Trace) -> HostCollectives:
    """Those of a trace, each with the op of torch that asked for it."""
    spans = trace.annotations
    marked = np.array([bool(HOST_COLLECTIVE.fullmatch(name)) for name in trace.names], bool)
    mine = np.flatnonzero(marked[spans.name]) if len(spans) else np.zeros(0, np.int64)
    start, name = spans.start_ns[mine], spans.name[mine]
    return HostCollectives(
        start_ns=start, end_ns=spans.end_ns[mine], name=name, op=_asked_by(trace, start, name)
    )


def _asked_by(trace: Trace, start_ns: Ints, name: Ints) -> Ints:
    """Of each the op; -1 where none is recorded before it."""
    found = np.full(len(start_ns), -1, np.int64)
    if not len(found):
        return found
    is_op = np.array([_asks(text) for text in trace.names], bool)[trace.ops.name]
    asking = np.flatnonzero(is_op)
    outer = asking[~_has_one_around(trace, asking, is_op)]
    begins = trace.ops.start_ns[outer]
    # Usually the last op before; gloo makes a reduce_scatter of several all_reduces, for one.
    found[:] = np.append(outer, -1)[np.searchsorted(begins, start_ns, "right") - 1]
    kinds = np.array([collective_name(text) or "" for text in trace.names], object)
    of_op, of_mark = kinds[trace.ops.name[outer]], kinds[name]
    for kind in set(of_mark.tolist()):
        marks = np.flatnonzero(of_mark == kind)
        in_order = _in_order(outer[of_op == kind], begins[of_op == kind], start_ns[marks])
        if in_order is not None:
            found[marks] = in_order
    return found


def _in_order(ops: Ints, asked_ns: Ints, begin_ns: Ints) -> Ints | None:
    """The ops of one kind one after another, as the threads take them; ``None``: there are others.

    What began before the first op was asked for before the recording; what is asked for last may
    not have begun.
    """
    before = int(np.searchsorted(begin_ns, asked_ns[0])) if len(ops) else len(begin_ns)
    count = len(begin_ns) - before
    if not 0 <= len(ops) - count <= _NOT_BEGUN:
        return None
    if np.any(asked_ns[:count] > begin_ns[before:]):
        return None
    return np.append(np.full(before, -1, np.int64), ops[:count])


def _asks(name: str) -> bool:
    return rule_of_op(name).code == COMMUNICATION and not HOST_COLLECTIVE.fullmatch(name)


def _has_one_around(trace: Trace, ops: Ints, is_one: np.ndarray) -> np.ndarray:
    parent = trace.ops.parent[ops]
    found: np.ndarray = (parent >= 0) & is_one[parent]
    return found
