"""Meter(explain_every=N) where something is in the way: it costs a note, and nothing else."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
import torch
from explained_loop import InstantAnalysis, Loop, breakdown, instant, notes, profiler_is_off

from mfu_torch import read_run
from mfu_torch.explaining import analysis, explainer
from mfu_torch.explaining.analysis import Analysis, Outcome
from mfu_torch.explaining.recording import Recording

__all__ = ["instant"]

OURS = os.path.dirname(explainer.__file__)
NO_BREAKDOWN = "explain_every: no breakdown of the recorded steps: "


# --- the analysing process ---------------------------------------------------------------------


def analysing(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The process runs this in place of the analysis."""
    monkeypatch.setattr(analysis, "command", lambda: [sys.executable, "-c", code])


def result_of(monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float = 60.0) -> Any:
    analysing(monkeypatch, code)
    one = Analysis(b"{}", limit_s)
    one.start()
    assert one.wait(60.0)
    assert one._process is None or one._process.poll() is not None
    return one.result


def printing(outcome: Outcome) -> str:
    return f"import sys; sys.stdin.read(); print('a warning'); print({encoded(outcome)!r})"


def encoded(outcome: Outcome) -> str:
    return msgspec.json.encode(outcome).decode()


def test_the_last_line_is_the_outcome_whatever_was_printed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = breakdown()
    assert result_of(monkeypatch, printing(Outcome(breakdown=found))) == found
    problem = Outcome(problem="t.json: is no trace")
    assert result_of(monkeypatch, printing(problem)) == "t.json: is no trace"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "the analysis ended with exit code 0 and printed nothing in place of a result"),
        ("raise SystemExit(3)", "the analysis ended with exit code 3 and printed nothing"),
        ("print('\\x1b[31mrubbish')", "exit code 0 and printed '\\x1b[31mrubbish' in place of a"),
        ("import no_such_module", 'exit code 1 and printed "ModuleNotFoundError: No module'),
        ("print('{}')", "the analysis found nothing, and does not say why"),
        ('print(\'{"breakdown": {"file": 1}}\')', "its result has another form: Expected `str`"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code -9 and printed nothing"),
    ],
)
def test_an_analysis_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    assert why in result_of(monkeypatch, code)


def test_parts_that_do_not_sum_to_the_time_are_no_breakdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Outcome(breakdown=breakdown(wall_ns=1))
    assert "sum to 200000000 ns, and the steps" in result_of(monkeypatch, printing(wrong))


def test_a_process_that_hangs_is_killed_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "import threading; threading.Event().wait()"
    assert result_of(monkeypatch, hangs, 0.3) == "it took longer than 0.3 s"


def test_a_process_that_prints_without_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "OUTPUT_LIMIT", 2**20)
    endless = "while True: print('x' * 1000)"
    assert result_of(monkeypatch, endless) == "it printed more than 1 MiB"


def test_where_there_can_be_no_further_thread_there_is_no_result_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = Analysis(b"{}")
    monkeypatch.setattr(threading.Thread, "start", full)
    one.start()
    assert one.done and one.result == "RuntimeError: can't start new thread"


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "command", lambda: ["/no/such/python"])
    one = Analysis(b"{}")
    one.start()
    assert one.wait(60.0)
    assert str(one.result).startswith("FileNotFoundError: ")


def test_one_that_is_pending_when_the_run_ends_is_killed_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysing(monkeypatch, "import threading; threading.Event().wait()")
    monkeypatch.setattr(explainer, "CLOSE_S", 0.2)
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(20)
        (pending,) = loop.meter._stepping._explainer._pending  # type: ignore[attr-defined]
    assert pending.analysis._process.poll() == -9
    assert notes(loop) == [
        f"{NO_BREAKDOWN}it was not finished 0.2 s after the last step. The trace is "
        "traces/run.steps-11-13.json beside the run file."
    ]
    assert (tmp_path / "traces" / "run.steps-11-13.json").is_file()
    assert loop.entries == []


def test_one_that_comes_just_before_the_run_ends_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysing(monkeypatch, printing(Outcome(breakdown=breakdown())))
    monkeypatch.setattr(explainer, "CLOSE_S", 60.0)
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(14)
        with loop.meter.pause("eval"):
            pass
    (entry,) = read_run(tmp_path).breakdowns
    assert entry.breakdown == breakdown()
    assert entry.untraced_steps == 9  # there are none after it
    assert loop.meter.run.end is not None and loop.meter.run.end.reason == "completed"


