"""What the device says of itself, beside what the model got out of it.

    GPU-Util        any kernel ran, however small        NVML; what nvidia-smi shows
    SM active       a multiprocessor had work            GPM, Hopper and newer
    tensor active   a tensor pipe was busy               GPM
    HFU             the FLOPs that ran, over the peak
    MFU             the FLOPs that the model needs, over the peak

Each rung is at most the one above it, in the usual case: that is why 100 % in nvidia-smi can be
20 % MFU. Tensor activity counts cycles of the clock held, so what it bounds is HFU at that clock;
contractions on other units (fp32 without TF32) are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from mfu_torch.figures import Figures, figures, run_figures
from mfu_torch.ideal import by_count
from mfu_torch.records import Peak, PeakEntry, Record, Run, Telemetry
from mfu_torch.utilization import ideal_time_s, rate_at_clock

LARGEST = ("temperature_c", "memory_used_bytes", "other_processes")
SMALLEST = ("sm_clock_min_hz",)
_NO_MEANS = {"after_step", "samples", "time_s", "throttle", "absent", *LARGEST, *SMALLEST}

NO_TELEMETRY = "the device was not sampled"

MOST_EXCLUDED = 0.2
"""Of a window's time that excluded steps may take. A check of one step in ten is less."""

NEXT_TO_NOTHING = 0.01
"""Of the ideal time: a dtype with less cannot change a figure that is printed with three digits."""

CLOCKS_HZ = (1e7, 1e11)
"""What can be the clock of a processor; a driver may report anything."""


class Rung(Record, frozen=True, kw_only=True):
    """One rung of the ladder.

    Attributes:
        name: As it is printed.
        share: A fraction; ``None`` where it is not known.
        meaning: What is a share of what.
        absent: Why it is not known.
    """

    name: str
    share: float | None
    meaning: str
    absent: str = ""


class Sampled(Record, frozen=True, kw_only=True):
    """What the device did over the steady steps of a run.

    Attributes:
        mean: Over the windows in which excluded steps took at most a fifth of the time.
        all_steps: There was no such window: it is over all of them.
        stopped: Why there are no samples any more; empty if there are.
    """

    mean: Telemetry
    all_steps: bool
    stopped: str = ""


class Beside(Record, frozen=True, kw_only=True):
    """Figures against other peaks than those that MFU divides by.

    Attributes:
        as_stated: Dtypes with next to no work, whose other peak is not known: they have the stated
            one here, too.
    """

    figures: Figures
    as_stated: tuple[str, ...] = ()


def sampled(run: Run) -> Sampled | None:
    """What the device did over the steady steps; ``None`` if it was not sampled at all."""
    with_samples = [record for record in run.telemetry if record.samples]
    mean = mean_telemetry([record for record in with_samples if _is_steady(run, record)])
    stopped = [record for record in run.telemetry if not record.samples and record.absent]
    why = "; ".join(dict.fromkeys(stopped[-1].absent.values())) if stopped else ""
    if mean is not None:
        return Sampled(mean=mean, all_steps=False, stopped=why)
    mean = mean_telemetry(with_samples or run.telemetry)
    return None if mean is None else Sampled(mean=mean, all_steps=True, stopped=why)


def _is_steady(run: Run, record: Telemetry) -> bool:
    position = run.telemetry.index(record)
    begin = run.telemetry[position - 1].after_step if position else 0
    steps = [step for step in run.steps if begin <= step.index < record.after_step]
    excluded_s = sum(step.duration_s for step in steps if step.excluded)
    return excluded_s <= MOST_EXCLUDED * sum(step.duration_s for step in steps)


def mean_telemetry(records: Sequence[Telemetry]) -> Telemetry | None:
    """One record for several: means weighted by time, extremes, and the reasons of all.

    3 s at 1.2 GHz and 1 s at 1.6 GHz are 4 s at 1.3 GHz.
    """
    if not records:
        return None
    values: dict[str, object] = {}
    for name in Telemetry.__struct_fields__:
        known = [
            (value, record.time_s)
            for record in records
            if (value := getattr(record, name)) is not None
        ]
        if name in LARGEST and known:
            values[name] = max(value for value, _ in known)
        elif name in SMALLEST and known:
            values[name] = min(value for value, _ in known)
        elif name not in _NO_MEANS and known:
            values[name] = _mean(known)
    samples = sum(record.samples for record in records)
    seen = [record for record in records if "throttle" not in record.absent]
    reasons = {reason for record in seen for reason in record.throttle}
    return Telemetry(
        after_step=records[-1].after_step,
        samples=samples,
        time_s=sum(record.time_s for record in records),
        throttle={
            reason: _mean([(r.throttle.get(reason, 0.0), r.time_s) for r in seen])
            for reason in sorted(reasons)
        },
        absent={
            name: reason
            for record in records
            for name, reason in record.absent.items()
            if values.get(name) is None and not (name == "throttle" and seen)
        },
        **values,  # type: ignore[arg-type]
    )


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    """Of values with the seconds that each of them held for."""
    values = [value for value, _ in pairs]
    time_s = sum(seconds for _, seconds in pairs)
    if not time_s > 0:
        return sum(values) / len(values)
    mean = sum(value * seconds for value, seconds in pairs) / time_s
    return min(max(mean, min(values)), max(values))  # of equal values exactly that value


