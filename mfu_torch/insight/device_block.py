"""The part of a report that says what the device did meanwhile: the ladder down to MFU."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.figures import run_figures
from mfu_torch.insight.text import field, plural, share_text, wrap
from mfu_torch.ladder import Beside, against_measured, at_clock_held, ladder, sampled
from mfu_torch.records import Run, Telemetry
from mfu_torch.units import bytes_, percent, scaled, seconds

_WIDTH = 17

_OTHERS = {
    "sm_clock_hz": "clock",
    "power_w": "power",
    "temperature_c": "temperature",
    "memory_used_bytes": "memory used",
}
"""What a GPU is expected to tell besides the rungs; without it there is a reason to be read."""
_IDLE = "idle"


def device_block(run: Run) -> Iterator[str]:
    """Rungs from busy to MFU, then clocks, power and what held them down; nothing if not sampled.

    What is adjusted (to the clock held, to the measured peak) stands beside MFU, never in it.
    """
    found = sampled(run)
    if found is not None and not found.mean.samples:
        reasons = dict.fromkeys(found.mean.absent.values())
        yield from wrap(f"What the device did meanwhile is not known: {'; '.join(reasons)}")
        found = None
    if found is not None:
        mean = found.mean
        over = "all steps, the excluded ones too" if found.all_steps else "steady windows"
        yield (
            f"What the device did meanwhile ({plural(mean.samples, 'sample')} in "
            f"{seconds(mean.time_s)}, {over})"
        )
        missing: dict[str, list[str]] = {}
        for rung in ladder(run):
            if rung.share is None:
                missing.setdefault(rung.absent, []).append(rung.name)
            else:
                yield _line(rung.name, f"{share_text(rung.share):>7} {rung.meaning}")
        yield from _clock(run, mean)
        yield from _limits(mean)
        yield from _traffic(mean)
        yield from _contradiction(run, mean)
        for name, label in _OTHERS.items():
            if getattr(mean, name) is None and name in mean.absent and _is_gpu(run):
                missing.setdefault(mean.absent[name], []).append(label)
        for reason, names in missing.items():
            yield from wrap(f"{', '.join(names)}: not known, {reason}", "  ", "    ")
        if found.stopped:
            yield from wrap(f"sampling stopped during the run: {found.stopped}", "  ", "    ")
    text = _measured(run)
    if text:
        yield _line("measured peak", text) if found else field("measured peak", text, _WIDTH)


def _measured(run: Run) -> str:
    rates = ", ".join(
        f"{dtype} {scaled(entry.measured.flops_per_s, 'FLOP/s')}"
        for dtype, entry in run.peaks.items()
        if entry.measured is not None
    )
    if not rates:
        return ""
    beside = against_measured(run)
    if isinstance(beside, str):
        return f"{rates}; MFU against it is not known, {beside}"
    return f"{rates} ({_both(beside)} of it)"


def _contradiction(run: Run, mean: Telemetry) -> Iterator[str]:
    # Cycles are those of the clock held: so has to be what they are compared with.
    held = at_clock_held(run)
    hfu = run_figures(run).hfu if isinstance(held, str) else held.figures.hfu
    if hfu is not None and mean.tensor_active is not None and hfu > 1.1 * mean.tensor_active:
        yield from wrap(
            "HFU is above what the tensor pipes did: contractions ran on other units (fp32 without "
            "TF32), or the peak or the count is wrong",
            "  ",
            "    ",
        )


def _clock(run: Run, mean: Telemetry) -> Iterator[str]:
    if mean.sm_clock_hz is None:
        return
    text = _hz(mean.sm_clock_hz)
    lowest = "" if mean.sm_clock_min_hz is None else _hz(mean.sm_clock_min_hz)
    if lowest not in ("", text):
        text += f" held, {lowest} at the lowest"
    stated = {e.peak.clock_hz for e in run.peaks.values() if e.peak and e.peak.clock_hz}
    has_clock = bool(stated)
    if len(stated) == 1:
        text += f"; the peak is stated at {_hz(stated.pop())}"
    yield _line("clock", text)
    adjusted = at_clock_held(run)
    if isinstance(adjusted, str):
        if not has_clock:  # a measured or given peak belongs to no clock
            return
        yield _line("at that clock", f"not known, {adjusted}")
    elif adjusted.figures.mfu is not None:
        yield _line("at that clock", f"{_both(adjusted)} of what the peak is at the clock held")


def _limits(mean: Telemetry) -> Iterator[str]:
    if mean.power_w is not None:
        text = f"{mean.power_w:.0f} W"
        if mean.power_limit_w is not None:
            text += f" of {mean.power_limit_w:.0f} W allowed"
            default_w = mean.power_default_w
            if default_w is not None and mean.power_limit_w < default_w:
                text += f"; the card's own limit is {default_w:.0f} W, so it is capped"
        yield _line("power", text)
    held = {reason: share for reason, share in mean.throttle.items() if reason != _IDLE and share}
    if held:
        shares = ", ".join(f"{reason} {percent(share)}" for reason, share in held.items())
        yield _line("held down by", f"{shares} of the samples")
    if mean.temperature_c is not None:
        yield _line("temperature", f"{mean.temperature_c:.0f} C at the highest")
    if mean.other_processes:
        noun = "other process" if mean.other_processes == 1 else "other processes"
        yield _line("shared with", f"{mean.other_processes} {noun} on the device")


def _traffic(mean: Telemetry) -> Iterator[str]:
    if mean.dram_active is not None:
        yield _line("memory bandwidth", f"{percent(mean.dram_active)} in use")
    if mean.memory_used_bytes is not None:
        yield _line("memory used", f"{bytes_(mean.memory_used_bytes)} by all processes")
    for name, rx, tx in (
        ("PCIe", mean.pcie_rx_bytes_per_s, mean.pcie_tx_bytes_per_s),
        ("NVLink", mean.nvlink_rx_bytes_per_s, mean.nvlink_tx_bytes_per_s),
    ):
        if rx is not None and tx is not None:
            yield _line(name, f"{scaled(rx, 'B/s')} in, {scaled(tx, 'B/s')} out")


def _both(beside: Beside) -> str:
    now = beside.figures
    text = f"MFU {share_text(now.mfu)}, HFU {share_text(now.hfu)}"
    return text + f" with {', '.join(beside.as_stated)} as stated," * bool(beside.as_stated)


def _is_gpu(run: Run) -> bool:
    return run.header.device.kind in ("cuda", "rocm")


def _hz(clock_hz: float) -> str:
    return f"{clock_hz / 1e6:.0f} MHz"


def _line(label: str, text: str) -> str:
    return field(f"  {label}", text, _WIDTH + 2)
