"""What has to be said of the matrix time, as sentences with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mfu_torch.insight.breakdown.counted import Counted
from mfu_torch.insight.breakdown.rates import Rates
from mfu_torch.units import percent, scaled, seconds

_SHOWN = 3
"""Reasons that are named."""

_SAME = 0.01
"""Relative difference up to which FLOPs that were given and those of the trace agree."""


def not_known(counted: Counted) -> tuple[str, ...]:
    """Why the FLOPs of some kernels are not known, and how much time that is."""
    total, known = int(counted.time_ns.sum()), int(counted.time_ns[counted.known].sum())
    if total == known:
        return ()
    reasons = sorted(counted.why_unknown.items(), key=lambda pair: -pair[1])
    shown = [f"{seconds(ns / 1e9)}: {why}" for why, ns in reasons[:_SHOWN] if ns]
    return (
        f"the FLOPs of {percent((total - known) / total)} of the matrix time are not known "
        f"({'; '.join(shown)})",
    )


def left_out(counted: Counted) -> tuple[str, ...]:
    """FLOPs that do not count, as the time of their kernels is that of other compute."""
    if not counted.left_out:
        return ()
    first = max(counted.left_out, key=lambda name: counted.left_out[name])
    return (
        f"{scaled(sum(counted.left_out.values()), 'FLOP')} are left out: no kernel of their ops "
        f"(most are {first}) is classed as matrix work; your own table of classes can do that "
        "(--classes)",
    )


def too_fast(below_peak: tuple[int, ...], counted: Counted, found: Rates) -> tuple[str, ...]:
    """A warning with the likely causes, if matrix kernels ran faster than the peak allows."""
    total = sum(below_peak)
    steps = sum(1 for ns in below_peak if ns < 0)
    if total >= 0 and not steps:
        return ()
    what = (
        f"matrix kernels took {seconds(-total / 1e9)} less than their FLOPs take at the peak"
        if total < 0
        else f"matrix kernels were faster than the peak in {steps} of {len(below_peak)} steps"
    )
    return (f"{what}: {'; or '.join(_causes(counted, found))}",)


def _causes(counted: Counted, found: Rates) -> Iterator[str]:
    peak = found.reference
    rate = scaled(peak.flops_per_s, "FLOP/s", 4)
    yield f"the peak ({rate} in {peak.dtype}) is not the one of this device (see --peak, --dtype)"
    if any(not one.certain for one in counted.ops):
        yield "fp32 operands ran as TF32, which the kernels' names do not show"
    full = sum(one.work.flops for one in counted.ops)
    causal = sum(one.work.causal_flops for one in counted.ops)
    if causal < full:
        yield (
            f"masked attention scores were skipped, {percent(1 - causal / full)} of all FLOPs, "
            "which count here"
        )
    yield "kernels of these ops are missing from the trace"
    yield "the device runs above the clock that its peak is stated for"


def exceeds(wanted_ns: int, executed_ns: int) -> tuple[str, ...]:
    """Model FLOPs that do not fit into the trace."""
    return (
        f"the model FLOPs that were given take {seconds(wanted_ns / 1e9)} of a step at the peak, "
        f"and the trace shows FLOPs for {seconds(executed_ns / 1e9)} and too little time of "
        "kernels with unknown FLOPs for the rest: are they those of one step of one device?",
    )


def differs(
    given: float,
    steps: int,
    model: Mapping[str | None, list[int]],
    recompute: Mapping[str | None, list[int]],
) -> tuple[str, ...]:
    """Where the trace shows fewer model FLOPs than are given: what is beyond them has a bucket."""
    seen = sum(map(sum, model.values())) / max(steps, 1)
    again = sum(map(sum, recompute.values())) / max(steps, 1)
    if not seen or seen / given - 1 >= -_SAME:
        return ()
    return (
        f"the model FLOPs that were given are {scaled(given, 'FLOP', 4)} a step; the trace shows "
        f"{scaled(seen, 'FLOP', 4)} and {scaled(again, 'FLOP', 4)} of recompute",
    )
