"""What joining the ranks of a job takes of each: its collectives, and when only they ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mfu_torch.insight.breakdown.codes import COMMUNICATION, IDLE
from mfu_torch.insight.breakdown.collectives import HOST, STREAM, Call, RankTrace
from mfu_torch.insight.breakdown.host_collectives import HostCollectives, host_collectives
from mfu_torch.insight.breakdown.intervals import covering
from mfu_torch.insight.breakdown.op_names import collective_name
from mfu_torch.insight.breakdown.roofline import roofline

if TYPE_CHECKING:
    from mfu_torch.insight.breakdown.explain import Analysis
    from mfu_torch.insight.trace.events import Ints, Trace

_NO_LABEL = "undefined"  # what torch calls a group that the program does not


def rank_trace(one: Analysis) -> RankTrace:
    """Keep of an analysis what :func:`~mfu_torch.insight.breakdown.ranks.combine` needs."""
    trace, labels = one.trace, one.labels
    calls, exposed = (_of_host if labels.of_ops else _of_device)(one)
    return RankTrace(
        rank=trace.rank,
        world_size=trace.world_size,
        breakdown=one.breakdown,
        roofline=roofline(trace, labels, one.matrix),
        calls=tuple(calls),
        **exposed,
    )


# --- on the device ---------------------------------------------------------------------------


def _of_device(one: Analysis) -> tuple[list[Call], dict[str, Ints]]:
    labels, work = one.labels, one.trace.work
    works = np.flatnonzero((labels.work_class == COMMUNICATION) & (work.end_ns > work.start_ns))
    exposed = labels.time_class == COMMUNICATION
    on_top, begin = labels.work[exposed], labels.bounds_ns[:-1][exposed]
    return _calls(one, works), {
        "exposed_call": np.searchsorted(works, on_top),
        "exposed_ns": labels.length_ns[exposed],
        "to_end_ns": work.end_ns[on_top] - begin,
        "idle_ns": labels.per_work_ns(labels.time_class == IDLE)[works],
    }


def _calls(one: Analysis, works: Ints) -> list[Call]:
    work = one.trace.work
    launched = _launched_in(one, work.launch_ns[works])
    began = _began_in(one, work.start_ns[works])
    is_launched = (one.trace.work.launch_ns[works] >= 0).tolist()
    rows = zip(works.tolist(), launched, began, is_launched, strict=True)
    return [
        _call(one.trace, work, launched_in=by_launch, began_in=by_start, is_launched=known)
        for work, by_launch, by_start, known in rows
    ]


def _launched_in(one: Analysis, when: Ints) -> list[str | None]:
    """By the annotations of the host: the same on all ranks, however far ahead a host runs."""
    trace, steps = one.trace, one.trace.steps
    if not len(steps):
        return [None] * len(when)
    at = np.searchsorted(steps.start_ns, when, "right") - 1
    inside = (at >= 0) & (when <= steps.end_ns[np.maximum(at, 0)])
    names, kept = [trace.names[i] for i in steps.name], set(one.labels.edges.names)
    return [
        names[i] if good and names[i] in kept else None
        for i, good in zip(at.tolist(), inside.tolist(), strict=True)
    ]


def _began_in(one: Analysis, when: Ints) -> list[str | None]:
    edges = one.labels.edges
    at = np.searchsorted(edges.bounds_ns, when, "right") - 1
    return [edges.names[i] if 0 <= i < len(edges.names) else None for i in at.tolist()]


def _call(trace: Trace, work: int, **steps: Any) -> Call:
    said = trace.collectives.get(work, {})
    name = str(said.get("collective") or "")
    kernel = trace.names[int(trace.work.name[work])]
    for text in (name, *_ops_around(trace, int(trace.work.op[work])), kernel):
        found = collective_name(text)
        if found is not None:
            name = found
            break
    group = str(said.get("group") or f"{STREAM}{int(trace.work.stream[work])}")
    called = said.get("group_text")
    return Call(
        group=group,
        label=group if called in (None, _NO_LABEL) else str(called),
        members=tuple(said.get("ranks") or trace.groups.get(group, ())),
        name=name or "communication",
        size_bytes=_whole(said.get("bytes")),
        number=_whole(said.get("seq")),
        pair=(said["src"], said["dst"]) if {"src", "dst"} <= said.keys() else None,
        begin_ns=int(trace.work.start_ns[work]),
        duration_ns=int(trace.work.end_ns[work] - trace.work.start_ns[work]),
        **steps,
    )


def _ops_around(trace: Trace, op: int) -> Iterator[str]:
    """Names of the op and of those around it: ``record_param_comms``, ``c10d::alltoall_base_``."""
    for _ in range(len(trace.ops)):  # a damaged trace may nest in a circle
        if op < 0:
            return
        yield trace.names[int(trace.ops.name[op])]
        op = int(trace.ops.parent[op])


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


# --- on the host -----------------------------------------------------------------------------


def _of_host(one: Analysis) -> tuple[list[Call], dict[str, Ints]]:
    """Time in the op that asks for a collective is the host's own, and of no call."""
    labels, sent = one.labels, host_collectives(one.trace)
    begin = labels.bounds_ns[:-1]
    on_top = covering(sent.start_ns, sent.end_ns, begin)
    exposed = (labels.time_class == COMMUNICATION) & (on_top >= 0)
    on_top, begin = on_top[exposed], begin[exposed]
    return _calls_of_host(one, sent), {
        "exposed_call": on_top,
        "exposed_ns": labels.length_ns[exposed],
        "to_end_ns": sent.end_ns[on_top] - begin,
        "idle_ns": np.zeros(len(sent), np.int64),
    }


def _calls_of_host(one: Analysis, sent: HostCollectives) -> list[Call]:
    trace = one.trace
    only = list(trace.groups.items()) if len(trace.groups) == 1 else [(HOST, ())]
    group, members = only[0]
    asked_ns = np.append(trace.ops.start_ns, -1)[sent.op]
    launched, began = _launched_in(one, asked_ns), _began_in(one, sent.start_ns)
    times = zip(sent.start_ns.tolist(), (sent.end_ns - sent.start_ns).tolist(), strict=True)
    rows = zip(sent.name.tolist(), sent.op.tolist(), times, launched, began, strict=True)
    return [
        Call(
            group=group,
            label=group,
            members=members,
            name=collective_name(trace.names[name]) or "communication",
            size_bytes=-1,
            number=-1,
            pair=None,
            begin_ns=begin,
            duration_ns=lasts,
            launched_in=by_op,
            began_in=by_start,
            is_launched=op >= 0,
            on_host=True,
        )
        for name, op, (begin, lasts), by_op, by_start in rows
    ]
