"""Where the time of the steps went, without any trace: their parts, as marks tell them.

    forward + loss + backward + optimizer + data wait + rest + between  =  time of the steps

A trace says more (:mod:`mfu_torch.insight`): which kernels ran, and what the device waited for. But
these parts cost next to nothing, so they are of the run itself, and always there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import field

from mfu_torch.ideal import by_count, counts_of
from mfu_torch.records import Counts, FlopCount, Peaks, Phase, Record, Step, StepParts
from mfu_torch.utilization import ideal_time_s, utilization

PARTS = ("forward", "loss", "backward", "optimizer", "data_wait", "rest", "between")
"""Names of the parts, in the order in which they are shown."""

# Of which phases of a count the FLOPs run in which part: in a loss that has contractions (a fused
# head, say) they are forward FLOPs, so these two parts go together.
_PHASES: Mapping[str, tuple[tuple[Phase, ...], tuple[str, ...]]] = {
    "forward": (("forward", "forward_no_grad"), ("forward", "loss")),
    "backward": (("backward", "recompute", "kernel_recompute"), ("backward",)),
    "optimizer": (("optimizer",), ("optimizer",)),
}

NOT_SPLIT = "no steady step was split into its parts"
NO_CALLS = "no forward call of the model was seen in them"
PART_ABOVE_PEAK = (
    "{} would be above its peak: work of this kind ran in other parts (another model, say, which "
    "the meter was not given), or the peak is too low"
)


class SplitSteps(Record, frozen=True, kw_only=True):
    """Where the time of the steady steps went that were split.

    Attributes:
        steps: How many these are.
        time_s: Their time.
        parts_s: Seconds of each of :data:`PARTS`; they sum to ``time_s``. ``forward`` and ``loss``
            are missing where no call of the model was seen, or none in a step with a backward: they
            are in ``rest``. ``optimizer`` is missing where no step of an optimizer was seen in
            steps that had backwards: one that is compiled, say. ``data_wait`` is
            missing where the loop's waits are not measured. On a GPU it is the time in which the
            GPU can have waited for data, at most: what it had queued meanwhile is not in it.
        of_peak: The share of the time of ``forward`` (with ``loss``), ``backward`` (with what it
            recomputes) and ``optimizer`` that their FLOPs would take at the peak: the HFU of each.
        lead_s: Mean of the work queued on the device when the loop leaves a step, at least;
            ``None`` on the CPU.
        lead_most_s: Likewise, of the most within a step.
        absent: Why shares of the peak are not known, or one of them; empty if they are.
    """

    steps: int
    time_s: float
    parts_s: dict[str, float]
    of_peak: dict[str, float] = field(default_factory=dict)
    lead_s: float | None = None
    lead_most_s: float | None = None
    absent: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """Of the time of the steps; they sum to 1."""
        return {name: part_s / self.time_s for name, part_s in self.parts_s.items()}

    @property
    def told(self) -> bool:
        """Whether anything was seen of what is told apart from the rest."""
        return any(self.parts_s.get(name) for name in ("forward", "loss", "backward", "optimizer"))


def split_steps(steps: Sequence[Step], counts: Counts, peaks: Peaks) -> SplitSteps | str:
    """The parts of the steady ones among ``steps``, or why they are not known.

    Args:
        steps: Consecutive steps of a run.
        counts: By the count ids that the steps name.
        peaks: By dtype.
    """
    split = [(step, step.parts) for step in steps if not step.excluded and step.parts is not None]
    time_s = math.fsum(step.duration_s for step, _ in split)
    if not time_s > 0:
        return NOT_SPLIT
    all_parts = [parts for _, parts in split]
    # A step that was skipped has no call, and no backward.
    called = any(parts.forward_s is not None for parts in all_parts) and not any(
        parts.forward_s is None and parts.backward_s for parts in all_parts
    )
    stepped = any(parts.optimizer_s for parts in all_parts) or not any(
        parts.backward_s for parts in all_parts
    )
    waited = all(step.data_wait_s is not None for step, _ in split)
    each = [_parts_of(step, parts, called=called, waited=waited) for step, parts in split]
    parts_s = {name: math.fsum(one[name] for one in each) for name in PARTS if name in each[0]}
    if not stepped:
        del parts_s["optimizer"]  # nothing of the time is in it
    of_peak = _of_peak([step for step, _ in split], parts_s, counts, peaks)
    absent = "" if called else NO_CALLS
    if not isinstance(of_peak, str):
        above = [name for name, share in of_peak.items() if share > 1]
        of_peak = {name: share for name, share in of_peak.items() if share <= 1}
        absent = PART_ABOVE_PEAK.format(above[0]) if above else absent
    return SplitSteps(
        steps=len(split),
        time_s=time_s,
        parts_s=parts_s,
        of_peak={} if isinstance(of_peak, str) else of_peak,
        absent=of_peak if isinstance(of_peak, str) else absent,
        lead_s=_mean([parts.lead_s for _, parts in split]),
        lead_most_s=_mean([parts.lead_most_s for _, parts in split]),
    )


def _parts_of(step: Step, parts: StepParts, *, called: bool, waited: bool) -> dict[str, float]:
    known = {"backward": parts.backward_s, "optimizer": parts.optimizer_s}
    if called:
        known |= {"forward": parts.forward_s or 0.0, "loss": parts.loss_s or 0.0}
    between = parts.tail_s
    rest = step.duration_s - between - sum(known.values())
    if waited and step.data_wait_s is not None:
        # Most loops wait between steps. A wait during which the device had work is none for it.
        after = min(step.data_wait_s, between)
        inside = min(step.data_wait_s - after, max(rest, 0.0))
        known["data_wait"] = after + inside
        between, rest = between - after, rest - inside
    return {**known, "rest": rest, "between": between}


def _of_peak(
    steps: Sequence[Step], parts_s: Mapping[str, float], counts: Counts, peaks: Peaks
) -> dict[str, float] | str:
    pairs = counts_of(by_count(steps), counts)
    if isinstance(pairs, str):
        return pairs
    shares = {}
    for name, (phases, parts) in _PHASES.items():
        flops: dict[str, int] = {}
        for count, times in pairs:
            if count.given:
                return "FLOPs were given for the step as a whole"
            _add(flops, count, phases, times)
        unknown = [dtype for dtype in flops if dtype not in peaks or peaks[dtype].peak is None]
        if unknown:
            return f"the peak of {unknown[0]} is not known"
        time_s = sum(parts_s.get(part, 0.0) for part in parts)
        if flops and time_s > 0:
            rates = {dtype: entry.peak.flops_per_s for dtype, entry in peaks.items() if entry.peak}
            shares[name] = utilization(ideal_time_s(flops, rates), time_s)
    return shares


def _add(flops: dict[str, int], count: FlopCount, phases: tuple[Phase, ...], times: int) -> None:
    for term in count.terms:
        if term.phase in phases and term.flops:
            flops[term.dtype] = flops.get(term.dtype, 0) + times * term.flops


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
