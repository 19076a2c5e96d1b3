r"""How far the device is behind the host: the work that is queued on it when the host goes on.

    host     --o-----o--------o---->      marks are taken
                \      \        \
    device   ----o--------o--------o->    and reached, each by the lead later

The two clocks have no common origin, so only the change of the lead from one mark to another is
measured: device seconds between them less host seconds. But a lead is never negative, and where a
mark was found not to be reached it is at least the time since that mark. So the lowest that was
seen lately was at least that, and every other is at least what it is above it. It is exact where
the device had nothing left to do at one of these marks.
"""

from __future__ import annotations

BLOCK = 512
"""Marks over which the lowest lead is looked for, at least; twice as many at most. Not the whole
run: clocks drift by some microseconds a second against each other."""


class Lead:
    """Follows the lead from mark to mark.

    Attributes:
        position_s: Of the last mark, above an unknown constant.
    """

    def __init__(self) -> None:
        self.position_s = 0.0
        self._lowest_s = self._earlier_s = 0.0  # in this block of marks, and in the one before
        self._marks = 0

    def moves(self, device_s: float, host_s: float) -> float:
        """From one mark to the next: seconds between them on both clocks; the new position."""
        self.position_s += device_s - host_s
        self._marks += 1
        if self._marks % BLOCK == 0:
            self._earlier_s, self._lowest_s = self._lowest_s, self.position_s
        self.sees(self.position_s)
        return self.position_s

    def sees(self, position_s: float, least_s: float = 0.0) -> None:
        """At a mark, in the chain or beside it, the lead was at least so long."""
        self._lowest_s = min(self._lowest_s, position_s - least_s)

    def at_least_s(self, position_s: float) -> float:
        """Seconds that the device was behind at a position of late, at least."""
        return max(0.0, position_s - min(self._lowest_s, self._earlier_s))
