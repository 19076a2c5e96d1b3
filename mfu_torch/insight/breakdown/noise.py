"""Whether two means of steps differ by more than the steps of one trace do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from statistics import mean

from mfu_torch.records.breakdown import Breakdown

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t at 95 %, two-sided, for 1, 2, ... degrees of freedom."""

_FEWEST = 3  # steps of a trace of which the last one can be left out
_RANK = re.compile(r"rank \S+ ")  # before the names of steps of several ranks


def kept_steps(found: Breakdown) -> list[int]:
    """Indices of the steps that are alike.

    With gpu edges a step lasts until the next one begins, and the last one only until its last
    work: it lacks the wait that follows.
    """
    ranks = [match[0] if (match := _RANK.match(name)) else "" for name in found.steps]
    last = {at for at, (a, b) in enumerate(zip_longest(ranks, ranks[1:])) if a != b}
    several = range(len(found.step_ns))
    if found.edges != "gpu" or len(found.step_ns) < _FEWEST * len(last):
        return list(several)
    return [at for at in several if at not in last]


def may_be_chance(before: Sequence[int], after: Sequence[int]) -> bool | None:
    """Student's test with one variance for both; ``None`` with one step in each.

    100, 102 and 101 then 102, 101 and 103: a change of 1 with a spread of 1 each: chance. Then
    120, 121 and 122: a change of 20, none.
    """
    freedom = len(before) + len(after) - 2
    if not before or not after or freedom < 1:
        return None
    squares = sum((x - mean(part)) ** 2 for part in (before, after) for x in part)
    spread = (squares / freedom * (1 / len(before) + 1 / len(after))) ** 0.5
    t = _STUDENT[min(freedom, len(_STUDENT)) - 1]
    return bool(abs(mean(after) - mean(before)) <= t * spread)
