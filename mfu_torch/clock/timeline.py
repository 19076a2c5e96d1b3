"""Whose time it is now: a step, a phase of it, a pause, or what comes between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.ledger import TAIL, Ledger, OpenStep, PauseTime


class Timeline:
    """Keeps the ledger of a run as the training loop moves on.

    Args:
        clock: The run's clock; the run begins now.
        on_error: Called with an error of the clock, which must not reach the training loop.
        first: Index of the first step.

    Attributes:
        open: The step that the loop is in.
        last: The step that time goes to while there is no pause: the open one, or the last.
        pause: Name of the pause that the loop is in; empty outside.
        steps: Index of the next step.
    """

    def __init__(self, clock: Clock, on_error: Callable[[Exception], None], first: int = 0) -> None:
        self.open: OpenStep | None = None
        self.last: OpenStep | None = None
        self.pause = ""
        self.steps = first
        self._label = ""
        self._on_error = on_error
        self._stopped = False
        self._ledger = Ledger(clock)
        self._ledger.begin(PauseTime("init", first))

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the run to the last mark that the device has reached."""
        return self._ledger.wall_s

    def begin(self, tokens: int | None, samples: int | None, wait_s: float | None) -> OpenStep:
        """The loop enters a step; the one before ends here."""
        step = OpenStep(self.steps, tokens, samples, wait_s)
        self.steps += 1
        self._ledger.begin(step, "", self.last)
        self.open = self.last = step
        return step

    def end(self, step: OpenStep) -> None:
        """The loop leaves it; until the next one, time is its tail, unless a pause goes on."""
        self.open = None
        if not self.pause:
            self._ledger.begin(step, TAIL)

    def poll(self) -> list[OpenStep | PauseTime]:
        """Parts of the run whose time is known by now."""
        return self._ledger.poll()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the open step."""
        outer, self._label = self._label, name
        self._resume()
        try:
            yield
        finally:
            self._label = outer
            if self.open is not None:
                self._resume()

    @contextlib.contextmanager
    def pausing(self, name: str) -> Iterator[None]:
        """A pause, of the loop or inside another one."""
        outer, self.pause = self.pause, name
        self._resume()
        try:
            yield
        finally:
            self.pause = outer
            self._resume()

    @contextlib.contextmanager
    def own_time(self, name: str) -> Iterator[None]:
        """Time that the meter itself takes, wherever that happens."""
        self._goes_to(PauseTime(name, self.steps))
        try:
            yield
        finally:
            self._resume()

    def stop(self) -> None:
        """Take no more marks."""
        self._stopped = True
        self.open = None

    def close(self) -> list[OpenStep | PauseTime]:
        """End the run and wait for the device: the parts that were not known yet."""
        if self.open is not None:
            self.open.failed = True
        finish = PauseTime("finish", self.steps)
        self._ledger.begin(finish, closes=self.last)
        self._ledger.begin(finish)
        done = self._ledger.poll(wait=True)
        if self.last is not None and not self.last.failed:
            # No step follows: the time since the last one was left belongs to no step.
            finish.duration_s += self.last.tail_s
            self.last.tail_s = 0.0
        return done

    def _resume(self) -> None:
        if self.pause:
            self._goes_to(PauseTime(self.pause, self.steps))
        elif self.open is not None:
            self._goes_to(self.open, self._label)
        elif self.last is not None:
            self._goes_to(self.last, TAIL)
        else:
            self._goes_to(PauseTime("init", self.steps))

    def _goes_to(self, owner: OpenStep | PauseTime, label: str = "") -> None:
        if self._stopped:
            return
        try:
            self._ledger.begin(owner, label)
        except Exception as error:  # the clock's: it must not reach the training loop
            self._on_error(error)
