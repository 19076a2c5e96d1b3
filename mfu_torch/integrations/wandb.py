"""Weights & Biases: the figures beside what the training script logs, over the steps completed.

wandb.init(project="mine")                        # the script's own run, on rank 0
Meter(model, sinks=[ConsoleSink(), WandbSink()])
"""

from __future__ import annotations

from typing import Any

from mfu_torch.figures import Figures
from mfu_torch.records import BreakdownEntry, Entry, Telemetry
from mfu_torch.tags import breakdown_scalars, device_scalars, facts, scalars

try:
    import wandb
except ImportError as error:
    raise ImportError("WandbSink needs wandb: pip install 'mfu_torch[wandb]'") from error

STEP = "mfu_torch/step"
"""The x axis of every curve of ours, whatever counts as a step in the script's own calls."""


class WandbSink:
    """Logs to a run that is open, and never opens or finishes one."""

    def __init__(self, run: Any = None) -> None:
        """Log to ``run``, by default the one that ``wandb.init`` has opened.

        Raises:
            ValueError: If there is none, or it is finished.
            TypeError: If ``run`` is no run.
        """
        self._run: Any = wandb.run if run is None else run
        if self._run is None:
            raise ValueError("no W&B run is open; call wandb.init(...) before, or pass run=")
        if not hasattr(self._run, "define_metric"):
            raise TypeError(f"run is {run!r}; expected a W&B run: what wandb.init(...) returns")
        if self._is_finished():
            raise ValueError("the W&B run is finished; call wandb.init(...) before, or pass run=")
        self._run.define_metric(STEP, hidden=True)
        self._defined: set[str] = set()
        self._device: dict[str, float] = {}
        self._row: int | None = None

    def write(self, record: Entry | Figures) -> None:
        """Log what is known of a window; what stands behind it goes into the run's config.

        Raises:
            RuntimeError: If the run is finished and there is something to log.
        """
        if isinstance(record, Telemetry):  # comes just before the figures of its window
            self._device = dict(device_scalars(record))
        elif isinstance(record, Figures):
            values = {**self._device, **dict(scalars(record))}
            self._device = {}
            self._show(values, record.step)
        elif isinstance(record, BreakdownEntry):
            self._show(dict(breakdown_scalars(record)), record.after_step)
        else:
            for name, text in facts(record):
                self._check_open()
                self._run.config.update({f"mfu_torch/{name}": text}, allow_val_change=True)

    def close(self) -> None:
        """Leave the run open: it belongs to whoever opened it."""

    def _is_finished(self) -> bool:
        return bool(getattr(self._run, "_is_finished", False))  # W&B tells it in no other way

    def _check_open(self) -> None:
        # A finished run answers nothing that it is asked: W&B waits 30 s for it, and then raises.
        if self._is_finished():
            raise RuntimeError(
                "the W&B run is finished, what came after is not in it; close the meter before "
                "wandb.finish()"
            )

    def _show(self, values: dict[str, float], step: int) -> None:
        """Over the steps completed."""
        self._check_open()
        for tag in values.keys() - self._defined:
            self._run.define_metric(tag, step_metric=STEP)
        self._defined.update(values)
        self._log({**values, STEP: step})

    def _log(self, values: dict[str, float]) -> None:
        """Into the row that the script fills next, so that its own rows keep their numbers.

        A call that ends a row counts W&B's step up, and W&B drops what is logged to an earlier one:
        the script's next ``wandb.log(..., step=n)`` would be lost.
        """
        if self._run.settings.mode == "shared":  # rows of several processes have no numbers
            self._run.log(values)
            return
        if self._run.step == self._row:  # the script has logged nothing since our last values
            self._run.log({}, commit=True)
        self._run.log(values, commit=False)
        self._row = self._run.step
