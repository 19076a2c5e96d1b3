"""What the matrix time is made of: FLOPs at the peak, recompute, slow dtypes, and the rest.

For FLOPs F_d in dtype d and peaks P_d, P that of the reference dtype, in whole nanoseconds::

    model_flops     sum of F_d / P, of what the model needs     (F_d / P_d where P_d > P)
    recompute       the same of what is computed once more
    optimizer       the same of what the optimizer's step multiplies (Muon, Shampoo)
    beside_model    the same of what is executed beyond given model FLOPs, and is neither of these
    low_rate_dtype  sum of F_d (1 / P_d - 1 / P) where P_d < P
    unknown_flops   time in which a kernel is on top whose FLOPs are not known
    below_peak      what is left of the matrix time

So all but the last two are the ideal time of all FLOPs. ``below_peak`` is never clamped: negative,
it says that peak or FLOPs are wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from mfu_torch.insight.breakdown.codes import ATTENTION
from mfu_torch.insight.breakdown.counted import TF32_UNKNOWN, Counted, CountedOp, count
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix_remarks import (
    differs,
    exceeds,
    left_out,
    not_known,
    too_fast,
)
from mfu_torch.insight.breakdown.rates import NO_FLOPS, Rates, may_have_tf32, rates
from mfu_torch.insight.breakdown.recompute import COMPILED
from mfu_torch.insight.trace.events import Ints, Trace
from mfu_torch.records import Peak

MODEL, RECOMPUTE = "matrix/model_flops", "matrix/recompute"
OPTIMIZER, BESIDE = "matrix/optimizer", "matrix/beside_model"
LOW_RATE, UNKNOWN_FLOPS = "matrix/low_rate_dtype", "matrix/unknown_flops"
BELOW_PEAK = "matrix/below_peak"

_SAME = 1e-3
"""Of the model FLOPs; up to this much, those that were given and those of the trace agree."""


@dataclass(frozen=True, kw_only=True)
class MatrixSplit:
    """The matrix time of each step in its parts, exactly.

    Attributes:
        buckets: Name -> ns of each step; empty where there is no peak: one bucket ``matrix``.
        top_work: Name -> ns of each entry of ``trace.work`` (``trace.ops``) in this bucket.
        peak: The reference; ``None`` without.
        model_flops: Of all steps; ``None`` where none are known.
        hardware_flops: Of all steps: those of the model, recompute and the optimizer.
        known_ns: Matrix time of kernels whose FLOPs are known.
        notes: What has to be said.
        warnings: What may make it wrong.
        counted: The ops behind it.
        rates: Their peaks; ``None`` without.
    """

    buckets: dict[str, tuple[int, ...]]
    top_work: dict[str, Ints | None]
    peak: Peak | None
    model_flops: int | None
    hardware_flops: int | None
    known_ns: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    counted: Counted
    rates: Rates | None = None


@dataclass(slots=True)
class _Flops:
    """FLOPs of each step by dtype; those of masked scores are in the others, too."""

    steps: int
    model: dict[str | None, list[int]] = field(default_factory=dict)
    recompute: dict[str | None, list[int]] = field(default_factory=dict)
    optimizer: dict[str | None, list[int]] = field(default_factory=dict)
    masked: dict[str | None, list[int]] = field(default_factory=dict)

    def add(self, one: CountedOp) -> None:
        own = self.recompute if one.recompute else self.model
        for part, flops in (
            (self.optimizer if one.optimizer else own, one.work.flops),
            (self.recompute, one.work.kernel_recompute),
            (self.masked, one.work.executed - _kept(one)),
        ):
            part.setdefault(one.dtype, [0] * self.steps)[one.step] += flops

    @property
    def parts(self) -> tuple[dict[str | None, list[int]], ...]:
        return self.model, self.recompute, self.optimizer

    def by_dtype(self) -> dict[str | None, int]:
        total: dict[str | None, int] = defaultdict(int)
        for part in self.parts:
            for dtype, flops in part.items():
                total[dtype] += sum(flops)
        return dict(total)


def split(
    trace: Trace,
    labels: Labels,
    *,
    peak: Peak | float | str | None = None,
    dtype: str | None = None,
    model_flops: float | None = None,
    recompute_flops: float | None = None,
) -> MatrixSplit:
    """Divides the matrix time of every step.

    Args:
        trace: It.
        labels: Its labels.
        peak: In the reference dtype; by default that of the device's name.
        dtype: The reference; by default the one with most FLOPs.
        model_flops: Of one step, where they are known better than a trace shows them. What is
            executed beyond them is recompute as far as the trace shows it, or ``recompute_flops``
            are given; the rest ran beside the model.
        recompute_flops: Of one step, as a counter saw them.

    Raises:
        ValueError: If the peak or dtype is none.
    """
    counted = count(trace, labels)
    flops = _Flops(len(labels.edges.names))
    for one in counted.ops:
        if one.step >= 0:
            flops.add(one)
    known_ns = int(counted.time_ns[counted.known].sum())
    may_be_tf32 = not labels.of_ops and may_have_tf32(trace.device_name)
    notes = _notes(counted, may_be_tf32)
    found = rates(trace.device_name, trace.sm_count, flops.by_dtype(), peak=peak, dtype=dtype)
    given = None if model_flops is None else (round(model_flops), round(recompute_flops or 0))
    model, hardware = _totals(flops, given)
    if isinstance(found, str):
        return MatrixSplit(
            buckets={},
            top_work={},
            peak=None,
            model_flops=model,
            hardware_flops=hardware,
            known_ns=known_ns,
            notes=(*_why_whole(found, counted, model_flops), *notes),
            warnings=left_out(counted),
            counted=counted,
        )
    matrix_ns = labels.per_step_ns(labels.time_class <= ATTENTION).tolist()
    on_top = labels.time_class <= ATTENTION
    on_top[on_top] = ~counted.known[labels.work[on_top]]
    unknown_ns = labels.per_step_ns(on_top).tolist()
    buckets, warnings = _buckets(flops, found, matrix_ns, unknown_ns, given)
    return MatrixSplit(
        buckets=buckets,
        top_work=_top_work(counted, found),
        peak=found.reference,
        model_flops=model,
        hardware_flops=hardware,
        known_ns=known_ns,
        notes=(*notes, *found.notes),
        warnings=(*warnings, *left_out(counted), *too_fast(buckets[BELOW_PEAK], counted, found)),
        counted=counted,
        rates=found,
    )


def _kept(one: CountedOp) -> int:
    """FLOPs without the scores that a causal mask discards."""
    return one.work.causal_flops + one.work.kernel_recompute_causal


def _why_whole(why: str, counted: Counted, model_flops: float | None) -> tuple[str, ...]:
    """Why there is no peak; that no FLOPs are known another note says, and why."""
    is_said = why == NO_FLOPS and model_flops is None
    return (why,) if counted.time_ns.any() and not is_said else ()


def _of_step(part: dict[str | None, list[int]], step: int) -> int:
    return sum(flops[step] for flops in part.values())


def _ns(flops: int, flops_per_s: float) -> int:
    """Time of FLOPs at a rate, to the nearest nanosecond, half of one rounded up."""
    rate = round(flops_per_s)
    return (2 * flops * 10**9 + rate) // (2 * rate)


def _totals(flops: _Flops, given: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """FLOPs of the model, and of the hardware: with recompute and the optimizer's."""
    model = hardware = 0
    for step in range(flops.steps):
        seen, again, own = (_of_step(part, step) for part in flops.parts)
        if given is not None:
            again = min(max(again, given[1]), max(seen + again - given[0], 0))
            seen = given[0]
        model += seen
        hardware += seen + again + own
    executed = any(sum_ for part in flops.parts for sums in part.values() for sum_ in sums)
    if given is not None:
        return model, hardware if executed else None
    return (model, hardware) if executed else (None, None)


