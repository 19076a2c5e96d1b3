"""The console: one line per window, remarks once a run."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TextIO

from mfu_torch.figures import ABOVE_PEAK, ESTIMATED, Figures
from mfu_torch.records import (
    Attention,
    BreakdownEntry,
    CountEntry,
    Entry,
    Header,
    PeakEntry,
    Telemetry,
)
from mfu_torch.records.losses import dilation_text, first_loss, label, printable, steps_text
from mfu_torch.run.terminal import COLUMNS, Span, Terminal
from mfu_torch.units import margin, percent, scaled, seconds

_INDENT = " " * 6
_SINCE = "end-to-end MFU is over all attempts, the time between them included"

WORTH_SAYING = 0.1
"""Share of a window's samples in which something held the clock down, to be said on the console."""

# What a terminal with colours shows apart. Nothing says whether a figure is good: no colour does.
_REMARK, _WARNING = "dim", "yellow"

_SHARE = re.compile(r"[\d.]+ % of the time")
"""Begins a hint that says the share itself."""

_FIRST_TO_GO = ("data wait", "throughput", "FLOP/s", "HFU", "step time", "step")
"""What a narrow terminal has no room for, in this order."""


class ConsoleSink:
    """One line per window; remarks once per run.

    step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s  data wait 2.1 %

    On a terminal a line is as wide as the terminal and coloured (unless ``NO_COLOR`` is set);
    elsewhere it is plain text of 100 columns at most.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to ``stream``, or to what ``sys.stdout`` is at the time of writing.

        Raises:
            TypeError: If ``stream`` cannot be written to.
        """
        if not (stream is None or hasattr(stream, "write")):
            raise TypeError(f"stream is {stream!r}; expected an open text file, or None for stdout")
        self._stream = stream
        self._attention: Attention = "full"
        self._said: set[str] = set()
        self._uncounted: set[str] = set()
        self._throttled: set[str] = set()
        self._broken = False

    def write(self, record: Entry | Figures) -> None:
        """Print what is worth a line.

        Raises:
            OSError: The first time that the stream cannot be written to; then it is left alone.
            ValueError: Likewise, if it is closed.
        """
        if isinstance(record, Figures):
            self._figures(record)
        elif isinstance(record, Header):
            self._attention = record.attention
            self._once(f"mfu_torch on {record.device.name}, attention {record.attention}")
            if record.earlier is not None:
                self._once(f"resumed after {record.earlier.steps} steps: {_SINCE}")
        elif isinstance(record, PeakEntry) and record.peak is not None:
            peak = record.peak
            rate = scaled(peak.flops_per_s, "FLOP/s")
            how = f"{peak.provenance}{margin(peak.uncertainty)}"
            self._once(f"peak {record.dtype} {rate} dense, {how}: {peak.source}")
        elif isinstance(record, CountEntry) and record.count is not None:
            new = sorted(record.count.uncounted.keys() - self._uncounted)
            if new:
                self._uncounted.update(new)
                self._once(f"not counted, no FLOP formula: {', '.join(new)}", _WARNING)
        elif isinstance(record, Telemetry):
            for reason, share in record.throttle.items():
                if share >= WORTH_SAYING and reason not in (*self._throttled, "idle"):
                    self._throttled.add(reason)
                    held = f"{reason}, {percent(share)} of the samples"
                    self._once(f"the clock is held down: {held}", _WARNING)
        elif isinstance(record, BreakdownEntry):
            self._remark(f"{_INDENT}{_largest_loss(record)}", _REMARK)

    def close(self) -> None:
        """Leave the stream open: it belongs to whoever gave it."""

    def _figures(self, now: Figures) -> None:
        terminal = self._terminal()
        if terminal is None:
            return
        self._print(terminal, _spans(now, self._attention, terminal.columns))
        if now.mfu is None and now.steps and "mfu" in now.absent:
            self._once(f"{_INDENT}MFU unknown: {now.absent['mfu']}", _WARNING)
        if now.uncertainty is not None and ESTIMATED not in self._said:
            self._said.add(ESTIMATED)
            within = f"within {percent(now.uncertainty)} of these figures"
            self._remark(f"{_INDENT}{ESTIMATED}: {within}", _WARNING)
        if max(now.mfu or 0.0, now.hfu or 0.0) > 1 and ABOVE_PEAK not in self._said:
            self._said.add(ABOVE_PEAK)
            name = "MFU" if (now.mfu or 0.0) > 1 else "HFU"
            self._remark(f"{_INDENT}{name} {ABOVE_PEAK}", _WARNING)

    def _once(self, text: str, style: str = _REMARK) -> None:
        if text not in self._said:
            self._said.add(text)
            self._remark(text, style)

    def _remark(self, text: str, style: str) -> None:
        terminal = self._terminal()
        if terminal is not None:
            lines = textwrap.wrap(text, terminal.columns, subsequent_indent=_INDENT)
            self._print(terminal, [("\n".join(lines), style)])

    def _terminal(self) -> Terminal | None:
        stream = sys.stdout if self._stream is None else self._stream
        if self._broken or stream is None:  # pythonw and some services have no stdout
            return None
        return Terminal(stream)

    def _print(self, terminal: Terminal, spans: list[Span]) -> None:
        try:
            terminal.print(spans)
        except (OSError, ValueError):
            self._broken = True
            raise


