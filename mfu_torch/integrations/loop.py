"""A training loop that somebody else writes: hooks in place of ``with`` blocks.

    begin_step   add   end_step     begin_pause  end_pause     begin_step ...     close
    |------- a step -------|...tail...|-- "eval" --|....tail....|------ the next -----|

Trainers call hooks in orders of their own, twice, or not at all; here every call is allowed at any
time. No method raises into the training: an internal failure is warned of once, and ends measuring.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from mfu_torch.contexts import StepContext
from mfu_torch.figures import Figures
from mfu_torch.integrations.remarks import RemarksSink, closing_line, last_line
from mfu_torch.messages import first_line
from mfu_torch.meter import Meter
from mfu_torch.records import Entry, Telemetry
from mfu_torch.run.sinks import Sink

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

WINDOWS_LIMIT = 1000
"""Windows that wait to be logged on the main thread; with more, nobody asks for them."""


def _check_names(options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(Meter).parameters if name != "model"]
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; expected one of {', '.join(known)}")


def _never_raises(
    method: Callable[Concatenate[FollowedLoop, P], R],
) -> Callable[Concatenate[FollowedLoop, P], R | None]:
    @functools.wraps(method)
    def guarded(self: FollowedLoop, *args: P.args, **kwargs: P.kwargs) -> R | None:
        # A trainer is not prepared for a callback that raises: training would end there.
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self._give_up(error)
            return None

    return guarded  # type: ignore[return-value]  # wraps() names the first argument


class _Mailbox:
    """Keeps windows for loggers that have to be called on the training thread."""

    is_prompt = True  # no other sink holds it up

    def __init__(self) -> None:
        self.figures: deque[Figures] = deque(maxlen=WINDOWS_LIMIT)
        self.telemetry: deque[Telemetry] = deque(maxlen=WINDOWS_LIMIT)
        self.latest: Figures | None = None

    def write(self, record: Entry | Figures) -> None:
        if isinstance(record, Figures):
            self.latest = record
            self.figures.append(record)
        elif isinstance(record, Telemetry):
            self.telemetry.append(record)

    def close(self) -> None:
        """What is left can still be asked for."""


class FollowedLoop:
    """Measures a loop by its hooks.

    Args:
        sinks: Besides those that :meth:`start` is given.
        **meter_options: As for :class:`~mfu_torch.meter.Meter`.

    Attributes:
        meter: Of the run in progress, or of the last one; ``None`` before the first.

    Raises:
        TypeError, ValueError: If an option cannot be understood; the message says which.
    """

    def __init__(self, *, sinks: Sequence[Sink] = (), **meter_options: Any) -> None:
        _check_names(meter_options)
        Meter(sinks=sinks, **meter_options)  # checks them, and starts nothing
        self._options = meter_options
        self._sinks = tuple(sinks)
        self._reset()

    def _reset(self) -> None:
        self.meter: Meter | None = None
        self._mail = _Mailbox()
        self._step: StepContext | None = None
        self._pause: contextlib.AbstractContextManager[None] | None = None
        self._open = False  # the run is in progress
        self._models: list[weakref.ref[nn.Module]] = []  # of the run

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled without the run: that has files and threads."""
        return {"_options": self._options, "_sinks": self._sinks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self._open

    @_never_raises
    def start(
        self,
        models: Sequence[nn.Module],
        *,
        log_dir: str | Path,
        sinks: Sequence[Sink] = (),
        resume: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a run; one that is in progress ends.

        Args:
            models: Whose calls are watched.
            log_dir: Where the run file goes, unless an option says otherwise.
            sinks: Besides those of the options.
            resume: What :meth:`state` returned in an earlier attempt.
        """
        self.close("a new run")
        for other in list(_RUNNING):
            if other.is_left_over(models):
                other.close("a new run of the same model")
        self._reset()
        options: dict[str, Any] = {"log_dir": log_dir, "resume": resume} | self._options
        sinks = [self._mail, RemarksSink(), *sinks, *self._sinks]
        self.meter = Meter(models, sinks=sinks, **options)
        self.meter.start()
        self._open = True
        self._models = [weakref.ref(model) for model in models]
        _RUNNING.add(self)

    def is_left_over(self, models: Sequence[nn.Module]) -> bool:
        """Whether this run is in progress though another begins that trains the same model.

        A trainer that was interrupted in a notebook does not tell its callbacks.
        """
        mine = (model() for model in self._models)
        parts = {id(part) for model in mine if model is not None for part in model.modules()}
        return self._open and any(id(part) in parts for one in models for part in one.modules())

    @_never_raises
    def begin_step(self) -> None:
        """The work of a step begins, or goes on after a pause that is open; it ends here."""
        if self.meter is None or not self._open:
            return
        if self._pause is not None:
            self.end_pause()
        if self._step is None:
            self._step = self.meter.step()
            self._step.__enter__()

    @_never_raises
    def add(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to what the open step trains on."""
        if self._step is not None:
            self._step.add(tokens=tokens, samples=samples)

    @_never_raises
    def micro_batch(self, batch: object) -> None:
        """Work on these inputs begins; see :meth:`Meter.micro_batch`."""
        if self.meter is not None and self._step is not None:
            self.meter.micro_batch(batch)

    @_never_raises
    def forward_from_here(self) -> None:
        """A forward begins; see :meth:`Meter.forward_from_here`."""
        if self.meter is not None and self._step is not None:
            self.meter.forward_from_here()

    @_never_raises
    def end_step(self, *, failed: bool = False) -> None:
        """The optimizer has stepped; or, ``failed``, the step came to nothing.

        A pause that is open goes on.
        """
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(RuntimeError if failed else None, None, None)

    @_never_raises
    def begin_pause(self, name: str) -> None:
        """What follows belongs to no step. Inside a pause the outer name stays."""
        if self.meter is None or not self._open or self._pause is not None:
            return
        self._pause = self.meter.pause(name)
        self._pause.__enter__()

    @_never_raises
    def end_pause(self) -> None:
        """The pause is over, if there is one."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.__exit__(None, None, None)

    @_never_raises
    def watch_loader(self, loader: object) -> bool:
        """Measure the wait for a loader; see :meth:`Meter.watch_loader`."""
        return self.meter is not None and self._open and self.meter.watch_loader(loader)

    def windows(self) -> list[Figures]:
        """Figures of the windows that were finished since the last call."""
        return _taken(self._mail.figures)

    def telemetry(self) -> list[Telemetry]:
        """What the device did meanwhile, since the last call."""
        return _taken(self._mail.telemetry)

    def latest(self) -> Figures | None:
        """Figures of the last window that was finished."""
        return self._mail.latest

    @_never_raises
    def state(self) -> dict[str, Any] | None:
        """What a later attempt has to know; ``None`` before the first run."""
        return None if self.meter is None else self.meter.state_dict()

    @_never_raises
    def close(self, reason: str = "completed") -> None:
        """End the run, if there is one, and say in one line what came of it."""
        if self.meter is None or not self._open:
            return
        self._open = False
        _RUNNING.discard(self)
        self.end_step(failed=True)
        self.end_pause()
        self.meter.close(reason)
        run = self.meter.run
        if run.end is None and next(iter(run.steps), None) is None:  # not what was written
            why = run.notes[0] if run.notes else "it has no steps, and no end"
            logger.warning("mfu_torch: the run file cannot be read back: %s", why)
            line = last_line(self._mail.latest, run.header.attention)
        else:
            line = closing_line(run, self.meter.run_file)
        if run.header.rank == 0:
            _say(line)

    def summary(self) -> str:
        """The report of the run, as ``mfu-torch report`` prints it.

        Raises:
            RuntimeError: Before the first run.
        """
        if self.meter is None:
            raise RuntimeError("no run yet: it begins when the trainer trains")
        return self.meter.summary()

    def _give_up(self, error: Exception) -> None:
        self._open = False
        self._step = self._pause = None
        logger.warning(
            "mfu_torch stopped measuring after an internal error (%s: %s). Training goes on. "
            "Please report it with this traceback.",
            type(error).__name__,
            first_line(error),
            exc_info=error,
        )
        meter = self.meter
        if meter is not None:
            with contextlib.suppress(Exception):  # it was said that measuring ended
                meter.close(f"an internal error: {type(error).__name__}")


_RUNNING: weakref.WeakSet[FollowedLoop] = weakref.WeakSet()
"""Loops whose runs are in progress in this process: one that was left over is ended by the next."""


def _say(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):  # no stdout, or one that is closed
        logger.info(line)


def _taken(box: deque[Any]) -> list[Any]:
    """What is in a box; it is filled by another thread."""
    return [box.popleft() for _ in range(len(box))]
