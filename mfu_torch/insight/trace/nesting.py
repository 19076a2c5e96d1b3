"""Which op encloses which, and which encloses a moment: thread by thread."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.climbing import first_open

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints

_EVER = 1 << 63


def parents(start: Ints, end: Ints, thread: Ints) -> Ints:
    """For each interval the innermost one of its thread that it begins in; -1 without.

    Args:
        start: Sorted; of two that begin together, the longer comes first.
        end: Of each.
        thread: Of each.
    """
    parent = np.full(len(start), -1, np.int64)
    by_thread = np.argsort(thread, kind="stable")
    for chosen in _groups(thread[by_thread], by_thread):
        begins, ends = start[chosen], end[chosen]
        found = _nested(begins, ends)
        if found is None:
            found = _crossing(begins, ends)
        parent[chosen] = np.where(found >= 0, chosen[found], -1)
    return parent


def encloses(inner: npt.NDArray[np.bool_], parent: Ints) -> npt.NDArray[np.bool_]:
    """Which intervals enclose, at any depth, one of some.

    Args:
        inner: Which are the some.
        parent: Of each; -1 without.
    """
    found = np.zeros(len(inner), bool)
    at = parent[inner]
    while len(at := np.unique(at[(at >= 0) & ~found[at]])):
        found[at] = True
        at = parent[at]
    return found


def _nested(start: Ints, end: Ints) -> Ints | None:
    """The same for one thread by counting, many times as fast; ``None`` where intervals cross.

    Of those that began before interval i, so many have ended that depth[i] are around it. These
    lie in one another, at depth 0, 1, ..: the last one before i at depth[i] - 1 is its parent.
    """
    if ((start[1:] < end[:-1]) & (end[:-1] < end[1:])).any():  # neighbours cross
        return None
    lasts = end > start
    holders = np.flatnonzero(lasts)  # an instant has nothing in it
    if not len(holders):
        return np.full(len(start), -1, np.int64)
    begins, ends = start[holders], np.sort(end[holders])
    ended = np.searchsorted(ends, start, "right")
    instants = np.flatnonzero(~lasts)
    if len(instants):
        at = start[instants]
        begun = np.searchsorted(begins, at, "right") - 1
        # At the very end of an interval it belongs to it, if none begins there.
        alone = (begun < 0) | (begins[np.maximum(begun, 0)] < at)
        ended[instants[alone]] = np.searchsorted(ends, at[alone], "left")
    depth = np.cumsum(lasts) - lasts - ended
    # Each i asks at depth[i] - 1, then offers itself at depth[i]. In the order of depths a question
    # comes right behind the offers of its depth that are made before it.
    at_depth = np.stack([depth - 1, np.where(lasts, depth, -1)], axis=1).ravel()
    if depth.max() < 1 << 15:
        at_depth = at_depth.astype(np.int16)  # which are sorted many times as fast
    order = np.argsort(at_depth, kind="stable")
    offers = (order & 1).astype(bool)
    last_offer = np.maximum.accumulate(np.where(offers, np.arange(len(order)), 0))
    found = np.full(len(start), -1, np.int64)
    found[order[~offers] >> 1] = order[last_offer[~offers]] >> 1
    found[depth == 0] = -1
    inside = holders[depth[holders] > 0]
    return found if (end[inside] <= end[found[inside]]).all() else None


def _crossing(start: Ints, end: Ints) -> Ints:
    """The same one by one: what crosses lies in the last that is open."""
    found: list[int] = []
    around, until = [-1], [_EVER]  # the intervals around the present one, and their ends
    columns = start.tolist(), end.tolist(), _childless(start, end)
    for number, (begin, finish, childless) in enumerate(zip(*columns, strict=True)):
        while until[-1] <= begin and not until[-1] == finish > start[around[-1]]:
            until.pop()  # but an instant at the very end of an interval belongs to it
            around.pop()
        found.append(around[-1])
        if not childless:
            around.append(number)
            until.append(finish)
    return np.array(found, np.int64)


def _childless(start: Ints, end: Ints) -> list[bool]:
    """Which of one thread's intervals have ended when the next begins: most of them have."""
    ended = (end[:-1] < start[1:]) | ((end[:-1] == start[1:]) & (end[1:] != end[:-1]))
    return [*ended.tolist(), True]


def innermost(moment: Ints, on: Ints, start: Ints, end: Ints, thread: Ints, parent: Ints) -> Ints:
    """For each moment on a thread the innermost interval that it lies in; -1 without.

    A moment at the end of an interval lies in it only if it lies in no other.
    """
    found = np.full(len(moment), -1, np.int64)
    by_thread = np.argsort(thread, kind="stable")
    for chosen in _groups(thread[by_thread], by_thread):
        asked = np.flatnonzero(on == thread[chosen[0]])
        if not len(asked):
            continue
        at = moment[asked]
        last = np.searchsorted(start[chosen], at, "right") - 1
        first = np.where(last >= 0, chosen[np.maximum(last, 0)], -1)
        inside = first_open(first, at + 1, end, parent)
        touching = first_open(first, at, end, parent)
        found[asked] = np.where(inside >= 0, inside, touching)
    return found


def _groups(keys: Ints, order: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """Parts of ``order`` of one key each; ``keys`` are sorted."""
    if not len(keys):
        return []
    edges = np.flatnonzero(np.diff(keys)) + 1
    bounds = [0, *edges.tolist(), len(keys)]
    return [order[low:high] for low, high in pairwise(bounds)]


def outermost(steps: dict[str, Ints]) -> npt.NDArray[np.bool_]:
    """Which spans lie in no other: a step inside a step, or the same once more, is none."""
    if not len(steps["end"]):
        return np.zeros(0, bool)
    before = np.maximum.accumulate(steps["end"])
    return np.append(True, steps["end"][1:] > before[:-1])
