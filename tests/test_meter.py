"""The meter on a fake clock: every figure below is worked out by hand.

The model is one Linear(16, 32) without bias on 8 rows that need no gradient:

    forward  2*8*16*32 = 8192 FLOPs;  backward: dW only, 8192;  model = hardware = 16384

At a peak of 65536 FLOP/s its ideal time is 0.25 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink

from mfu_torch import Meter, bookkeeping, read_run
from mfu_torch.figures import Figures
from mfu_torch.flops.live import structure
from mfu_torch.records import CountEntry, Device, End, Header, Pause, Peak, PeakEntry, Window

PEAK = 65536.0


class Loop:
    """A training loop on a fake clock."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.clock = arguments.setdefault("clock", FakeClock())
        self.sink = ListSink()
        self.model = torch.nn.Linear(16, 32, bias=False)
        arguments = {"peak": PEAK, "log_every": 2, "log_dir": folder} | arguments
        self.meter = Meter(self.model, sinks=[self.sink], **arguments)

    def step(self, inside_s: float, after_s: float = 0.0, rows: int = 8, **given: int) -> None:
        with self.meter.step(**given):
            self.model(torch.ones(rows, 16)).sum().backward()
            self.clock.advance(inside_s)
        self.clock.advance(after_s)

    def figures(self) -> list[Figures]:
        self.meter.close()
        return self.sink.of(Figures)


def test_a_step_of_known_flops_time_and_peak_has_the_mfu_worked_out_by_hand(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    with loop.meter:
        loop.step(3.0)  # the first step is not a steady one
        loop.step(0.75, after_s=0.25, tokens=128, samples=8)
        loop.step(0.5)
    first, second, third = loop.sink.of(Figures)
    assert first.steps == 0 and first.mfu is None
    assert second.mfu == second.hfu == second.mfu_causal == 0.25  # 0.25 s ideal / 1.0 s
    assert second.step_s == 1.0
    assert second.model_flops_per_s == 16384.0
    assert second.tokens_per_s == 128.0 and second.samples_per_s == 8.0
    assert second.end_to_end == 0.125  # 2 * 0.25 s / (3.0 + 1.0) s
    assert third.mfu == 0.5  # 0.25 / 0.5
    assert third.tokens_per_s is None and "tokens=" in third.absent["tokens_per_s"]
    assert third.end_to_end == 0.75 / 4.5


def test_a_window_is_the_sum_of_ideal_times_over_the_sum_of_times(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=4)
    for duration_s in (1.0, 0.5, 0.5, 2.0):
        loop.step(duration_s)
    (window,) = loop.figures()
    # Steps 2 to 4: 3 * 0.25 / (0.5 + 0.5 + 2.0) = 0.25. The mean of their MFUs would be 0.375.
    assert window.steps == 3
    assert window.mfu == 0.25
    assert window.step_s == 1.0
    assert window.step_s_p95 == 2.0


def test_windows_close_every_log_every_steps_and_the_rest_at_the_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)
    for _ in range(5):
        loop.step(1.0)
    assert [f.step for f in loop.figures()] == [2, 4, 5]
    assert [len(w.steps) for w in loop.sink.of(Window)] == [2, 2, 1]
    assert [w.wall_s for w in loop.sink.of(Window)] == [2.0, 4.0, 5.0]