def figures_line(now: Figures, attention: Attention, columns: int = COLUMNS) -> str:
    """The figures of a window on one line; where they are too long, the MFU is the last to go."""
    return "".join(text for text, _ in _spans(now, attention, columns))


def _spans(now: Figures, attention: Attention, columns: int) -> list[Span]:
    """The line in pieces of one style each; not longer than ``columns`` in all.

    But for a number that is alone on its line: half of a number would be another one.
    """
    step = f"step {now.step:>5}"
    if not now.steps:
        line = f"{step}  {now.absent.get('mfu', 'no steady step')}"
        return [(line[: max(columns, len(step))], _REMARK)]
    parts = _parts(now, attention, step)
    for name in _FIRST_TO_GO:
        if sum(len(text) + 2 for text, _ in parts.values()) - 2 > columns:
            parts.pop(name, None)
    first, *others = parts.values()
    return [first, *((f"  {text}", style) for text, style in others)]


def _parts(now: Figures, attention: Attention, step: str) -> dict[str, Span]:
    """What is known, by what it is."""
    parts: dict[str, Span] = {"step": (step, "dim")}
    if now.step_s is not None:
        parts["step time"] = (f"{seconds(now.step_s)}/step", "")
    name = "MFU" if attention == "full" else f"MFU({attention})"
    parts["MFU"] = (f"{name} {'-' if now.mfu is None else percent(now.mfu)}", "bold cyan")
    if now.hfu is not None:
        parts["HFU"] = (f"HFU {percent(now.hfu)}", "cyan")
    if now.model_flops_per_s is not None:
        parts["FLOP/s"] = (scaled(now.model_flops_per_s, "FLOP/s"), "")
    if now.tokens_per_s is not None:
        parts["throughput"] = (f"{scaled(now.tokens_per_s, '')} tok/s", "")
    elif now.samples_per_s is not None:
        parts["throughput"] = (f"{scaled(now.samples_per_s, '')} samples/s", "")
    if now.data_wait_share is not None:
        parts["data wait"] = (f"data wait {percent(now.data_wait_share)}", "")
    return parts


def _largest_loss(entry: BreakdownEntry) -> str:
    """What to fix first, as far as the traced steps tell."""
    found = entry.breakdown
    worst = first_loss(found)
    text, hint = "no loss stands out", ""
    if worst is not None:
        text, hint = label(worst.name), printable(worst.hint)
        if not _SHARE.match(hint):
            text = f"{percent(worst.time_ns / found.wall_ns)} {text}"
    slower = "" if entry.dilation is None else f" ({dilation_text(entry)})"
    return f"{steps_text(entry.steps)}: {text}{slower}{': ' if hint else ''}{hint}"
