"""Times that no run can take are one line, not an overflow somewhere in the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import run

from mfu_torch.cli import main
from mfu_torch.insight.plausible import plausible
from mfu_torch.records import End, MFUError, Pause, Run, Window
from mfu_torch.run.runfile import RunFileSink


def write(recorded: Run, folder: Path) -> str:
    sink = RunFileSink(folder)
    entries = [*recorded.peaks.values(), *recorded.counts.values(), *recorded.windows]
    for entry in (recorded.header, *entries, *recorded.pauses, recorded.end):
        if entry is not None:
            sink.write(entry)
    sink.close()
    return str(folder)


@pytest.mark.parametrize("time_s", [1e308, -1e308, 1e11])
@pytest.mark.parametrize("what", ["step", "window", "pause", "run"])
def test_an_impossible_time_is_refused_in_one_line(
    what: str, time_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = run([1.0] * 12)
    fields = {
        "step": lambda: run([1.0] * 11 + [time_s]),
        "window": lambda: _replaced(good, windows=(Window(steps=(), wall_s=time_s),)),
        "pause": lambda: _replaced(
            good, pauses=(Pause(name="eval", after_step=1, duration_s=time_s),)
        ),
        "run": lambda: _replaced(good, end=End(wall_s=time_s, reason="completed")),
    }
    bad, other = write(fields[what](), tmp_path / "bad"), write(good, tmp_path / "good")
    for argv in (["report", bad], ["compare", other, bad], ["compare", bad, other]):
        assert main(argv) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "s is recorded; expected at most 1e+10" in captured.err
        assert captured.err.count("\n") == 1


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(MFUError, match="a window of nan s"):
        plausible(run([float("nan")]), "it")


def test_a_real_run_is_itself() -> None:
    good = run([1.0, 2.0])
    assert plausible(good, "it") is good


def _replaced(good: Run, **changes: object) -> Run:
    from msgspec.structs import replace

    return replace(good, **changes)
