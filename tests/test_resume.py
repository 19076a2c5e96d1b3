"""A run in several attempts: steps are numbered on, and end-to-end MFU is over all of them.

One step is 16384 FLOPs (see test_meter.py): at a peak of 65536 FLOP/s its ideal time is 0.25 s.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink

from mfu_torch import Meter, read_run, resume
from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.report import render_report
from mfu_torch.records import Attention
from mfu_torch.wall import wall_shares

BEGAN = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The time of day, in seconds after BEGAN."""
    passed = {"s": 0.0}
    monkeypatch.setattr(resume, "now", lambda: BEGAN + timedelta(seconds=passed["s"]))
    monkeypatch.setattr("mfu_torch.meter.now", resume.now)
    return passed


class Attempt:
    """A training loop on a fake clock; the time of day goes with it."""

    def __init__(self, folder: Path, day: dict[str, float], **options: Any) -> None:
        self.clock, self.day, self.sink = FakeClock(), day, ListSink()
        self.model = torch.nn.Linear(16, 32, bias=False)
        options = {"peak": 65536.0, "log_every": 2, "telemetry": False} | options
        self.meter = Meter(
            self.model, log_dir=folder, clock=self.clock, sinks=[self.sink], **options
        )

    def steps(self, number: int) -> None:
        for _ in range(number):
            with self.meter.step():
                self.model(torch.ones(8, 16)).sum().backward()
                self.clock.advance(1.0)
            self.day["s"] += 1.0


def test_the_state_is_plain_data_and_says_what_was_done(tmp_path: Path, day: Any) -> None:
    first = Attempt(tmp_path, day)
    with first.meter:
        first.steps(4)
        state = first.meter.state_dict()
    assert json.loads(json.dumps(state)) == state == {
        "version": 1, "started": "2030-01-01T00:00:00.000+00:00", "wall_s": 4.0, "steps": 4,
        "ideal_s": {"full": 1.0, "causal": 1.0}, "unknown": "",
    }  # fmt: skip


def test_end_to_end_covers_both_attempts_and_what_was_lost_between(
    tmp_path: Path, day: Any
) -> None:
    first = Attempt(tmp_path / "one", day)
    with first.meter:
        first.steps(4)
        state = first.meter.state_dict()
        first.steps(2)  # lost: nothing was saved after them
    day["s"] = 16.0  # killed, queued, started again
    second = Attempt(tmp_path / "two", day, resume=state)
    with second.meter:
        second.steps(4)
    run = second.meter.run
    assert [step.index for step in run.steps] == [4, 5, 6, 7]
    # 4 + 4 steps of 0.25 s ideal time in 16 + 4 s.
    assert run_figures(run).end_to_end == pytest.approx(8 * 0.25 / 20)
    last = second.sink.of(Figures)[-1]
    assert last.step == 8 and last.end_to_end == pytest.approx(0.1)
    assert last.goodput["model"] == pytest.approx(0.1)
    assert last.goodput["earlier attempts"] == pytest.approx((16 - 1.0) / 20)
    assert sum(last.goodput.values()) == pytest.approx(1.0)


def test_the_wall_table_sums_to_the_time_since_the_first_attempt(tmp_path: Path, day: Any) -> None:
    first = Attempt(tmp_path / "one", day)
    with first.meter:
        first.steps(4)
        state = first.meter.state_dict()
    day["s"] = 16.0
    second = Attempt(tmp_path / "two", day, resume=state)
    with second.meter:
        second.steps(4)
    run = second.meter.run
    parts = wall_shares(run)
    assert parts[0].kind == "earlier" and parts[0].time_s == 16.0 and parts[0].times == 4
    assert sum(part.time_s for part in parts) == 20.0
    now = run_figures(run)
    assert now.mfu is not None and now.end_to_end is not None
    gaps = [part.mfu_gap or 0.0 for part in parts]
    assert sum(gaps) == pytest.approx(now.mfu - now.end_to_end)
    report = render_report(run)
    assert "resumed after step 4; end-to-end MFU is over all attempts since 2030-01-01" in report
    assert "earlier attempts (4 steps kept)" in report