def _buckets(
    flops: _Flops,
    found: Rates,
    matrix_ns: list[int],
    unknown_ns: list[int],
    given: tuple[int, int] | None,
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    reference = found.reference.flops_per_s
    parts: dict[str, list[int]] = defaultdict(list)
    warnings: dict[str, None] = {}
    for step in range(flops.steps):
        model, again, own = (_at_reference(part, step, found) for part in flops.parts)
        slower = sum(
            max(_ns(sum_, found.of(dtype)) - _ns(sum_, reference), 0)
            for dtype, sum_ in _executed_by_dtype(flops, step).items()
        )
        beside, unknown = 0, unknown_ns[step]
        if given is not None:
            wanted, counted = (_ns(one, reference) for one in given)
            masked = _at_reference(flops.masked, step, found)
            if wanted > model + again:
                unknown, warning = _not_seen(wanted, model + again, unknown)
                warnings.update(dict.fromkeys(warning))
                again = 0
            else:
                again, beside = _beyond(wanted, model + again, max(again, counted), masked)
            model = wanted
        row = {MODEL: model, RECOMPUTE: again, OPTIMIZER: own, BESIDE: beside, LOW_RATE: slower}
        row[UNKNOWN_FLOPS] = unknown
        row[BELOW_PEAK] = matrix_ns[step] - sum(row.values())
        for name, ns in row.items():
            parts[name].append(ns)
    if given is not None:
        warnings.update(dict.fromkeys(differs(given[0], flops.steps, flops.model, flops.recompute)))
    return {name: tuple(part) for name, part in parts.items()}, tuple(warnings)


def _at_reference(part: dict[str | None, list[int]], step: int, found: Rates) -> int:
    # A dtype that is faster than the reference needs no more than its own ideal time.
    reference = found.reference.flops_per_s
    return sum(_ns(flops[step], max(reference, found.of(dtype))) for dtype, flops in part.items())


def _executed_by_dtype(flops: _Flops, step: int) -> dict[str | None, int]:
    total: dict[str | None, int] = defaultdict(int)
    for part in flops.parts:
        for dtype, sums in part.items():
            total[dtype] += sums[step]
    return total


def _beyond(wanted: int, seen: int, again: int, masked: int) -> tuple[int, int]:
    """Recompute and what ran beside the model, of the ideal time beyond the model's.

    Given model FLOPs may leave masked scores out, and the kernels skip them: those of the trace,
    where all scores count, are no work beside the model. Nor is what two ways to count differ by.
    """
    again = min(again, seen - wanted)
    beside = seen - wanted - again - masked
    return again, beside if beside > _SAME * wanted else 0


def _not_seen(wanted: int, seen: int, unknown: int) -> tuple[int, tuple[str, ...]]:
    """Time of unknown FLOPs, and a warning, where more model FLOPs are given than were seen."""
    # The rest of them ran in kernels of unknown FLOPs, at the peak in no less time.
    missing = wanted - seen
    return (unknown - missing, ()) if missing <= unknown else (unknown, exceeds(wanted, seen))


def _top_work(counted: Counted, found: Rates) -> dict[str, Ints | None]:
    """Each kernel's share of its op's ideal time, by time, and what it takes beyond."""
    ideal: dict[str, np.ndarray] = {
        name: np.zeros(len(counted.time_ns)) for name in (MODEL, RECOMPUTE, OPTIMIZER, LOW_RATE)
    }
    reference = found.reference.flops_per_s
    with_op = np.flatnonzero((counted.of_work >= 0) & (counted.time_ns > 0))
    if len(with_op):
        index = counted.of_work[with_op]
        share = counted.time_ns[with_op] / _column(counted.ops, lambda one: one.time_ns)[index]
        for name, of in _ideals(found, reference).items():
            ideal[name][with_op] = share * _column(counted.ops, of)[index]
    whole = {name: np.rint(part).astype(np.int64) for name, part in ideal.items()}
    below = np.where(counted.known, counted.time_ns - sum(whole.values()), 0)
    unknown = np.where(counted.known, 0, counted.time_ns)
    return {**whole, UNKNOWN_FLOPS: unknown, BELOW_PEAK: below}


def _ideals(found: Rates, reference: float) -> dict[str, Callable[[CountedOp], float]]:
    def at(flops: int, one: CountedOp) -> float:
        return flops / max(reference, found.of(one.dtype)) * 1e9 if one.step >= 0 else 0.0

    def slower(one: CountedOp) -> float:
        own = found.of(one.dtype)
        return max(one.work.executed * (1 / own - 1 / reference) * 1e9, 0.0) * (one.step >= 0)

    return {
        MODEL: lambda one: 0.0 if one.recompute or one.optimizer else at(one.work.flops, one),
        OPTIMIZER: lambda one: at(one.work.flops, one) if one.optimizer else 0.0,
        RECOMPUTE: lambda one: at(
            one.work.executed if one.recompute else one.work.kernel_recompute, one
        ),
        LOW_RATE: slower,
    }


def _column(ops: Iterable[CountedOp], of: Callable[[CountedOp], float]) -> np.ndarray:
    return np.array([of(one) for one in ops], np.float64)


def _notes(counted: Counted, may_be_tf32: bool) -> tuple[str, ...]:
    said: dict[str, int] = defaultdict(int)
    for one in counted.ops:
        if one.work.note:
            said[one.work.note] += one.work.flops
    uncertain = any(not one.certain for one in counted.ops) and may_be_tf32
    return (
        *not_known(counted),
        *sorted(said, key=lambda note: -said[note]),
        *((TF32_UNKNOWN,) if uncertain else ()),
        *((COMPILED,) if counted.compiled else ()),
    )
