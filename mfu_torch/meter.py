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
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from mfu_torch.bookkeeping import open_books
from mfu_torch.clock.clocks import Clock, clock_for
from mfu_torch.clock.ledger import TAIL
from mfu_torch.contexts import DataWait, StepContext, WatchedLoaders
from mfu_torch.explaining import stepping_for
from mfu_torch.flops.dynamo import import_what_counting_needs
from mfu_torch.flops.live import LiveCounter
from mfu_torch.messages import first_line
from mfu_torch.peak.resolve import Given
from mfu_torch.records import Attention, Device, FlopCount, Run
from mfu_torch.resume import earlier_of, now
from mfu_torch.run.sinks import Sink
from mfu_torch.session import place_of, timeline_of
from mfu_torch.settings import Settings
from mfu_torch.splitting import splitter_for
from mfu_torch.stepping import NEVER_ENTERED

T = TypeVar("T")


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
        resume: What :meth:`state_dict` returned in an earlier attempt at this run: steps are
            numbered on, and the end-to-end MFU is over all attempts, what was lost between them
            included.
        explain_every: After every so many steps the next few are recorded with ``torch.profiler``,
            and analysed in another process: where their time went. At least 10; ``None``: never.

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
        resume: Mapping[str, Any] | None = None,
        explain_every: int | None = None,
    ) -> None:
        self._settings = Settings.checked(
            model=model, log_dir=log_dir, log_every=log_every, peak=peak, attention=attention,
            flops=flops, sinks=sinks, device=device, clock=clock, sync=sync, group=group,
            telemetry=telemetry, resume=resume, explain_every=explain_every,
        )  # fmt: skip
        self._started = self._closed = False
        self._ended = ""  # why the run was closed
        self._stepping = stepping_for(explain_every, self._start_once)
        self._context = StepContext(self._stepping.begin, self._stepping.end, self._stepping.add)
        self._loaders = WatchedLoaders(self._stepping.waits)

    # --- a run ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled without the run, which has files and threads: only the arguments."""
        return self._settings.arguments()

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self.__init__(**arguments)  # type: ignore[misc]  # a copy is a meter of its own

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
        given, stepping = self._settings, self._stepping
        if given.flops is None:
            import_what_counting_needs()
        place = place_of(given.models, given.device, given.group)
        clock = given.clock or clock_for(place.device, sync=given.sync)
        first = given.state.steps if given.state else 0
        self._time = timeline_of(clock, place.device, stepping.stand_down, first)
        self._earlier = earlier_of(given.state)
        self._started_at = now().isoformat(timespec="milliseconds")
        self._began_s = clock.host_s()
        self._books = open_books(given, place, clock, self._time.own_time, self._earlier)
        self._recorder = self._books.recorder
        self._live = LiveCounter(
            given.models, self._books.count, stepping.stand_down, given.flops, first
        )
        self._splitter = splitter_for(given.models, clock, place.device, stepping.stand_down)
        stepping.run_begins(clock, self._time, self._live, self._books, self._splitter)
        self._started = True
        atexit.register(self.close, "the end of the program")
        try:
            self._live.attach()
            if self._splitter is not None:
                self._splitter.attach()
        except Exception as error:  # a model can be an object of any kind
            stepping.stand_down(error)

    def _start_once(self) -> None:
        """Begin the run, unless it has begun already and is not over."""
        if not self._stepping.running:
            self.start()

    def close(self, reason: str = "completed") -> None:
        """End the run: wait for the device once, write what is left. Safe to call twice."""
        self._loaders.release()
        if not self._started or self._closed:
            return
        try:
            self._detach()
        except BaseException:  # Ctrl-C: nothing may be left in the user's model
            self._detach()
            raise
        self._closed = True
        self._ended = reason
        atexit.unregister(self.close)
        if self._recorder.is_forked:  # the run and its file are another process's
            return
        if self._stepping.never_entered():
            self._recorder.warn(NEVER_ENTERED)
        try:
            self._books.finish(self._time.close())
        except Exception as error:  # the device may be in a failed state; the file must be whole
            self._recorder.warn("the last steps could not be timed: %s", first_line(error))
        self._stepping.conclude()
        self._books.close(self._time.wall_s, reason)

    def _detach(self) -> None:
        self._stepping.run_ends()
        self._live.detach()

    @property
    def run(self) -> Run:
        """The run so far: header, counts, peaks, and the steps whose time is known.

        Raises:
            RuntimeError: If it has not begun.
        """
        if not self._started:
            raise RuntimeError("no run yet: it begins with `with meter:` or the first step")
        if self._stepping.running and not self._stepping.down:
            self._books.take(self._time.poll())
        return self._books.run()

    def summary(self) -> str:
        """The report of the run so far, as ``mfu-torch report`` prints it."""
        from mfu_torch.insight.report import render_report

        return render_report(self.run).rstrip("\n")

    @property
    def log_dir(self) -> Path | None:
        """The folder of the run file; ``None`` when the run is not kept on disk."""
        return None if self.run_file is None else self.run_file.parent

    @property
    def run_file(self) -> Path | None:
        """The run file; ``None`` when the run is not kept on disk."""
        return self._books.run_path if self._started else None

    def state_dict(self) -> dict[str, Any]:
        """What a later attempt at this run has to know, to be saved with a checkpoint.

        Plain numbers and texts, for ``Meter(resume=...)``. Nothing is waited for.

        Raises:
            RuntimeError: If the run has not begun.
        """
        if not self._started:
            raise RuntimeError("no run yet: it begins with `with meter:` or the first step")
        completed = self._time.steps - (self._time.open is not None)
        down = self._stepping.down or self._ended.startswith("an internal error")
        return self._books.state(
            self._started_at,
            completed,
            self._earlier,
            own_s=self._stepping.clock.host_s() - self._began_s,
            stopped=f"measuring stopped after step {completed}: an internal error" if down else "",
        )

    # --- steps ----------------------------------------------------------------------------------

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> StepContext:
        """A context manager around one optimizer update, all its micro-batches included.

        Args:
            tokens: Tokens trained on in this step on this device, for tokens/s.
            samples: Samples, likewise.
        """
        stepping = self._stepping
        stepping.tokens = tokens
        stepping.samples = samples
        stepping.asked = True
        return self._context

    def micro_batch(self, batch: object) -> None:
        """Say that work on these inputs begins, where no call of one module stands for it.

        For loops that call parts of a model one by one. From the first call in a step on, the
        model's own forward calls in that step are not looked at: each distinct ``batch`` is counted
        once, with all that runs until the next call or the end of the step, its backward included.
        Not for loops that call something compiled: give ``Meter`` the compiled modules instead.

        Args:
            batch: Tensors, or what holds them. Shapes are looked at, and plain values until 16 of
                them had the same count. Announced on the thread that enters the step.

        Raises:
            RuntimeError: Outside of a step.
        """
        self._stepping.micro_batch(batch)

    def forward_from_here(self) -> None:
        """Say that a forward begins, where no call of one module stands for it; until its backward.

        Only for the parts of the step time. :meth:`micro_batch` says it, too.

        Raises:
            RuntimeError: Outside of a step.
        """
        self._stepping.forward_from_here()

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A context manager around a part of a step; its share of the step time is reported.

        Parts inside a part are taken out of the outer one.

        Raises:
            ValueError: If the name is empty or reserved.
            RuntimeError: Outside of a step.
        """
        if not name or name == TAIL:
            raise ValueError(f"phase name is {name!r}; expected a name other than {TAIL!r}")
        if self._stepping.open_step(f"phase({name!r})") is None:
            return contextlib.nullcontext()
        return self._time.phase(name)

    def pause(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Time that belongs to no step: ``"eval"``, ``"checkpoint"``, any name.

        It is left out of the steady-state MFU, counts in the end-to-end MFU, and is reported by
        name. Work inside is not counted.

        Raises:
            ValueError: If the name is no text, or empty.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"pause name is {name!r}; expected a name, e.g. 'eval'")
        return self._pause(name)

    @contextlib.contextmanager
    def _pause(self, name: str) -> Iterator[None]:
        if not self._started:
            self.start()
        with self._stepping.pausing(name):
            yield

    def data(self, loader: Iterable[T]) -> DataWait[T]:
        """Iterate over ``loader`` and measure how long the loop waits for it (host time).

        Only on the thread of the steps: one that loads ahead waits in place of the loop.
        """
        return DataWait(loader, self._stepping.waits, self._stepping.batch_came)

    def watch_loader(self, loader: object) -> bool:
        """Measure the wait for a ``DataLoader`` that somebody else iterates over, a trainer say.

        Returns:
            Whether it can be: only a loader that is torch's ``DataLoader``, or is made of one.
        """
        return self._loaders.add(loader)
