"""What the parts of the steps say could be gained: they are always there, and no trace slows them.

Gains are shares of the step time. Waiting, what is between the steps, the rest of the step and time
in which a GPU waits for its host can go to zero, so they count in full. A part that computes can
shrink and not vanish: half of what good kernels would not need counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from mfu_torch.figures import Figures
from mfu_torch.ideal import by_count, counts_of
from mfu_torch.ladder import sampled
from mfu_torch.records import Run
from mfu_torch.records.losses import GOOD_RATE
from mfu_torch.step_parts import SplitSteps
from mfu_torch.units import percent, seconds

SHRINKS = 0.5
"""Of what a part takes beyond :data:`GOOD_RATE` of the peak: no part reaches that everywhere."""

LITTLE_LEAD, MUCH_LEAD = 0.02, 0.10
"""Of the step time: with less than the first the GPU has next to nothing to do while the host goes
on, with more than the second the host is well ahead of it."""

BUSY = 0.98
"""GPU-Util from which the GPU cannot wait for the host, whatever its lead seems to be: leads are
lower bounds, and low in a loop that has not waited for the GPU for hundreds of steps."""

LOSS = 0.10
"""Of the step time: from here on a loss can be out of proportion."""
LOSS_OF_FORWARD = 0.25
"""Of the forward's time: from here on it is, unless its own matrix products explain it."""

_EXPLAINED = 0.5
"""Of the rest: a phase of the user's that is as large as this explains it."""
_AT_MOST = 1.1
"""Times the rest: a phase that is larger is not only in it. More than 1, since not all steps are
split."""
_SLOW = 0.30
"""Share of the peak below which a backward may be one that does something else."""


class Gain(NamedTuple):
    """Something that could be gained.

    Attributes:
        name: Of the part of the step or of the trace.
        share: Of the step time, as it counts; ``None``: it takes time, and how much of that could
            be gained is not known.
        text: The evidence, and what to try.
    """

    name: str
    share: float | None
    text: str


def gains_of_parts(run: Run, now: Figures) -> Iterator[Gain]:
    """What could be gained in every part of the steps; nothing where no step was split.

    Args:
        run: The run.
        now: Its figures.
    """
    split = now.split
    if split is None:
        return
    yield from _outside(split)
    yield from _host(split, _gpu_util(run))
    if "forward" in split.parts_s:  # else the rest is the forward
        yield _rest(split, now)
    slow = _loss(split)
    recompute = _recompute(run, now, split)
    yield from (each for each in (slow, recompute) if each is not None)
    again_s = 0.0 if recompute is None else (recompute.share or 0.0) * split.time_s
    yield from _computing(split, alone=slow is not None, again_s=again_s)


def _gpu_util(run: Run) -> float | None:
    found = sampled(run)
    return None if found is None else found.mean.gpu_util


def _evidence(split: SplitSteps, name: str, called: str) -> str:
    """``waiting for data is 12.0 % of the step time (1.20 ms a step)``."""
    part_s = split.parts_s[name]
    share, each = percent(part_s / split.time_s), seconds(part_s / split.steps)
    return f"{called} is {share} of the step time ({each} a step)"


# --- in full -------------------------------------------------------------------------------------


def _outside(split: SplitSteps) -> Iterator[Gain]:
    shares = split.shares
    if "data_wait" in shares:
        seen = _evidence(split, "data_wait", "waiting for data")
        text = f"{seen}: more loader workers, prefetching, cheaper transforms"
        yield Gain("data_wait", shares["data_wait"], text)
    wait_too = "" if "data_wait" in shares else ", waiting for data into meter.data"
    seen = _evidence(split, "between", "the time between the steps")
    text = (
        f"{seen}: see what the loop does there (logging, schedules, metrics); evaluation "
        f"and checkpoints belong into meter.pause{wait_too}"
    )
    yield Gain("between", shares["between"], text)


def _host(split: SplitSteps, gpu_util: float | None) -> Iterator[Gain]:
    """On a GPU: it waits for the host all the time, or after something that waits for it."""
    if split.lead_s is None or split.lead_most_s is None:
        return
    if gpu_util is not None and gpu_util >= BUSY:
        return
    step_s = split.time_s / split.steps
    inside = 1 - split.shares["between"] - split.shares.get("data_wait", 0.0)
    # Without GPU-Util it is known that the GPU waits, and not how long: half of the time.
    idle = SHRINKS * inside if gpu_util is None else max(0.0, inside - gpu_util)
    if max(split.lead_s, split.lead_most_s) < LITTLE_LEAD * step_s:
        seen = "" if gpu_util is None else f", and GPU-Util is {percent(gpu_util)}"
        unless = "" if gpu_util is not None else " (unless GPU-Util is near 100 %)"
        yield Gain(
            "launch_bound",
            idle,
            f"the GPU waits for the host{unless}: at most {seconds(split.lead_most_s)} of work was "
            f"seen queued in steps of {seconds(step_s)}{seen}. A larger batch, torch.compile, CUDA "
            "graphs, fused kernels and optimizers",
        )
    elif split.lead_s < LITTLE_LEAD * step_s and split.lead_most_s >= MUCH_LEAD * step_s:
        yield Gain(
            "host_sync",
            MUCH_LEAD if gpu_util is None else idle,
            "something at the end of the step waits for the GPU: "
            f"{seconds(split.lead_most_s)} of work is queued within it, and "
            f"{seconds(split.lead_s)} when the loop leaves it. .item(), print(loss), .cpu() and "
            "synchronize(), once in 10 steps, cost a tenth",
        )


