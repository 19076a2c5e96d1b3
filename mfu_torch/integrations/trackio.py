"""Trackio: the figures beside what the training script logs, over the steps completed.

trackio.init(project="mine")                      # the script's own run, on rank 0
Meter(model, sinks=[ConsoleSink(), TrackioSink()])
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mfu_torch.figures import Figures
from mfu_torch.records import BreakdownEntry, Entry, Telemetry
from mfu_torch.tags import breakdown_scalars, device_scalars, facts, scalars

try:
    import trackio
except ImportError as error:
    raise ImportError("TrackioSink needs trackio: pip install 'mfu_torch[trackio]'") from error


class TrackioSink:
    """Logs to a run that is open, and never opens or finishes one."""

    def __init__(self, run: Any = None) -> None:
        """Log to ``run``, by default the one that ``trackio.init`` has opened in this thread.

        Raises:
            ValueError: If there is none.
            TypeError: If ``run`` is no run.
        """
        # Kept here: sinks are called from another thread, which would not find it.
        self._run: Any = trackio.context_vars.current_run.get() if run is None else run
        if self._run is None:
            raise ValueError("no trackio run is open; call trackio.init(...) before, or pass run=")
        if not (hasattr(self._run, "log") and hasattr(self._run, "config")):
            raise TypeError(
                f"run is {run!r}; expected a trackio run: what trackio.init(...) returns"
            )

    def write(self, record: Entry | Figures) -> None:
        """Log what is known of a window; what stands behind it goes into the run's config.

        Trackio keeps the config as it is at the run's first ``log``; later facts are not in it.
        """
        if isinstance(record, Figures):
            self._log(scalars(record), record.step)
        elif isinstance(record, Telemetry):
            self._log(device_scalars(record), record.after_step)
        elif isinstance(record, BreakdownEntry):
            self._log(breakdown_scalars(record), record.after_step)
        else:
            known = {f"mfu_torch/{name}": text for name, text in facts(record)}
            # A new dict: the script's own thread may be reading the old one.
            self._run.config = {**self._run.config, **known}

    def close(self) -> None:
        """Leave the run open: it belongs to whoever opened it."""

    def _log(self, values: Iterable[tuple[str, float]], step: int) -> None:
        known = dict(values)
        if known:
            self._run.log(known, step=step)
