"""When steps are recorded, and what becomes of the recordings."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, ParamSpec

from mfu_torch.bookkeeping import Bookkeeper
from mfu_torch.clock.ledger import OpenStep
from mfu_torch.clock.timeline import Timeline
from mfu_torch.explaining.analysis import Analysis, job_of
from mfu_torch.explaining.files import TraceFiles
from mfu_torch.explaining.pending import SIDE, Pending, is_steady
from mfu_torch.explaining.recording import OtherProfilers, Recording
from mfu_torch.messages import first_line

logger = logging.getLogger(__name__)

P = ParamSpec("P")

TRACED = 3
"""Steps of a recording, after the one that warms the profiler up."""

TRIES = 5
"""Recordings in a row that may come to nothing before the next ``explain_every`` steps go by."""

FAILURES = 3
"""Analyses in a row that may fail before nothing is recorded any more."""

CLOSE_S = 5.0
"""How long the end of a run waits for the last analysis."""

PAUSE = "explain"
"""The pause that has what recording costs outside of steps."""

BEING_PROFILED = "being profiled"
"""Why the recorded steps are not steady ones."""


def _guarded(
    method: Callable[Concatenate[Explainer, P], None],
) -> Callable[Concatenate[Explainer, P], None]:
    @functools.wraps(method)
    def guarded(self: Explainer, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.over or self._recorder.is_forked:  # the profiler is another process's
            return
        # Neither the training nor its measuring may end with a trace that cannot be had.
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.give_up(error)
        except BaseException:  # Ctrl-C in here: the profiler must not go on
            self.abandon("")
            raise

    return guarded  # type: ignore[return-value]  # wraps() names the first argument


class Explainer:
    """Told of every step and pause of a run, it records a few steps now and then.

    Args:
        every: Steps between two recordings.
        time: Of the run.
        books: Take the breakdowns.

    Attributes:
        over: Nothing is recorded any more.
    """

    def __init__(self, every: int, time: Timeline, books: Bookkeeper) -> None:
        self.over = False
        self._every, self._time, self._books = every, time, books
        self._recorder = books.recorder
        self._files = TraceFiles(books.run_path)
        self._due = time.steps + every
        self._enough = self._due + 1 + TRACED + 1  # the warm-up, and a step that ends the last one
        self._recorded = False
        self._recording: Recording | None = None
        self._traced: list[OpenStep] = []
        self._disturbed: OpenStep | None = None  # a recording ended in the middle of it
        self._recent: deque[OpenStep] = deque(maxlen=SIDE)  # that were not recorded
        self._pending: list[Pending] = []
        self._hurried = False  # a pause is expected soon: no step for the warm-up
        self._vain = self._failed = 0  # recordings, analyses in a row
        self._others = OtherProfilers(self._is_ours, self._another_begins)
        self._others.attach()

    # --- told by the loop -----------------------------------------------------------------------

    @_guarded
    def before_step(self) -> None:
        """A step is about to begin; time is the tail of the one before, or the run has none yet."""
        if self._pending and self._pending[0].is_ready:
            self._tell(self._pending.pop(0))
        if self.over:
            return
        recording, index = self._recording, self._time.steps
        if recording is None:
            if index < self._due or not self._may_begin():
                return
            with self._own_time():
                self._begin()
        elif recording.broken or not recording.is_here:
            self.abandon(recording.broken or "the loop went on on another thread")
            return
        else:
            self._go_on(recording)
        if self._recording is not None:
            self._recording.begin_step(index)

    @_guarded
    def after_step(self, step: OpenStep) -> None:
        """The loop left a step, and it is known whether it was a steady one."""
        recording = self._recording
        if step is self._disturbed:
            step.excluded = step.excluded or BEING_PROFILED
        if recording is None:
            self._recent.append(step)
            for one in self._pending:
                one.add_after(step)
        elif step.failed or step.excluded or recording.broken:
            self._recent.append(step)
            self.abandon(step.excluded or recording.broken or "a step failed")
        else:
            step.excluded = BEING_PROFILED
            if recording.started:
                self._traced.append(step)

    @_guarded
    def before_pause(self) -> None:
        """A pause begins: what runs in it may take minutes, and is in no trace."""
        recording = self._recording
        if recording is None:
            return
        if self._traced and self._time.open is None and recording.is_here:
            with self._own_time():
                self._finish(recording)
        else:
            self._hurried = True
            self.abandon("a pause began in each of them")

    @_guarded
    def run_ends(self) -> None:
        """Say so where the run was too short for a single recording."""
        if not self._recorded and self._time.steps < self._enough:
            self._recorder.warn_once(
                f"explain_every={self._every}: no step was recorded in {self._time.steps} steps; "
                f"{self._enough} would have sufficed, or a smaller explain_every"
            )

    def stop(self) -> None:
        """The run is about to end: record nothing any more."""
        if self._recorder.is_forked:  # the profiler and the process are another process's
            self.over = True
            self._pending.clear()
        self.abandon("")
        self.over = True
        self._others.detach()

    def conclude(self) -> None:
        """Wait a little for what is being analysed; the times of all steps are known."""
        by = time.monotonic() + CLOSE_S
        try:
            for one in self._pending:
                one.analysis.wait(by - time.monotonic())
                one.analysis.kill(f"it was not finished {CLOSE_S:g} s after the last step")
                one.analysis.wait(CLOSE_S)
                self._tell(one)
        except Exception as error:  # the run file must be closed all the same
            self._say(f"{type(error).__name__}: {first_line(error)}")
        finally:
            for one in self._pending:
                one.analysis.kill("the run ended")
            self._files.close()

    # --- recording ------------------------------------------------------------------------------

    def _may_begin(self) -> bool:
        """Whether nothing is counted, compiled, profiled or analysed now."""
        if not self._recent or not is_steady(self._recent[-1]) or self._recorder.is_forked:
            return False
        if any(not one.analysis.done for one in self._pending):
            return False
        other = self._others.active()
        if other:
            self._due = self._time.steps + self._every
            self._recorder.warn_once(
                f"explain_every: steps were not recorded while {other} was active; torch has one "
                "profiler at a time"
            )
        return not other

    def _begin(self) -> None:
        self._traced = []
        self._recording = Recording(self._books.place.device.type == "cuda")
        self._recording.warm_up()
        if self._hurried:
            self._recording.start()

    def _go_on(self, recording: Recording) -> None:
        recording.end_step()
        if not recording.started:
            with self._own_time():
                recording.start()
        elif len(self._traced) >= TRACED:
            with self._own_time():
                self._finish(recording)

    def _finish(self, recording: Recording) -> None:
        """Write the trace, and have it analysed."""
        steps = tuple(self._traced)
        self._due = self._time.steps + self._every
        try:
            path = self._files.new(steps[0].index, steps[-1].index)
            recording.stop(path)
        except OSError as error:
            self.abandon("")
            self._analysis_failed(f"the trace cannot be written: {first_line(error)}")
            return
        self._recording, self._vain, self._hurried = None, 0, False
        self._recorded = True
        self._files.drop_old()
        analysis = Analysis(self._job(path, steps))
        self._pending.append(Pending(steps, tuple(self._recent), analysis, path))
        analysis.start()

    def _job(self, path: Path, steps: tuple[OpenStep, ...]) -> bytes:
        indices = tuple(step.index for step in steps)
        count = self._books.count_of(steps)
        if count is None or not count.by_dtype:
            return job_of(path, indices, None, None, None)
        dtype = max(count.by_dtype, key=count.by_dtype.__getitem__)
        causal = self._recorder.header.attention == "causal"
        flops = count.model_causal if causal else count.model
        again = count.recompute + count.kernel_recompute
        each = (flops / len(steps), again / len(steps))
        return job_of(path, indices, self._books.peak_of(dtype), dtype, *each)

    def abandon(self, why: str) -> None:
        """End the recording, if there is one, and drop it; it is tried again, unless nobody says.

        Args:
            why: Said where it came to nothing time and again; empty: it is not tried again.
        """
        recording = self._recording
        if recording is None or self._recorder.is_forked:
            return
        if not recording.is_here:  # a profiler can be stopped on its own thread only
            recording.broken = recording.broken or why
            return
        self._disturbed = self._time.open
        with self._own_time():
            self._recording = None
            recording.abandon()
        self._traced = []
        if why:
            self._vain += 1
            self._due = self._time.steps
        if self._vain >= TRIES:
            self._vain = 0
            self._due += self._every
            self._recorder.warn_once(
                f"explain_every: {TRIES} recordings in a row came to nothing, the last one since "
                f"{why}"
            )

    @contextlib.contextmanager
    def _own_time(self) -> Iterator[None]:
        with self._time.own_time(PAUSE), self._books.sampling_paused():
            yield

    def _is_ours(self, profile: object) -> bool:
        return self._recording is not None and self._recording.is_made_of(profile)

    def _another_begins(self) -> None:
        """The program's own profiler is about to begin, maybe inside a step: ours steps aside."""
        self.abandon("the program used a profiler of its own")

    # --- what came of it ------------------------------------------------------------------------

    def _tell(self, one: Pending) -> None:
        """Record the breakdown, or say why there is none. On the thread of the loop."""
        trace = self._files.settle(one.path)
        entry = one.entry(trace)
        if isinstance(entry, str):
            self._analysis_failed(entry, trace)
        else:
            self._failed = 0
            self._recorder.put(entry)

    def _analysis_failed(self, why: str, trace: str = "") -> None:
        self._say(why, f" The trace is {trace} beside the run file." if trace else "")
        self._failed += 1
        if self._failed >= FAILURES and not self.over:
            self.stop()
            self._recorder.warn_once(
                f"explain_every: no steps are recorded any more, after {FAILURES} failures in a row"
            )

    def _say(self, why: str, more: str = "") -> None:
        begins = f"explain_every: no breakdown of the recorded steps: {why}"
        if not any(note.startswith(begins) for note in self._recorder.notes):
            self._recorder.warn_once(f"{begins}.{more}")

    def give_up(self, error: Exception) -> None:
        """An internal failure: record nothing any more, and say so once."""
        self.stop()
        self._recorder.warn_once(
            f"explain_every: no steps are recorded any more ({type(error).__name__}: "
            f"{first_line(error)}). Training and measuring go on"
        )
        logger.debug("explaining failed", exc_info=error)
