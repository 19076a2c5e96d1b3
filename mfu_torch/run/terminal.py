"""A stream that may be a terminal: how wide it is, what it can show, and who else draws on it.

Lines are printed, one after another; no region of the screen is kept and redrawn. A training loop
prints, and draws progress bars, on the same terminal and from another thread: a region that moves
the cursor would have to take ``sys.stdout`` over for the whole process, and would break where
anything writes past it. Printed lines also stay: the course of a run can be scrolled back to.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

COLUMNS = 100
"""Width of plain text, and of a terminal that does not tell its own."""

Span = tuple[str, str]
"""A piece of text, and its style in rich's words; an empty one is the terminal's own."""


class Terminal:
    """A stream, as it is now: it may be redirected, and a window resized, during a run.

    Attributes:
        columns: How long a line may be.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = _is_terminal(stream)
        self.columns = _columns(stream) if self._is_terminal else COLUMNS

    def print(self, spans: Sequence[Span]) -> None:
        """Write the pieces and a line break, as one piece of text.

        Raises:
            OSError, ValueError: As the stream does.
        """
        if not self._is_terminal:
            self._write("".join(text for text, _ in spans))
            return
        text = _styled(spans, self._stream)
        with _progress_bars_cleared(self._stream):
            self._write(text)

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    """Whether it shows colours and cursor movements; a dumb terminal is plain text too."""
    isatty = getattr(stream, "isatty", None)
    try:
        there = isatty is not None and bool(isatty())
    except ValueError:  # a closed stream; writing to it says so
        return False
    return there and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a terminal in name: a notebook, a wrapper
        return COLUMNS
    return columns or COLUMNS  # 0 where nobody has set a size


def _styled(spans: Sequence[Span], stream: TextIO) -> str:
    """The text with the escape codes of the colours that the terminal has.

    It is then written as one text, so that a wrapper of the stream (rich's own live displays,
    IPython) sees it too, and no other thread's text comes in between.
    """
    from rich.console import Console
    from rich.text import Text

    # With its file rich finds out what kind of terminal it is; the text is taken back from it.
    console = Console(file=stream, force_terminal=True, highlight=False)
    if console.legacy_windows:  # colours by calls there, not by codes
        return "".join(text for text, _ in spans)
    line = Text.assemble(*((_printable(text), style) for text, style in spans))
    with console.capture() as captured:
        console.print(line, soft_wrap=True, end="")
    return captured.get()


def _printable(text: str) -> str:
    """Without escape codes: a device name or an error's text must not move the cursor."""
    return "".join(one for one in text if one.isprintable() or one == "\n")


def _progress_bars_cleared(stream: TextIO) -> contextlib.AbstractContextManager[Any]:
    """While a line is written: tqdm's bars are taken away and drawn again below it."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not getattr(tqdm, "_instances", None):
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[Any] = tqdm.external_write_mode(file=stream)
    return manager
