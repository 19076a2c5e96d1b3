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
        found: list[int] = []
        around, until = [-1], [_EVER]  # the intervals around the present one, and their ends
        columns = begins.tolist(), ends.tolist(), chosen.tolist(), _childless(begins, ends)
        for begin, finish, number, childless in zip(*columns, strict=True):
            while until[-1] <= begin and not until[-1] == finish > start[around[-1]]:
                until.pop()  # but an instant at the very end of an interval belongs to it
                around.pop()
            found.append(around[-1])
            if not childless:
                around.append(number)
                until.append(finish)
        parent[chosen] = found
    return parent


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
