"""Ideal times: how long the FLOPs of steps would take at the peak, and over what time.

MFU, HFU and end-to-end MFU are such a time over the time that passed (:mod:`mfu_torch.figures`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from mfu_torch.records import Attention, Counts, FlopCount, Header, Peaks, Record, Run, Step
from mfu_torch.utilization import ideal_time_s, utilization


class IdealTimes(Record, frozen=True, kw_only=True):
    """Seconds at peak that a count needs, by FLOP kind and attention convention."""

    model: float
    model_causal: float
    hardware: float
    hardware_causal: float

    def of(self, kind: Literal["model", "hardware"], attention: Attention) -> float:
        """The one of a kind of FLOPs under an attention convention."""
        seconds: float = getattr(self, kind if attention == "full" else f"{kind}_causal")
        return seconds


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
    total = sum_ideal(steps, counts, peaks)
    return total if isinstance(total, str) else total.of("model", attention)


def ideal_s_of(run: Run, steps: Sequence[Step]) -> float | str:
    """Ideal time of the model FLOPs of some steps of a run, or why it is not known."""
    return ideal_model_s(by_count(steps), run.counts, run.peaks, run.header.attention)


def end_to_end(ideal_s: float | str, wall_s: float, header: Header) -> float | str:
    """End-to-end MFU from the ideal time of all model FLOPs and the wall time, or why not.

    Args:
        ideal_s: Of this attempt; or why it is not known.
        wall_s: Likewise.
        header: Of the run: it has what earlier attempts had done.
    """
    if isinstance(ideal_s, str):
        return ideal_s
    before = earlier_ideal_s(header)
    if isinstance(before, str):
        return before
    if not wall_s > 0:
        return "no wall time is recorded yet"
    return utilization(ideal_s + before, wall_s + earlier_wall_s(header))


def earlier_ideal_s(header: Header) -> float | str:
    """Ideal time of the model FLOPs of the attempts that a run resumes, or why it is not known."""
    if header.earlier is None:
        return 0.0
    ideal_s = header.earlier.ideal_s.get(header.attention)
    if ideal_s is not None and not header.earlier.unknown:
        return ideal_s
    why = header.earlier.unknown or "the ideal time of its model FLOPs was not saved"
    return f"of an earlier attempt: {why}"


def earlier_wall_s(header: Header) -> float:
    """Wall time from the begin of the first attempt to that of this one."""
    return 0.0 if header.earlier is None else header.earlier.wall_s


def by_count(steps: Sequence[Step]) -> Counter[int]:
    """How often the steps had each count, by count id."""
    return Counter(count_id for step in steps for count_id in step.count_ids)


def counts_of(steps: Mapping[int, int], counts: Counts) -> list[tuple[FlopCount, int]] | str:
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


def sum_ideal(steps: Mapping[int, int], counts: Counts, peaks: Peaks) -> IdealTimes | str:
    """Summed ideal times of steps, or why they are not known; arguments as for one kind."""
    pairs = counts_of(steps, counts)
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
