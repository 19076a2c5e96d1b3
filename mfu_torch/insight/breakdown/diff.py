"""Two breakdowns: by how much each bucket of a mean step changed. The changes sum exactly."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from mfu_torch.insight.breakdown.noise import kept_steps, may_be_chance
from mfu_torch.insight.breakdown.totals import in_bucket_order, merged_name
from mfu_torch.insight.breakdown_words import steps_of
from mfu_torch.records import MFUError, Record
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.units import percent, scaled

_SAME_FLOPS = Fraction(1, 100)  # what may differ by rounding, or by a last, smaller batch


class Incomparable(MFUError):
    """The steps of two breakdowns are not the same thing; the message says why."""


class Change(Record, frozen=True, kw_only=True):
    """One bucket, before and after.

    Attributes:
        name: As in :class:`~mfu_torch.records.breakdown.Bucket`.
        before_ns: Of all steps before; 0 where the bucket was empty.
        after_ns: Of all steps after.
    """

    name: str
    before_ns: int
    after_ns: int


class Diff(Record, frozen=True, kw_only=True):
    """Change of a mean step, bucket by bucket.

    Attributes:
        before: The first breakdown.
        after: The second one.
        changes: Every bucket of either, in the order of
            :data:`~mfu_torch.records.breakdown.BUCKETS`.
        warnings: What differs besides the time.
    """

    before: Breakdown
    after: Breakdown
    changes: tuple[Change, ...]
    warnings: tuple[str, ...] = ()

    def before_ns(self, change: Change) -> Fraction:
        """Of a mean step, before."""
        return Fraction(change.before_ns, steps_of(self.before))

    def after_ns(self, change: Change) -> Fraction:
        """Of a mean step, after."""
        return Fraction(change.after_ns, steps_of(self.after))

    def change_ns(self, change: Change) -> Fraction:
        """Of a mean step; negative where it became faster."""
        return self.after_ns(change) - self.before_ns(change)

    @property
    def step_before_ns(self) -> Fraction:
        """A mean step, before."""
        return Fraction(self.before.wall_ns, steps_of(self.before))

    @property
    def step_after_ns(self) -> Fraction:
        """A mean step, after."""
        return Fraction(self.after.wall_ns, steps_of(self.after))

    @property
    def step_change_ns(self) -> Fraction:
        """Of a mean step: exactly the sum of :meth:`change_ns`."""
        return self.step_after_ns - self.step_before_ns

    def may_be_chance(self, change: Change | None = None) -> bool | None:
        """Whether steps of one trace differ by as much; ``None`` with one step in each.

        Args:
            change: Of a bucket; by default that of the step.
        """
        name = None if change is None else change.name
        merged = _merged(self.before, self.after)
        return may_be_chance(*(_each(one, name, merged) for one in (self.before, self.after)))

    def largest(self) -> list[Change]:
        """What changed, by how much, the largest first."""
        moved = [one for one in self.changes if self.change_ns(one)]
        return sorted(moved, key=lambda one: -abs(self.change_ns(one)))


def diff(before: Breakdown, after: Breakdown) -> Diff:
    """Compare the mean steps of two breakdowns.

    Two steps of 100 ns with 60 ns of data wait, then three of 50 ns with 5 ns: a step changed by
    -50 ns, data wait by -55 ns.

    Where the peaks differ, the parts of ``matrix`` do not compare, and stand as one.

    Raises:
        Incomparable: If the steps are delimited in different ways, if one trace has a GPU and
            the other has none, or if one has no time.
    """
    _check(before, after)
    merged = _merged(before, after)
    old, new = _times(before, merged), _times(after, merged)
    names = in_bucket_order(old.keys() | new.keys())
    changes = tuple(
        Change(name=name, before_ns=old.get(name, 0), after_ns=new.get(name, 0)) for name in names
    )
    found = Diff(
        before=before, after=after, changes=changes, warnings=tuple(_warnings(before, after))
    )
    if sum(map(found.change_ns, changes), Fraction(0)) != found.step_change_ns:
        raise Incomparable("the buckets of one of them do not sum to its wall time")
    return found


def _times(found: Breakdown, merged: bool) -> dict[str, int]:
    times: dict[str, int] = {}
    for one in found.buckets:
        name = merged_name(one.name, merged)
        times[name] = times.get(name, 0) + one.time_ns
    return times


def _each(found: Breakdown, name: str | None, merged: bool) -> list[int]:
    """The time of every step that is alike, or of a bucket in it."""
    columns = [one.per_step_ns for one in found.buckets if merged_name(one.name, merged) == name]
    each = [sum(step) for step in zip(*columns, strict=True)] or [0] * len(found.step_ns)
    return [(found.step_ns if name is None else each)[at] for at in kept_steps(found)]


def _merged(before: Breakdown, after: Breakdown) -> bool:
    """Whether the parts of ``matrix`` do not compare."""
    known = before.peak is not None or after.peak is not None
    return known and not _same_peak(before, after)


def _same_peak(before: Breakdown, after: Breakdown) -> bool:
    a, b = before.peak, after.peak
    return a is not None and b is not None and (a.flops_per_s, a.dtype) == (b.flops_per_s, b.dtype)


def _check(before: Breakdown, after: Breakdown) -> None:
    for one in (before, after):
        if one.wall_ns <= 0:
            raise Incomparable(f"{one.file} has no time in its steps; nothing can be compared")
    if before.edges != after.edges:
        raise Incomparable(
            f"the steps of {before.file} are delimited by {before.edges!r}, those of {after.file} "
            f"by {after.edges!r}; only steps of the same kind compare: record both with "
            "profiler.step(), and give the same --edges"
        )
    if bool(before.coverage.work) != bool(after.coverage.work):
        with_gpu, without = (before, after) if before.coverage.work else (after, before)
        raise Incomparable(
            f"{with_gpu.file} has work of a GPU and {without.file} has none: their steps do not "
            "compare"
        )


def _warnings(before: Breakdown, after: Breakdown) -> Iterator[str]:
    if before.device != after.device:
        yield f"the devices differ: {_named(before.device)}, then {_named(after.device)}"
    if not _same_peak(before, after) and (before.peak or after.peak):
        yield (
            f"the peaks differ: {_peak(before)}, then {_peak(after)}; matrix time stands as one "
            "line, for its parts refer to the peak"
        )
    if before.edges == "trace":
        yield "no steps are marked in these traces: the whole of one is compared with the other's"
    old, new = _flops(before), _flops(after)
    if old and new and abs(new - old) > _SAME_FLOPS * max(old, new):
        yield (
            f"the model FLOPs of a step differ: {scaled(float(old), 'FLOP', 4)}, then "
            f"{scaled(float(new), 'FLOP', 4)}; another batch or model is another amount of work"
        )


def _flops(found: Breakdown) -> Fraction:
    return Fraction(found.model_flops or 0, steps_of(found))


def _named(device: str | None) -> str:
    return device or "not named"


def _peak(found: Breakdown) -> str:
    peak = found.peak
    return f"{scaled(peak.flops_per_s, 'FLOP/s', 4)} {peak.dtype}" if peak else "not known"


def step_sentence(found: Diff) -> str:
    """``A step takes 150 ms instead of 195 ms (23.1 % less).``."""
    old, new = found.step_before_ns, found.step_after_ns
    text = f"A step takes {_ms(new)} instead of {_ms(old)}"
    if new == old:
        return f"A step takes {_ms(new)}, as before."
    word = "less" if new < old else "more"
    return f"{text} ({percent(float(abs(new - old) / old))} {word})."


def _ms(time_ns: Fraction) -> str:
    return f"{float(time_ns) / 1e6:.4g} ms"