def test_three_attempts_add_up(tmp_path: Path, day: Any) -> None:
    state = None
    for name in ("one", "two", "three"):
        attempt = Attempt(tmp_path / name, day, resume=state)
        with attempt.meter:
            attempt.steps(2)
            state = attempt.meter.state_dict()
    assert state is not None and state["steps"] == 6 and state["ideal_s"]["full"] == 1.5
    assert run_figures(read_run(tmp_path / "three")).end_to_end == pytest.approx(1.5 / 6)


def test_an_attempt_without_flops_leaves_end_to_end_unknown_with_its_reason(
    tmp_path: Path, day: Any
) -> None:
    state = {
        "version": 1, "started": BEGAN.isoformat(), "wall_s": 4.0, "steps": 4, "ideal_s": {},
        "unknown": "nobody knows the peak",
    }  # fmt: skip
    second = Attempt(tmp_path / "two", day, resume=state)
    with second.meter:
        second.steps(2)
    now = run_figures(second.meter.run)
    assert now.end_to_end is None and now.mfu is not None
    assert now.absent["end_to_end"] == "of an earlier attempt: nobody knows the peak"
    assert second.meter.state_dict()["unknown"] == "nobody knows the peak"
    goodput = second.sink.of(Figures)[-1].goodput
    assert "model" not in goodput and sum(goodput.values()) == pytest.approx(1.0)


def test_clocks_of_two_hosts_that_differ_do_not_make_time_run_backwards(
    tmp_path: Path, day: Any
) -> None:
    state = {
        "version": 1, "started": (BEGAN + timedelta(seconds=50)).isoformat(), "wall_s": 10.0,
        "steps": 4, "ideal_s": {"full": 1.0, "causal": 1.0}, "unknown": "",
    }  # fmt: skip
    attempt = Attempt(tmp_path, day, resume=state)
    attempt.meter.start()
    assert attempt.meter.run.header.earlier is not None
    assert attempt.meter.run.header.earlier.wall_s == 10.0
    attempt.meter.close()


def test_a_clock_that_is_behind_loses_no_time_from_attempt_to_attempt(
    tmp_path: Path, day: Any
) -> None:
    state: Any = {
        "version": 1, "started": (BEGAN + timedelta(hours=1)).isoformat(), "wall_s": 10.0,
        "steps": 4, "ideal_s": {"full": 1.0, "causal": 1.0}, "unknown": "",
    }  # fmt: skip
    for name in ("two", "three"):
        attempt = Attempt(tmp_path / name, day, resume=state)
        with attempt.meter:
            attempt.steps(2)
            state = attempt.meter.state_dict()
    assert state["wall_s"] == 14.0  # 10, and two attempts of 2 s
    # The first attempt's 1.0 s and 4 steps of 0.25 s.
    assert run_figures(attempt.meter.run).end_to_end == pytest.approx(2.0 / 14)


def test_a_clock_that_is_set_back_does_not_make_an_attempt_shorter(
    tmp_path: Path, day: Any
) -> None:
    attempt = Attempt(tmp_path, day)
    with attempt.meter:
        attempt.steps(4)
        day["s"] = -100.0
        assert attempt.meter.state_dict()["wall_s"] == 4.0


def test_the_state_says_that_measuring_stopped(tmp_path: Path, day: Any) -> None:
    first = Attempt(tmp_path / "one", day)
    with first.meter:
        first.steps(5)
        first.meter._stepping.stand_down(RuntimeError("a test"))
        first.steps(25)
        state = first.meter.state_dict()
    assert state["steps"] == 5 and state["ideal_s"] == {}
    assert state["unknown"] == "measuring stopped after step 5: an internal error"
    second = Attempt(tmp_path / "two", day, resume=state)
    with second.meter:
        second.steps(2)
    now = run_figures(second.meter.run)
    assert now.end_to_end is None and now.mfu is not None
    assert now.absent["end_to_end"] == f"of an earlier attempt: {state['unknown']}"


def test_a_run_that_was_closed_by_an_internal_error_has_such_a_state(
    tmp_path: Path, day: Any
) -> None:
    attempt = Attempt(tmp_path, day)
    attempt.steps(5)
    attempt.meter.close("an internal error: ValueError")
    assert attempt.meter.state_dict()["unknown"].startswith("measuring stopped after step 5")


