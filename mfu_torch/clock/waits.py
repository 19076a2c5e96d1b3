"""The loop's waits for data: which of them are the loop's own, and to which step they belong."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.ledger import OpenStep
from mfu_torch.clock.timeline import Timeline

ELSEWHERE = (
    "the loader is iterated over on another thread than the steps, so how long the loop waits for "
    "data is not known; iterate over meter.data(...) on the thread of the steps"
)


class Waits:
    """Adds up the waits that happen on the thread of the steps.

    A wait inside a wait (a loader that iterates over another one) is a part of it, and is not
    counted again. A thread that loads ahead waits in place of the loop: that is not the loop's.

    Args:
        start: Begins the run; called where a wait is the first sign of life, on the thread that
            made this object: one that loads ahead must not pass for the loop.

    Attributes:
        known: The loop waits for its items through the meter. Making an iterator is not enough:
            another thread may go on with it.
        elsewhere: Waits were seen on other threads.
        over: Nothing is measured any more.
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self.known = self.elsewhere = self.over = False
        self._start = start
        self._clock: Clock | None = None
        self._time: Timeline | None = None
        self._made_on = get_ident()
        self._thread = 0  # of the loop; not known before it enters a step
        self._early: set[int] = set()  # threads that waited before that
        self._waiter = 0  # the thread that is in a wait
        self._begun_s = 0.0  # iterators were made; the loop's, if it waits for an item next
        self._tail_of: OpenStep | None = None
        self._tail_s = 0.0  # waited since that step was left

    def run_begins(self, clock: Clock, time: Timeline) -> None:
        """The run begins, with these."""
        self._clock, self._time = clock, time

    def loop_is_here(self) -> None:
        """The loop enters a step on this thread: waits of others are not its own."""
        me = get_ident()
        if me == self._thread:
            return
        # A loop that moves on to another thread has to be seen waiting there.
        self.known = me in self._early
        self.elsewhere = self.elsewhere or bool(self._early - {me})
        self._early.clear()
        self._begun_s = 0.0
        self._thread = me

    def begins(self) -> float | None:
        """A wait begins: host seconds, to be handed to :meth:`ends`; ``None`` for no wait of ours.

        Raises:
            RuntimeError, ValueError: If the run has to be begun, and cannot be.
        """
        if self.over:
            return None
        me = get_ident()
        if self._thread not in (0, me):
            self.elsewhere = True
            return None
        if self._clock is None and me == self._made_on:
            self._start()
        if self._waiter == me or self._clock is None:
            return None
        self._waiter = me
        return self._clock.host_s()

    def ends(self, asked_s: float | None, *, item: bool) -> bool:
        """The wait is over; whether it was for an item, is the loop's, and belongs to no pause."""
        me, time = get_ident(), self._time
        if item and not self._thread:
            self._early.add(me)
        if asked_s is None:
            return False
        if self._waiter == me:
            self._waiter = 0
        if self.over or self._clock is None or time is None or self._thread not in (0, me):
            return False
        if time.pause:
            return False
        wait_s = self._clock.host_s() - asked_s + self._begun_s
        self.known = self.known or item
        self._begun_s = 0.0 if self.known else wait_s
        if self.known and time.last is not None:
            self._add(time.last, wait_s, tail=time.open is None)
        return item

    def run_ends(self) -> None:
        """What came after the last step belongs to no step, and neither do waits there."""
        self.over = True
        last = self._time.last if self._time is not None else None
        if last is not None and last is self._tail_of and last.data_wait_s is not None:
            last.data_wait_s = max(0.0, last.data_wait_s - self._tail_s)

    def _add(self, step: OpenStep, wait_s: float, *, tail: bool) -> None:
        step.data_wait_s = (step.data_wait_s or 0.0) + wait_s
        if tail:
            if self._tail_of is not step:
                self._tail_of, self._tail_s = step, 0.0
            self._tail_s += wait_s
