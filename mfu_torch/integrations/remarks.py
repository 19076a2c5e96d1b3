"""What has to be said of the figures in a trainer's logs, since the logs are numbers only."""

from __future__ import annotations

import logging

from mfu_torch.figures import ABOVE_PEAK, Figures
from mfu_torch.records import Entry, Header
from mfu_torch.run.sinks import ConsoleSink, Sink

logger = logging.getLogger(__name__)


class RemarksSink:
    """Prints device, convention, peak and what is not counted, as the console does; each once.

    The lines of windows are left out: the trainer shows its own. Only rank 0 says anything.
    """

    def __init__(self) -> None:
        self._console: Sink = ConsoleSink()
        self._said: set[str] = set()
        self._silent = False

    def write(self, record: Entry | Figures) -> None:
        """Print or warn of what is new in a record.

        Raises:
            OSError, ValueError: Where the standard output cannot be written to, once.
        """
        if isinstance(record, Header):
            self._silent = record.rank != 0
        if self._silent:
            return
        if not isinstance(record, Figures):
            self._console.write(record)
        elif record.steps and record.mfu is None:
            self._warn(f"MFU unknown: {record.absent.get('mfu', 'for a reason not recorded')}")
        elif max(record.mfu or 0.0, record.hfu or 0.0) > 1:
            self._warn(f"{'MFU' if (record.mfu or 0.0) > 1 else 'HFU'} {ABOVE_PEAK}")

    def close(self) -> None:
        """Nothing is open."""

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