def _rest(split: SplitSteps, now: Figures) -> Gain:
    seen = _evidence(split, "rest", "the rest of the step")
    rest = split.shares["rest"]
    in_it = {
        n: share for n, share in now.phases.items() if _EXPLAINED * rest <= share <= _AT_MOST * rest
    }
    if in_it and rest > 0 and now.step_s is not None:
        name, share = max(in_it.items(), key=lambda item: item[1])
        text = f"{seen}, and your phase {name!r} takes {seconds(share * now.step_s)} a step"
        return Gain("rest", rest, f"{text}: look at what is in it")
    optimizer = "" if "optimizer" in split.parts_s else ", an optimizer that is compiled"
    return Gain(
        "rest",
        rest,
        f"{seen}: making or copying the batch, a loader that is iterated in the step "
        f"(meter.data tells its wait apart), clipping, zeroing, .item() and printing, or an "
        f"optimizer that is no torch.optim.Optimizer{optimizer}; meter.phase says which",
    )


# --- in part -------------------------------------------------------------------------------------


def _loss(split: SplitSteps) -> Gain | None:
    """A loss out of proportion: what it takes has no matrix products to show for it."""
    loss_s, forward_s = split.parts_s.get("loss", 0.0), split.parts_s.get("forward", 0.0)
    if loss_s < LOSS * split.time_s or loss_s < LOSS_OF_FORWARD * forward_s:
        return None
    rate = _forward_alone(split)
    if rate is not None and rate > 1:
        return None  # the forward cannot have run all of these FLOPs: some are the loss's
    seen = _evidence(split, "loss", "the loss")
    return Gain(
        "loss",
        loss_s / split.time_s,
        f"{seen}, from the end of the forward ({seconds(forward_s / split.steps)}) to "
        "backward(): metrics, .item() or numpy there, a model that the meter was not given, or a "
        "loss that should be fused with the head",
    )


def _forward_alone(split: SplitSteps) -> float | None:
    """The share of the peak of the forward if all FLOPs of forward and loss are its own."""
    forward_s, loss_s = (split.parts_s.get(name, 0.0) for name in ("forward", "loss"))
    if "forward" not in split.of_peak or not forward_s > 0:
        return None
    return split.of_peak["forward"] * (forward_s + loss_s) / forward_s


def _recompute(run: Run, now: Figures, split: SplitSteps) -> Gain | None:
    """What runs a second time in the backward takes as long as it took in the forward."""
    pairs = counts_of(by_count([s for s in run.steps if not s.excluded]), run.counts)
    if isinstance(pairs, str) or now.mfu is None or now.hfu is None:
        return None
    again = sum(times * count.recompute for count, times in pairs)
    first = sum(times * (count.forward + count.forward_no_grad) for count, times in pairs)
    all_of_it = sum(times * count.hardware for count, times in pairs)
    parts = split.parts_s
    if not again or not first or "forward" not in parts:
        return None
    cost_s = min(parts["forward"] * again / first, parts["backward"])
    return Gain(
        "recompute",
        cost_s / split.time_s,
        f"{percent(again / all_of_it)} of the FLOPs run a second time in the backward (HFU "
        f"{percent(now.hfu)}, MFU {percent(now.mfu)}), about {seconds(cost_s / split.steps)} a "
        f"step ({percent(cost_s / split.time_s)}), if it takes as long as in the forward: "
        "checkpoint fewer layers, selective checkpointing, a larger memory budget",
    )


def _computing(split: SplitSteps, *, alone: bool, again_s: float) -> Iterator[Gain]:
    """Forward, backward and optimizer.

    Args:
        split: The parts.
        alone: The loss is told of by itself.
        again_s: Of the backward, what is told of as recompute.
    """
    parts, rates = split.parts_s, dict(split.of_peak)
    times: dict[str, float] = {}
    for name in ("backward", "optimizer"):
        if name in parts:
            times[name] = parts[name]
    if "forward" in parts:
        times["forward"] = parts["forward"] + (0.0 if alone else parts["loss"])
        own = _forward_alone(split)
        if alone and own is not None:
            rates["forward"] = own
    for name, part_s in times.items():
        if "forward" not in parts and parts["rest"] > part_s:
            continue  # the largest part is one that nothing is known of
        what = "forward with the loss" if name == "forward" and not alone else name
        text = f"{what} is {percent(part_s / split.time_s)} of the step time"
        if name in rates:
            text += f", at {percent(rates[name])} of the peak"
        if name == "optimizer":
            text += (
                f" ({seconds(part_s / split.steps)} a step): fused=True or foreach=True where it "
                "has them, or fewer steps of it: larger batches, gradient accumulation"
            )
        elif name == "backward" and rates.get(name, 1.0) < _SLOW:
            text += "; hooks on gradients and DDP's reductions are in it, too"
        left = part_s - (again_s if name == "backward" else 0.0)
        yield Gain(name, _shrinks(left / split.time_s, _rate(split, name, rates)), text)


def _rate(split: SplitSteps, name: str, rates: dict[str, float]) -> float | None:
    if name == "optimizer":
        return rates.get(name, 0.0)  # without matrix products it is all elementwise
    return rates.get(name)


def _shrinks(share: float, rate: float | None) -> float | None:
    """Half of what kernels at :data:`GOOD_RATE` of the peak would not need."""
    if rate is None or not math.isfinite(rate):
        return None
    return SHRINKS * share * max(0.0, 1 - rate / GOOD_RATE)
