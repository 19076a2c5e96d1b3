"""What the device says of itself, beside what the model got out of it.

    GPU-Util        any kernel ran, however small        NVML; what nvidia-smi shows
    SM active       a multiprocessor had work            GPM, Hopper and newer
    tensor active   a tensor pipe was busy               GPM
    HFU             the FLOPs that ran, over the peak
    MFU             the FLOPs that the model needs, over the peak

Each rung is at most the one above it, in the usual case: that is why 100 % in nvidia-smi can be
20 % MFU. HFU can be above tensor activity where contractions run on other units (fp32 without
TF32), or where the clock is above the one that the peak is stated at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from mfu_torch.figures import Figures, figures, run_figures
from mfu_torch.records import Peak, PeakEntry, Record, Run, Telemetry
from mfu_torch.utilization import rate_at_clock

LARGEST = ("temperature_c", "memory_used_bytes", "other_processes")
SMALLEST = ("sm_clock_min_hz",)
_NO_MEANS = {"after_step", "samples", "time_s", "throttle", "absent", *LARGEST, *SMALLEST}

NO_TELEMETRY = "the device was not sampled"


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
        mean: Over the windows that have steady steps only.
        all_steps: There was no such window: it is over all of them, excluded steps too.
    """

    mean: Telemetry
    all_steps: bool


def sampled(run: Run) -> Sampled | None:
    """What the device did over the steady steps; ``None`` if it was not sampled at all."""
    excluded = [step.index for step in run.steps if step.excluded]
    steady, begin = [], 0
    for record in run.telemetry:
        if not any(begin <= index < record.after_step for index in excluded):
            steady.append(record)
        begin = record.after_step
    mean = mean_telemetry(steady or run.telemetry)
    return None if mean is None else Sampled(mean=mean, all_steps=not steady)


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
    reasons = {reason for record in records for reason in record.throttle}
    return Telemetry(
        after_step=records[-1].after_step,
        samples=samples,
        time_s=sum(record.time_s for record in records),
        throttle={
            reason: _mean([(r.throttle.get(reason, 0.0), r.time_s) for r in records])
            for reason in sorted(reasons)
        },
        absent={
            name: reason
            for record in records
            for name, reason in record.absent.items()
            if values.get(name) is None
        },
        **values,  # type: ignore[arg-type]
    )


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    """Of values with the seconds that each of them held for."""
    time_s = sum(seconds for _, seconds in pairs)
    if not time_s > 0:
        return sum(value for value, _ in pairs) / len(pairs)
    return sum(value * seconds for value, seconds in pairs) / time_s


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


def at_clock_held(run: Run) -> Figures | str:
    """The run's figures against what its peaks are at the clock that the device held.

    A card that is held at 1410 of the 1830 MHz that its 989 TFLOP/s are stated at can do 762.
    That says what the code could still gain; MFU itself says what was paid for.
    """
    found = sampled(run)
    held_hz = None if found is None else found.mean.sm_clock_hz
    if found is None or held_hz is None:
        return NO_TELEMETRY if found is None else found.mean.absent.get("sm_clock_hz", NO_TELEMETRY)

    def held(entry: PeakEntry) -> Peak | str:
        peak = entry.peak
        if peak is None:
            return entry.unknown
        if peak.clock_hz is None or peak.provenance in ("measured", "given"):
            return f"no clock is known that the {entry.dtype} peak is stated at"
        rate = rate_at_clock(peak.flops_per_s, peak.clock_hz, held_hz)
        return msgspec.structs.replace(peak, flops_per_s=rate, clock_hz=held_hz)

    return _against(run, held)


def against_measured(run: Run) -> Figures | str:
    """The run's figures against what the device was measured to sustain (``mfu-torch bench``)."""
    return _against(run, lambda entry: entry.measured or "mfu-torch bench --save measures it")


def _against(run: Run, other: Callable[[PeakEntry], Peak | str]) -> Figures | str:
    peaks: dict[str, PeakEntry] = {}
    for dtype, entry in run.peaks.items():
        peak = other(entry)
        if isinstance(peak, str):
            return peak
        peaks[dtype] = PeakEntry(dtype=dtype, peak=peak)
    if not peaks:
        return "no peak was looked up"
    return figures(list(run.steps), run.counts, peaks, run.header.attention)
