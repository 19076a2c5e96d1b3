"""The answer of a comparison in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mfu_torch.insight.compare.record import Change, Difference, Group
from mfu_torch.units import significant

_HIGHER = {"MFU": "the MFU of B is {} {} than that of A", "tokens/s": "B makes {} {} tokens/s"}
_HIGHER["samples/s"] = "B makes {} {} samples/s"
_FIGURES = ("MFU", "tokens/s", "samples/s")
"""What is said of two runs that are alike: the first that is known of both."""
_MOST_TIMES = 100
"""As many steps as there are: nobody runs more of them to find a change that is so small."""
_HUGE = 1e5
"""Percent or points from which on digits say no more than a power of ten."""


def signed(change: Change, value: float) -> str:
    """A change in its unit: ``"+5.0 %"``, ``"-1.4 points"``; of data wait in points."""
    amount = 100 * value
    digits = 3 if abs(amount) >= 10 else 2
    text = significant(amount, digits) if abs(amount) >= 5e-5 else "0"
    if abs(amount) >= _HUGE:
        text = f"{amount:.1e}"
    sign = "+" if amount > 0 and text != "0" else ""
    return f"{sign}{text} {'%' if change.relative else 'points'}"


def unsigned(change: Change, value: float) -> str:
    """The size of a change in its unit: ``"5.0 %"``."""
    return signed(change, abs(value)).removeprefix("+")


def verdict(differences: Sequence[Difference], changes: Sequence[Change], steps: int = 0) -> str:
    """Whether two runs can be compared, and what then is the most important difference.

    Args:
        differences: Between them.
        changes: Of their figures.
        steps: Steady steps of the longer one; with 0 no number of steps is advised.
    """
    mfu, throughput = _forbidding(differences, "MFU"), _forbidding(differences, "throughput")
    if not mfu and not throughput:
        return f"Comparable: {_outcome(changes, _FIGURES, steps)}."
    if mfu and throughput:
        shared = [aspect for aspect in mfu if aspect in throughput]
        if len(shared) == len(mfu) == len(throughput):
            return f"Not comparable, because of {_list(mfu)}."
        return (
            f"Not comparable: MFU because of {_list(mfu)}, throughput because of "
            f"{_list(throughput)}."
        )
    if mfu:
        rest = _outcome(changes, ("tokens/s", "samples/s"), steps)
        return f"MFU is not comparable, because of {_list(mfu)}; by throughput {rest}."
    rest = _outcome(changes, ("MFU",), steps)
    return f"Throughput is not comparable, because of {_list(throughput)}; by MFU {rest}."


def _forbidding(differences: Sequence[Difference], group: Group) -> list[str]:
    return [each.aspect for each in differences if group in each.forbids]


def _list(aspects: Sequence[str]) -> str:
    return ", ".join(aspects[:-1]) + " and " * (len(aspects) > 1) + aspects[-1]


def _outcome(changes: Sequence[Change], names: tuple[str, ...], steps: int) -> str:
    known = [each for each in changes if each.name in names and each.change is not None]
    if not known:
        return "nothing is known of both"
    change = known[0]
    assert change.change is not None
    if change.low is None or change.high is None or change.smallest is None:
        size = signed(change, change.change)
        why = change.no_interval or "there is no interval"
        return f"{change.name} of B {size}, and how sure that is cannot be said ({why})"
    span = f"95 % interval {signed(change, change.low)} to {signed(change, change.high)}"
    if not change.significant:
        return (
            f"no significant difference of {change.name}: "
            f"{signed(change, change.change)} ({span}); {unsigned(change, change.smallest)} would "
            f"have been seen{_more_steps(change, steps)}"
        )
    more = "higher" if change.name == "MFU" else "more"
    less = "lower" if change.name == "MFU" else "fewer"
    words = more if change.change > 0 else less
    return f"{_HIGHER[change.name].format(unsigned(change, change.change), words)} ({span})"


def _more_steps(change: Change, steps: int) -> str:
    """With how many steps a true change of the size that was seen would be found.

    The smallest change that can be seen goes with one over the root of the number of steps:
    10 % with 60 steps are 5 % with 240.
    """
    if not steps or not change.change or not change.smallest:
        return ""
    found, smallest = (
        (math.log1p(value) if change.relative else value)
        for value in (change.change, change.smallest)
    )
    times = (smallest / found) ** 2
    if not 1 < times <= _MOST_TIMES:
        return ""
    number = float(f"{times * steps:.2g}")
    return f", and this one, if it is there, with about {number:,.0f} steps in each"
