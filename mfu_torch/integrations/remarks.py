"""What has to be said of the figures in a trainer's logs, since the logs are numbers only."""

from __future__ import annotations

import logging
from pathlib import Path

from mfu_torch.figures import ABOVE_PEAK, ESTIMATED, Figures, run_figures
from mfu_torch.records import Attention, Entry, Header, Run
from mfu_torch.run.sinks import ConsoleSink, Sink
from mfu_torch.units import percent

logger = logging.getLogger(__name__)

WINDOWS_WITHOUT = 3
"""Windows in a row without a steady step before something is said: logs have no MFU meanwhile."""


class RemarksSink:
    """Prints device, convention, peak and what is not counted, as the console does; each once.

    The lines of windows are left out: the trainer shows its own. Only rank 0 says anything.
    """

    def __init__(self) -> None:
        self._console: Sink = ConsoleSink()
        self._said: set[str] = set()
        self._without = 0  # windows in a row without a steady step
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
        elif record.steps:
            self._figures(record)
        else:
            self._without += 1
            if self._without == WINDOWS_WITHOUT:
                self._warn(f"no MFU so far: {record.absent.get('mfu', 'no steady step')}")

    def close(self) -> None:
        """Nothing is open."""

    def _figures(self, now: Figures) -> None:
        self._without = 0
        if now.mfu is None:
            self._warn(f"MFU unknown: {now.absent.get('mfu', 'for a reason not recorded')}")
        elif max(now.mfu, now.hfu or 0.0) > 1:
            self._warn(f"{'MFU' if now.mfu > 1 else 'HFU'} {ABOVE_PEAK}")
        if now.uncertainty is not None:
            within = f"within {percent(now.uncertainty)} of the logged figures"
            self._warn(f"{ESTIMATED}: {within}", ESTIMATED)

    def _warn(self, text: str, key: str = "") -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            logger.warning("%s", text)


def closing_line(run: Run, run_file: Path | None) -> str:
    """What came of a run, and where to read more."""
    more = "" if run_file is None else f"; mfu-torch report {run_file}"
    return _line(run_figures(run), "steady-state", run.header.attention) + more


def last_line(latest: Figures | None, attention: Attention) -> str:
    """What is known of a run whose records are lost: the figures of its last window."""
    if latest is None:
        return "mfu_torch: MFU unknown: the records are lost, and no window was finished"
    return _line(latest, "in the last window", attention)


def _line(now: Figures, of: str, attention: Attention) -> str:
    shares = [
        f"{percent(share)} {name}"
        for share, name in ((now.mfu, of), (now.end_to_end, "end-to-end"))
        if share is not None
    ]
    why = now.absent.get("mfu", "no step is recorded")
    found = f"MFU {', '.join(shares)}" if shares else f"MFU unknown: {why}"
    return f"mfu_torch: {found} (attention {attention})"
