"""The console on a terminal: coloured, as wide as the terminal, and at peace with other output."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from samples import count, header, peak

from mfu_torch.figures import Figures
from mfu_torch.records import Entry
from mfu_torch.run.console import ConsoleSink, figures_line

ROOT = Path(__file__).parent.parent.parent

PLAIN = "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s  data wait 2.1 %"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def now(**changes: Any) -> Figures:
    fields: dict[str, Any] = {
        "step": 40,
        "steps": 10,
        "time_s": 3.12,
        "mfu": 0.412,
        "hfu": 0.419,
        "model_flops_per_s": 408e12,
        "tokens_per_s": 13_100.0,
        "step_s": 0.312,
        "data_wait_share": 0.021,
    }
    return Figures(**fields | changes)


class FakeTerminal(io.StringIO):
    """A terminal without a size of its own."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a usual terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(*records: Entry | Figures) -> str:
    stream = FakeTerminal()
    sink = ConsoleSink(stream)
    for record in records:
        sink.write(record)
    sink.close()
    return stream.getvalue()


def test_a_line_on_a_terminal_has_the_same_words_and_colours() -> None:
    text = shown(now())
    assert ESCAPES.sub("", text) == PLAIN + "\n"
    assert "\x1b[1;36m  MFU 41.2 %\x1b[0m" in text  # bold, cyan
    assert "\x1b[2mstep    40\x1b[0m" in text  # dim


def test_a_remark_stands_apart_and_says_the_same() -> None:
    records = (header(), peak(), count(0, uncounted={"my::scan": 4}))
    text = shown(*records)
    plain = io.StringIO()
    for sink in [ConsoleSink(plain)]:
        for record in records:
            sink.write(record)
    assert ESCAPES.sub("", text) == plain.getvalue()
    assert "\x1b[33mnot counted, no FLOP formula: my::scan\x1b[0m" in text  # yellow


def test_no_cursor_is_moved_and_nothing_is_erased() -> None:
    text = shown(header(), peak(), now(), now(mfu=None, absent={"mfu": "no peak"}))
    assert "\r" not in text
    assert set(re.findall(r"\x1b\[[0-9;]*(.)", text)) == {"m"}  # colours are the only codes


def test_no_color_leaves_weights_and_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", shown(now(), count(0, uncounted={"my::s": 1}))))
    assert codes == {"0", "1", "2"}  # reset, bold, dim


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_plain_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", name)
    assert shown(now()) == PLAIN + "\n"


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"])
def test_what_is_no_terminal_gets_plain_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    stream = io.StringIO()
    ConsoleSink(stream).write(now())
    assert stream.getvalue() == PLAIN + "\n"


def test_markup_in_a_reason_is_text() -> None:
    text = shown(now(mfu=None, absent={"mfu": "no peak for '[bold]X[/bold]'"}))
    assert "      MFU unknown: no peak for '[bold]X[/bold]'" in ESCAPES.sub("", text)


def test_an_escape_code_in_a_device_name_does_not_reach_the_terminal() -> None:
    text = shown(now(mfu=None, absent={"mfu": "no peak for 'X\x1b[2J\x07'"}))
    assert "\x1b[2J" not in text and "\x07" not in text


def test_a_closed_terminal_raises_once_and_is_then_left_alone() -> None:
    stream = FakeTerminal()
    sink = ConsoleSink(stream)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(now())
    sink.write(now())


def test_a_name_that_the_terminal_cannot_encode_is_replaced() -> None:
    class Ascii(FakeTerminal):
        encoding = "ascii"

    stream = Ascii()
    ConsoleSink(stream).write(now(mfu=None, absent={"mfu": "Größe"}))
    assert "MFU unknown: Gr??e" in stream.getvalue()


@pytest.mark.parametrize("columns", [18, 20, 39, 40, 60, 80, 100])
def test_a_line_is_not_longer_than_the_terminal_is_wide(columns: int) -> None:
    line = figures_line(now(), "causal", columns)
    assert len(line) <= columns
    assert "MFU(causal) 41.2 %" in line


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (90, PLAIN),
        (89, "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s"),
        (75, "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s"),
        (70, "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s"),
        (59, "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %"),
        (46, "step    40  312 ms/step  MFU 41.2 %"),
        (34, "step    40  MFU 41.2 %"),
        (21, "MFU 41.2 %"),
    ],
)
def test_what_has_no_room_goes_in_order_and_the_mfu_last(columns: int, line: str) -> None:
    assert figures_line(now(), "full", columns) == line


