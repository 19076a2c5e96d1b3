"""The answer of a comparison, as frozen records."""

from __future__ import annotations

from typing import Literal

from mfu_torch.records import Record

Group = Literal["MFU", "HFU", "end-to-end MFU", "throughput", "step time"]
"""What a difference can forbid to compare."""

UTILIZATIONS: tuple[Group, ...] = ("MFU", "HFU", "end-to-end MFU")
SPEEDS: tuple[Group, ...] = ("throughput", "step time")
EVERYTHING: tuple[Group, ...] = (*UTILIZATIONS, *SPEEDS)


class Side(Record, frozen=True, kw_only=True):
    """One of the two runs.

    Attributes:
        name: As whoever compares calls it.
        device: Its name.
        status: How it ended, in words.
        steps: Steady steps.
        block: Consecutive steps that are drawn together; ``None`` where nothing is drawn.
        no_interval: Then, why.
        drifts: The steps stay alike for longer than a block, so the interval is from few numbers.
    """

    name: str
    device: str
    status: str
    steps: int
    block: int | None = None
    no_interval: str = ""
    drifts: bool = False


class Difference(Record, frozen=True, kw_only=True):
    """Something that is not the same in both runs.

    Attributes:
        aspect: What it is: ``"attention"``.
        a, b: What it is in each of them.
        forbids: What cannot be compared because of it; empty for a remark.
        why: One sentence: what follows from it, and what to do.
    """

    aspect: str
    a: str
    b: str
    forbids: tuple[Group, ...] = ()
    why: str = ""


class Change(Record, frozen=True, kw_only=True):
    """One figure of both runs, and how much it differs.

    Attributes:
        name: As it is printed.
        figure: Its field in :class:`mfu_torch.figures.Figures`, whose unit ``a`` and ``b`` have.
        a, b: Of each run; ``None`` where it is not known.
        relative: ``change`` is B / A - 1; else B - A, of a share.
        change: Also ``low``, ``high`` and ``smallest`` are in its unit; ``None`` with a reason in
            ``not_compared``.
        not_compared: Why there is no change.
        low, high: Between them the true change is, in 95 of 100 pairs of such runs.
        significant: Whether 0 is outside of that interval; ``None`` where there is none.
        smallest: A true change of this size would have been seen in 4 of 5 such pairs.
        no_interval: Why there is no interval.
    """

    name: str
    figure: str
    a: float | None
    b: float | None
    relative: bool = True
    change: float | None = None
    not_compared: str = ""
    low: float | None = None
    high: float | None = None
    significant: bool | None = None
    smallest: float | None = None
    no_interval: str = ""


class PartChange(Record, frozen=True, kw_only=True):
    """A part of a step in both runs.

    Attributes:
        part: One of :data:`mfu_torch.step_parts.PARTS`, or ``total``.
        a_s, b_s: Seconds of a mean step; ``None`` where it was not told apart.
    """

    part: str
    a_s: float | None
    b_s: float | None


class Comparison(Record, frozen=True, kw_only=True):
    """Whether two runs can be compared, and what became of each figure from A to B.

    Attributes:
        comparable: Neither MFU nor throughput is forbidden by a difference.
        verdict: The answer in one sentence.
        a, b: The two runs.
        attention: The convention that MFU and HFU of both are under; ``None`` if each has its own.
        differences: Those that forbid most first, remarks last.
        changes: One for each figure that one of the runs has.
        parts: Where the time of a step went, if both runs have split their steps; the time of the
            steps that were split, so the total can differ a little from the step time.
        level: Of the intervals.
        replicates, seed: Of their bootstrap.
    """

    comparable: bool
    verdict: str
    a: Side
    b: Side
    attention: str | None
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    level: float
    replicates: int
    seed: int
    parts: tuple[PartChange, ...] = ()

    def forbidden(self, group: Group) -> tuple[str, ...]:
        """The aspects that forbid to compare something."""
        return tuple(each.aspect for each in self.differences if group in each.forbids)
