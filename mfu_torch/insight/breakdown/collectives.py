"""Collectives of several ranks: which are the same one, and how long it had to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mfu_torch.insight.breakdown.roofline import Roofline
from mfu_torch.records import MFUError
from mfu_torch.records.breakdown import Breakdown

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints

STREAM = "stream "
"""What the group of a kernel is called whose trace names none, before the number of its stream."""
HOST = "the host's threads"
"""What the group of a collective of the host is called where the trace lists several."""

_POINT_TO_POINT = ("send", "recv")
_SAME_SIZE = ("all_reduce",)  # of others, the ranks may hold unequal parts


class NotOneJob(MFUError):
    """Traces that are given as ranks of one job are not; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A kernel of a collective on one rank, or one that the host ran itself.

    Attributes:
        group: Process group; ``"stream N"`` or :data:`HOST` where the trace names none.
        label: What the program calls it (``"mesh_tp"``); else ``group``.
        members: Ranks of the group; empty where the trace does not list them.
        name: The collective, e.g. ``"all_reduce"``.
        size_bytes: Of the message; -1 where it is not recorded.
        number: The process group's own number of it; -1 where it is not recorded.
        pair: Who sends to whom, of a send or a receive; ``None`` where that is not recorded.
        begin_ns: On the clock of its rank.
        duration_ns: Of it.
        launched_in: Name of the step that launched it; ``None`` outside of all, or not recorded.
        began_in: Name of the step in which it began; ``None`` outside of all.
        is_launched: Whether its launch is recorded.
        on_host: Whether the host ran it: on several threads, so that kinds may take turns.
    """

    group: str
    label: str
    members: tuple[int, ...]
    name: str
    size_bytes: int
    number: int
    pair: tuple[int, int] | None
    begin_ns: int
    duration_ns: int
    launched_in: str | None
    began_in: str | None
    is_launched: bool
    on_host: bool = False

    @property
    def is_point_to_point(self) -> bool:
        """Whether it connects two ranks, and not all of the group."""
        return self.name in _POINT_TO_POINT

    @property
    def has_group(self) -> bool:
        """Whether the trace says its group."""
        return not self.group.startswith(STREAM) and self.group != HOST


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What joining ranks takes of each: little, so that its trace need not be kept.

    Attributes:
        rank: Of the process; ``None`` where the trace does not say it.
        world_size: Of its job.
        breakdown: Of the rank alone.
        roofline: Of the same steps.
        calls: Its collectives, by their start.
        exposed_call: Of each exposed segment of communication, the index of the call on top.
        exposed_ns: Its length.
        to_end_ns: From its begin to the end of that call.
        idle_ns: Of each call, the idle time that it ended.
    """

    rank: int | None
    world_size: int | None
    breakdown: Breakdown
    roofline: Roofline
    calls: tuple[Call, ...]
    exposed_call: Ints
    exposed_ns: Ints
    to_end_ns: Ints
    idle_ns: Ints

    @property
    def file(self) -> str:
        """Name of the trace."""
        return self.breakdown.file

    @cached_property
    def has_launches(self) -> bool:
        """Whether steps can be told by launches: what lacks one, then, began before the steps."""
        known = sum(call.is_launched for call in self.calls)
        return self.breakdown.edges != "trace" and 2 * known >= len(self.calls)

    def step_of(self, call: Call) -> str | None:
        """The step that a call belongs to; ``None`` outside of all."""
        return call.launched_in if self.has_launches else call.began_in

    def per_call(self, time_ns: Ints) -> Ints:
        """Of each segment -> of each call."""
        found = np.zeros(len(self.calls), np.int64)
        np.add.at(found, self.exposed_call, time_ns)
        return found


# --- which are the same one ------------------------------------------------------------------

_Place = tuple[int, int]
"""Which of the ranks that are given, and which of its calls."""


