"""What a device sustained, as text: one line for each dtype, and what has to be said of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mfu_torch.insight.text import plural, share_text, wrap
from mfu_torch.peak.bench import BenchEntry, BenchResult
from mfu_torch.peak.matmuls import FORMS, mnk
from mfu_torch.peak.names import NO_PEAK_HERE, SUPPLY_PEAK
from mfu_torch.peak.sustained import Sustained
from mfu_torch.units import percent, scaled, seconds

_WIDTHS = (15, 15, 9, 21, 10, 8, 15)
_HEADER = ("sustained", "burst", "of peak", "M x N x K", "clock", "power", "published")
_UNKNOWN = "-"

_MATTER = {
    "sm_clock_hz": "clock",
    "power_w": "power",
    "throttle": "throttling",
    "other_processes": "other processes",
}
"""Conditions that have to be known, or to be called not known, by the field of Telemetry."""

_NO_SAMPLE = "no sample was taken"


def render(found: BenchResult) -> str:
    """The result of a benchmark, at most 100 columns wide."""
    blocks = (_title(found), _table(found), _missing(found), _peaks(found), _said(found))
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def summary(found: BenchResult) -> dict[str, Any]:
    """The same for programs; what is not known is ``None``, with its reason."""
    return {
        "device": found.device,
        "started": found.started,
        "torch": found.torch,
        "driver": found.driver or None,
        "seconds": found.seconds,
        "shapes": found.shapes,
        "dtypes": {entry.dtype: _entry(entry) for entry in found.entries},
    }


def _entry(entry: BenchEntry) -> dict[str, Any]:
    return {
        "sustained": entry.sustained,
        "unknown": entry.unknown,
        "cautions": entry.sustained.cautions if entry.sustained else (),
        "peak": entry.peak,
        "no_peak": entry.no_peak,
        "share_of_peak": entry.share_of_peak,
        "published": entry.published,
    }


def _title(found: BenchResult) -> Iterator[str]:
    versions = f"torch {found.torch}" + (f", driver {found.driver}" if found.driver else "")
    what = f"{found.shapes} shapes, {seconds(found.seconds)} each for the best"
    yield from wrap(f"{found.device.name} | {versions} | {what} | {found.started}")


def _table(found: BenchResult) -> Iterator[str]:
    measured = [entry for entry in found.entries if entry.sustained is not None]
    if measured:
        yield _row("dtype", *_HEADER)
    for entry in measured:
        yield _row(entry.dtype, *_cells(entry))


def _cells(entry: BenchEntry) -> Iterator[str]:
    assert entry.sustained is not None
    one, seen = entry.sustained, entry.sustained.telemetry
    yield scaled(one.flops_per_s, "FLOP/s")
    yield scaled(one.burst_flops_per_s, "FLOP/s")
    yield share_text(entry.share_of_peak)
    yield mnk(one.shape)
    yield f"{seen.sm_clock_hz / 1e6:.0f} MHz" if seen and seen.sm_clock_hz else _UNKNOWN
    yield f"{seen.power_w:.0f} W" if seen and seen.power_w else _UNKNOWN
    yield scaled(entry.published[0].flops_per_s, "FLOP/s") if entry.published else _UNKNOWN


def _row(name: str, *cells: str) -> str:
    return f"{name:<7}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)
    )


def _missing(found: BenchResult) -> Iterator[str]:
    """Dtypes that were not measured, and why."""
    missing = [entry for entry in found.entries if entry.sustained is None]
    if missing:
        yield "Not measured"
    for entry in missing:
        yield from _item(f"{entry.dtype}: {entry.unknown}")


def _peaks(found: BenchResult) -> Iterator[str]:
    measured = [entry for entry in found.entries if entry.sustained is not None]
    if measured:
        yield "Peak of the device, and what others measured on such a one"
    reasons: dict[str, list[str]] = {}
    for entry in measured:
        if entry.peak is None:
            reasons.setdefault(_why(entry), []).append(entry.dtype)
            continue
        peak = entry.peak
        text = f"{entry.dtype}: {scaled(peak.flops_per_s, 'FLOP/s', 4)}, {peak.provenance}"
        text += f" ({peak.source})"
        held = entry.sustained.telemetry if entry.sustained else None
        if peak.clock_hz and held and held.sm_clock_hz:
            text += f"; stated at {peak.clock_hz / 1e6:.0f} MHz"
        yield from _item(text)
    for reason, dtypes in reasons.items():
        yield from _item(f"{', '.join(dtypes)}: {reason}")
    for entry in measured:
        for one in entry.published:
            text = f"{entry.dtype}: {scaled(one.flops_per_s, 'FLOP/s', 4)} published for"
            yield from _item(f"{text} {one.device}, {one.conditions} ({one.source})")


def _why(entry: BenchEntry) -> str:
    """The reason for no peak, the same for all dtypes that have it."""
    reason = entry.no_peak.replace(f"no {entry.dtype} peak for", "no peak for", 1)
    return reason.removesuffix(f" {SUPPLY_PEAK}").removesuffix(f" {NO_PEAK_HERE}")


def _said(found: BenchResult) -> Iterator[str]:
    """What the device did while each dtype was sustained."""
    measured = [entry.sustained for entry in found.entries if entry.sustained is not None]
    if measured:
        yield "While they were sustained"
    for one in measured:
        yield from _item(f"{one.dtype}: {'; '.join(_conditions(one))}")
    for text in _absent(measured):
        yield from _item(text)
    if any(one.cautions for one in measured):
        yield from _item(
            "what other work, a power limit or heat took is missing in the rates above: they are "
            "what the device held under these conditions"
        )
    above = [e.peak.provenance for e in found.entries if e.peak and (e.share_of_peak or 0) > 1]
    if any(one != "measured" for one in above):
        yield from _item(
            "more than 100 % of a peak: the clock was above the one that the peak is stated at, "
            "or the peak is not the right one"
        )
    if "measured" in above:
        yield from _item(
            "more than 100 % of a measured peak: the run that measured it tried fewer shapes, or "
            "met other work"
        )


def _conditions(one: Sustained) -> Iterator[str]:
    calls, tried = plural(one.calls, "call"), plural(one.shapes_tried, "shape")
    yield f"{seconds(one.time_s)}, {calls}, the best of {tried}"
    if one.dtype in FORMS:
        yield FORMS[one.dtype]
    yield from one.cautions
    seen = one.telemetry
    if seen is None:
        return
    if seen.temperature_c is not None:
        yield f"at most {seen.temperature_c:.0f} degrees Celsius"
    if seen.power_w is not None and seen.power_limit_w is not None:
        yield f"{seen.power_w:.0f} W of {seen.power_limit_w:.0f} W"
    if seen.cpu_util is not None:
        yield f"the CPU was busy for {percent(seen.cpu_util)} of the time"
    if not one.cautions and seen.other_processes == 0 and "throttle" not in seen.absent:
        yield "no other process on the device, the clock not held down"


def _absent(measured: list[Sustained]) -> Iterator[str]:
    """Why conditions that matter are not known, each reason once."""
    missing: dict[str, dict[str, list[str]]] = {}  # reason -> condition -> dtypes
    for one in measured:
        reasons = one.telemetry.absent if one.telemetry else dict.fromkeys(_MATTER, _NO_SAMPLE)
        for field, name in _MATTER.items():
            if field in reasons:
                missing.setdefault(reasons[field], {}).setdefault(name, []).append(one.dtype)
    for reason, names in missing.items():
        texts = []
        for name, dtypes in names.items():
            of = "" if len(dtypes) == len(measured) else f" ({', '.join(dtypes)})"
            texts.append(name + of)
        yield f"not known: {', '.join(texts)}; {reason}"


def _item(text: str) -> list[str]:
    return wrap(f"- {text}", "  ", "    ")
