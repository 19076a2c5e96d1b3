"""Event files written as a run writes them, and read back."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mfu_torch.figures import Figures
from mfu_torch.integrations.tensorboard import TensorBoardSink
from mfu_torch.records import Entry, Window

NOW = Figures(step=5, steps=4, time_s=4.0, mfu=0.4, hfu=0.5, step_s=1.0)


def put(sink: TensorBoardSink, *records: Entry | Figures) -> None:
    """As the recorder does: the figures of a window follow it."""
    for record in records:
        sink.write(record)
        if isinstance(record, Window):
            sink.write(NOW)
    sink.close()


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events
