"""What the steps that were traced last say could be gained: which kernels, and why they wait."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.insight.advice_parts import Gain
from mfu_torch.records.breakdown import BUCKETS, BreakdownEntry, Bucket
from mfu_torch.records.losses import gain_ns, label, losses, printable, steps_text
from mfu_torch.units import percent

HOST = tuple(name for name in BUCKETS if name.startswith("idle/") and name != "idle/data_wait")
"""The device stands empty: a part of the step in which the host is slow shows as one of these."""

_SLOWED = ("idle/launch_bound", "idle/unknown")
"""Tracing makes the host slower, so these are longer than without; on a CPU its ops are, too."""


def gains_of_trace(entry: BreakdownEntry) -> Iterator[Gain]:
    """What could be gained in every part of the traced steps, by the rules of a breakdown.

    Args:
        entry: The last breakdown of a run.
    """
    found = entry.breakdown
    if found.wall_ns <= 0:
        return
    slowed = _SLOWED if found.device is not None else (*_SLOWED, "other_compute")
    left = _not_by_tracing(entry, slowed)
    precision = [found.precision] if found.precision else []
    for bucket in (*losses(found), *precision):
        share = gain_ns(found, bucket) / found.wall_ns * (left if bucket.name in slowed else 1.0)
        yield Gain(bucket.name, share, evidence(entry, bucket))


def _not_by_tracing(entry: BreakdownEntry, slowed: tuple[str, ...]) -> float:
    """Of the time of some buckets, the share that is not there because of the trace.

    Steps that took 1.25 times as long have a fifth of their time from it. If these buckets are half
    of the time, 1 - 0.2 / 0.5 = 0.6 of them is left.
    """
    if entry.dilation is None or entry.dilation <= 1:
        return 1.0
    found = entry.breakdown
    share = sum(each.time_ns for each in found.buckets if each.name in slowed) / found.wall_ns
    return max(0.0, 1 - (1 - 1 / entry.dilation) / share) if share > 0 else 1.0


def evidence(entry: BreakdownEntry, bucket: Bucket) -> str:
    """``idle: data wait in the traced steps 45-47: 21.4 % of the time the loop waits in ...``."""
    where = f"{label(bucket.name)} in the traced {steps_text(entry.steps)}"
    if bucket.hint:
        return f"{where}: {printable(bucket.hint)}"
    return f"{where} is {percent(bucket.time_ns / entry.breakdown.wall_ns)} of their time"
