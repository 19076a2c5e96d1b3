"""From counts and resolved times to the records of a run."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.ledger import OpenStep, PauseTime
from mfu_torch.clock.parts import BACKWARD, FORWARD, LOSS, OPTIMIZER
from mfu_torch.peak.benchmark import forget_measured
from mfu_torch.peak.resolve import Given, resolve_peak
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import (
    CountEntry,
    Earlier,
    End,
    FlopCount,
    Pause,
    Peak,
    PeakEntry,
    Run,
    Step,
    StepParts,
    Window,
)
from mfu_torch.resume import save
from mfu_torch.run.recorder import Recorder
from mfu_torch.session import Place, open_recorder
from mfu_torch.settings import Settings


class Bookkeeper:
    """Turns what the live counter and the ledger deliver into records, and hands them on.

    Args:
        place: Where the run computes.
        recorder: Takes the records.
        run_path: The run file, if there is one.
        log_every: Steps per window.
        first: Index of the first step.
        given_peak: As given to the meter.
        own_time: A context in which time goes to a pause of that name, not to the step.
        sampler: Started here, stopped on closing; what it saw is recorded with each window.

    Attributes:
        place: Where the run computes.
        due: Index of the step at whose start the next window can be complete.
        steps_made: How often steps had each combination of count ids, whether timed yet or not.
    """

    def __init__(
        self,
        place: Place,
        recorder: Recorder,
        run_path: Path | None,
        *,
        log_every: int,
        first: int,
        given_peak: Given | None,
        own_time: Callable[[str], AbstractContextManager[None]],
        sampler: DeviceSampler | None = None,
    ) -> None:
        self.recorder = recorder
        self.run_path = run_path
        self.due = first + log_every
        self.place = place
        self._log_every = log_every
        self._given_peak = given_peak
        self._own_time = own_time
        self._peaks: dict[str, PeakEntry] = {}
        self._resolved: list[OpenStep] = []
        self._recorded = 0  # steps that are in windows
        self._counts: dict[int, CountEntry] = {}
        self.steps_made: dict[tuple[int, ...], int] = {}
        self._sampler = sampler
        if sampler is not None:
            sampler.start()
        _ask_after_fork(self)

    def count(self, entry: CountEntry) -> None:
        """Record a count, and before it the peaks that it needs."""
        for dtype in entry.count.by_dtype if entry.count else ():
            if dtype not in self._peaks:
                with self._own_time("peak") if self._is_measured(dtype) else nullcontext():
                    peak = resolve_peak(self.place.described, dtype, given=self._given_peak)
                self._peaks[dtype] = peak
                self.recorder.put(peak)
        self._counts[entry.id] = entry
        self.recorder.put(entry)

    def count_of(self, steps: Iterable[OpenStep]) -> FlopCount | None:
        """FLOPs of all these steps together; ``None`` where they are not known."""
        entries = [self._counts.get(number) for step in steps for number in step.count_ids]
        counts = [entry.count for entry in entries if entry and entry.count]
        return FlopCount.sum(counts) if counts and len(counts) == len(entries) else None

    def peak_of(self, dtype: str | None) -> Peak | None:
        """The peak that this run uses for a dtype; ``None`` where there is none."""
        entry = self._peaks.get(dtype or "")
        return None if entry is None else entry.peak

    def state(
        self, started: str, steps: int, earlier: Earlier | None, *, own_s: float, stopped: str = ""
    ) -> dict[str, Any]:
        """What a later attempt has to know; see :func:`mfu_torch.resume.save`."""
        return save(
            started,
            steps,
            self.steps_made,
            self._counts,
            self._peaks,
            earlier,
            own_s=own_s,
            stopped=stopped,
        )

    def _is_measured(self, dtype: str) -> bool:
        given = self._given_peak
        has_one = dtype in given if isinstance(given, Mapping) else given is not None
        return self.place.described.kind == "cpu" and not has_one

    def take(self, parts: list[OpenStep | PauseTime]) -> bool:
        """Record parts of the run whose time is known; whether that completed a window."""
        if self.recorder.refuses():
            return False
        completed = False
        for part in parts:
            if type(part) is PauseTime:
                self._pause(part.name, part.after_step, part.duration_s)
                continue
            assert type(part) is OpenStep  # the ledger delivers nothing else
            if part.failed:
                self._pause("interrupted step", part.index, part.inside_s + part.tail_s)
                continue
            self._resolved.append(part)
            if len(self._resolved) == self._log_every:
                self.due = part.index + 1 + self._log_every
                self._put_window()
                completed = True
        return completed

    def finish(self, parts: list[OpenStep | PauseTime]) -> None:
        """The last parts of the run: what comes after its last step is in no window."""
        self.take(parts[:-1])
        self._put_window()
        self.take(parts[-1:])

    def close(self, wall_s: float, reason: str) -> None:
        """Record what is left and that the run is over."""
        self._put_window()
        if self._sampler is not None:
            self._sampler.stop()
            self._put_telemetry(self._recorded)  # what stopping found: a driver that hangs
        self._forget_low_peaks()
        self.recorder.settle()
        self.recorder.put(End(wall_s=wall_s, reason=reason, notes=tuple(self.recorder.notes)))
        self.recorder.close()

    def run(self) -> Run:
        """The run as recorded, with the steps of the window that is not complete yet."""
        run = self.recorder.read_back(self.run_path)
        return run.with_window(self._window()) if self._resolved else run

    @contextmanager
    def sampling_paused(self, already: bool = False) -> Iterator[None]:
        """What the device does meanwhile belongs to no step."""
        if self._sampler is None or already:
            yield
            return
        self._sampler.pause()
        try:
            yield
        finally:
            self._sampler.resume()

    def _pause(self, name: str, after_step: int, duration_s: float) -> None:
        self.recorder.put(Pause(name=name, after_step=after_step, duration_s=duration_s))

    def _put_window(self) -> None:
        if self._resolved:
            self._recorded = self._resolved[-1].index + 1
            self._put_telemetry(self._recorded)
            self.recorder.put(self._window())
            self._resolved = []

    def _put_telemetry(self, after_step: int) -> None:
        found = self._sampler.take(after_step) if self._sampler is not None else None
        if found is not None:
            self.recorder.put(found)

    def _window(self) -> Window:
        return Window(
            steps=tuple(map(_as_record, self._resolved)),
            wall_s=self._resolved[-1].wall_s,
            memory_bytes=self.place.peak_memory_bytes(),
        )

    def _forget_low_peaks(self) -> None:
        """A measured peak that the run itself exceeded was measured too low: do not keep it."""
        self.recorder.written()
        if self.recorder.best_hfu <= 1:
            return
        for entry in self._peaks.values():
            if entry.peak is not None and entry.peak.provenance == "measured":
                forget_measured(self.place.described, entry.dtype)
                self.recorder.warn_once(
                    f"the measured {entry.dtype} peak is too low: this run exceeded it. It was "
                    "measured while other work kept the machine busy, or at a lower clock; the "
                    "next run measures it again"
                )


def open_books(
    given: Settings,
    place: Place,
    clock: Clock,
    own_time: Callable[[str], AbstractContextManager[None]],
    earlier: Earlier | None,
) -> Bookkeeper:
    """The bookkeeper of a run that begins, with its run file and sinks.

    Args:
        given: To the meter.
        place: Where the run computes.
        clock: The run's.
        own_time: A context in which time goes to a pause of that name, not to the step.
        earlier: The attempts that it resumes.
    """
    recorder, run_path = open_recorder(
        place,
        given.models,
        log_dir=given.log_dir,
        log_every=given.log_every,
        attention=given.attention,
        clock=clock.description,
        sinks=given.sinks,
        earlier=earlier,
    )
    return Bookkeeper(
        place,
        recorder,
        run_path,
        log_every=given.log_every,
        first=given.state.steps if given.state else 0,
        given_peak=given.peak,
        own_time=own_time,
        sampler=DeviceSampler(place.described) if given.telemetry else None,
    )


def _ask_after_fork(books: Bookkeeper) -> None:
    """In a forked child the next step asks at once whose it is, and not after a window only."""
    alive = weakref.ref(books)  # what is registered stays registered

    def in_child() -> None:
        there = alive()
        if there is not None:
            there.due = 0

    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=in_child)


def _as_record(step: OpenStep) -> Step:
    return Step(
        index=step.index,
        duration_s=step.inside_s + step.tail_s,
        data_wait_s=step.data_wait_s,
        count_ids=step.count_ids,
        micro_batches=step.micro_batches,
        tokens=step.tokens,
        samples=step.samples,
        excluded=step.excluded,
        phases=step.phases or {},
        parts=None if step.parts_s is None else _parts(step, step.parts_s),
    )


def _parts(step: OpenStep, parts_s: Mapping[int, float]) -> StepParts:
    called = FORWARD in parts_s
    return StepParts(
        forward_s=parts_s[FORWARD] if called else None,
        loss_s=parts_s.get(LOSS, 0.0) if called else None,
        backward_s=parts_s.get(BACKWARD, 0.0),
        optimizer_s=parts_s.get(OPTIMIZER, 0.0),
        tail_s=step.tail_s,
        lead_s=step.lead_s,
        lead_most_s=step.lead_most_s,
    )
