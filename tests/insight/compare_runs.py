"""Runs to be compared, built by hand, and the parts of a comparison by name."""

from __future__ import annotations

import random
from typing import Any

from samples import count, header, peak, step

from mfu_torch.insight.compare import Change, Comparison, Difference
from mfu_torch.records import (
    CountEntry,
    Device,
    End,
    Entry,
    PeakEntry,
    Run,
    Telemetry,
    Window,
)

H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", index=0)
A100 = Device(name="NVIDIA A100-SXM4-80GB", kind="cuda", index=0)
EVERYTHING = ("MFU", "HFU", "end-to-end MFU", "throughput", "step time")


def times(seed: int, n: int = 60, mean_s: float = 1.0, spread: float = 0.01) -> list[float]:
    """Independent step times around a mean."""
    generator = random.Random(seed)
    return [mean_s * generator.lognormvariate(0, spread) for _ in range(n)]


def run(
    durations_s: list[float],
    *,
    counts: CountEntry | None = None,
    peaks: tuple[PeakEntry, ...] = (peak("bf16"), peak("fp32", 50e12)),
    end: str | None = "completed",
    first: int = 0,
    telemetry: Telemetry | None = None,
    of_step: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """One excluded step, then steady ones of these durations; the counts are those of samples."""
    steps = [step(first, 5.0, excluded="first step", **of_step or {})]
    steps += [step(first + 1 + i, s, **of_step or {}) for i, s in enumerate(durations_s)]
    wall_s = sum(each.duration_s for each in steps)
    entries: list[Entry] = [header(**changes), *peaks, counts or count()]
    entries += [Window(steps=tuple(steps), wall_s=wall_s, memory_bytes=60 * 10**9)]
    entries += [telemetry] if telemetry else []
    entries += [End(wall_s=wall_s + 1.0, reason=end)] if end else []
    return Run.from_entries(entries)


def aspects(found: Comparison) -> dict[str, Difference]:
    return {each.aspect: each for each in found.differences}


def change(found: Comparison, name: str) -> Change:
    (one,) = [each for each in found.changes if each.name == name]
    return one


def only(found: Comparison, aspect: str) -> Difference:
    """The one difference that there is."""
    assert list(aspects(found)) == [aspect]
    return found.differences[0]
