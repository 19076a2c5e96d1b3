"""From an interval outwards through those that enclose it, however deep they nest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.events import Ints

_STEPS = 64
"""Levels that are climbed one by one: real ops nest less deep."""


def first_open(at: Ints, least_end: Ints, end: Ints, parent: Ints) -> Ints:
    """From each interval outwards to the first that ends no earlier than asked; -1: none does.

    Args:
        at: Where each climb begins; -1: nowhere.
        least_end: Of each climb.
        end: Of each interval.
        parent: Of each interval, an earlier one; -1 without.
    """
    at = at.copy()
    todo = np.flatnonzero((at >= 0) & (end[at] < least_end))
    for _ in range(_STEPS):
        if not len(todo):
            return at
        at[todo] = parent[at[todo]]
        todo = todo[(at[todo] >= 0) & (end[at[todo]] < least_end[todo])]
    if len(todo):
        at[todo] = _leapt(at[todo], least_end[todo], end, parent)
    return at


def _leapt(at: Ints, least_end: Ints, end: Ints, parent: Ints) -> Ints:
    """The same in leaps of 2^k levels: over those in which nothing ends late enough."""
    # Entry -1, outside of everything, is the last one; it ends never, so every climb ends there.
    above = np.append(parent, -1)
    latest = np.append(end, np.iinfo(np.int64).max)  # among an interval and those leapt over
    leaps: list[tuple[Ints, Ints]] = []
    while (above >= 0).any() and len(leaps) < 64:
        leaps.append((above, latest))
        above, latest = above[above], np.maximum(latest, latest[above])
    leaps.append((above, latest))
    at = at.copy()
    for above, latest in reversed(leaps):
        over = (at >= 0) & (latest[at] < least_end)
        at[over] = above[at[over]]
    return at


def topmost(asks: npt.NDArray[np.bool_], parent: Ints) -> Ints:
    """For each interval the first outwards, itself included, that does not ask its parent.

    Args:
        asks: Whether an interval passes the question on; one without a parent keeps it.
        parent: Of each interval; -1 without.
    """
    by: Ints = np.where(asks & (parent >= 0), parent, np.arange(len(parent)))
    for _ in range(64):  # twice as far each turn
        further = by[by]
        if np.array_equal(further, by):
            break
        by = further
    return by
