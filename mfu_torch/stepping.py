"""What a training loop is doing now: its steps, their parts, pauses, and the wait for data.

The step path of the meter. Nothing here waits for the device, and an internal failure stands the
meter down: with one warning, and no exception into the loop.
"""

from __future__ import annotations

import contextlib
import logging
import numbers
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from mfu_torch.bookkeeping import Bookkeeper
from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.ledger import OpenStep
from mfu_torch.clock.timeline import Timeline
from mfu_torch.clock.waits import ELSEWHERE, Waits
from mfu_torch.flops.live import LiveCounter
from mfu_torch.flops.shapes.signature import shapes_of
from mfu_torch.messages import first_line
from mfu_torch.splitting import StepSplitter

logger = logging.getLogger(__name__)

BATCHES_LIMIT = 4096
"""Batches of one step that are told apart: a loader can be iterated over without any step."""

NEVER_ENTERED = (
    "step() was called and no step was entered, so none was measured; write `with meter.step():` "
    "around each one"
)


class Stepping:
    """The loop as it moves on.

    Args:
        start: Begins the run, at the loop's first sign of life.

    Attributes:
        asked: A step was asked for.
        tokens, samples: Of the next step, as given.
        waits: For data, as far as the loop waits through the meter.
        running: The run is in progress.
        down: Measuring ended by an internal failure.
    """

    time: Timeline
    live: LiveCounter
    books: Bookkeeper
    clock: Clock

    def __init__(self, start: Callable[[], None]) -> None:
        self.asked = self.running = self.down = False
        self.tokens: int | None = None
        self.samples: int | None = None
        self.waits = Waits(start)
        self._start = start
        self._plain = False  # the run is in progress, and the thread of its steps is known
        self._first = 0
        self._splitter: StepSplitter | None = None  # where steps can be split
        self._made: dict[tuple[int, ...], int] = {}  # steps by their counts
        self._batches: list[Hashable] = []  # shapes that came from Meter.data for this step
        self._unclear: set[str] = set()  # of tokens and samples: a part was not understood

    def run_begins(
        self,
        clock: Clock,
        time: Timeline,
        live: LiveCounter,
        books: Bookkeeper,
        splitter: StepSplitter | None,
    ) -> None:
        """The run begins, with these."""
        self.clock, self.time, self.live, self.books = clock, time, live, books
        self._splitter = splitter
        self._made = books.steps_made
        self.waits.run_begins(clock, time)
        self._first = time.steps
        self.running = True

    def run_ends(self) -> None:
        """The run is over."""
        self.running = self._plain = False
        if self._splitter is not None:
            self._splitter.detach()
        self.waits.run_ends()
        self._say_where_waits_are()

    def conclude(self) -> None:
        """The times of all steps are known, and the records are about to be closed."""

    def begin(self) -> None:
        """The loop enters a step.

        Raises:
            RuntimeError: Where no step can begin.
        """
        if self.down:
            return
        if not self._plain or self.time.open is not None or self.time.pause:
            self._check_begin()
        try:
            tokens, samples = self.tokens, self.samples
            if not (type(tokens) is int or tokens is None):
                tokens = self._as_int("tokens", tokens)
            if not (type(samples) is int or samples is None):
                samples = self._as_int("samples", samples)
            step = self.time.begin(tokens, samples, 0.0 if self.waits.known else None)
            if step.index >= self.books.due:
                self._window_is_due()
            if self._splitter is not None:
                self._splitter.begins(step)
            self.live.begin_step(step.index, (tokens, samples, tuple(self._batches)))
        except Exception as error:
            self.stand_down(error)
        except BaseException:  # Ctrl-C in here: the step was not entered, so it is never left
            self.end(failed=True)
            raise

    def _check_begin(self) -> None:
        if self.running and self.time.open is not None:
            raise RuntimeError(
                "step() inside step(): steps cannot nest; use meter.phase(name) for parts of a step"
            )
        if self.running and self.time.pause:
            raise RuntimeError("step() inside pause(): a pause belongs to no step; leave it first")
        self._start()
        self._loop_is_here()
        self._plain = True

    def _loop_is_here(self) -> None:
        self.waits.loop_is_here()
        if self.waits.elsewhere and not self.waits.known:
            self._batches.clear()  # they were loaded ahead

    def _window_is_due(self) -> None:
        if self.books.take(self.time.poll()):
            self.live.revalidate()
        self._loop_is_here()
        self._say_where_waits_are()

    def _say_where_waits_are(self) -> None:
        if self.waits.elsewhere and not self.waits.known:
            self.books.recorder.warn_once(ELSEWHERE)

    def end(self, failed: bool) -> None:
        """The loop leaves the step."""
        if self.down or not self.running:
            return
        time = self.time
        step = time.open
        if step is None:
            return
        try:
            step.failed = failed
            if time.pause:  # it goes on; what ran in it so far is not the step's
                self.live.resume(in_step=True)
            if self._splitter is not None:
                self._splitter.ends(step)
            time.end(step)
            if self._unclear:
                self._forget_unclear(step)
            hint = (step.tokens, step.samples, tuple(self._batches))
            self._batches.clear()
            ids, step.micro_batches, excluded = self.live.end_step(hint, failed=failed)
            step.count_ids = ids
            step.excluded = excluded if step.index != self._first else excluded or "first step"
            if step.excluded and self._splitter is not None:
                self._splitter.again()
            if not failed:
                self._made[ids] = self._made.get(ids, 0) + 1
        except Exception as error:
            self.stand_down(error)

    def add(self, tokens: int | None, samples: int | None) -> None:
        """Add to what the open step trains on.

        Raises:
            RuntimeError: Outside of a step.
        """
        step = self.open_step("add()")
        if step is None:
            return
        for name, amount in (("tokens", tokens), ("samples", samples)):
            if amount is None:
                continue
            number = self._as_int(name, amount)
            if number is not None:
                setattr(step, name, (getattr(step, name) or 0) + number)

    def _forget_unclear(self, step: OpenStep) -> None:
        """A sum without one of its parts is no sum."""
        for name in self._unclear:
            setattr(step, name, None)
        self._unclear.clear()

    def open_step(self, what: str) -> OpenStep | None:
        """The step that the loop is in; ``None`` if nothing is measured any more.

        Raises:
            RuntimeError: Outside of a step.
        """
        if self.down:
            return None
        if not self.running or self.time.open is None:
            raise RuntimeError(f"{what} outside of a step; it belongs inside `with meter.step():`")
        return self.time.open

    def micro_batch(self, batch: object) -> None:
        """Work on these inputs begins.

        Raises:
            RuntimeError: Outside of a step.
        """
        if self.open_step("micro_batch()") is None:
            return
        try:
            if self._splitter is not None:
                self._splitter.announce()
            self.live.announce(batch)
        except Exception as error:
            self.stand_down(error)

    def forward_from_here(self) -> None:
        """A forward begins that no single call of a model stands for.

        Raises:
            RuntimeError: Outside of a step.
        """
        if self.open_step("forward_from_here()") is None or self._splitter is None:
            return
        try:
            self._splitter.announce()
        except Exception as error:
            self.stand_down(error)

    @contextlib.contextmanager
    def pausing(self, name: str) -> Iterator[None]:
        """Time that belongs to no step."""
        if self.down or not self.running:
            yield
            return
        inside_another = bool(self.time.pause)
        if self._splitter is not None:
            self._splitter.spoil()
        if not inside_another:
            self.live.pause()
        try:
            with self.time.pausing(name), self.books.sampling_paused(inside_another):
                yield
        finally:
            if not inside_another:
                self.live.resume(in_step=self.time.open is not None)

    def batch_came(self, batch: object) -> None:
        """The loop waited for a batch, which it iterates over through the meter."""
        if len(self._batches) < BATCHES_LIMIT:
            self._batches.append(shapes_of(batch))

    def never_entered(self) -> bool:
        """Whether steps were asked for, and none was measured."""
        return self.asked and not self.down and self.time.last is None

    def stand_down(self, error: Exception) -> None:
        """An internal failure: stop measuring, say so once, and leave the training alone."""
        if self.down:
            return
        self.down = self.waits.over = True
        self.time.stop()
        self.live.detach()
        if self._splitter is not None:
            self._splitter.detach()
        logger.warning(
            "mfu_torch stopped measuring after an internal error (%s: %s). Training goes on. "
            "Please report it with this traceback.",
            type(error).__name__,
            first_line(error),
            exc_info=error,
        )
        self.books.recorder.notes.append(f"measuring stopped: {type(error).__name__}: {error}")

    def _as_int(self, name: str, value: Any) -> int | None:
        """The amount as a number; ``None``, with a warning, if it is none that can be trusted."""
        if value is None:
            return None
        try:
            if _is_whole(value):
                return int(value)
        except Exception:  # an object of any kind; what it raises must not reach the loop
            pass
        self._unclear.add(name)
        self.books.recorder.warn_once(
            f"{name}= got {_described(value)}; expected an int (a tensor on the device would have "
            f"to be waited for), so {name}/s is not reported"
        )
        return None


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that the host knows: no ``bool``, no 8.0."""
    if isinstance(value, torch.Tensor):
        kind = value.dtype
        whole = not (kind.is_floating_point or kind.is_complex or kind is torch.bool)
        return whole and value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _described(value: object) -> str:
    kind = type(value)
    if not issubclass(kind, torch.Tensor):
        return f"a {kind.__name__}"
    try:
        return f"a {kind.__name__} of {value.dtype} on {value.device.type}"  # type: ignore[attr-defined]
    except Exception:  # a subclass of its own kind
        return f"a {kind.__name__}"
