"""The numbers read off a set of steps: what the console, TensorBoard and the report show.

The same functions serve a window of ten steps and a whole run, so the three can never disagree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import field

from mfu_torch.records import (
    Attention,
    Counts,
    FlopCount,
    PeakEntry,
    Peaks,
    Record,
    Run,
    Step,
)
from mfu_torch.utilization import ideal_time_s, rate_per_s, utilization

ABOVE_PEAK = (
    "above 100 % of the peak; likely causes: the peak of another dtype, a sparse peak, a clock "
    "above the rated boost or above that of the measurement, a factor 1000 in the inputs"
)
"""What is said of an MFU or HFU above 1. It is printed as measured, never clamped."""


NOT_GIVEN = "Meter.step was not given"
"""Begins the reason for an absent throughput."""


class IdealTimes(Record, frozen=True, kw_only=True):
    """Seconds at peak that a count needs, by FLOP kind and attention convention."""

    model: float
    model_causal: float
    hardware: float
    hardware_causal: float


class Figures(Record, frozen=True, kw_only=True):
    """What a set of steady steps amounts to. Shares are fractions; ``None`` means not known.

    Attributes:
        step: Steps completed at the end of the set: the x axis.
        steps: Steady steps that the figures are over; excluded ones are not among them.
        time_s: Their summed time.
        mfu, hfu: Under the run's attention convention.
        mfu_full: Every attention score counted.
        mfu_causal: Only the attention scores that the mask keeps.
        mfu_of_measured: As ``mfu``, of what the device was measured to sustain (``mfu-torch
            bench``) in place of the peak.
        end_to_end: Model FLOPs of the run so far over its wall time so far.
        model_flops_per_s: Per device, under the run's attention convention.
        step_s, step_s_p95: Mean and 95th percentile (nearest rank) of the step time.
        data_wait_share: Host time waiting for data over step time.
        phases: Share of the step time by name, from ``Meter.phase``.
        absent: Name of a figure -> why it is not known.
    """

    step: int
    steps: int
    time_s: float
    mfu: float | None = None
    hfu: float | None = None
    mfu_full: float | None = None
    mfu_causal: float | None = None
    mfu_of_measured: float | None = None
    end_to_end: float | None = None
    model_flops_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    step_s: float | None = None
    step_s_p95: float | None = None
    data_wait_share: float | None = None
    memory_bytes: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def ideal_times(count: FlopCount, peaks: Peaks) -> IdealTimes | str:
    """The four ideal times of a count, or the reason why they are not known."""
    rates: dict[str, float] = {}
    for dtype in count.by_dtype:
        entry = peaks.get(dtype)
        if entry is None or entry.peak is None:
            return (
                entry.unknown
                if entry
                else f"no {dtype} peak was looked up; Meter(peak=...) gives one"
            )
        rates[dtype] = entry.peak.flops_per_s
    return IdealTimes(
        model=ideal_time_s(count.flops_by_dtype("model"), rates),
        model_causal=ideal_time_s(count.flops_by_dtype("model", "causal"), rates),
        hardware=ideal_time_s(count.flops_by_dtype("hardware"), rates),
        hardware_causal=ideal_time_s(count.flops_by_dtype("hardware", "causal"), rates),
    )


def ideal_model_s(
    steps: Mapping[int, int], counts: Counts, peaks: Peaks, attention: Attention
) -> float | str:
    """Summed ideal time of the model FLOPs of steps, or the reason why it is not known.

    Args:
        steps: How often they had each count, by count id.
        counts: By count id.
        peaks: By dtype.
        attention: The convention.
    """
    total = _sum_ideal(steps, counts, peaks)
    if isinstance(total, str):
        return total
    return total.model if attention == "full" else total.model_causal


def figures(
    steps: Sequence[Step],
    counts: Counts,
    peaks: Peaks,
    attention: Attention,
    *,
    end_to_end: float | str = "not asked for",
    memory_bytes: int | None = None,
) -> Figures:
    """Figures over the steady ones among ``steps``.

    Args:
        steps: Consecutive steps of a run.
        counts: By the count ids that the steps name.
        peaks: By dtype.
        attention: The convention of MFU and HFU.
        end_to_end: The run's end-to-end MFU so far, or the reason why it is not known.
        memory_bytes: Peak memory allocated so far.
    """
    steady = [step for step in steps if not step.excluded]
    time_s = math.fsum(step.duration_s for step in steady)
    absent: dict[str, str] = {}
    known: dict[str, Any] = {}
    _put(known, absent, "end_to_end", end_to_end)
    if not time_s > 0:  # also true of a NaN, which no division may reach
        reason = _no_time(steps, len(steady))
        absent |= dict.fromkeys((*_UTILIZATIONS, "model_flops_per_s"), reason)
    else:
        _put_utilization(known, absent, steady, time_s, counts, peaks, attention)
        for name in ("tokens", "samples"):
            _put(known, absent, f"{name}_per_s", _rate(steady, name, time_s))
        _put(known, absent, "data_wait_share", _data_wait_share(steady, time_s))
        durations = sorted(step.duration_s for step in steady)
        nearest_rank = (95 * len(durations) + 99) // 100  # ceil(0.95 n), in integers
        known |= {
            "step_s": time_s / len(steady),
            "step_s_p95": durations[nearest_rank - 1],
            "phases": _phase_shares(steady, time_s),
        }
    return Figures(
        step=steps[-1].index + 1 if steps else 0,
        steps=len(steady),
        time_s=time_s,
        memory_bytes=memory_bytes,
        absent=absent,
        **known,
    )


def run_figures(run: Run) -> Figures:
    """Figures over all steady steps of a run, with its end-to-end MFU."""
    return figures(
        list(run.steps),
        run.counts,
        run.peaks,
        run.header.attention,
        end_to_end=end_to_end_mfu(run),
        memory_bytes=run.windows[-1].memory_bytes if run.windows else None,
    )


def end_to_end_mfu(run: Run) -> float | str:
    """Ideal time of the model FLOPs of all steps over the wall time, or why it is not known.

    Excluded steps count in both: a compiling step does useful work and costs wall time.
    """
    if not run.windows:
        return "no step is recorded"
    return end_to_end(ideal_s_of(run, list(run.steps)), run.wall_s)


def ideal_s_of(run: Run, steps: Sequence[Step]) -> float | str:
    """Ideal time of the model FLOPs of some steps of a run, or why it is not known."""
    return ideal_model_s(by_count(steps), run.counts, run.peaks, run.header.attention)


def end_to_end(ideal_s: float | str, wall_s: float) -> float | str:
    """End-to-end MFU from the ideal time of all model FLOPs and the wall time, or why not."""
    if isinstance(ideal_s, str):
        return ideal_s
    if not wall_s > 0:
        return "no wall time is recorded yet"
    return utilization(ideal_s, wall_s)


_UTILIZATIONS = ("mfu", "hfu", "mfu_full", "mfu_causal")


def _no_time(steps: Sequence[Step], steady: int) -> str:
    if not steps:
        return "no step is recorded"
    if steady:
        return "the steps took no measurable time"
    return f"no steady step ({steps[-1].excluded}); steps after it have figures"


def _put_utilization(
    known: dict[str, Any],
    absent: dict[str, str],
    steady: Sequence[Step],
    time_s: float,
    counts: Counts,
    peaks: Peaks,
    attention: Attention,
) -> None:
    ideal = _sum_ideal(by_count(steady), counts, peaks)
    if isinstance(ideal, str):
        absent |= dict.fromkeys(_UTILIZATIONS, ideal)
    else:
        causal = attention == "causal"
        known["mfu"] = utilization(ideal.model_causal if causal else ideal.model, time_s)
        known["hfu"] = utilization(ideal.hardware_causal if causal else ideal.hardware, time_s)
        known["mfu_full"] = utilization(ideal.model, time_s)
        known["mfu_causal"] = utilization(ideal.model_causal, time_s)
    of_measured = _ideal_of_measured(steady, counts, peaks, attention)
    if of_measured is not None:
        known["mfu_of_measured"] = utilization(of_measured, time_s)
    flops = _sum_model_flops(by_count(steady), counts, attention)
    rate = flops if isinstance(flops, str) else rate_per_s(flops, time_s)
    _put(known, absent, "model_flops_per_s", rate)


def _ideal_of_measured(
    steady: Sequence[Step], counts: Counts, peaks: Peaks, attention: Attention
) -> float | None:
    """Ideal time of the model FLOPs at the measured rates; ``None`` if a dtype has none."""
    measured = {
        dtype: PeakEntry(dtype=dtype, peak=entry.measured)
        for dtype, entry in peaks.items()
        if entry.measured is not None
    }
    ideal_s = ideal_model_s(by_count(steady), counts, measured, attention) if measured else ""
    return None if isinstance(ideal_s, str) else ideal_s


def _put(known: dict[str, Any], absent: dict[str, str], name: str, value: float | str) -> None:
    if isinstance(value, str):
        absent[name] = value
    else:
        known[name] = value


def by_count(steps: Sequence[Step]) -> Counter[int]:
    """How often the steps had each count, by count id."""
    return Counter(count_id for step in steps for count_id in step.count_ids)


def _counts_of(steps: Mapping[int, int], counts: Counts) -> list[tuple[FlopCount, int]] | str:
    """Each distinct count with how often the steps had it, or why one is not known."""
    pairs = []
    for count_id, times in steps.items():
        entry = counts.get(count_id)
        if entry is None or entry.count is None:
            return (
                entry.unknown
                if entry
                else "the FLOPs of a step were never counted; Meter(flops=...) gives them"
            )
        pairs.append((entry.count, times))
    return pairs


def _sum_ideal(steps: Mapping[int, int], counts: Counts, peaks: Peaks) -> IdealTimes | str:
    pairs = _counts_of(steps, counts)
    if isinstance(pairs, str):
        return pairs
    total = dict.fromkeys(IdealTimes.__struct_fields__, 0.0)
    for count, times in pairs:
        ideal = ideal_times(count, peaks)
        if isinstance(ideal, str):
            return ideal
        for name in total:
            total[name] += times * getattr(ideal, name)
    return IdealTimes(**total)


def _sum_model_flops(steps: Mapping[int, int], counts: Counts, attention: Attention) -> int | str:
    pairs = _counts_of(steps, counts)
    if isinstance(pairs, str):
        return pairs
    return sum(
        times * (count.model if attention == "full" else count.model_causal)
        for count, times in pairs
    )


def _rate(steady: Sequence[Step], name: str, time_s: float) -> float | str:
    amounts = [getattr(step, name) for step in steady]
    if any(amount is None for amount in amounts):
        return f"{NOT_GIVEN} {name}="
    if min(amounts) < 0:
        return f"Meter.step was given {name}={min(amounts)}; expected how many were trained on"
    return rate_per_s(sum(amounts), time_s)


def _data_wait_share(steady: Sequence[Step], time_s: float) -> float | str:
    waits = [step.data_wait_s for step in steady if step.data_wait_s is not None]
    if len(waits) < len(steady):
        return "the loop does not iterate over Meter.data(loader)"
    return utilization(sum(waits), time_s)


def _phase_shares(steady: Sequence[Step], time_s: float) -> dict[str, float]:
    totals: dict[str, float] = {}
    for step in steady:
        for name, spent_s in step.phases.items():
            totals[name] = totals.get(name, 0.0) + spent_s
    return {name: utilization(spent_s, time_s) for name, spent_s in totals.items()}