@pytest.mark.parametrize("saved", [{}, {"full": 1.0}, {"causal": 1.0}])
def test_ideal_times_that_were_not_saved_are_unknown_with_a_reason_from_then_on(
    saved: Any, tmp_path: Path, day: Any
) -> None:
    state = {
        "version": 1, "started": BEGAN.isoformat(), "wall_s": 4.0, "steps": 4, "ideal_s": saved,
        "unknown": "",
    }  # fmt: skip
    attempt = Attempt(tmp_path, day, resume=state)
    with attempt.meter:
        attempt.steps(2)
        later = attempt.meter.state_dict()
    absent = run_figures(attempt.meter.run).absent["end_to_end"]
    assert absent.startswith(
        "of an earlier attempt: its state has no ideal time of the model FLOPs"
    )
    assert later["ideal_s"] == {} and absent.endswith(later["unknown"])


def test_checks_go_on_by_the_steps_of_the_attempt(tmp_path: Path, day: Any) -> None:
    state = {
        "version": 1, "started": BEGAN.isoformat(), "wall_s": 4.0, "steps": 1000,
        "ideal_s": {"full": 1.0, "causal": 1.0}, "unknown": "",
    }  # fmt: skip
    attempt = Attempt(tmp_path, day, resume=state)
    with attempt.meter:
        attempt.steps(12)
    counted = [step.index for step in attempt.meter.run.steps if "counted" in step.excluded]
    assert counted == [1000, 1009, 1010]  # as 0, 9 and 10 of a run of its own


def a_state(**changes: Any) -> dict[str, Any]:
    fields = {"version": 1, "started": BEGAN.isoformat(), "wall_s": 4.0, "steps": 4}
    return {**fields, "ideal_s": {"full": 1.0, "causal": 1.0}, "unknown": "", **changes}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (3, "resume is a int; expected what state_dict"),
        ({}, "resume is no state of a meter"),
        ({"version": 1, "started": "noon", "wall_s": 1.0, "steps": 1}, "no state of a meter"),
        ({"version": 9, "started": BEGAN.isoformat(), "wall_s": 1.0, "steps": 1}, "version 9"),
        ({"version": 1, "started": BEGAN.isoformat(), "wall_s": 1.0, "steps": -1}, "-1 steps"),
        (a_state(steps=10**30), "0 steps, no number of steps"),
        (a_state(started="2030-01-01T00:00:00"), "without a time zone"),
        (a_state(wall_s=math.inf), "wall_s is inf, no time"),
        (a_state(wall_s=math.nan), "wall_s is nan, no time"),
        (a_state(wall_s=-1.0), "wall_s is -1.0, no time"),
        (a_state(ideal_s={"full": math.nan, "causal": 1.0}), "ideal_s of full is nan, no time"),
        (a_state(ideal_s={"full": 1.0, "causal": -1.0}), "ideal_s of causal is -1.0, no time"),
        (a_state(ideal_s={"half": 1.0}), "no state of a meter"),
        (a_state(unknown="\ud800"), "surrogates not allowed"),
    ],
)
def test_what_is_no_state_is_refused_with_one_line(state: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as error:
        Meter(resume=state)
    assert "\n" not in str(error.value)


def test_a_run_that_has_not_begun_has_no_state() -> None:
    with pytest.raises(RuntimeError, match="no run yet"):
        Meter().state_dict()


@pytest.mark.parametrize("attention", ["full", "causal"])
def test_each_convention_goes_on_with_its_own_ideal_time(
    attention: Attention, tmp_path: Path, day: Any
) -> None:
    state = {
        "version": 1, "started": BEGAN.isoformat(), "wall_s": 0.0, "steps": 2,
        "ideal_s": {"full": 1.0, "causal": 0.5}, "unknown": "",
    }  # fmt: skip
    attempt = Attempt(tmp_path, day, resume=state, attention=attention)
    with attempt.meter:
        attempt.steps(2)
    before = {"full": 1.0, "causal": 0.5}[attention]
    assert run_figures(attempt.meter.run).end_to_end == pytest.approx((before + 0.5) / 2)
