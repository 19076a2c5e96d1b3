"""What to fix first: one answer for a run, from the parts of its steps and from its last trace.

What can be gained decides, not the order in which things are looked at; what counts for how much
is said in :mod:`mfu_torch.insight.advice_parts` and :mod:`mfu_torch.insight.advice_traced`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mfu_torch.figures import Figures
from mfu_torch.insight.advice_parts import Gain, gains_of_parts
from mfu_torch.insight.advice_traced import HOST, gains_of_trace
from mfu_torch.insight.breakdown_words import fix_first
from mfu_torch.records import Run
from mfu_torch.records.breakdown import BreakdownEntry
from mfu_torch.records.losses import label, printable, steps_text, undivided
from mfu_torch.units import percent

WORTH = 0.05
"""Of the step time: with less to gain, nothing stands out."""

FEWEST_STEPS = 10
"""Between two recordings, as advice: a tenth of the run, and no fewer than these."""

ENOUGH_STEPS = 15
"""A run in which ``explain_every=10`` records something: 10, a warm-up, 3 traced, 1 after them."""

_SEEN_AS: Mapping[str, tuple[str, ...]] = {
    "data_wait": ("idle/data_wait",),
    "between": HOST,
    "rest": HOST,
    "loss": HOST,
    "optimizer": ("other_compute",),
    "recompute": ("matrix/recompute",),
    "launch_bound": ("idle/launch_bound",),
    "host_sync": ("idle/host_sync",),
}
"""Part of a step -> what a trace may call its time. The part says where it is, the trace why."""

_PART_OF = 0.5
"""Of what the trace has: a part of the steps that has as much of it is where it comes from."""

_COMPUTING = ("forward", "backward")


class Advice(NamedTuple):
    """What to fix first.

    Attributes:
        name: Of the part of a step (:data:`mfu_torch.step_parts.PARTS`, ``recompute``,
            ``launch_bound``, ``host_sync``) or of a trace (:data:`mfu_torch.records.BUCKETS`);
            empty if nothing stands out.
        share: Of the step time, what counts as gain; ``None`` where it is not known.
        text: One sentence or two.
    """

    name: str
    share: float | None
    text: str


def advice(run: Run, now: Figures) -> Advice | None:
    """What to fix first; ``None`` where neither parts nor a trace are there.

    1. The largest gain, if it is at least 5 % of the step time. Of a run that was traced, the
       parts of the trace stand for forward and backward.
    2. Where a trace says that the device was empty, and a part of the steps has at least half of
       that gain and can be its place, the part is named, and what the trace says is added.
    3. Without such a gain: a part with an unknown one; else nothing stands out.

    Args:
        run: The run.
        now: Its figures.
    """
    entry = run.breakdowns[-1] if run.breakdowns else None
    told = now.split is not None and now.split.told
    of_parts = list(gains_of_parts(run, now)) if told else []
    traced = [] if entry is None else list(gains_of_trace(entry))
    if not of_parts and not traced:
        return None
    computing = [each for each in of_parts if each.name in _COMPUTING]
    if traced:
        of_parts = [each for each in of_parts if each.name not in _COMPUTING]
    best = max([*of_parts, *traced], key=lambda each: each.share or 0.0)
    if (best.share or 0.0) < WORTH:
        return _without_gain(run, now, of_parts, entry)
    place = best if best in of_parts else _place(best, of_parts)
    if place is None:
        return Advice(best.name, best.share, best.text + _furthest(best, computing))
    text = place.text
    if entry is not None:
        text += _why(place, entry)
    elif place.name in _COMPUTING:
        text += _say_which(run, now)
    return Advice(place.name, place.share, text)


def _place(best: Gain, of_parts: list[Gain]) -> Gain | None:
    """The part of the steps that what a trace shows comes from."""
    least = _PART_OF * (best.share or 0.0)
    places = [
        each
        for each in of_parts
        if best.name in _SEEN_AS.get(each.name, ()) and (each.share or 0.0) >= max(least, WORTH)
    ]
    return max(places, key=lambda each: each.share or 0.0, default=None)


def _furthest(best: Gain, computing: list[Gain]) -> str:
    """Beside kernels that a trace names: the part of the steps that is furthest from its peak."""
    worst = max(computing, key=lambda each: each.share or 0.0, default=None)
    if worst is None or (worst.share or 0.0) < WORTH or best.name.startswith(("idle/", "exposed_")):
        return ""
    return f". Of the parts of a step, {worst.text}"


def _why(place: Gain, entry: BreakdownEntry) -> str:
    """What the trace says of it, where that is not much smaller."""
    found, names = entry.breakdown, _SEEN_AS.get(place.name, ())
    seen = [bucket for bucket in found.buckets if bucket.name in names and bucket.hint]
    largest = max(seen, key=lambda bucket: bucket.time_ns, default=None)
    least = _PART_OF * (place.share or 0.0) * found.wall_ns
    if largest is None or largest.time_ns < least:
        return ""
    share = f"{percent(largest.time_ns / found.wall_ns)} of the time"
    hint = printable(largest.hint) or share
    return f". In the traced {steps_text(entry.steps)}, {label(largest.name)}: {hint}"


def _without_gain(
    run: Run, now: Figures, of_parts: list[Gain], entry: BreakdownEntry | None
) -> Advice | None:
    unknown = None if entry is None else undivided(entry.breakdown)
    if entry is not None and unknown is not None:
        text = fix_first(entry.breakdown).removeprefix("Fix first: ")
        return Advice(unknown.name, None, text[:1].lower() + text[1:])
    unsure = [each for each in of_parts if each.share is None]
    if unsure and now.split is not None:
        times = now.split.parts_s
        largest = max(unsure, key=lambda each: times.get(each.name, 0.0))
        why = f" ({now.split.absent})" if now.split.absent else ""
        text = f"{largest.text}; how near the peak that is, is not known{why}"
        return Advice(largest.name, None, text + _say_which(run, now))
    if now.split is not None and "forward" not in now.split.parts_s and entry is None:
        return None  # the rest is the forward: of the largest part nothing is known
    return Advice("", 0.0, f"nothing stands out: {_nothing(now)}")


def _nothing(now: Figures) -> str:
    rates = {} if now.split is None else now.split.of_peak
    words = [f"{name} runs at {percent(rate)} of the peak" for name, rate in rates.items()]
    if len(words) > 1:
        words = [f"{', '.join(words[:-1])} and {words[-1]}"]
    no_loss = f"no wait or other loss is worth {100 * WORTH:.0f} % of the step time"
    return f"{words[0]}, and {no_loss}" if words else no_loss


def _say_which(run: Run, now: Figures) -> str:
    """The argument that says more, with a number that fits the run."""
    steps = sum(1 for _ in run.steps)
    every = max(FEWEST_STEPS, steps // 10)
    on_gpu = now.split is not None and now.split.lead_s is not None
    kernels = "kernels" if on_gpu else "ops"
    few = f", in a run of {ENOUGH_STEPS} steps or more," if steps < ENOUGH_STEPS else ""
    return f"; Meter(explain_every={every}){few} says which {kernels} it goes to"
