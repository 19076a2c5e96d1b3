"""The part of a report that says where a step's time goes.

Without any trace: from the marks that split a step (:mod:`mfu_torch.step_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mfu_torch.figures import Figures
from mfu_torch.insight.text import plural, wrap
from mfu_torch.records import Run
from mfu_torch.step_parts import SplitSteps
from mfu_torch.tags import part_shares
from mfu_torch.units import rounded_parts, seconds

TITLE = "Where a step's time goes"

NAMES: Mapping[str, str] = {
    "forward": "forward",
    "loss": "loss, from forward to backward",
    "backward": "backward",
    "optimizer": "optimizer",
    "data_wait": "waiting for data",
    "rest": "rest of the step",
    "between": "between the steps",
}
"""Part of a step -> how it is called on paper."""

SYNCHRONISED = "every mark of Meter(sync=True) stalls the device, so steps are not split"
NO_FORWARD = "no forward call of the model was seen in at least one step"
NO_OPTIMIZER = (
    "no step of an optimizer was seen: it is compiled, or no torch.optim.Optimizer; its time is in "
    "the rest"
)


def parts_block(run: Run, now: Figures) -> Iterator[str]:
    """The parts of the steps, how many were split, and the host's lead.

    Nothing where no step was split, or nothing of what is told apart was seen.
    """
    split = now.split
    if split is None or not split.told:
        return
    rows = parts_rows(split)
    yield _row(TITLE, "ms per step", "share %", "of peak %" if split.of_peak else "")
    for name, *cells in rows:
        yield _row(f"  {name}", *cells)
    yield from wrap(f"  {split_text(now, split)}")
    lead = lead_text(split)
    if lead:
        yield from wrap(f"  {lead}", rest="    ")


def split_text(now: Figures, split: SplitSteps) -> str:
    """How many of the steady steps were split."""
    few = "" if split.steps == now.steps else "; where steps are short, not all are"
    if few and now.step_s is not None:
        few += f", and the step time of all is {seconds(now.step_s)}"
    return f"{split.steps} of {plural(now.steps, 'steady step')} split{few}"


def parts_rows(split: SplitSteps) -> list[tuple[str, str, str, str]]:
    """Name, milliseconds a step, share and share of the peak in percent, of each part and of all.

    Parts of which nothing was seen are left out, but not what was measured as 0.
    """
    parts = part_shares(split)
    step_ms = 1e3 * split.time_s / split.steps
    decimals = 1 if step_ms >= 100 else 2 if step_ms >= 10 else 4
    times = rounded_parts([1e3 * split.parts_s[name] / split.steps for name in parts], decimals)
    shares = rounded_parts([100 * share for share in parts.values()], 1)
    peaks = [_of_peak(split, name) for name in parts]
    total = ("total", f"{step_ms:.{decimals}f}", "100.0", _of_peak(split, "total"))
    return [*zip([NAMES[name] for name in parts], times, shares, peaks, strict=True), total]


def lead_text(split: SplitSteps) -> str:
    """How far the host is ahead of the GPU; empty where the device is the host."""
    if split.lead_s is None:
        return ""
    lead = seconds(split.lead_s)
    text = f"when the loop leaves a step, at least {lead} of work is queued on the GPU"
    if split.lead_most_s is not None:
        text += f"; within a step, up to {seconds(split.lead_most_s)} (means)"
    return text


def not_split(run: Run, now: Figures) -> Iterator[str]:
    """Why parts are not known, where the reader can do something about it."""
    if now.split is None:
        whole = any(w.steps and not any(step.excluded for step in w.steps) for w in run.windows)
        if whole and "synchronised at every mark" in run.header.clock:
            yield f"where a step's time goes: {SYNCHRONISED} -> Meter(sync=False)"
    elif not _called(now.split) and (now.split.told or run.header.model):
        yield f"forward and loss: {NO_FORWARD} -> Meter(model), with the one that the loop calls"
    if now.split is not None and "optimizer" not in now.split.parts_s:
        yield f"optimizer: {NO_OPTIMIZER}"


def _called(split: SplitSteps) -> bool:
    return "forward" in split.parts_s


def _of_peak(split: SplitSteps, name: str) -> str:
    if name in split.of_peak:
        return f"{100 * split.of_peak[name]:.1f}"
    if name == "loss" and "forward" in split.of_peak:
        return "with forward"  # its contractions are forward FLOPs
    return "-" if split.of_peak else ""


def _row(name: str, time: str, share: str, of_peak: str) -> str:
    return f"{name:<50}{time:>14}{share:>12}{of_peak:>18}".rstrip()
