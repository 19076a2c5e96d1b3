"""Events written as a begin and an end ("B" and "E"), joined to one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mfu_torch.insight.trace.decode import Args, Event
from mfu_torch.insight.trace.times import DAY_US

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST = 1_000_000
"""Kept at a time; the rest counts as lost."""


@dataclass
class Pairs:
    """Collects begins and ends from all pieces.

    Attributes:
        lost: Begins without an end, and ends without a begin; known after :meth:`joined`.
    """

    lost: int = 0
    _edges: list[Event] = field(default_factory=list)

    def add(self, events: Iterable[Event], origin_us: int) -> None:
        """Takes the begins and ends among events."""
        for event in events:
            if event.ph not in ("B", "E"):
                continue
            event.ts -= origin_us
            if len(self._edges) == MOST or not abs(event.ts) < DAY_US:
                self.lost += 1
                continue
            if event.args is not None:
                _let_go(event.args)
            self._edges.append(event)

    def joined(self) -> dict[str, list[Event]]:
        """Events by category: an end closes the last open begin of its thread.

        An end that names another event than the open one closes nothing.
        """
        edges = sorted(self._edges, key=lambda edge: edge.ts)
        open_: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        found: dict[str, list[Event]] = defaultdict(list)
        for edge in edges:
            stack = open_[str(edge.pid), str(edge.tid)]
            if edge.ph == "B":
                stack.append(edge)
            elif stack and edge.name in ("", stack[-1].name):
                begin = stack.pop()
                begin.dur, begin.ph = edge.ts - begin.ts, "X"
                if begin.cat is not None:
                    found[begin.cat].append(begin)
            else:
                self.lost += 1
        self.lost += sum(len(stack) for stack in open_.values())
        return found


def _let_go(args: Args) -> None:
    """Copies texts out of the piece that they point into."""
    for name in ("grid", "dims", "dims_old", "types", "concrete", "group_ranks"):
        setattr(args, name, getattr(args, name).copy())
