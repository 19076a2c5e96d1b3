"""Half-open intervals [start, end) of whole nanoseconds, sorted by start, in columns."""

from __future__ import annotations

import numpy as np

from mfu_torch.insight.trace.events import Ints


def covering(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> Ints:
    """The interval that covers each moment: the one that began first; -1 where none does.

    With ``reach[i] = max(end[:i + 1])``, the first interval whose reach is beyond a moment is the
    first that can cover it: all before it have ended. If it has begun it covers the moment, else
    none does. An interval without length covers nothing.

    Args:
        start_ns: Begin of each interval, ascending.
        end_ns: End of each.
        at_ns: Moments, in any order.
    """
    if not len(start_ns):
        return np.full(len(at_ns), -1, np.int64)
    first = np.searchsorted(np.maximum.accumulate(end_ns), at_ns, side="right")
    begun = start_ns[np.minimum(first, len(start_ns) - 1)] <= at_ns
    return np.where((first < len(start_ns)) & begun, first, -1)


def covered(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> np.ndarray:
    """Whether any interval covers each moment."""
    return covering(start_ns, end_ns, at_ns) >= 0


def covered_ns(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> Ints:
    """How much time before each moment any interval covers.

    Args:
        start_ns: Begin of each interval, ascending.
        end_ns: End of each.
        at_ns: Moments, in any order.
    """
    if not len(start_ns):
        return np.zeros(len(at_ns), np.int64)
    reach = np.maximum.accumulate(end_ns)
    # Of each interval the part that is beyond all before it; they do not overlap.
    begin = np.maximum(start_ns, np.append(start_ns[0], reach[:-1]))
    total = np.append(0, np.cumsum(np.maximum(end_ns - begin, 0)))
    begun = np.searchsorted(start_ns, at_ns, side="right")
    left = np.maximum(reach[np.maximum(begun - 1, 0)] - at_ns, 0)
    return total[begun] - np.where(begun > 0, left, 0)


def ascending(*moments_ns: Ints) -> Ints:
    """All moments once. They come mostly in order, which the stable sort is quick with."""
    every: Ints = np.sort(np.concatenate(moments_ns), kind="stable")
    once: Ints = every[np.append(True, every[1:] > every[:-1])]
    return once


def between(at_ns: Ints, low_ns: int, high_ns: int) -> Ints:
    """The moments inside (low, high)."""
    return at_ns[(at_ns > low_ns) & (at_ns < high_ns)]