@pytest.mark.parametrize("columns", [1, 5, 9])
def test_a_number_is_wrapped_and_not_cut(columns: int) -> None:
    assert figures_line(now(), "full", columns) == "MFU 41.2 %"  # and not "MFU 4"
    early = now(step=12_345, steps=0, absent={"mfu": "no steady step"})
    assert figures_line(early, "full", columns) == "step 12345"


class NotebookStream(io.TextIOBase):
    """As ipykernel's ``OutStream``: no terminal, no file number, and text only."""

    encoding = "UTF-8"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")

    def write(self, text: str) -> int:
        assert isinstance(text, str)
        self.texts.append(text)
        return len(text)


def test_a_notebook_gets_plain_text_in_one_piece_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = NotebookStream()
    monkeypatch.setattr(sys, "stdout", notebook)
    ConsoleSink().write(now())
    assert notebook.texts == [PLAIN + "\n"]


def test_a_windows_console_without_escape_codes_gets_plain_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rich.console.detect_legacy_windows", lambda: True)
    assert shown(now()) == PLAIN + "\n"


# --- a real one ----------------------------------------------------------------------------------


def on_a_terminal(code: str, *, columns: int, **environ: str) -> str:
    """What a program writes to a pseudo-terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, written))
    reader.start()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": paths, **environ},
            timeout=60,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    text = b"".join(written).decode()
    assert done.returncode == 0, text
    return text


def _read_all(terminal: int, written: list[bytes]) -> None:
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # Linux: nobody has the other end open any more
            return
        if not chunk:
            return
        written.append(chunk)


WRITE = """
from mfu_torch.figures import Figures
from mfu_torch.run.console import ConsoleSink
figures = Figures(step=40, steps=10, time_s=3.12, mfu=0.412, hfu=0.419, step_s=0.312,
                  model_flops_per_s=408e12, tokens_per_s=13_100.0, data_wait_share=0.021)
sink = ConsoleSink()
"""


def test_rich_is_loaded_for_a_terminal_only() -> None:
    code = WRITE + "sink.write(figures)\nimport sys; print('rich' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert piped.stdout == PLAIN + "\nFalse\n"
    assert on_a_terminal(code, columns=100).endswith("True\r\n")


@pytest.mark.parametrize("columns", [3, 6, 7])
def test_even_an_absurdly_narrow_terminal_gets_every_word(columns: int) -> None:
    code = WRITE + "from samples import header\nsink.write(header())"
    text = ESCAPES.sub("", on_a_terminal(code, columns=columns))
    words = "mfu_torch on NVIDIA H100 80GB HBM3, attention full"
    assert re.sub(r"\s", "", text) == words.replace(" ", "")


def test_on_a_real_terminal_the_line_fits_its_width() -> None:
    text = on_a_terminal(WRITE + "sink.write(figures)", columns=59)
    assert "\x1b[1;36m" in text
    line = "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %"  # 60 with the next figure
    assert ESCAPES.sub("", text) == line + "\r\n"


def test_a_real_terminal_whose_size_nobody_set_has_lines_of_100_columns() -> None:
    text = on_a_terminal(WRITE + "sink.write(figures)", columns=0)
    assert ESCAPES.sub("", text) == PLAIN + "\r\n"


def test_a_progress_bar_of_tqdm_is_drawn_below_the_line_and_not_through_it() -> None:
    pytest.importorskip("tqdm")
    code = WRITE + (
        "from tqdm.auto import tqdm\n"
        "bar = tqdm(total=100, mininterval=0, miniters=1)\n"
        "bar.update(30)\n"
        "sink.write(figures)\n"
        "bar.update(30)\n"
        "bar.close()\n"
    )
    text = ESCAPES.sub("", on_a_terminal(code, columns=80))
    line = "step    40  312 ms/step  MFU 41.2 %"
    before, _, after = text.partition(line)
    *_, row = re.split(r"\r\n|\r", before)
    assert row.strip() == ""  # what stood on the line was taken away
    assert "30%" in before and "30%" in after and "60%" in after


def test_a_live_display_of_rich_keeps_its_place_below_the_line() -> None:
    code = WRITE + (
        "from rich.live import Live\n"
        "with Live('the display', auto_refresh=False) as live:\n"
        "    live.refresh()\n"
        "    sink.write(figures)\n"
    )
    text = ESCAPES.sub("", on_a_terminal(code, columns=80))
    rows = [row.strip() for row in re.split(r"\r\n|\r|\x1b\[[0-9;?]*[A-Zhl]", text) if row.strip()]
    step = "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s"
    # Drawn, taken away, drawn again below the line; and once more when it ends.
    assert rows[-3:] == [step, "the display", "the display"]
    assert set(rows) == {step, "the display"}