def matched(ranks: Sequence[RankTrace]) -> list[list[_Place]]:
    """Collectives that were seen on several ranks: the places of their calls.

    By the number that the process group gave it, where it is recorded; else by their order within
    a step, where all ranks have equally many of this group. No clock is compared.

    Raises:
        NotOneJob: If the ranks call different collectives in one step and group.
    """
    found: list[list[_Place]] = []
    for (group, _, _, step), of_rank in _by_step(ranks).items():
        if len(of_rank) < 2:
            continue
        lists = list(of_rank.values())
        if all(_is_numbered(_at(ranks, place)) for one in lists for place in one):
            found += _by_number(lists, ranks)
        elif len({len(one) for one in lists}) == 1:
            _check_order(group, step, lists, ranks)
            found += [list(same) for same in zip(*lists, strict=True)]
    return found


def _at(ranks: Sequence[RankTrace], place: _Place) -> Call:
    return ranks[place[0]].calls[place[1]]


def _by_step(ranks: Sequence[RankTrace]) -> dict[tuple[Any, ...], dict[int, list[_Place]]]:
    by_launch = all(one.has_launches for one in ranks)
    found: dict[tuple[Any, ...], dict[int, list[_Place]]] = defaultdict(lambda: defaultdict(list))
    for at, one in enumerate(ranks):
        for index, call in enumerate(one.calls):
            step = call.launched_in if by_launch else call.began_in
            if step is None or (call.is_point_to_point and call.pair is None):
                continue
            # On a stream, groups that nobody names may take turns: only those alike are in order.
            kind: Any = "" if call.has_group and not call.on_host else call.name
            kind = call.pair if call.is_point_to_point else kind
            found[call.group, call.members, kind, step][at].append((at, index))
    return found


def _is_numbered(call: Call) -> bool:
    """Of sends and receives every rank counts its own, and the numbers of two peers differ."""
    return call.number >= 0 and not call.is_point_to_point


def _by_number(lists: list[list[_Place]], ranks: Sequence[RankTrace]) -> list[list[_Place]]:
    same: dict[tuple[int, str], dict[int, _Place]] = defaultdict(dict)
    for one in lists:
        for place in one:
            call = _at(ranks, place)
            same[call.number, call.name].setdefault(place[0], place)
    return [list(of.values()) for of in same.values() if len(of) > 1]


def _check_order(
    group: str, step: str, lists: list[list[_Place]], ranks: Sequence[RankTrace]
) -> None:
    for position, same in enumerate(zip(*lists, strict=True)):
        first = _at(ranks, same[0])
        for place in same[1:]:
            other = _at(ranks, place)
            if _signature(other) != _signature(first):
                raise NotOneJob(
                    f"{ranks[same[0][0]].file} and {ranks[place[0]].file} are not ranks of one "
                    f"job: collective {position + 1} of group {group!r} in {step} is "
                    f"{_described(first)} in one and {_described(other)} in the other"
                )


def _signature(call: Call) -> tuple[str, int]:
    if call.is_point_to_point:
        return "send_recv", call.size_bytes
    return call.name, call.size_bytes if call.name in _SAME_SIZE else -1


def _described(call: Call) -> str:
    name, size = _signature(call)
    return f"{name} of {size:,} bytes" if size >= 0 else name


# --- how long it had to take -----------------------------------------------------------------


def transfers(ranks: Sequence[RankTrace]) -> list[dict[int, int]]:
    """Of each rank, call -> nanoseconds that the transfer itself took, where it can be told.

    Whoever comes last to a collective waits for nobody: its kernel is the shortest, and lasts as
    long as the transfer. So it is with a send and its receive. Where the trace does not say who the
    peer is, or the peer is not given, the shortest one of this size stands for all of them.
    """
    alike: dict[tuple[str, str, int], list[_Place]] = defaultdict(list)
    for at, one in enumerate(ranks):
        for index, call in enumerate(one.calls):
            if call.is_point_to_point:
                alike[call.group, call.name, call.size_bytes].append((at, index))
    found: list[dict[int, int]] = [{} for _ in ranks]
    for same in (*matched(ranks), *(of for of in alike.values() if len(of) > 1)):
        least = min(_at(ranks, place).duration_ns for place in same)
        for at, index in same:
            found[at].setdefault(index, least)  # the pair, if it is known, is the better witness
    return found
