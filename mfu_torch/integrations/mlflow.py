"""MLflow: the figures as metrics of a run, over the steps completed.

with mlflow.start_run():                          # the script's own run, on rank 0
    Meter(model, sinks=[ConsoleSink(), MLflowSink()])
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable

from mfu_torch.figures import Figures
from mfu_torch.messages import first_line
from mfu_torch.records import BreakdownEntry, Entry, Telemetry
from mfu_torch.tags import breakdown_scalars, device_scalars, facts, scalars

try:
    import mlflow
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException
except ImportError as error:
    raise ImportError("MLflowSink needs mlflow: pip install 'mfu_torch[mlflow]'") from error

_LETTERS = 250  # that MLflow takes of a name


class MLflowSink:
    """Logs to a run that is active, and never starts or ends one."""

    def __init__(self, run_id: str | None = None) -> None:
        """Log to the run of that id, by default the one that is active in this thread.

        Raises:
            ValueError: If there is none, or none of that id.
            TypeError: If ``run_id`` is no text.
        """
        # mlflow.log_metrics would start a run of its own: sinks are called from another thread,
        # and the active run is known to its thread only.
        self._client = mlflow.MlflowClient()
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise ValueError(
                    "no MLflow run is active; call mlflow.start_run() before, or pass run_id="
                )
            run_id = active.info.run_id
        elif not isinstance(run_id, str):
            raise TypeError(f"run_id is {run_id!r}; expected a text: that of run.info.run_id")
        else:
            self._look_up(run_id)
        self._run_id = run_id

    def write(self, record: Entry | Figures) -> None:
        """Log what is known of a window; what stands behind it goes into the run's tags."""
        if isinstance(record, Figures):
            self._log(scalars(record), record.step)
        elif isinstance(record, Telemetry):
            self._log(device_scalars(record), record.after_step)
        elif isinstance(record, BreakdownEntry):
            self._log(breakdown_scalars(record), record.after_step)
        else:
            for name, text in facts(record):
                self._client.set_tag(self._run_id, _name(f"mfu_torch.{name}"), text)

    def close(self) -> None:
        """Leave the run active: it belongs to whoever started it."""

    def _look_up(self, run_id: str) -> None:
        try:
            self._client.get_run(run_id)
        except MlflowException as error:
            raise ValueError(
                f"run_id is {run_id!r}, which {mlflow.get_tracking_uri()} does not give "
                f"({first_line(error)}); expected that of a run there: run.info.run_id"
            ) from error

    def _log(self, values: Iterable[tuple[str, float]], step: int) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [Metric(_name(tag), value, now_ms, step) for tag, value in values]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)


def _name(tag: str) -> str:
    """As MLflow takes it: a path that leads nowhere else, of 250 letters at most."""
    name = "/".join(
        part.replace(".", "_") if part in (".", "..") else part for part in tag.split("/")
    )
    if name != tag or name.endswith("/") or len(name) > _LETTERS:
        # Another tag could become the same.
        name = f"{name[: _LETTERS - 9]}_{zlib.crc32(tag.encode()):08x}"
    return name
