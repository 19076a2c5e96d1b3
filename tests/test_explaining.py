"""Meter(explain_every=N): which steps are recorded, what becomes of them, and what it costs whom.

Steps last 1 s on a fake clock, and what the analysis says is given: only the recording is real.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from explained_loop import InstantAnalysis, Loop, instant, profiler_is_off

from mfu_torch import Meter, read_run
from mfu_torch.explaining import ExplainedStepping
from mfu_torch.explaining.recording import Recording
from mfu_torch.figures import run_figures
from mfu_torch.flops.dynamo import compiled_graphs
from mfu_torch.stepping import Stepping

__all__ = ["instant"]


def test_after_every_n_steps_three_are_traced_after_one_for_the_warm_up(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(40)
    assert loop.traced() == [10, 11, 12, 13, 24, 25, 26, 27, 38, 39]  # the last one came to nothing
    assert [entry.steps for entry in loop.entries] == [(11, 12, 13), (25, 26, 27)]
    assert [entry.after_step for entry in loop.entries] == [14, 28]
    assert loop.entries[0].breakdown.steps == tuple(f"ProfilerStep#{i}" for i in (11, 12, 13))


@pytest.mark.parametrize(("steps", "said"), [(14, True), (15, False)])
def test_a_run_that_is_too_short_for_a_recording_is_told_what_would_have_sufficed(
    tmp_path: Path, instant: type[InstantAnalysis], steps: int, said: bool
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(steps)
    note = (
        "explain_every=10: no step was recorded in 14 steps; 15 would have sufficed, or a smaller "
        "explain_every"
    )
    assert (note in " ".join(loop.meter.summary().split()), bool(loop.entries)) == (said, not said)
    end = read_run(tmp_path).end
    assert end is not None and (note in end.notes) == said


def test_traced_steps_are_compared_with_the_steady_ones_around_them(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(11)
        loop.seconds = 1.5
        loop.steps(3)
        loop.seconds = 1.0
        loop.steps(5)
        loop.seconds = 2.0
        loop.steps(20)
    first = loop.entries[0]
    assert first.traced_s == 1.5
    # Steps 1 to 9 (the first is not a steady one), 14 to 18, and five more of 2 s.
    assert first.untraced_steps == 19
    assert first.untraced_s == (14 * 1.0 + 5 * 2.0) / 19
    assert first.dilation == 1.5 * 19 / 24


def test_traced_steps_are_no_steady_ones_and_count_in_the_end_to_end_mfu(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(10)
        loop.seconds = 5.0
        loop.steps(4)
        loop.seconds = 1.0
        loop.steps(2)
    run = read_run(tmp_path)
    assert [step.duration_s for step in run.steps if not step.excluded] == [1.0] * 11
    figures = run_figures(run)
    assert figures.mfu == 0.25  # 16384 FLOPs at 65536 FLOP/s: 0.25 s of 1 s
    assert figures.end_to_end == 16 * 0.25 / run.wall_s


def test_what_recording_costs_between_the_steps_is_a_pause(
    tmp_path: Path, instant: type[InstantAnalysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path)

    def slow(name: str, seconds: float) -> None:
        before = getattr(Recording, name)

        def method(self: Recording, *args: Any) -> None:
            before(self, *args)
            loop.clock.advance(seconds)

        monkeypatch.setattr(Recording, name, method)

    slow("warm_up", 4.0)
    slow("start", 2.0)
    slow("stop", 8.0)
    with loop.meter:
        loop.steps(20)
    pauses = {(p.after_step, p.duration_s) for p in loop.meter.run.pauses if p.name == "explain"}
    assert pauses == {(10, 4.0), (11, 2.0), (14, 8.0)}
    assert {step.duration_s for step in loop.meter.run.steps} == {1.0}


def test_a_traced_step_lasts_until_the_next_one_begins_as_any_step_does(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        for _ in range(15):
            loop.step()
            torch.arange(7)  # the loop gets its next batch
    events = instant.events[0]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    between = [e for e in events if e["name"] == "aten::arange"]
    assert len(steps) == 3 and len(between) >= 3
    for arange in between:
        assert any(s["ts"] <= arange["ts"] < s["ts"] + s["dur"] for s in steps)
    assert any(e["name"] == "aten::mm" and "Input Dims" in e["args"] for e in events)


def test_the_analysis_is_told_the_peak_and_the_model_flops_of_a_step(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(15)
    (job,) = instant.jobs
    assert job["model_flops"] == 16384 and job["dtype"] == "fp32"
    assert job["recompute_flops"] == 0
    assert job["peak"]["flops_per_s"] == 65536.0
    assert job["steps"] == "11:14"


def test_the_newest_traces_are_kept_beside_the_run_file(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(80)
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == [f"run.steps-{i}-{i + 2}.json.gz" for i in (39, 53, 67)]
    assert [tmp_path / entry.trace for entry in loop.entries[-3:]] == [
        tmp_path / "traces" / name for name in names
    ]


def test_a_run_that_is_kept_nowhere_leaves_no_trace_behind(
    instant: type[InstantAnalysis],
) -> None:
    loop = Loop("")
    with loop.meter:
        loop.steps(20)
        folder = Path(instant.jobs[0]["trace"]).parent
        assert folder.is_dir()
    (entry,) = loop.entries
    assert entry.trace == "" and entry.steps == (11, 12, 13)
    assert not folder.exists()


def test_a_step_that_is_counted_is_not_recorded_and_the_recording_tried_again(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path, flops=None)
    rows = iter([*[8] * 12, 4, *[8] * 20])

    def work() -> None:
        loop.model(torch.ones(next(rows), 16)).sum().backward()

    loop.work = work  # type: ignore[method-assign]
    with loop.meter:
        loop.steps(33)
    excluded = {step.index: step.excluded for step in loop.meter.run.steps}
    assert excluded[12] == "FLOPs were being counted"
    for entry in loop.entries:
        assert all(excluded[index] == "being profiled" for index in entry.steps)
        assert 12 not in entry.steps
    assert loop.entries[0].steps[0] > 12


def test_a_pause_ends_a_recording_that_has_a_step_and_is_not_in_it(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(13)
        with loop.meter.pause("eval"):
            torch.arange(5)
        loop.steps(12)
    assert loop.entries[0].steps == (11, 12)
    assert not [e for e in instant.events[0] if e["name"] == "aten::arange"]


def test_a_loop_that_pauses_after_every_step_has_recordings_of_single_steps(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        for _ in range(30):
            loop.step()
            with loop.meter.pause("log"):
                pass
    assert loop.entries[0].steps == (11,)  # 10 warmed up in vain
    assert all(len(entry.steps) == 1 for entry in loop.entries)


def test_a_step_that_a_pause_interrupts_is_in_no_trace_and_no_steady_one(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(12)
        with loop.meter.step():
            with loop.meter.pause("log"):
                assert profiler_is_off()
            loop.clock.advance(1.0)
        loop.steps(20)
    assert loop.entries[0].steps == (14, 15, 16)  # 13 is steady, and no step is lost to a warm-up
    assert loop.traced()[:3] == [10, 11, 12]


def test_a_loop_that_pauses_in_every_step_is_told_that_it_has_no_recordings(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        for _ in range(60):
            with loop.meter.step():
                loop.clock.advance(1.0)
                with loop.meter.pause("log"):
                    pass
    assert loop.entries == []
    assert loop.meter.run.end is not None
    assert loop.meter.run.end.notes == (
        "explain_every: 5 recordings in a row came to nothing, the last one since a pause began in "
        "each of them",
    )


def test_a_step_that_fails_is_in_no_trace(tmp_path: Path, instant: type[InstantAnalysis]) -> None:
    loop = Loop(tmp_path)
    with loop.meter:
        loop.steps(12)
        with pytest.raises(ZeroDivisionError), loop.meter.step():
            _ = 1 / 0
        assert profiler_is_off()
        loop.steps(20)
    assert loop.entries[0].steps == (15, 16, 17)  # 13 is steady, 14 warms up


def test_a_resumed_run_counts_from_where_it_goes_on(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    first = Loop(tmp_path)
    with first.meter:
        first.steps(7)
    second = Loop(tmp_path, resume=first.meter.state_dict())
    with second.meter:
        second.steps(20)
    assert second.entries[0].steps == (18, 19, 20)
    assert second.entries[0].trace == "traces/run-2.steps-18-20.json.gz"


def test_without_it_the_step_path_is_the_one_there_always_was() -> None:
    meter = Meter(torch.nn.Linear(2, 2), log_dir="")
    assert type(meter._stepping) is Stepping
    with_it = Meter(torch.nn.Linear(2, 2), log_dir="", explain_every=10)
    assert type(with_it._stepping) is ExplainedStepping


@pytest.mark.parametrize("wrong", [0, 9, -10, 10.0, "10", True])
def test_what_is_no_number_of_steps_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"explain_every is .*expected a number of steps, at l"):
        Meter(explain_every=wrong)


def test_a_copy_of_a_meter_keeps_it() -> None:
    meter = Meter(log_dir="", explain_every=17, sinks=[])
    for other in (copy.deepcopy(meter), pickle.loads(pickle.dumps(meter))):
        assert other._settings.explain_every == 17
        assert type(other._stepping) is ExplainedStepping


@pytest.fixture
def clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(explain_every: int | None, model: torch.nn.Module, inputs: Any) -> list[Any]:
    """Losses, weights and the state of the random numbers after 30 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    meter = Meter(
        model, log_dir="", sinks=[], peak=1e12, telemetry=False, explain_every=explain_every
    )
    losses, before = [], compiled_graphs()
    with meter:
        for _ in range(30):
            with meter.step():
                out = model(inputs())
                loss = (out if isinstance(out, torch.Tensor) else out.logits).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    if explain_every is not None:
        assert "being profiled" in {step.excluded for step in meter.run.steps}
    return [
        *losses,
        *model.state_dict().values(),
        torch.get_rng_state(),
        compiled_graphs() - before,
    ]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def gpt2() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=97)
    )


def test_recording_changes_no_bit_of_the_training_of_a_gpt2(
    instant: type[InstantAnalysis],
) -> None:
    runs = []
    for every in (None, 10):
        torch.manual_seed(1)
        runs.append(trained(every, gpt2(), lambda: torch.randint(0, 97, (2, 16))))
    assert same(*runs)
    assert instant.jobs


def test_recording_changes_no_bit_of_the_training_of_a_compiled_model(
    instant: type[InstantAnalysis], clean_dynamo: None
) -> None:
    runs = []
    for every in (None, 10):
        torch._dynamo.reset()
        torch.manual_seed(1)
        layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(), torch.nn.Tanh())
        model = torch.compile(layers, backend="aot_eager")
        runs.append(trained(every, model, lambda: torch.randn(4, 16)))
    assert same(*runs)
    assert instant.jobs
