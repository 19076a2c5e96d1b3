"""The parts of a step, told by marks: forward, loss, backward, optimizer.

    step    | rest | forward | loss | backward | rest | optimizer | rest |    tail    |
            ^ begins         ^ the model's call returned                 ^ left

The innermost part counts: of an optimizer that calls a closure, the closure's forward and backward
are taken out. What comes between a forward and the backward that follows it is the loss, with what
else the loop does there. A forward can be announced, too, where no call of a model stands for it;
then it lasts until the backward, the loss included, and so does what comes before further backwards
of that step. The rest is what no mark tells: moving a batch,
clipping, zeroing.

A mark costs the step path some microseconds on the host and more on a GPU. So that all of them
stay below :data:`BUDGET` of the time, not every step is split where steps are short. Which ones is
left to chance: of every fourth step, say, the optimizer would be seen always or never in a loop
that accumulates gradients over four.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import get_ident
from typing import Any

from mfu_torch.clock.clocks import Clock

REST, FORWARD, LOSS, BACKWARD, OPTIMIZER = range(5)

BUDGET = 1e-3
"""Share of the step time that marks may cost."""

MARKS_LIMIT = 4096
"""Marks of one step; one with more (thousands of micro-batches) is not split."""


class PartMark:
    """A moment at which another part begins.

    Attributes:
        mark: The clock's.
        before_s, host_s: When the host was there: before the mark was taken, and after; 0 where the
            device is the host.
        part: What begins.
        after_forward: A forward ended here: what begins is the loss, if a backward follows.
    """

    __slots__ = ("after_forward", "before_s", "host_s", "mark", "part")

    def __init__(
        self, mark: Any, before_s: float, host_s: float, part: int, after_forward: bool = False
    ) -> None:
        self.mark = mark
        self.before_s = before_s
        self.host_s = host_s
        self.part = part
        self.after_forward = after_forward


class Splitter:
    """Takes the marks of a step as the loop goes through its parts.

    Calls on other threads than that of the steps are not looked at: what runs there is in the part
    that the loop is in.

    Args:
        clock: The run's.
        mark_cost_s: What a mark costs, of which :data:`BUDGET` makes how many steps are split.
        may_mark: Whether a mark can be taken now; ``False`` spoils the step.

    Attributes:
        marks: Of the step in progress; ``None`` where it is not split.
    """

    def __init__(
        self, clock: Clock, mark_cost_s: float, may_mark: Callable[[], bool] | None = None
    ) -> None:
        self._mark = clock.mark
        self._release = clock.release
        self._host_s = clock.host_s
        self._behind: bool = getattr(clock, "runs_behind", False)
        self._cost_s = mark_cost_s
        self._may_mark = may_mark
        self._chance = random.Random(0)  # its own: the loop's random numbers stay what they are
        self._next = 0  # step that is to be split
        self._apart = 1  # steps from one that is split to the next, on average
        self._index = 0
        self._thread = 0
        self._began_s = 0.0  # the step in progress
        self._splitting = False  # this step was to be split, whether it still is or not
        self._taken = 0  # marks in it
        self.marks: list[PartMark] | None = None
        self._parts = [REST]  # that the loop is in, innermost last
        self._announced = False  # a forward goes on, whatever calls of models come
        self._was_announced = False  # one of this step was: not all of them are calls of models

    def begins(self, index: int) -> bool:
        """The loop enters a step; whether it is to be split."""
        if index < self._next:
            return False
        self._thread = get_ident()
        self._index = index
        self._splitting, self._taken, self._began_s = True, 0, self._host_s()
        self.marks, self._parts = [], [REST]
        self._announced = self._was_announced = False
        self._take(REST)
        return True

    def announce(self) -> None:
        """A forward begins that no single call stands for: it lasts until a backward begins."""
        if self.marks is None or get_ident() != self._thread:
            return
        self._announced = self._was_announced = True
        self._take(FORWARD)

    def enter(self, part: int) -> None:
        """The loop comes to a part of the step."""
        if self.marks is None or get_ident() != self._thread:
            return
        if self._announced:
            if part == FORWARD:
                return
            self._announced = False
        elif self._was_announced and part == BACKWARD and self.marks[-1].part == REST:
            # A training_step with several backwards: each has its forward, announced or not.
            self.marks[-1].part = FORWARD
        self._parts.append(part)
        self._take(part)

    def leave(self, part: int) -> None:
        """It has done that part."""
        if self.marks is None or get_ident() != self._thread:
            return
        if self._announced:
            if part == FORWARD:
                return
            self._announced = False
        if self._parts.pop() != part or not self._parts:
            self.spoil()  # one that began before the step, or whose end was not told
            return
        self._take(self._parts[-1], after_forward=part == FORWARD)

    def again(self) -> None:
        """The step that was left is no steady one: the next is split in its place."""
        self._next = 0

    def spoil(self) -> None:
        """The step in progress is not split: its parts cannot be told."""
        marks, self.marks = self.marks, None
        for one in marks or ():
            self._release(one.mark)

    def ends(self) -> list[PartMark] | None:
        """The loop leaves the step: its marks, ``None`` if it is not split."""
        if not self._splitting:
            return None
        self._splitting = False
        if len(self._parts) > 1:
            self.spoil()
        self._take(REST)
        marks, self.marks = self.marks, None
        self._plan()
        return marks

    def _plan(self) -> None:
        """When the next step is split, so that marks cost what they may."""
        step_s = self._host_s() - self._began_s
        wanted_s = self._taken * self._cost_s / BUDGET
        apart = math.ceil(wanted_s / step_s) if step_s > 0 else 1
        # Not from one to thousands: a step with nothing in it says nothing of the others.
        self._apart = max(1, min(apart, 2 * self._apart))
        self._next = self._index + self._chance.randrange(1, 2 * self._apart)

    def _take(self, part: int, *, after_forward: bool = False) -> None:
        marks = self.marks
        if marks is None:
            return
        if len(marks) >= MARKS_LIMIT or (self._may_mark is not None and not self._may_mark()):
            self.spoil()
            return
        self._taken += 1
        if self._behind:
            before_s = self._host_s()
            mark = self._mark()
            marks.append(PartMark(mark, before_s, self._host_s(), part, after_forward))
        else:
            marks.append(PartMark(self._mark(), 0.0, 0.0, part, after_forward))


def times_of(
    marks: Sequence[PartMark], seconds: Callable[[Any, Any], float]
) -> dict[int, float] | None:
    """Seconds of each part that the step went through, by its number.

    ``None`` where a mark was reached before an earlier one, as may be where parts run on different
    streams of a GPU.

    Args:
        marks: Of a step, in order; the last one ends it.
        seconds: Between two of the clock's marks.
    """
    times: dict[int, float] = {}
    for now, following in pairwise(marks):
        spent_s = seconds(now.mark, following.mark)
        if spent_s < 0:
            return None
        part = LOSS if now.after_forward and following.part == BACKWARD else now.part
        times[part] = times.get(part, 0.0) + spent_s
    return times
