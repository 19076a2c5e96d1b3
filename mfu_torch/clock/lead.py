r"""How far the device is behind the host: the work that is queued on it when the host goes on.

    host     --o-----o--------o---->      marks are taken
                \      \        \
    device   ----o--------o--------o->    and reached, each by the lead later

The two clocks have no common origin, so only the change of the lead from one mark to another is
measured: device seconds between them less host seconds. But a lead is never negative, and where a
mark was found not to be reached it is at least the time since that mark. So the lowest that was
seen lately was at least that, and every other is at least what it is above it. It is exact where
the device had nothing left to do at one of these marks.

Two things would make it too much, and are taken off: clocks drift against each other, by less than
:data:`DRIFT`, and between a mark and the reading of the host's clock the host may have been held
up (other threads, a full queue). So that clock is read before and after: the later reading counts
for the lead at this mark, the earlier one for the lowest.
"""

from __future__ import annotations

import math

BLOCK = 512
"""Marks over which the lowest lead is looked for, at least; twice as many at most."""

DRIFT = 5e-5
"""By which two clocks of different crystals can run apart, seconds a second."""

Moment = tuple[float, float]
"""Position of the lead at a mark, above an unknown constant, and when the device reached it."""


class Lead:
    """Follows the lead from mark to mark.

    Attributes:
        now: At the last mark.
    """

    def __init__(self) -> None:
        self.now: Moment = (0.0, 0.0)
        # In this block of marks, and in the one before.
        self._lowest: Moment = (math.inf, 0.0)
        self._earlier: Moment = (math.inf, 0.0)
        self._marks = 0

    def moves(self, device_s: float, host_s: float, held_s: float = 0.0) -> Moment:
        """From one mark to the next: seconds between them on both clocks; the new moment.

        Args:
            device_s: Between the two marks, on the device.
            host_s: Between the readings after them, on the host.
            held_s: On the host, from before the mark to after it.
        """
        self.now = later(self.now, device_s, host_s)
        self._marks += 1
        if self._marks % BLOCK == 0:
            self._earlier, self._lowest = self._lowest, (math.inf, 0.0)
        self.sees(self.now, held_s=held_s)
        return self.now

    def sees(self, moment: Moment, least_s: float = 0.0, held_s: float = 0.0) -> None:
        """At a mark, in the chain or beside it, the lead was at least so long."""
        position_s, at_s = moment
        lowest_s, lowest_at_s = self._lowest
        candidate_s = position_s - least_s + held_s
        if candidate_s <= lowest_s + DRIFT * abs(at_s - lowest_at_s):
            self._lowest = (candidate_s, at_s)

    def at_least_s(self, moment: Moment) -> float:
        """Seconds that the device was behind at a moment of late, at least."""
        return max(0.0, *(_above(moment, low) for low in (self._lowest, self._earlier)))


def later(moment: Moment, device_s: float, host_s: float) -> Moment:
    """A mark after that one, so many seconds on both clocks."""
    position_s, at_s = moment
    return position_s + device_s - host_s, at_s + device_s


def _above(moment: Moment, low: Moment) -> float:
    return moment[0] - low[0] - DRIFT * abs(moment[1] - low[1])
