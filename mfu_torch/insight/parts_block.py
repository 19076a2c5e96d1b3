"""The part of a report that says where a step's time goes, and what to fix first.

Without any trace: from the marks that split a step (:mod:`mfu_torch.step_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mfu_torch.figures import Figures
from mfu_torch.insight.text import plural, wrap
from mfu_torch.ladder import sampled
from mfu_torch.records import Run
from mfu_torch.step_parts import SplitSteps
from mfu_torch.tags import part_shares
from mfu_torch.units import percent, rounded_parts, seconds

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

# Worth fixing before anything else is looked at, as shares of the step time.
DATA_WAIT, BETWEEN, REST, LOSS = 0.05, 0.10, 0.10, 0.10

LITTLE_LEAD, MUCH_LEAD = 0.02, 0.10
"""Of the step time: with less than the first the GPU has next to nothing to do while the host goes
on, with more than the second the host is well ahead of it."""

BUSY = 0.98
"""GPU-Util from which the GPU cannot wait for the host, whatever its lead seems to be: leads are
lower bounds, and low in a loop that has not waited for the GPU for hundreds of steps."""

LITTLE_LOST = 0.05
"""Of the step time: where a part has less than it that is not at the peak, no advice is given."""

SYNCHRONISED = "every mark of Meter(sync=True) stalls the device, so steps are not split"
NO_FORWARD = "no forward call of the model was seen in at least one step"


def parts_block(run: Run, now: Figures) -> Iterator[str]:
    """The parts of the steps, how many were split, the host's lead, and what to fix first.

    Nothing where no step was split, or nothing of what is told apart was seen.
    """
    split = now.split
    if split is None or not _told(split):
        return
    rows = parts_rows(split)
    yield _row(TITLE, "ms per step", "share %", "of peak %" if split.of_peak else "")
    for name, *cells in rows:
        yield _row(f"  {name}", *cells)
    few = "" if split.steps == now.steps else "; where steps are short, not all are"
    yield from wrap(f"  {split.steps} of {plural(now.steps, 'steady step')} split{few}")
    lead = lead_text(split)
    if lead:
        yield from wrap(f"  {lead}", rest="    ")
    advice = fix_first(split, gpu_util=_gpu_util(run), traced=bool(run.breakdowns))
    if advice:
        yield from wrap(f"  fix first: {advice}", rest="    ")


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


def fix_first(split: SplitSteps, *, gpu_util: float | None = None, traced: bool = False) -> str:
    """What to fix first, with the numbers that say so; empty where nothing stands out.

    The first of these rules that holds:

    1. Waiting for data is at least 5 % of the step time, or what is between the steps 10 %: the
       larger one.
    2. On a GPU hardly any work is ever queued: it waits for the host.
    3. The rest of the step is at least 10 %, or 4. the loss and what comes with it is, and is more
       than the forward.
    5. On a GPU work is queued within the step, and none at its end: something there waits for it.
    6. The part with the most time that is not at the peak.

    Args:
        split: Where the time of the steps went.
        gpu_util: Share of the time in which any kernel ran, if known.
        traced: There is a breakdown of traced steps, which says more.
    """
    busy = gpu_util is not None and gpu_util >= BUSY
    return (
        _outside(split)
        or ("" if busy else _launch_bound(split, gpu_util))
        or _rest(split)
        or _loss(split)
        or ("" if busy else _waits_at_the_end(split))
        or _below_peak(split, traced)
    )


def not_split(run: Run, now: Figures) -> Iterator[str]:
    """Why parts are not known, where the reader can do something about it."""
    if now.split is None:
        whole = any(w.steps and not any(step.excluded for step in w.steps) for w in run.windows)
        if whole and "synchronised at every mark" in run.header.clock:
            yield f"where a step's time goes: {SYNCHRONISED} -> Meter(sync=False)"
    elif not _called(now.split) and (_told(now.split) or run.header.model):
        yield f"forward and loss: {NO_FORWARD} -> Meter(model), with the one that the loop calls"


def _told(split: SplitSteps) -> bool:
    """Whether anything was seen of what is told apart from the rest."""
    return any(split.parts_s.get(name) for name in ("forward", "loss", "backward", "optimizer"))


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


def _gpu_util(run: Run) -> float | None:
    found = sampled(run)
    return None if found is None else found.mean.gpu_util


# --- what to fix first ---------------------------------------------------------------------------


def _evidence(split: SplitSteps, name: str, called: str) -> str:
    """``waiting for data is 12.0 % of the step time (1.20 ms a step)``."""
    part_s = split.parts_s[name]
    share, each = percent(part_s / split.time_s), seconds(part_s / split.steps)
    return f"{called} is {share} of the step time ({each} a step)"


def _outside(split: SplitSteps) -> str:
    wait, between = (split.shares.get(name, 0.0) for name in ("data_wait", "between"))
    if wait >= DATA_WAIT and (wait >= between or between < BETWEEN):
        seen = _evidence(split, "data_wait", "waiting for data")
        return f"{seen}: more loader workers, prefetching, cheaper transforms"
    if between >= BETWEEN:
        wait_too = "" if "data_wait" in split.parts_s else ", waiting for data into meter.data"
        seen = _evidence(split, "between", "the time between the steps")
        return (
            f"{seen}: see what the loop does there (logging, schedules, metrics); evaluation "
            f"and checkpoints belong into meter.pause{wait_too}"
        )
    return ""


def _launch_bound(split: SplitSteps, gpu_util: float | None) -> str:
    if split.lead_s is None or split.lead_most_s is None:
        return ""
    step_s = split.time_s / split.steps
    if max(split.lead_s, split.lead_most_s) >= LITTLE_LEAD * step_s:
        return ""
    seen = "" if gpu_util is None else f", and GPU-Util is {percent(gpu_util)}"
    unless = "" if gpu_util is not None else " (unless GPU-Util is near 100 %)"
    return (
        f"the GPU waits for the host{unless}: at most {seconds(split.lead_most_s)} of work was "
        f"seen queued in steps of {seconds(step_s)}{seen}. A larger batch, torch.compile, CUDA "
        "graphs, fused kernels and optimizers"
    )


def _rest(split: SplitSteps) -> str:
    if split.shares["rest"] < REST or not _called(split):
        return ""  # without a forward the rest is the forward
    return (
        f"{_evidence(split, 'rest', 'the rest of the step')}: making or copying the batch, "
        "clipping, zeroing, .item() and printing, or an optimizer that is no "
        "torch.optim.Optimizer; meter.phase says which"
    )


def _loss(split: SplitSteps) -> str:
    loss_s = split.parts_s.get("loss", 0.0)
    if loss_s < LOSS * split.time_s or loss_s <= split.parts_s["forward"]:
        return ""
    return (
        f"{_evidence(split, 'loss', 'the loss')}, more than the forward: what the loop does before "
        "backward() (metrics, .item()), or a loss that should be fused with the head"
    )


def _waits_at_the_end(split: SplitSteps) -> str:
    if split.lead_s is None or split.lead_most_s is None:
        return ""
    step_s = split.time_s / split.steps
    if split.lead_s >= LITTLE_LEAD * step_s or split.lead_most_s < MUCH_LEAD * step_s:
        return ""
    return (
        f"something at the end of the step waits for the GPU: {seconds(split.lead_most_s)} of work "
        f"is queued within it, and {seconds(split.lead_s)} when the loop leaves it. .item(), "
        "print(loss), .cpu() and synchronize(), once in 10 steps, cost a tenth"
    )


def _below_peak(split: SplitSteps, traced: bool) -> str:
    """Of the part with the most time in which the device does less than its peak."""
    times = {name: split.parts_s[name] for name in ("backward", "optimizer")}
    if _called(split):
        times["forward"] = split.parts_s["forward"] + split.parts_s["loss"]
    else:
        times["rest"] = split.parts_s["rest"]
    lost = {name: part_s * (1 - split.of_peak.get(name, 0.0)) for name, part_s in times.items()}
    worst = max(lost, key=lambda name: lost[name])
    if worst == "rest" or lost[worst] < LITTLE_LOST * split.time_s:
        return ""
    what = "forward with the loss" if worst == "forward" else worst
    text = f"{what} is {percent(times[worst] / split.time_s)} of the step time"
    if worst in split.of_peak:
        text += f", at {percent(split.of_peak[worst])} of the peak"
    if worst == "optimizer":
        text += ": fused=True where it has that, or larger batches"
    kernels = "ops" if split.lead_s is None else "kernels"
    of = "the traced steps below say" if traced else "Meter(explain_every=1000) says"
    return f"{text}; {of} which {kernels} it goes to"
