"""Figures for the loggers that a Trainer has, on the x axis of its own logs.

TensorBoard's writer takes them on the recorder's thread, with all that the other tools have no
place for: the charts, the text about how they were computed, the picture. The others are called on
the thread that trains, as their clients expect.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from mfu_torch.figures import Figures
from mfu_torch.messages import first_line
from mfu_torch.records import BreakdownEntry, Entry, Telemetry
from mfu_torch.run.sinks import Sink
from mfu_torch.tags import device_scalars, facts, scalars

logger = logging.getLogger(__name__)

APART = "mfu_torch/"
"""Put before facts, and before a tag that the training logs, too."""

_WINDOWS = 1000
"""Whose place on the x axis is remembered."""


class TrainerLoggers:
    """Writes to every logger of a Trainer; one that fails is left alone from then on.

    Args:
        trainer: The Trainer, of either package.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._left_alone: set[int] = set()  # loggers that a sink writes to, or that failed
        self._apart: set[str] = set()
        self._facts = _Facts()
        self._told: dict[int, set[str]] = {}  # by logger: names of facts that it has

    def sinks(self, x_of: Callable[[int], int]) -> Iterator[Sink]:
        """For the run: one for each TensorBoard logger; the others are for :meth:`write`.

        Args:
            x_of: From steps completed to the Trainer's x axis.
        """
        yield self._facts
        for one in self._trainer.loggers:
            if not any(cls.__name__ == "TensorBoardLogger" for cls in type(one).__mro__):
                continue
            self._left_alone.add(id(one))
            try:
                from mfu_torch.integrations.tensorboard import TensorBoardSink

                writer: Any = _Writer(one.experiment, self._name_of)
                yield TensorBoardLoggerSink(TensorBoardSink(writer=writer), x_of)
            except Exception as error:  # a logger of another kind, no tensorboard, a full disk
                self._say(one, error)

    def write(self, record: Figures | Telemetry, x: int) -> None:
        """Write what is known.

        Args:
            record: Figures of a window, or what the device did meanwhile.
            x: The Trainer's count of batches that stepped, as in its own logs.
        """
        found: Iterable[tuple[str, float]]
        found = scalars(record) if isinstance(record, Figures) else device_scalars(record)
        metrics = {self._name_of(tag): value for tag, value in found}
        for one in self._trainer.loggers if metrics else ():
            if id(one) in self._left_alone:
                continue
            try:
                one.log_metrics(metrics, step=x)
                self._tell(one)
            except Exception as error:  # code of others: a network, a full disk
                self._left_alone.add(id(one))
                self._say(one, error)

    def _tell(self, one: Any) -> None:
        """What stands behind the numbers goes to the logger's hyperparameters, each fact once."""
        told = self._told.setdefault(id(one), set())
        new = {name: text for name, text in self._facts.known.copy().items() if name not in told}
        if new:
            told.update(new)
            one.log_hyperparams({APART + name: text for name, text in new.items()})

    def _say(self, one: object, error: Exception) -> None:
        logger.warning(
            "%s failed and gets no more MFU figures: %s: %s",
            type(one).__name__,
            type(error).__name__,
            first_line(error),
        )

    def _name_of(self, tag: str) -> str:
        # The dict itself: the property of that name would compute metrics, and wait for the device.
        theirs = getattr(self._trainer._logger_connector, "_logged_metrics", {})
        if tag in theirs and tag not in self._apart:
            self._apart.add(tag)
            logger.warning("the training logs %s, too: mfu_torch's is %s%s", tag, APART, tag)
        return APART + tag if tag in self._apart else tag


class _Facts:
    """A sink that keeps what stands behind the numbers; read on another thread."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def write(self, record: Entry | Figures) -> None:
        if not isinstance(record, Figures):
            self.known.update(facts(record))

    def close(self) -> None:
        """Nothing to close."""


class _Writer:
    """A TensorBoard writer for which tags are named apart from those of the training."""

    def __init__(self, writer: Any, name_of: Callable[[str], str]) -> None:
        self._writer = writer
        self._name_of = name_of

    def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
        self._writer.add_scalar(self._name_of(tag), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class TensorBoardLoggerSink:
    """A sink for TensorBoard that has the Trainer's x axis."""

    def __init__(self, sink: Sink, x_of: Callable[[int], int]) -> None:
        self._sink = sink
        self._x_of = x_of
        self._windows: deque[tuple[int, int]] = deque(maxlen=_WINDOWS)

    def write(self, record: Entry | Figures) -> None:
        """Move a record, and pass it on."""
        if isinstance(record, Figures):
            x = self._x_of(record.step)
            self._windows.append((record.step, x))
            record = replace(record, step=x)
        elif isinstance(record, Telemetry):
            record = replace(record, after_step=self._x_of(record.after_step))
        elif isinstance(record, BreakdownEntry):
            record = replace(record, after_step=self._x_of_window(record.after_step))
        self._sink.write(record)

    def _x_of_window(self, step: int) -> int:
        """That of the window which the step is in: a breakdown comes some windows later."""
        found = next((x for end, x in self._windows if end >= step), None)
        return self._x_of(step) if found is None else found

    def close(self) -> None:
        """Close the sink; the writer stays open for its logger."""
        self._sink.close()
