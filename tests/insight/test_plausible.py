"""Times that no run can take are one line, not an overflow somewhere in the arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from breakdowns import breakdown
from compare_runs import run

from mfu_torch.cli import main
from mfu_torch.insight.plausible import plausible
from mfu_torch.records import BreakdownEntry, End, MFUError, Pause, Run, Window
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


@pytest.mark.parametrize("time_s", [1e-300, 1e-10, -1e-9, -0.1])
def test_a_step_that_no_clock_shows_is_refused_in_one_line(
    time_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = write(run([1.0] * 11 + [time_s]), tmp_path / "bad"), run([1.0] * 12)
    for argv in (["report", bad], ["compare", bad, write(good, tmp_path / "good")]):
        assert main(argv) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert "a step of" in captured.err and "expected 1e-09 s or more" in captured.err


def test_a_clock_that_does_not_tell_steps_at_all_is_not_refused() -> None:
    assert plausible(run([0.0] * 12), "it")


@pytest.mark.parametrize("field", ["tokens", "samples", "micro_batches"])
def test_an_impossible_amount_is_refused(field: str) -> None:
    for number in (10**19, -(10**19), 10**400):
        with pytest.raises(MFUError, match="more than 10\\^18 is recorded: the file is damaged"):
            plausible(run([1.0] * 12, of_step={field: number}), "it")


def entry_of_breakdown() -> BreakdownEntry:
    return BreakdownEntry(after_step=3, steps=(1, 2), breakdown=breakdown(), traced_s=0.1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"wall_ns": 0}, "of a time that no step takes"),
        ({"wall_ns": 10**400}, "of a time that no step takes"),
        ({"wall_ns": 99}, "do not sum to its time"),
        ({"buckets": ()}, "do not sum to its time"),
    ],
)
def test_a_breakdown_that_does_not_sum_is_refused(changes: dict[str, Any], said: str) -> None:
    good = entry_of_breakdown()
    assert plausible(_replaced(run([1.0] * 12), breakdowns=(good,)), "it")
    broken = msgspec.structs.replace(good.breakdown, **changes)
    bad = msgspec.structs.replace(good, breakdown=broken)
    with pytest.raises(MFUError, match=said):
        plausible(_replaced(run([1.0] * 12), breakdowns=(bad,)), "it")


def test_a_breakdown_without_steps_is_refused() -> None:
    bad = msgspec.structs.replace(entry_of_breakdown(), steps=())
    with pytest.raises(MFUError, match="a breakdown of no step"):
        plausible(_replaced(run([1.0] * 12), breakdowns=(bad,)), "it")
