"""Steps under names of their own: annotations that look like them, where none is marked."""

from __future__ import annotations

import re
import shlex

import numpy as np

from mfu_torch.insight.trace.events import Ints, Spans, Trace
from mfu_torch.units import percent

_NO_STEP = re.compile(
    r"^(enumerate\(|Optimizer\.|DistributedDataParallel\.|FSDP|Torch-Compiled|## Call Compiled"
    r"|(\w*ccl|gloo|mpi|ucc):|.{60})"
)
"""Annotations that torch makes itself, and which are no steps; and names too long to repeat."""

_FILLED = 0.5
"""Steps fill at least this share of the time of the host."""

_DIGITS = "0123456789"


def maybe_steps(trace: Trace) -> str:
    """A sentence on the annotations that may be steps; empty without any.

    They are of one name, or of one name and a number, lie side by side on one thread and fill most
    of the time: ``train_step_0``, ``train_step_1``, ... Of several, those that fill most.
    """
    spans = trace.annotations
    host_ns = _extent_ns(spans, trace.ops)
    best, most = np.empty(0, np.int64), _FILLED * host_ns
    for mine in _families(trace):
        start, end = spans.start_ns[mine], spans.end_ns[mine]
        filled = int((end - start).sum())
        if len(mine) > 1 and filled >= most and bool((start[1:] >= end[:-1]).all()):
            best, most = mine, filled
    if not len(best):
        return ""
    name, regex = _called([trace.names[i] for i in np.unique(spans.name[best]).tolist()])
    return (
        f"{len(best)} annotations {name} fill {percent(most / host_ns)} of the time: if they are "
        f"the steps, say so with --step-name {shlex.quote(regex)}"
    )


def _extent_ns(*tables: Spans) -> int:
    starts = [int(table.start_ns.min()) for table in tables if len(table)]
    ends = [int(table.end_ns.max()) for table in tables if len(table)]
    return max(ends, default=0) - min(starts, default=0)


def _families(trace: Trace) -> list[Ints]:
    """Annotations of one thread and one name but for the number at its end; in order of time."""
    spans = trace.annotations
    stems: dict[str, int] = {}
    stem = np.full(len(trace.names), -1, np.int64)
    for name in np.unique(spans.name).tolist():
        text = trace.names[name].rstrip(_DIGITS)
        if not _NO_STEP.match(text):
            stem[name] = stems.setdefault(text, len(stems))
    mine = np.flatnonzero(stem[spans.name] >= 0)
    key = stem[spans.name[mine]] * len(trace.threads) + spans.thread[mine]
    order = np.argsort(key, kind="stable")
    return np.split(mine[order], np.flatnonzero(np.diff(key[order])) + 1)


def _called(names: list[str]) -> tuple[str, str]:
    """How to speak of them, and the regular expression that finds them and no others."""
    stem, number = names[0], ""
    if len(names) > 1:
        stem, number = names[0].rstrip(_DIGITS), r"\d+"
    regex = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", stem)
    return f"{stem}{'N' if number else ''}", f"^{regex}{number}$"
