"""Which ranks are late: the others of their process group wait for them, and they for nobody.

Who is late in one group may have waited in another one, for the rank that is the cause. Lateness
that does not exceed what the steps differ by is chance, and names nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, stdev
from typing import NamedTuple

from mfu_torch.records import Record

_LEAST = 0.01  # of the time of a rank: who is late by less is not late
_CLEAR = 0.5  # of the lateness: as far are the late ranks from the next
_OTHERS_FAULT = 0.5  # of the lateness: who waited so much longer elsewhere was made late there
_STUDENT = (6.31, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76)
"""Student's t at 99 % for 2, 3, ... degrees of freedom; for 1, two steps, at 95 %."""

Waits = Mapping[int, Mapping[str, int]]
"""Rank -> step -> nanoseconds that it waited for the others of a group."""


class Late(Record, frozen=True, kw_only=True):
    """Ranks that the others of their groups wait for.

    Attributes:
        ranks: They.
        groups: What the groups are called.
        peers: The given ranks of these groups, those that are late left out.
        late_ns: By how much they wait less than their peers, the mean of all steps together.
        steps: In how many steps that was seen.
    """

    ranks: tuple[int, ...]
    groups: tuple[str, ...]
    peers: tuple[int, ...]
    late_ns: int
    steps: int


class Group(NamedTuple):
    """What the ranks of one process group waited in it."""

    name: str
    waits: Waits

    def waited_ns(self, rank: int) -> int:
        """In all steps; 0 of a rank that is not in it."""
        return sum(self.waits.get(rank, {}).values())


def late(groups: Sequence[Group], wall_ns: float) -> tuple[Late, ...]:
    """Those that are late for reasons of their own, the latest first.

    Args:
        groups: Each with the waits of its given ranks.
        wall_ns: Of a mean rank, all steps together.
    """
    found: dict[tuple[int, ...], list[tuple[Group, float]]] = {}
    for group in groups:
        ranks, late_ns = late_in(group.waits, wall_ns)
        own = tuple(r for r in ranks if not _made_late(r, ranks, group, groups, late_ns))
        if own:
            found.setdefault(own, []).append((group, late_ns))
    lates = [
        Late(
            ranks=ranks,
            groups=tuple(dict.fromkeys(group.name for group, _ in of)),
            peers=tuple(sorted({r for group, _ in of for r in group.waits} - set(ranks))),
            late_ns=round(sum(ns for _, ns in of)),
            steps=max(len(_steps(group.waits)) for group, _ in of),
        )
        for ranks, of in found.items()
    ]
    return tuple(sorted(lates, key=lambda one: -one.late_ns))


def late_in(waits: Waits, wall_ns: float) -> tuple[tuple[int, ...], float]:
    """Ranks that wait clearly less than the others of their group, and by how much; else none.

    At most half of them, so that it is the few that are late, and not the few that are early.
    """
    if len(waits) < 2:
        return (), 0.0
    sums = {rank: sum(of.values()) for rank, of in waits.items()}
    order = sorted(sums, key=lambda rank: (sums[rank], rank))
    gaps = [sums[b] - sums[a] for a, b in pairwise(order)][: len(order) // 2]
    gap = max(gaps)
    ranks, others = order[: gaps.index(gap) + 1], order[gaps.index(gap) + 1 :]
    late_ns = mean(sums[r] for r in others) - mean(sums[r] for r in ranks)
    is_late = late_ns > _LEAST * wall_ns and gap >= _CLEAR * late_ns
    is_late = is_late and sums[ranks[-1]] < _CLEAR * mean(sums[r] for r in others)
    if not is_late or _may_be_chance(waits, ranks, others):
        return (), 0.0
    return tuple(sorted(ranks)), late_ns


def _may_be_chance(waits: Waits, ranks: Sequence[int], others: Sequence[int]) -> bool:
    """Whether the lateness differs between steps by so much that its mean may be none."""
    by_step = [
        mean(waits[r].get(step, 0) for r in others) - mean(waits[r].get(step, 0) for r in ranks)
        for step in _steps(waits)
    ]
    if len(by_step) < 2:  # nothing to compare with
        return False
    t = _STUDENT[min(len(by_step) - 2, len(_STUDENT) - 1)]
    return bool(mean(by_step) <= t * stdev(by_step) / len(by_step) ** 0.5)


def _steps(waits: Waits) -> set[str]:
    return {step for of in waits.values() for step in of}


def _made_late(
    rank: int, late_ones: Sequence[int], group: Group, groups: Sequence[Group], late_ns: float
) -> bool:
    """Whether a late rank waited elsewhere, for ranks that its peers do not wait for."""
    peers = [one for one in group.waits if one not in late_ones]
    elsewhere = [one for one in groups if set(one.waits) != set(group.waits)]
    mine = sum(one.waited_ns(rank) for one in elsewhere)
    theirs = mean(sum(one.waited_ns(peer) for one in elsewhere) for peer in peers)
    return bool(mine - theirs >= _OTHERS_FAULT * late_ns)