_Field = Literal["gpu_util", "cpu_util", "sm_active", "tensor_active"]

_GPU_RUNGS: tuple[tuple[str, _Field, str], ...] = (
    ("GPU-Util", "gpu_util", "of the time any kernel ran, however small"),
    ("SM active", "sm_active", "of the multiprocessors had work in flight"),
    ("tensor active", "tensor_active", "of the tensor pipes' cycles were busy"),
)
_CPU_RUNGS: tuple[tuple[str, _Field, str], ...] = (
    ("CPU busy", "cpu_util", "of the CPUs' time, by any process"),
)


def ladder(run: Run) -> tuple[Rung, ...]:
    """From what the device calls busy down to MFU; empty if the device was not sampled."""
    found = sampled(run)
    if found is None:
        return ()
    mean, now = found.mean, run_figures(run)
    rungs = [
        Rung(
            name=name,
            share=getattr(mean, field),
            meaning=meaning,
            absent=mean.absent.get(field, "") or NO_TELEMETRY,
        )
        for name, field, meaning in (_CPU_RUNGS if run.header.device.kind == "cpu" else _GPU_RUNGS)
    ]
    for name, share, meaning in (
        ("HFU", now.hfu, "FLOPs that ran, over the peak"),
        ("MFU", now.mfu, "FLOPs that the model needs, over the peak"),
    ):
        absent = now.absent.get(name.lower(), "")
        rungs.append(Rung(name=name, share=share, meaning=meaning, absent=absent))
    return tuple(
        msgspec.structs.replace(rung, absent="") if rung.share is not None else rung
        for rung in rungs
    )


def at_clock_held(run: Run) -> Beside | str:
    """The run's figures against what its peaks are at the clock that the device held.

    A card that is held at 1410 of the 1830 MHz that its 989 TFLOP/s are stated at can do 762.
    That says what the code could still gain; MFU itself says what was paid for.
    """
    found = sampled(run)
    held_hz = None if found is None else found.mean.sm_clock_hz
    if found is None or held_hz is None:
        return NO_TELEMETRY if found is None else found.mean.absent.get("sm_clock_hz", NO_TELEMETRY)
    if not _is_clock(held_hz):
        return f"{held_hz:.3g} Hz was reported, which is no clock"
    hz = held_hz

    def held(entry: PeakEntry) -> Peak | str:
        peak = entry.peak
        if peak is None:
            return entry.unknown
        stated_hz = None if peak.provenance == "measured" else peak.clock_hz
        if stated_hz is None or not _is_clock(stated_hz):
            return f"no clock is known that the {entry.dtype} peak is stated at"
        rate = rate_at_clock(peak.flops_per_s, stated_hz, hz)
        if not 0 < rate < math.inf:
            return f"{peak.flops_per_s:.3g} FLOP/s in {entry.dtype} is no rate at that clock"
        return msgspec.structs.replace(peak, flops_per_s=rate, clock_hz=hz)

    return _beside(run, held)


def _is_clock(clock_hz: float) -> bool:
    return CLOCKS_HZ[0] <= clock_hz <= CLOCKS_HZ[1]


def against_measured(run: Run) -> Beside | str:
    """The run's figures against what the device was measured to sustain (``mfu-torch bench``)."""

    def measured(entry: PeakEntry) -> Peak | str:
        reason = f"nothing was measured for {entry.dtype}; mfu-torch bench --save does that"
        return entry.measured or reason

    return _beside(run, measured)


def _beside(run: Run, other: Callable[[PeakEntry], Peak | str]) -> Beside | str:
    peaks: dict[str, PeakEntry] = {}
    as_stated = []
    for dtype, entry in run.peaks.items():
        peak = other(entry)
        if isinstance(peak, str):
            if entry.peak is None or _share_of(run, dtype) > NEXT_TO_NOTHING:
                return peak
            as_stated.append(dtype)
            peak = entry.peak
        peaks[dtype] = PeakEntry(dtype=dtype, peak=peak)
    if len(as_stated) == len(peaks):
        return "no peak was looked up"
    now = figures(list(run.steps), run.counts, peaks, run.header.attention)
    return Beside(figures=now, as_stated=tuple(as_stated))


def _share_of(run: Run, dtype: str) -> float:
    """A dtype's share of the ideal time of all hardware FLOPs; 1 where that is not known."""
    times: dict[str, float] = {}
    for count_id, steps in by_count(list(run.steps)).items():
        entry = run.counts.get(count_id)
        for name, flops in (entry.count.by_dtype if entry and entry.count else {}).items():
            peak = run.peaks[name].peak if name in run.peaks else None
            if peak is None:
                return 1.0
            times[name] = times.get(name, 0.0) + steps * ideal_time_s(
                {name: flops}, {name: peak.flops_per_s}
            )
    total = sum(times.values())
    return times.get(dtype, 0.0) / total if total > 0 else 1.0
