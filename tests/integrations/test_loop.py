"""A loop that is followed by its hooks: in any order, twice, or not at all.

One step is 16384 FLOPs (see tests/test_meter.py): 0.25 s at a peak of 65536 FLOP/s.
"""

from __future__ import annotations

import copy
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink
from samples import entries, run

from mfu_torch import read_run
from mfu_torch.figures import Figures, run_figures
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.integrations.remarks import RemarksSink, closing_line, last_line
from mfu_torch.records import Run


class Trainer:
    """Calls the hooks as a trainer would, on a fake clock."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.clock = FakeClock()
        self.model = torch.nn.Linear(16, 32, bias=False)
        self.folder = folder
        options = {"peak": 65536.0, "log_every": 2, "telemetry": False} | options
        self.loop = FollowedLoop(clock=self.clock, **options)

    def start(self, **given: Any) -> None:
        self.loop.start([self.model], log_dir=self.folder, **given)

    def micro_step(self, seconds: float = 1.0) -> None:
        self.loop.begin_step()
        self.model(torch.ones(8, 16)).sum().backward()
        self.clock.advance(seconds)
        self.loop.add(tokens=8, samples=1)

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            self.micro_step(1.0 / micro_batches)
        self.loop.end_step()

    def pause(self, name: str, seconds: float) -> None:
        self.loop.begin_pause(name)
        self.model(torch.ones(64, 16)).sum().backward()  # counts for nothing
        self.clock.advance(seconds)
        self.loop.end_pause()


def test_a_followed_loop_has_the_figures_of_a_written_one(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for _ in range(5):
        trainer.step()
    trainer.loop.close()
    now = run_figures(read_run(tmp_path))
    assert now.mfu == 0.25 and now.step_s == 1.0 and now.steps == 4  # not the first
    assert now.tokens_per_s == 8.0 and now.samples_per_s == 1.0


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_micro_batches_belong_to_the_step_that_they_lead_to(
    micro_batches: int, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for _ in range(4):
        trainer.step(micro_batches)
    trainer.loop.close()
    steps = list(read_run(tmp_path).steps)
    assert [step.micro_batches for step in steps] == [micro_batches] * 4
    assert [step.tokens for step in steps] == [8 * micro_batches] * 4
    assert run_figures(read_run(tmp_path)).mfu == 0.25 * micro_batches


def test_a_pause_is_left_out_and_named(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for index in range(4):
        trainer.step()
        if index == 1:
            trainer.pause("eval", 10.0)
    trainer.loop.close()
    found = read_run(tmp_path)
    assert [(p.name, p.duration_s) for p in found.pauses if p.name == "eval"] == [("eval", 10.0)]
    assert run_figures(found).mfu == 0.25


def test_a_step_that_begins_ends_a_pause_that_nobody_ended(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    trainer.step()
    trainer.loop.begin_pause("checkpoint")
    trainer.loop.begin_pause("eval")  # inside: the outer name stays
    trainer.clock.advance(3.0)
    trainer.step()
    trainer.loop.close()
    found = read_run(tmp_path)
    assert [p.duration_s for p in found.pauses if p.name == "checkpoint"] == [3.0]
    assert len(list(found.steps)) == 2


def test_a_pause_goes_on_when_the_step_in_which_it_began_ends(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for index in range(4):
        trainer.micro_step()
        if index in (0, 2):  # the first step is counted
            trainer.loop.begin_pause("eval")
            trainer.model(torch.ones(64, 16)).sum().backward()  # counts for nothing
            trainer.clock.advance(2.0)
        trainer.loop.end_step()
        trainer.model(torch.ones(64, 16)).sum().backward()
        trainer.clock.advance(8.0 if index in (0, 2) else 0.0)
        trainer.loop.end_pause()
    trainer.loop.close()
    found = read_run(tmp_path)
    assert [p.duration_s for p in found.pauses if p.name == "eval"] == [10.0, 10.0]
    assert [step.duration_s for step in found.steps] == [1.0] * 4
    assert [found.count_of(step).model for step in found.steps] == [16384] * 4  # type: ignore[union-attr]


def test_work_of_an_open_step_ends_a_pause_in_it(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for index in range(4):
        trainer.loop.begin_step()
        if index == 2:
            trainer.loop.begin_pause("eval")
            trainer.clock.advance(2.0)
        trainer.micro_step()  # begins the step that is open already
        trainer.loop.end_step()
    trainer.loop.close()
    found = read_run(tmp_path)
    assert [p.duration_s for p in found.pauses if p.name == "eval"] == [2.0]
    assert [step.duration_s for step in found.steps] == [1.0] * 4
    assert run_figures(found).mfu == 0.25


@pytest.mark.parametrize(
    ("steps", "mfu"),
    [(1, "25.0 % end-to-end"), (4, "25.0 % in the last window, 25.0 % end-to-end")],
)
def test_a_folder_that_was_removed_is_said_and_is_no_internal_error(
    steps: int,
    mfu: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = Trainer(tmp_path / "run")
    trainer.start()
    for _ in range(steps):
        trainer.step()
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        trainer.loop.close()
    assert [(r.exc_info, "run.jsonl: no such file" in r.message) for r in caplog.records] == [
        (None, True)
    ]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"mfu_torch: MFU {mfu} (attention full)"
    assert not trainer.loop.running


def test_nothing_is_claimed_of_a_lost_run_without_a_window() -> None:
    assert last_line(None, "full").startswith("mfu_torch: MFU unknown: the records are lost")


def test_hooks_before_after_and_twice_are_harmless(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    loop = trainer.loop
    for hook in (loop.begin_step, loop.end_step, loop.end_pause, loop.close):
        hook()
    loop.begin_pause("eval")
    loop.add(tokens=1)
    loop.micro_batch(torch.ones(1))
    assert loop.meter is None and loop.state() is None and loop.windows() == []
    trainer.start()
    loop.end_step()
    trainer.step()
    loop.end_step()
    loop.close("KeyboardInterrupt")
    loop.close()
    loop.begin_step()
    loop.end_step()
    end = read_run(tmp_path).end
    assert end is not None and end.reason == "KeyboardInterrupt"


def test_a_step_that_is_open_at_the_end_came_to_nothing(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    trainer.step()
    trainer.micro_step()  # accumulated, and the optimizer never stepped
    trainer.loop.close()
    found = read_run(tmp_path)
    assert len(list(found.steps)) == 1
    assert "interrupted step" in {pause.name for pause in found.pauses}


def test_a_second_start_ends_the_first_run_and_begins_another(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    trainer.step()
    trainer.start()
    trainer.step()
    trainer.loop.close()
    first, second = read_run(tmp_path / "run.jsonl"), read_run(tmp_path / "run-2.jsonl")
    assert first.end is not None and first.end.reason == "a new run"
    assert second.end is not None and second.end.reason == "completed"


def test_windows_are_handed_over_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for _ in range(6):
        trainer.step()
    trainer.loop.close()
    assert [now.step for now in trainer.loop.windows()] == [2, 4, 6]
    assert trainer.loop.windows() == []
    latest = trainer.loop.latest()
    assert latest is not None and latest.step == 6


def test_sinks_of_the_options_and_of_the_start_both_get_the_records(tmp_path: Path) -> None:
    mine, theirs = ListSink(), ListSink()
    trainer = Trainer(tmp_path, sinks=[mine])
    trainer.start(sinks=[theirs])
    for _ in range(2):
        trainer.step()
    trainer.loop.close()
    assert len(mine.of(Figures)) == len(theirs.of(Figures)) == 1


def test_an_option_goes_before_what_the_trainer_says(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "trainer", log_dir=tmp_path / "mine")
    trainer.start()
    trainer.loop.close()
    assert (tmp_path / "mine" / "run.jsonl").exists() and not (tmp_path / "trainer").exists()


def test_an_option_that_cannot_be_understood_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="log_every is 0"):
        FollowedLoop(log_every=0)
    with pytest.raises(TypeError, match="logevery"):
        FollowedLoop(logevery=3)


@pytest.mark.parametrize("hook", ["begin_step", "end_step", "begin_pause", "add", "close"])
def test_an_internal_error_is_warned_of_once_and_ends_measuring(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    trainer.step()
    loop = trainer.loop
    if hook in ("end_step", "add"):
        loop.begin_step()

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("a fault of ours")

    assert loop.meter is not None
    target = loop._step if hook in ("end_step", "add") else loop.meter
    name = {"begin_step": "step", "end_step": "__exit__", "begin_pause": "pause"}.get(hook, hook)
    monkeypatch.setattr(type(target), name, broken)
    with caplog.at_level(logging.WARNING):
        getattr(loop, hook)(*(["eval"] if hook == "begin_pause" else []))
        monkeypatch.undo()
        trainer.step()
        loop.close()
    warnings = [r for r in caplog.records if "internal error (OSError: a fault" in r.message]
    assert len(warnings) == 1
    assert not loop.running


def test_a_state_leads_on_to_the_next_attempt(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for _ in range(4):
        trainer.step()
    state = trainer.loop.state()
    trainer.start(resume=state)
    trainer.step()
    trainer.loop.close()
    assert [step.index for step in read_run(tmp_path / "run-2.jsonl").steps] == [4]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda loop: pickle.loads(pickle.dumps(loop))])
def test_a_copy_has_the_options_and_no_run(how: Any, tmp_path: Path) -> None:
    loop = FollowedLoop(log_every=3, attention="causal", log_dir=tmp_path)
    loop.start([torch.nn.Linear(1, 1)], log_dir=tmp_path)
    other = how(loop)
    assert other.meter is None and not other.running
    other.start([torch.nn.Linear(1, 1)], log_dir=tmp_path)
    assert other.meter.run.header.log_every == 3
    other.close()
    loop.close()


def test_a_run_says_what_it_divides_by_and_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    for _ in range(4):
        trainer.step()
    trainer.loop.close()
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("mfu_torch on ") and first.endswith(", attention full")
    assert rest == [
        "peak fp32 65.5 kFLOP/s dense, given: Meter(peak=...)",
        f"mfu_torch: MFU 25.0 % steady-state, 25.0 % end-to-end (attention full); "
        f"mfu-torch report {tmp_path / 'run.jsonl'}",
    ]


def test_an_unknown_mfu_is_said_with_its_reason() -> None:
    unknown = run(peaks={})
    assert closing_line(unknown, None) == (
        "mfu_torch: MFU unknown: no bf16 peak was looked up; Meter(peak=...) gives one "
        "(attention full)"
    )
    empty = Run.from_entries(entries()[:1])
    assert closing_line(empty, None).startswith("mfu_torch: MFU unknown: no step is recorded")


def test_no_stdout_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tmp_path)
    trainer.start()
    monkeypatch.setattr("sys.stdout", None)
    trainer.loop.close()
    assert read_run(tmp_path).end is not None


def test_a_run_that_was_left_over_is_ended_by_the_next_one_of_its_model(tmp_path: Path) -> None:
    first, second = Trainer(tmp_path / "first"), Trainer(tmp_path / "second")
    second.model = torch.nn.Sequential(first.model)  # wrapped anew
    other = Trainer(tmp_path / "other")
    for trainer in (first, other, second):
        trainer.start()
    assert [trainer.loop.running for trainer in (first, other, second)] == [False, True, True]
    end = read_run(tmp_path / "first").end
    assert end is not None and end.reason == "a new run of the same model"
    for trainer in (other, second):
        trainer.loop.close()


def test_windows_without_a_steady_step_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(tmp_path, log_every=1)
    trainer.start()
    for rows in (8, 16, 24, 32, 40):  # each of another shape: counted, and not steady
        trainer.loop.begin_step()
        trainer.model(torch.ones(rows, 16)).sum().backward()
        trainer.loop.end_step()
    trainer.loop.close()
    said = [text for text in caplog.messages if "no MFU so far" in text]
    assert said == [
        "no MFU so far: no steady step (FLOPs were being counted); steps after it have figures"
    ]


def test_figures_that_are_estimated_are_said_to_be_once(caplog: pytest.LogCaptureFixture) -> None:
    sink = RemarksSink()
    for uncertainty in (0.02, 0.03):
        sink.write(Figures(step=2, steps=2, time_s=1.0, mfu=0.4, uncertainty=uncertainty))
    assert caplog.messages == [
        "FLOPs are estimated in part, since they depend on data: within 2.0 % of the logged figures"
    ]
