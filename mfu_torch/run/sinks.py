"""Where a run's records and live figures go: the Sink protocol. The console is one of them."""

from __future__ import annotations

from typing import Protocol

from mfu_torch.figures import Figures
from mfu_torch.records import Entry
from mfu_torch.run.console import ConsoleSink, figures_line

__all__ = ["ConsoleSink", "Sink", "figures_line"]


class Sink(Protocol):
    """Takes every record of a run, in order, and the figures of every window.

    Called from one thread that is never the training loop's. An exception costs the sink its
    place, not the run.
    """

    def write(self, record: Entry | Figures) -> None:
        """Take one record."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""
