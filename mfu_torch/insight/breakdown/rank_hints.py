"""The hint of one rank in a table of all: whose it is, and what its figures are shares of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mfu_torch.records.breakdown import Breakdown, Bucket
from mfu_torch.units import seconds

_MORE_RANKS = "; give the traces of all ranks"  # ends a hint; here they are given
_ALIKE = 0.05  # of the mean; by so little more, a rank is like the others
_ITS = " of the time"
_OTHERWISE = " (others have about as much, and a hint of their own each)"
_FIGURE = re.compile(r"\d[\d.,]*( [a-zµ]?s\b)?")


def hint_of(found: Sequence[tuple[Breakdown, Bucket]], ranks: int) -> str:
    """That of the rank with most time per step in a bucket.

    Args:
        found: Each rank that has the bucket, with it.
        ranks: How many there are, those without it included.
    """
    rank, worst = max(found, key=lambda pair: _per_step_ns(*pair))
    if not worst.hint:
        return ""
    hint = worst.hint.partition(_MORE_RANKS)[0].replace(_ITS, " of its time", 1)
    mine, step_ns = _per_step_ns(rank, worst), rank.wall_ns / max(1, len(rank.step_ns))
    mean = sum(_per_step_ns(*pair) for pair in found) / ranks
    if ranks > 1 and mine <= (1 + _ALIKE) * mean:
        alike = ", like the others" if _same_cause(found) else _OTHERWISE
        return f"Rank {rank.rank}{alike}: {hint}"
    return f"Rank {rank.rank} has most, {_time(mine)} of its step of {_time(step_ns)}: {hint}"


def _same_cause(found: Sequence[tuple[Breakdown, Bucket]]) -> bool:
    """Whether the device, or the main thread, is idle for one reason on all of them.

    A sleep on one and the wait for it on another take as long.
    """
    hints = {_FIGURE.sub("#", bucket.hint) for _, bucket in found}
    return len(hints) == 1 or not found[0][1].name.startswith("idle/")


def _per_step_ns(one: Breakdown, bucket: Bucket) -> float:
    return bucket.time_ns / max(1, len(one.step_ns))


def _time(ns: float) -> str:
    return seconds(ns / 1e9)
