"""The numbers read off a set of steps: what the console, TensorBoard and the report show.

The same functions serve a window of ten steps and a whole run, so the three can never disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import field

from mfu_torch.ideal import by_count, counts_of, end_to_end, ideal_model_s, ideal_s_of, sum_ideal
from mfu_torch.records import Attention, Counts, PeakEntry, Peaks, Record, Run, Step
from mfu_torch.step_parts import SplitSteps, split_steps
from mfu_torch.utilization import rate_per_s, utilization

ABOVE_PEAK = (
    "above 100 % of the peak; likely causes: the peak of another dtype, a sparse peak, a clock "
    "above the rated boost or above that of the measurement, a factor 1000 in the inputs"
)
"""What is said of an MFU or HFU above 1. It is printed as measured, never clamped."""

ESTIMATED = "FLOPs are estimated in part, since they depend on data"
"""Begins what is said of figures that have an uncertainty."""

NOT_GIVEN = "Meter.step was not given"
"""Begins the reason for an absent throughput."""


class Figures(Record, frozen=True, kw_only=True):
    """What a set of steady steps amounts to. Shares are fractions; ``None`` means not known.

    Attributes:
        step: Steps completed at the end of the set: the x axis.
        steps: Steady steps that the figures are over; excluded ones are not among them.
        time_s: Their summed time.
        mfu, hfu: Under the run's attention convention.
        mfu_full: Every attention score counted.
        mfu_causal: Only the attention scores that the mask keeps.
        uncertainty: How far off MFU, HFU and FLOP/s may be, as a fraction of them, where FLOPs are
            estimated; ``None`` where none are.
        mfu_of_measured: As ``mfu``, of what the device was measured to sustain (``mfu-torch
            bench``) in place of the peak.
        end_to_end: Model FLOPs of the run so far over its wall time so far.
        model_flops_per_s: Per device, under the run's attention convention.
        step_s, step_s_p95: Mean and 95th percentile (nearest rank) of the step time.
        data_wait_share: Host time waiting for data over step time.
        phases: Share of the step time by name, from ``Meter.phase``.
        split: Where the time of the steps went that were split into their parts; ``None`` if none
            was.
        goodput: Of a window: shares of the run's wall time so far (:mod:`mfu_torch.wall`).
        absent: Name of a figure -> why it is not known.
    """

    step: int
    steps: int
    time_s: float
    mfu: float | None = None
    hfu: float | None = None
    mfu_full: float | None = None
    mfu_causal: float | None = None
    uncertainty: float | None = None
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
    split: SplitSteps | None = None
    goodput: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def figures(
    steps: Sequence[Step],
    counts: Counts,
    peaks: Peaks,
    attention: Attention,
    *,
    end_to_end: float | str = "not asked for",
    memory_bytes: int | None = None,
    goodput: Mapping[str, float] | None = None,
) -> Figures:
    """Figures over the steady ones among ``steps``.

    Args:
        steps: Consecutive steps of a run.
        counts: By the count ids that the steps name.
        peaks: By dtype.
        attention: The convention of MFU and HFU.
        end_to_end: The run's end-to-end MFU so far, or the reason why it is not known.
        memory_bytes: Peak memory allocated so far.
        goodput: Shares of the run's wall time so far.
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
        split = split_steps(steady, counts, peaks)
        durations = sorted(step.duration_s for step in steady)
        nearest_rank = (95 * len(durations) + 99) // 100  # ceil(0.95 n), in integers
        known |= {
            "step_s": time_s / len(steady),
            "step_s_p95": durations[nearest_rank - 1],
            "phases": _phase_shares(steady, time_s),
            "split": None if isinstance(split, str) else split,
        }
    return Figures(
        step=steps[-1].index + 1 if steps else 0,
        steps=len(steady),
        time_s=time_s,
        memory_bytes=memory_bytes,
        goodput=dict(goodput or {}),
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

    Excluded steps count in both: a compiling step does useful work and costs wall time. Earlier
    attempts that the run resumes count in both, too.
    """
    if not run.windows:
        return "no step is recorded"
    return end_to_end(ideal_s_of(run, list(run.steps)), run.wall_s, run.header)


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
    ideal = sum_ideal(by_count(steady), counts, peaks)
    if isinstance(ideal, str):
        absent |= dict.fromkeys(_UTILIZATIONS, ideal)
    else:
        known["mfu"] = utilization(ideal.of("model", attention), time_s)
        known["hfu"] = utilization(ideal.of("hardware", attention), time_s)
        known["mfu_full"] = utilization(ideal.model, time_s)
        known["mfu_causal"] = utilization(ideal.model_causal, time_s)
    of_measured = _ideal_of_measured(steady, counts, peaks, attention)
    if of_measured is not None:
        known["mfu_of_measured"] = utilization(of_measured, time_s)
    known["uncertainty"] = _uncertainty(steady, counts)
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


def _sum_model_flops(steps: Mapping[int, int], counts: Counts, attention: Attention) -> int | str:
    pairs = counts_of(steps, counts)
    if isinstance(pairs, str):
        return pairs
    return sum(
        times * (count.model if attention == "full" else count.model_causal)
        for count, times in pairs
    )


def _uncertainty(steady: Sequence[Step], counts: Counts) -> float | None:
    """Of the summed model FLOPs, as if all estimates were off in the same direction."""
    pairs = counts_of(by_count(steady), counts)
    if isinstance(pairs, str) or not any(count.uncertainty for count, _ in pairs):
        return None
    whole = sum(times * count.model for count, times in pairs)
    return sum(times * count.model * count.uncertainty for count, times in pairs) / whole


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