def test_after_three_failures_in_a_row_nothing_is_recorded_any_more(
    tmp_path: Path, instant: type[InstantAnalysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: InstantAnalysis) -> None:
        self.result, self.done = "no", True

    monkeypatch.setattr(instant, "start", fails)
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(100)
    assert len(instant.jobs) == 3
    said = notes(loop)
    assert said[0].startswith(f"{NO_BREAKDOWN}no. The trace is traces/run.steps-11-13.json")
    assert said[1] == ("explain_every: no steps are recorded any more, after 3 failures in a row")
    assert len(said) == 2
    # The third is known to have failed when the times are known of all steps around it.
    assert loop.traced() == [10, 11, 12, 13, 24, 25, 26, 27, 38, 39, 40, 41, 52]


# --- the recording ------------------------------------------------------------------------------

PARTS = ("warm_up", "start", "begin_step", "end_step", "stop")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_what_goes_wrong_in_the_profiler_leaves_none_behind(
    tmp_path: Path,
    instant: type[InstantAnalysis],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    late: bool,
    kind: type[BaseException],
) -> None:
    method = getattr(Recording, name)

    def breaks(self: Recording, *args: Any) -> None:
        if late:
            method(self, *args)
        monkeypatch.setattr(Recording, name, method)
        raise kind("in the middle")

    monkeypatch.setattr(Recording, name, breaks)
    loop = Loop(tmp_path)
    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt), loop.meter:
            loop.steps(40)
    else:
        with loop.meter:
            loop.steps(40)
    assert profiler_is_off()
    run = read_run(tmp_path)
    assert run.end is not None
    if kind is KeyboardInterrupt:
        assert run.end.reason == "KeyboardInterrupt"
    else:
        assert run.end.reason == "completed" and len(list(run.steps)) == 40
        assert notes(loop) == [
            "explain_every: no steps are recorded any more (RuntimeError: in the middle). "
            "Training and measuring go on"
        ]


class InterruptAt:
    """A tracer that raises KeyboardInterrupt at the n-th line of our package that is run."""

    def __init__(self, line: int) -> None:
        self.left, self.raised = line, False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self.line if OURS in frame.f_code.co_filename and not self.raised else None

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not self.raised:
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize("first", range(1, 7))
def test_ctrl_c_at_any_line_leaves_neither_profiler_nor_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """All lines were tried once; here it is every 37th of them for each of six beginnings."""
    analysing(monkeypatch, "import threading; threading.Event().wait()")
    monkeypatch.setattr(explainer, "CLOSE_S", 0.05)
    begun: list[Analysis] = []
    init = Analysis.__init__

    def noted(self: Analysis, *args: Any) -> None:
        init(self, *args)
        begun.append(self)

    monkeypatch.setattr(Analysis, "__init__", noted)
    at, tried = 6 * first, 0
    while True:
        loop = Loop(tmp_path / str(at))
        interrupt = InterruptAt(at)
        with contextlib.suppress(KeyboardInterrupt), loop.meter:
            loop.steps(9)
            sys.settrace(interrupt)
            try:
                loop.steps(7)
            finally:
                sys.settrace(None)
        if not interrupt.raised:
            break
        assert profiler_is_off()
        at, tried = at + 37, tried + 1
    assert tried > 5
    for one in begun:
        assert not one._thread.ident or one.wait(60.0)
        assert one._process is None or one._process.poll() is not None


def test_ctrl_c_in_a_traced_step_leaves_no_profiler_behind(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with pytest.raises(KeyboardInterrupt), loop.meter:
        loop.steps(12)
        with loop.meter.step():
            assert torch.autograd.profiler._is_profiler_enabled
            raise KeyboardInterrupt
    assert profiler_is_off()
    assert loop.meter.run.end is not None and loop.meter.run.end.reason == "KeyboardInterrupt"


def test_ctrl_c_while_the_end_waits_for_the_analysis_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysing(monkeypatch, "import threading; threading.Event().wait()")
    loop = Loop(tmp_path)
    loop.meter.start()
    loop.steps(15)
    (pending,) = loop.meter._stepping._explainer._pending  # type: ignore[attr-defined]
    wait = pending.analysis.wait

    def interrupted(timeout_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(pending.analysis, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.meter.close()
    assert wait(60.0)
    assert pending.analysis._process is None or pending.analysis._process.poll() == -9


def test_a_run_that_ends_while_steps_are_recorded_leaves_no_profiler_behind(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    for steps in (11, 12, 13, 14):
        loop = Loop(tmp_path)
        with loop.meter:
            loop.steps(steps)
        assert profiler_is_off()
        assert loop.entries == []
        (note,) = notes(loop)
        assert note.startswith(f"explain_every=10: no step was recorded in {steps} steps; 15 would")


def test_a_folder_that_cannot_be_written_costs_the_breakdowns(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    (tmp_path / "traces").write_text("a file of this name", encoding="utf-8")
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(60)
    assert profiler_is_off()
    assert notes(loop)[0].startswith(f"{NO_BREAKDOWN}the trace cannot be written: ")
    assert len(list(read_run(tmp_path).steps)) == 60
