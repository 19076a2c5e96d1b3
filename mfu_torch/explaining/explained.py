"""The loop as it moves on, with a recorder of traces that is told of every step and pause."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mfu_torch.bookkeeping import Bookkeeper
from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.timeline import Timeline
from mfu_torch.explaining.explainer import Explainer
from mfu_torch.flops.live import LiveCounter
from mfu_torch.splitting import StepSplitter
from mfu_torch.stepping import Stepping


class ExplainedStepping(Stepping):
    """Of the ranks only rank 0 records: a trace of each would stop each for a while.

    Args:
        start: Begins the run.
        every: Steps between two recordings.
    """

    def __init__(self, start: Callable[[], None], every: int) -> None:
        super().__init__(start)
        self._every = every
        self._explainer: Explainer | None = None

    def run_begins(
        self,
        clock: Clock,
        time: Timeline,
        live: LiveCounter,
        books: Bookkeeper,
        splitter: StepSplitter | None,
    ) -> None:
        """The run begins, with these."""
        super().run_begins(clock, time, live, books, splitter)
        if books.place.rank == 0:
            self._explainer = Explainer(self._every, time, books)

    def begin(self) -> None:
        """The loop enters a step.

        Raises:
            RuntimeError: Where no step can begin.
        """
        explainer = self._explainer
        if explainer is not None and self._is_between_steps():
            explainer.before_step()
        super().begin()

    def _is_between_steps(self) -> bool:
        going_on = self.running and not self.down
        return going_on and self.time.open is None and not self.time.pause

    def end(self, failed: bool) -> None:
        """The loop leaves the step."""
        explainer = self._explainer
        step = self.time.open if explainer is not None and self.running else None
        super().end(failed)
        if explainer is not None and step is not None and not self.down:
            explainer.after_step(step)

    @contextlib.contextmanager
    def pausing(self, name: str) -> Iterator[None]:
        """Time that belongs to no step, and to no trace."""
        if self._explainer is not None and self.running and not self.down:
            self._explainer.before_pause()
        with super().pausing(name):
            yield

    def stand_down(self, error: Exception) -> None:
        """An internal failure: stop measuring and recording."""
        super().stand_down(error)
        if self._explainer is not None:
            self._explainer.stop()

    def run_ends(self) -> None:
        """The run is over: what is being recorded comes to nothing."""
        if self._explainer is not None:
            self._explainer.run_ends()
            self._explainer.stop()
        super().run_ends()

    def conclude(self) -> None:
        """Wait a little for what is still being analysed."""
        if self._explainer is not None:
            self._explainer.conclude()