def test_pauses_are_out_of_the_steps_and_in_the_wall_time(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    with loop.meter:
        loop.clock.advance(2.0)  # building the model
        loop.step(1.0)
        loop.step(0.5)
        with loop.meter.pause("eval"):
            loop.clock.advance(4.0)
        loop.step(0.5, after_s=0.5)
    figures = loop.sink.of(Figures)
    assert [f.step_s for f in figures] == [None, 0.5, 0.5]
    assert [f.mfu for f in figures] == [None, 0.5, 0.5]
    assert figures[-1].end_to_end == 0.75 / 8.5  # three steps in 2 + 1 + 0.5 + 4 + 0.5 + 0.5 s
    pauses = {p.name: p.duration_s for p in loop.sink.of(Pause)}
    assert pauses == {"init": 2.0, "eval": 4.0, "finish": 0.5}
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    assert sum(s.duration_s for s in steps) + sum(pauses.values()) == 8.5
    assert loop.sink.of(End) == [End(wall_s=8.5, reason="completed")]


def test_a_pause_inside_a_step_is_taken_out_of_it_and_its_work_is_not_counted(
    tmp_path: Path,
) -> None:
    loop = Loop(tmp_path, log_every=1)
    with loop.meter.step():
        loop.model(torch.ones(8, 16)).sum().backward()
        loop.clock.advance(1.0)
        with loop.meter.pause("eval"):
            loop.model(torch.ones(999, 16))
            loop.clock.advance(7.0)
        loop.clock.advance(1.0)
    loop.meter.close()
    (step,) = loop.sink.of(Window)[0].steps
    assert step.duration_s == 2.0
    assert step.micro_batches == 1
    assert loop.sink.of(CountEntry)[0].count.model == 16384


def test_waiting_for_data_is_measured(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)

    def slow_batches() -> Any:
        for wait_s in (5.0, 0.5, 0.25):
            loop.clock.advance(wait_s)
            yield wait_s

    with loop.meter:
        for _ in loop.meter.data(slow_batches()):
            loop.step(0.5)
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    # The wait for the first batch is before the first step; each later one ends the step before it.
    assert [s.data_wait_s for s in steps] == [0.5, 0.25, 0.0]
    assert [s.duration_s for s in steps] == [1.0, 0.75, 0.5]
    assert loop.sink.of(Figures)[0].data_wait_share == 0.25 / 0.75  # the second step alone
    assert {p.name: p.duration_s for p in loop.sink.of(Pause)}["init"] == 5.0


def test_waiting_for_data_inside_a_pause_is_not_part_of_the_step_before(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)

    def batches(*waits_s: float) -> Any:
        for wait_s in waits_s:
            loop.clock.advance(wait_s)
            yield wait_s

    with loop.meter:
        for _ in loop.meter.data(batches(1.0, 0.5, 0.25)):
            loop.step(0.5)
            with loop.meter.pause("eval"):
                for _ in loop.meter.data(batches(4.0, 8.0)):
                    pass
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    assert [s.data_wait_s for s in steps] == [0.5, 0.25, 0.0]
    assert [s.duration_s for s in steps] == [1.0, 0.75, 0.5]
    assert [p.duration_s for p in loop.sink.of(Pause) if p.name == "eval"] == [12.0] * 3


def test_a_loop_that_does_not_wait_through_the_meter_has_no_wait(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)
    loop.step(1.0)
    loop.step(1.0)
    (figures,) = loop.figures()
    assert figures.data_wait_share is None
    assert figures.absent["data_wait_share"] == "the loop does not iterate over Meter.data(loader)"
    assert [s.data_wait_s for w in loop.sink.of(Window) for s in w.steps] == [None, None]
    assert [s.data_wait_s for s in read_run(tmp_path).steps] == [None, None]
    assert "data wait" not in loop.meter.summary()


def test_a_wait_inside_the_first_step_is_that_of_the_first_step(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)

    def slow_batches() -> Any:
        for wait_s in (2.0, 0.5):
            loop.clock.advance(wait_s)
            yield wait_s

    batches = iter(loop.meter.data(slow_batches()))
    for _ in range(2):
        with loop.meter.step():
            next(batches)
            loop.model(torch.ones(8, 16)).sum().backward()
            loop.clock.advance(1.0)
    (figures,) = loop.figures()
    assert [s.data_wait_s for w in loop.sink.of(Window) for s in w.steps] == [2.0, 0.5]
    assert figures.data_wait_share == 0.5 / 1.5  # the second step alone


def test_micro_batches_of_one_step_are_summed(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    for _ in range(2):
        with loop.meter.step():
            for _ in range(4):
                loop.model(torch.ones(8, 16)).sum().backward()
            loop.clock.advance(2.0)
    figures = loop.figures()
    assert figures[1].mfu == 0.5  # 4 * 0.25 / 2
    assert [s.micro_batches for w in loop.sink.of(Window) for s in w.steps] == [4, 4]


def test_a_new_input_shape_is_counted_once_and_then_looked_up(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    for rows in (8, 16, 8, 16, 4):
        loop.step(1.0, rows=rows)
    loop.meter.close()
    counts = loop.sink.of(CountEntry)
    assert [entry.count.model for entry in counts] == [16384, 32768, 8192]
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    assert [s.count_ids for s in steps] == [(0,), (1,), (0,), (1,), (2,)]
    assert [bool(s.excluded) for s in steps] == [True, True, False, False, True]


def test_accumulated_batches_need_one_count_per_shape_not_per_combination(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    for combination in ((8, 16), (16, 8), (8, 8, 16), (16,)):
        with loop.meter.step():
            for rows in combination:
                loop.model(torch.ones(rows, 16)).sum().backward()
            loop.clock.advance(1.0)
    loop.meter.close()
    assert [entry.count.model for entry in loop.sink.of(CountEntry)] == [16384, 32768]
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    assert [s.count_ids for s in steps] == [(0, 1), (1, 0), (0, 0, 1), (1,)]
    assert [bool(s.excluded) for s in steps] == [True, False, False, False]


def test_forwards_that_all_run_before_the_backward_are_counted_as_a_whole(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    for _ in range(3):
        with loop.meter.step():
            left, right = loop.model(torch.ones(8, 16)), loop.model(torch.ones(16, 16))
            (left.sum() + right.sum()).backward()
            loop.clock.advance(1.0)
    loop.meter.close()
    (entry,) = loop.sink.of(CountEntry)
    assert entry.count.model == 49152  # 2*(8+16)*16*32 forward, and the same for dW


def test_freezing_parameters_later_is_noticed_at_the_next_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure, "SHARE_OF_TIME", 1e9)  # look at every window
    loop = Loop(tmp_path, log_every=2)
    loop.step(1.0)
    loop.step(1.0)
    loop.model.weight.requires_grad_(False)
    for _ in range(3):
        with loop.meter.step():
            loop.model(torch.ones(8, 16))
            loop.clock.advance(1.0)
    loop.meter.close()
    assert loop.sink.of(CountEntry)[-1].count.model == 8192


def test_without_a_model_the_step_is_counted_again_when_tokens_change(tmp_path: Path) -> None:
    model, sink = torch.nn.Linear(16, 32, bias=False), ListSink()
    meter = Meter(peak=PEAK, sinks=[sink], log_dir=tmp_path, clock=FakeClock())
    for rows in (8, 8, 4):
        with meter.step(tokens=rows):
            model(torch.ones(rows, 16)).sum().backward()
    meter.close()
    assert [entry.count.model for entry in sink.of(CountEntry)] == [16384, 8192]


def test_given_flops_are_used_and_nothing_is_counted(tmp_path: Path) -> None:
    loop = Loop(tmp_path, flops={"bf16": 32768.0}, log_every=2)
    loop.step(1.0)
    loop.step(1.0)
    (figures,) = loop.figures()
    assert figures.mfu == 0.5
    assert loop.sink.of(CountEntry)[0].count.method == "given by the user"
    assert not loop.model._forward_pre_hooks


def test_the_causal_convention_decides_which_flops_mfu_means(tmp_path: Path) -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.ones(1, 1, 3, 4)
    found = {}
    for attention in ("full", "causal"):
        sink, clock = ListSink(), FakeClock()
        meter = Meter(
            Attention(), peak="1440 FLOP/s", sinks=[sink], log_dir=tmp_path, clock=clock,
            log_every=2, attention=attention,
        )  # fmt: skip
        for _ in range(2):
            with meter.step():
                meter._settings.models[0](x)
                clock.advance(1.0)
        meter.close()
        (found[attention],) = sink.of(Figures)
    # Two matmuls of 2*4 FLOPs per score; 3*3 scores, of which the mask keeps 3*4/2 = 6.
    assert found["full"].mfu == 144 / 1440
    assert found["causal"].mfu == found["full"].mfu_causal == 96 / 1440


def test_phases_are_reported_as_shares_of_the_step(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)
    for _ in range(2):
        with loop.meter.step():
            with loop.meter.phase("forward"):
                out = loop.model(torch.ones(8, 16))
                loop.clock.advance(0.25)
            with loop.meter.phase("backward"):
                out.sum().backward()
                loop.clock.advance(0.5)
            loop.clock.advance(0.25)
    (figures,) = loop.figures()
    assert figures.phases == {"forward": 0.25, "backward": 0.5}


def test_on_a_device_that_runs_behind_no_step_waits_and_every_time_is_right(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2, clock=FakeClock(lag_s=2.5))
    for _ in range(4):
        loop.step(1.0)
    loop.meter._recorder.flush()
    assert loop.clock.waits == 0
    assert loop.sink.of(Window) == []  # steps 1 and 2 end at 1 s and 2 s; the last poll was at 3 s
    loop.meter.close()
    assert [s.duration_s for w in loop.sink.of(Window) for s in w.steps] == [1.0] * 4


def test_the_run_file_holds_what_the_sinks_were_given(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)
    for _ in range(3):
        loop.step(1.0, tokens=128)
    loop.meter.close()
    run = read_run(tmp_path)
    assert [run.header] == loop.sink.of(Header)
    assert list(run.windows) == loop.sink.of(Window)
    assert list(run.counts.values()) == loop.sink.of(CountEntry)
    assert list(run.peaks.values()) == loop.sink.of(PeakEntry)
    assert run.peaks["fp32"].peak.provenance == "given"
    assert run == loop.meter.run


def test_the_run_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=10)
    for _ in range(3):
        loop.step(1.0)
    assert len(list(loop.meter.run.steps)) == 2  # the third ends when a fourth starts
    assert "steps" in loop.meter.summary()
    assert not loop.meter.summary().endswith("\n")  # print() adds one
    loop.meter.close()
    assert len(list(loop.meter.run.steps)) == 3


def test_a_peak_of_another_dtype_is_not_used(tmp_path: Path) -> None:
    peak = Peak(flops_per_s=1e12, dtype="bf16", source="a test", provenance="given")
    loop = Loop(tmp_path, peak=peak, log_every=2)
    loop.step(1.0)
    loop.step(1.0)
    (figures,) = loop.figures()
    assert figures.mfu is None and "fp32" in figures.absent["mfu"]
    assert figures.model_flops_per_s == 16384.0


@pytest.mark.parametrize("given", [None, PEAK])
def test_measuring_the_peak_is_a_pause_of_its_own_and_looking_one_up_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: float | None
) -> None:
    loop = Loop(tmp_path, log_every=1, peak=given)

    def found(*_: Any, **__: Any) -> PeakEntry:
        loop.clock.advance(3.0 if given is None else 0.0)
        peak = Peak(flops_per_s=PEAK, dtype="fp32", source="a test", provenance="measured")
        return PeakEntry(dtype="fp32", peak=peak)

    monkeypatch.setattr(bookkeeping, "resolve_peak", found)
    with loop.meter:
        for _ in range(3):
            loop.step(0.75, after_s=0.25)
    steps = [s for w in loop.sink.of(Window) for s in w.steps]
    # What follows the last step is the pause "finish".
    assert [s.duration_s for s in steps] == [1.0, 1.0, 0.75]
    pauses = [p for p in loop.sink.of(Pause) if p.name not in ("init", "finish")]
    recorded = [("peak", 1, 3.0)] if given is None else []
    assert [(p.name, p.after_step, p.duration_s) for p in pauses] == recorded
    assert loop.sink.of(End)[0].wall_s == (6.0 if given is None else 3.0)
    assert [p for p in read_run(tmp_path).pauses if p.name == "peak"] == pauses


def test_a_step_that_is_too_fast_for_the_peak_is_printed_as_measured(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=2)
    loop.step(0.125)
    loop.step(0.125)
    assert loop.figures()[0].mfu == 2.0


def test_a_measured_peak_that_the_run_exceeded_is_forgotten_and_said_to_be_too_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Peak(flops_per_s=PEAK, dtype="fp32", source="a benchmark", provenance="measured")
    forgotten = []
    monkeypatch.setattr(
        bookkeeping, "resolve_peak", lambda *_, **__: PeakEntry(dtype="fp32", peak=peak)
    )
    monkeypatch.setattr(bookkeeping, "forget_measured", lambda _, dtype: forgotten.append(dtype))
    for duration_s, expected in ((0.5, []), (0.125, ["fp32"])):  # MFU 0.5, then 2.0
        loop = Loop(tmp_path, peak=None)
        for _ in range(2):
            loop.step(duration_s)
        loop.meter.close()
        assert forgotten == expected
        notes = loop.sink.of(End)[0].notes
        assert [note for note in notes if "too low" in note] == list(notes)
        assert len(notes) == len(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": "half"}, "expected 'full' or 'causal'"),
        ({"log_every": 0}, "at least 1"),
        ({"log_every": 2.5}, "at least 1"),
        ({"peak": "fast"}, "989 TFLOP/s"),
        ({"log_dir": 3}, "path of a folder"),
        ({"device": "gpu"}, "expected a torch.device"),
        ({"sinks": "tensorboard"}, "list of sinks"),
        ({"sinks": [None]}, "write"),
        ({"flops": {}}, "empty"),
        ({"flops": {"bf16": "6e15"}}, "positive number"),
        ({"flops": {"bfloat16": 6e15}}, "bf16"),
        ({"peak": -1.0}, "-1.0"),
        ({"flops": 6e15}, "expected model FLOPs of a step by dtype"),
        ({"flops": {"bf16": -1}}, "positive"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Meter(torch.nn.Linear(2, 2), **arguments)


def test_a_model_that_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected the torch\.nn\.Module"):
        Meter("gpt2")  # type: ignore[arg-type]


def test_a_step_that_is_called_and_not_entered_is_told(tmp_path: Path) -> None:
    with Meter(peak=PEAK, sinks=[], log_dir=tmp_path, clock=FakeClock()) as meter:
        for _ in range(3):
            meter.step()
    assert "write `with meter.step():`" in meter.summary()


def test_a_run_without_any_step_is_not_accused(tmp_path: Path) -> None:
    with Meter(peak=PEAK, sinks=[], log_dir=tmp_path, clock=FakeClock()) as meter:
        pass
    assert "with meter.step():" not in meter.summary()


def test_negative_tokens_have_no_rate_and_a_reason(tmp_path: Path) -> None:
    loop = Loop(tmp_path, log_every=1)
    loop.step(1.0)
    loop.step(1.0, tokens=-4)
    assert loop.figures()[-1].absent["tokens_per_s"] == (
        "Meter.step was given tokens=-4; expected how many were trained on"
    )


def test_a_device_that_this_machine_lacks_cannot_be_timed(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    h100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", index=0)
    with pytest.raises(ValueError, match="torch can time nothing on it here"):
        Meter(device=h100, sinks=[], log_dir=tmp_path).start()


def test_the_header_names_the_model_inside_of_its_wrappers_and_its_parameters(
    tmp_path: Path,
) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Linear(32, 4).requires_grad_(False)
    )
    wrapped = torch.compile(torch.nn.ModuleDict({"module": model}), backend="eager")
    with Meter(
        [wrapped, torch.nn.Linear(2, 2)], log_dir=tmp_path, sinks=[], telemetry=False
    ) as meter:
        header = meter.run.header
    assert header.model == "Sequential, Linear"
    # 16*32 + 32, 32*4 + 4 of which none trains, 2*2 + 2
    assert (header.parameters, header.trainable) == (544 + 132 + 6, 544 + 6)


def test_parameters_that_have_no_shape_yet_are_not_counted(tmp_path: Path) -> None:
    with Meter(torch.nn.LazyLinear(4), log_dir=tmp_path, sinks=[], telemetry=False) as meter:
        assert meter.run.header.parameters is None
