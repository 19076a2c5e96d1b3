"""The part of a report that says where the time of the steps went that were traced last."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.insight.text import field, plural, wrap
from mfu_torch.peak.table import peak_for
from mfu_torch.records import Device, Run, UnknownPeak
from mfu_torch.records.breakdown import Breakdown, BreakdownEntry
from mfu_torch.records.losses import dilation_text, label, printable, steps_text
from mfu_torch.units import rounded_parts, scaled

_ROWS = 5
"""Parts that are named; the whole table is what ``mfu-torch explain`` prints."""
_WIDTH = 34


def breakdown_block(run: Run) -> Iterator[str]:
    """The largest parts of the last breakdown; nothing if there is none."""
    if not run.breakdowns:
        return
    entry = run.breakdowns[-1]
    found = entry.breakdown
    of = f", the last of {plural(len(run.breakdowns), 'breakdown')}" if run.breakdowns[1:] else ""
    yield from wrap(f"Where the time of traced {steps_text(entry.steps)} went{of}")
    texts = rounded_parts([100 * part.time_ns / found.wall_ns for part in found.buckets], 1)
    parts = list(zip(found.buckets, texts, strict=True))
    parts.sort(key=lambda part: -part[0].time_ns)
    for part, text in parts[:_ROWS]:
        yield field(f"  {label(part.name)}", f"{text:>5} %", _WIDTH)
    rest = sum(part.time_ns for part, _ in parts[_ROWS:])
    if parts[_ROWS:]:
        share = f"{100 * rest / found.wall_ns:.1f}"
        yield field(f"  {plural(len(parts) - _ROWS, 'smaller part')}", f"{share:>5} %", _WIDTH)
    for name, text in below(entry):
        yield field(name and f"  {name}", text, _WIDTH)
    for warning in found.warnings:
        yield from wrap(f"WARNING: {printable(warning)}", "  ", "    ")


def below(entry: BreakdownEntry) -> Iterator[tuple[str, str]]:
    """What is said below the parts: by how much tracing slowed the steps, and what says more."""
    yield "tracing", dilation_text(entry)
    if entry.trace:
        found = entry.breakdown
        yield "all of it", f"mfu-torch explain {entry.trace}{_peak(found)}{_flops(found)}"
        yield "", "in the folder of the run file"


def _peak(found: Breakdown) -> str:
    """The peak of the run, as options, where ``explain`` would not find it by the device's name."""
    peak = found.peak
    if peak is None:
        return ""
    try:
        known = peak_for(Device(name=found.device or "", kind=""), peak.dtype)
    except UnknownPeak:
        known = None
    if known is not None and known.flops_per_s == peak.flops_per_s:
        return ""
    number, unit = scaled(peak.flops_per_s, "FLOP/s", 6).split()
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f' --peak "{number} {unit}" --dtype {peak.dtype}'


def _flops(found: Breakdown) -> str:
    """FLOPs of a step, as options: the trace alone may show others."""
    steps = len(found.step_ns)
    if found.model_flops is None or not steps or found.model_flops % steps:
        return ""  # those that were given are the same in each step
    options = f" --model-flops {found.model_flops // steps}"
    again = (found.hardware_flops or found.model_flops) - found.model_flops
    if any(one.name == "matrix/optimizer" for one in found.buckets) or again % steps or not again:
        return options
    return f"{options} --recompute-flops {again // steps}"
