"""The live instrument: joins FLOPs, time and peak at every step.

    with Meter(model) as meter:                   # a run
        for batch in meter.data(loader):          # optional: measures the wait for data
            with meter.step(tokens=batch.numel()):
                ...                               # forward, backward, optimizer
        with meter.pause("eval"):                 # time that belongs to no step
            ...
    print(meter.summary())

Per step the meter takes two marks of a clock and looks up one dictionary key. Everything else
(files, TensorBoard, arithmetic) happens on a thread of its own, once a window. An internal failure
stands the meter down with one warning; it never reaches the training loop.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import numbers
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from mfu_torch.bookkeeping import Bookkeeper
from mfu_torch.clock.clocks import Clock, clock_for
from mfu_torch.clock.ledger import TAIL
from mfu_torch.contexts import DataWait, StepContext
from mfu_torch.flops.dynamo import import_what_counting_needs
from mfu_torch.flops.live import LiveCounter
from mfu_torch.flops.shapes.signature import shapes_of
from mfu_torch.messages import first_line
from mfu_torch.peak.resolve import Given, check_given
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Attention, Device, FlopCount, Run
from mfu_torch.run.sinks import Sink
from mfu_torch.session import (
    check_arguments,
    check_device,
    check_sinks,
    given_count,
    models_of,
    open_recorder,
    place_of,
    timeline_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCHES_LIMIT = 4096
"""Batches of one step that are told apart: a loader can be iterated over without any step."""

NEVER_ENTERED = (
    "step() was called and no step was entered, so none was measured; write `with meter.step():` "
    "around each one"
)


class Meter:
    """Measures what share of the hardware a training loop puts into its model.

    Args:
        model: The module that is trained: its forward calls show the input shapes, so that each
            shape is counted once, or follows from others. Pass the compiled or wrapped module if
            there is one, and a list if a step calls several (a GAN; a student and its teacher).
            Without a model the first step is counted, and again when ``tokens`` or ``samples``
            change.
        log_dir: Where the run file and TensorBoard events go; by default ``runs/<date and time>``.
            ``""``: nowhere.
        log_every: Steps per window (per console line and TensorBoard point).
        peak: FLOP/s of the device, where the built-in table does not know it or you know better:
            a number, ``"989 TFLOP/s"``, a :class:`Peak`, or a mapping from dtype to any of these.
        attention: ``"full"`` (every score; PaLM, nanoGPT, torchtitan) or ``"causal"`` (only the
            scores that the mask keeps). Decides which of them ``mfu`` and ``hfu`` mean; both are
            recorded.
        flops: FLOPs of a step, if you know better than the counter: a :class:`FlopCount` or model
            FLOPs by dtype, ``{"bf16": 6.1e15}``. Nothing is counted then.
        sinks: Instead of the console and TensorBoard. The run file is written in any case.
        device: ``torch.device``, its name, or a :class:`Device`; by default the model's.
        clock: A :class:`~mfu_torch.clock.clocks.Clock`, for tests.
        sync: Synchronise the device at every mark. Exact for each single step, and slow.
        group: Process group that this process is a rank of; by default the world.
        telemetry: Sample what the device says of itself once a second, on a thread: GPU-Util,
            tensor activity, clocks, power, throttling.

    Raises:
        TypeError, ValueError: If an argument cannot be understood; the message says which.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module] | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        log_every: int = 10,
        peak: Given | None = None,
        attention: Attention = "full",
        flops: FlopCount | Mapping[str, float] | None = None,
        sinks: Sequence[Sink] | None = None,
        device: torch.device | str | Device | None = None,
        clock: Clock | None = None,
        sync: bool = False,
        group: Any = None,
        telemetry: bool = True,
    ) -> None:
        self._models = models_of(model)
        check_arguments(attention, log_every, log_dir)
        if device is not None and not isinstance(device, Device):
            check_device(device)
        check_given(peak)
        check_sinks(sinks)
        self._log_dir = log_dir
        self._log_every = int(log_every)
        self._given_peak = peak
        self._attention: Attention = attention
        self._flops = given_count(flops)
        self._sinks = sinks
        self._device = device
        self._clock_arg = clock
        self._sync = sync
        self._group = group
        self._telemetry = telemetry
        self._context = StepContext(self._begin, self._end)
        self._started = self._running = self._closed = self._down = False
        self._asked = False  # step() was called
        self._waits_known = False  # the loop waits for its data through Meter.data
        self._tokens: int | None = None
        self._samples: int | None = None
        self._batches: list[Hashable] = []  # shapes that came from Meter.data for this step

    # --- a run ----------------------------------------------------------------------------------

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(reason="completed" if kind is None else kind.__name__)

    def start(self) -> None:
        """Begin the run. ``with meter:`` and the first step do it by themselves.

        Raises:
            RuntimeError: If the run is over; a meter measures one run.
        """
        if self._closed:
            raise RuntimeError("this meter's run is over; make a new Meter for another run")
        if self._started:
            return
        if self._flops is None:
            import_what_counting_needs()
        place = place_of(self._models, self._device, self._group)
        self._clock = self._clock_arg or clock_for(place.device, sync=self._sync)
        self._time = timeline_of(self._clock, place.device, self._stand_down)
        recorder, run_path = open_recorder(
            place,
            log_dir=self._log_dir,
            log_every=self._log_every,
            attention=self._attention,
            clock=self._clock.description,
            sinks=self._sinks,
        )
        self._recorder = recorder
        self._books = Bookkeeper(
            place,
            recorder,
            run_path,
            log_every=self._log_every,
            given_peak=self._given_peak,
            own_time=self._time.own_time,
            sampler=DeviceSampler(place.described) if self._telemetry else None,
        )
        self._live = LiveCounter(self._models, self._books.count, self._stand_down, self._flops)
        self._started = self._running = True
        atexit.register(self.close, "the end of the program")
        try:
            self._live.attach()
        except Exception as error:  # a model can be an object of any kind
            self._stand_down(error)

    def close(self, reason: str = "completed") -> None:
        """End the run: wait for the device once, write what is left. Safe to call twice."""
        if not self._started or self._closed:
            return
        self._closed = True
        self._running = False
        atexit.unregister(self.close)
        self._live.detach()
        if self._asked and self._time.last is None and not self._down:
            self._recorder.warn(NEVER_ENTERED)
        try:
            self._books.take(self._time.close())
        except Exception as error:  # the device may be in a failed state; the file must be whole
            self._recorder.warn("the last steps could not be timed: %s", first_line(error))
        self._books.close(self._time.wall_s, reason)

    @property
    def run(self) -> Run:
        """The run so far: header, counts, peaks, and the steps whose time is known.

        Raises:
            RuntimeError: If it has not begun.
        """
        if not self._started:
            raise RuntimeError("no run yet: it begins with `with meter:` or the first step")
        if self._running and not self._down:
            self._books.take(self._time.poll())
        return self._books.run()

    def summary(self) -> str:
        """The report of the run so far, as ``mfu-torch report`` prints it."""
        from mfu_torch.insight.report import render_report

        return render_report(self.run).rstrip("\n")

    @property
    def log_dir(self) -> Path | None:
        """The folder of the run file; ``None`` when the run is not kept on disk."""
        run_path = self._books.run_path if self._started else None
        return run_path.parent if run_path is not None else None

    # --- steps ----------------------------------------------------------------------------------

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> StepContext:
        """A context manager around one optimizer update, all its micro-batches included.

        Args:
            tokens: Tokens trained on in this step on this device, for tokens/s.
            samples: Samples, likewise.
        """
        self._tokens = tokens
        self._samples = samples
        self._asked = True
        return self._context

    def _begin(self) -> None:
        if self._down:
            return
        if not self._running or self._time.open is not None or self._time.pause:
            self._check_begin()
        try:
            tokens, samples = self._tokens, self._samples
            if not (type(tokens) is int or tokens is None):
                tokens = self._as_int("tokens", tokens)
            if not (type(samples) is int or samples is None):
                samples = self._as_int("samples", samples)
            step = self._time.begin(tokens, samples, 0.0 if self._waits_known else None)
            if step.index >= self._books.due and self._books.take(self._time.poll()):
                self._live.revalidate()
            self._live.begin_step(step.index, (tokens, samples, tuple(self._batches)))
        except Exception as error:
            self._stand_down(error)
        except BaseException:  # Ctrl-C in here: the step was not entered, so it is never left
            self._end(failed=True)
            raise

    def _check_begin(self) -> None:
        """Start the run at its first step.

        Raises:
            RuntimeError: Where no step can begin.
        """
        if self._running and self._time.open is not None:
            raise RuntimeError(
                "step() inside step(): steps cannot nest; use meter.phase(name) for parts of a step"
            )
        if self._running and self._time.pause:
            raise RuntimeError("step() inside pause(): a pause belongs to no step; leave it first")
        self.start()

    def _end(self, failed: bool) -> None:
        step = self._time.open
        if step is None or self._down:
            return
        try:
            step.failed = failed
            self._time.end(step)
            hint = (step.tokens, step.samples, tuple(self._batches))
            self._batches.clear()
            step.count_ids, step.micro_batches, excluded = self._live.end_step(hint, failed=failed)
            step.excluded = excluded if step.index else excluded or "first step"
        except Exception as error:
            self._stand_down(error)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A context manager around a part of a step; its share of the step time is reported.

        Parts inside a part are taken out of the outer one.

        Raises:
            ValueError: If the name is empty or reserved.
            RuntimeError: Outside of a step.
        """
        if not name or name == TAIL:
            raise ValueError(f"phase name is {name!r}; expected a name other than {TAIL!r}")
        if self._down:
            return contextlib.nullcontext()
        if not self._running or self._time.open is None:
            raise RuntimeError(f"phase({name!r}) outside of a step; phases are parts of a step")
        return self._time.phase(name)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Time that belongs to no step: ``"eval"``, ``"checkpoint"``, any name.

        It is left out of the steady-state MFU, counts in the end-to-end MFU, and is reported by
        name. Work inside is not counted.

        Raises:
            ValueError: If the name is no text, or empty.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"pause name is {name!r}; expected a name, e.g. 'eval'")
        if not self._started:
            self.start()
        if self._down or self._closed:
            yield
            return
        inside_another = bool(self._time.pause)
        if not inside_another:
            self._live.pause()
        try:
            with self._time.pausing(name), self._books.sampling_paused(inside_another):
                yield
        finally:
            if not inside_another:
                self._live.resume(in_step=self._time.open is not None)

    def data(self, loader: Iterable[T]) -> DataWait[T]:
        """Iterate over ``loader`` and measure how long the loop waits for it (host time)."""
        return DataWait(loader, self._host_clock, self._waited)

    def _host_clock(self) -> Callable[[], float]:
        if not self._started:
            self.start()
        return self._clock.host_s

    def _waited(self, wait_s: float, batch: object) -> None:
        if self._time.pause or self._down or self._closed:
            return
        last = self._time.last
        if last is not None:
            last.data_wait_s = (last.data_wait_s or 0.0) + wait_s
        self._waits_known = True
        if len(self._batches) < BATCHES_LIMIT:
            self._batches.append(shapes_of(batch))

    def _as_int(self, name: str, value: Any) -> int | None:
        if isinstance(value, numbers.Integral) or (
            isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1
        ):
            return int(value)
        self._recorder.warn_once(
            f"{name}= got a {type(value).__name__}; expected an int (a tensor on the device would "
            f"have to be waited for), so {name}/s is not reported"
        )
        return None

    def _stand_down(self, error: Exception) -> None:
        """An internal failure: stop measuring, say so once, and leave the training alone."""
        if self._down:
            return
        self._down = True
        self._time.stop()
        self._live.detach()
        logger.warning(
            "mfu_torch stopped measuring after an internal error (%s: %s). Training goes on. "
            "Please report it with this traceback.",
            type(error).__name__,
            first_line(error),
            exc_info=error,
        )
        self._recorder.notes.append(f"measuring stopped: {type(error).__name__}: {error}")
