"""A run with the default sinks: the curves in its event file are those worked out by hand.

The model is one causal attention whose queries, keys and values are x scaled by a parameter, all
of shape (b, h, s, d) = (1, 1, 4, 8). A head has 4*4 = 16 pairs, of which the mask keeps 10::

    forward   two products of 2*8 FLOPs a pair     16 * 32 =  512     causal  10 * 32 =  320
    backward  four of them                         16 * 64 = 1024             10 * 64 =  640
    again     the scores, in the backward kernel   16 * 16 =  256             10 * 16 =  160

    model = 1536 (causal 960), hardware = 1792 (causal 1120)

At a peak of 2048 FLOP/s the ideal times are model 0.75 s (causal 0.46875 s), hardware 0.875 s
(causal 0.546875 s).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mfu_torch import Meter, Peak, read_run
from mfu_torch.figures import run_figures

PEAK = "2048 FLOP/s"


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def train(folder: Path, late_s: float = 0.0, **arguments: Any) -> None:
    """Five steps in windows of two, with data that has to be waited for and an evaluation.

    ===================  =======  ==============================  ========  ==============
    step                 inside   until the next one starts       duration  wall time then
    ===================  =======  ==============================  ========  ==============
    first batch, init             data 2.0                                   2.0
    1                    4.0      data 0.5                        4.5        6.5
    2                    1.25     data 0.25                       1.5        8.0
    3                    1.0      data 0.5                        1.5        9.5
    4                    0.75     0.5, (eval 4.0), data 0.25      1.5       15.0
    5                    3.0                                      3.0       18.0
    ===================  =======  ==============================  ========  ==============
    """
    clock = FakeClock()
    model, x = Attention(), torch.randn(1, 1, 4, 8)

    def batches() -> Any:
        for wait_s in (2.0, 0.5, 0.25, 0.5, 0.25):
            clock.advance(wait_s)
            yield x

    arguments = {"peak": PEAK} | arguments
    durations_s = iter((4.0, 1.25, 1.0, 0.75, 3.0))
    meter = Meter(model, log_dir=folder, log_every=2, clock=clock, **arguments)
    with meter:
        for index, batch in enumerate(meter.data(batches()), start=1):
            with meter.step(tokens=768, samples=6):
                with meter.phase("forward"):
                    loss = model(batch).sum()
                    clock.advance(0.25)
                loss.backward()
                clock.advance(next(durations_s) - 0.25)
            if index == 4:
                clock.advance(0.5)
                with meter.pause("eval"):
                    clock.advance(4.0)
        if late_s:
            with meter.pause("export"):
                clock.advance(late_s)


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = read(folder)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def group(folder: Path, name: str) -> dict[str, list[tuple[int, float]]]:
    """Curves of one group, by what follows its slash."""
    found = curves(folder).items()
    return {tag.partition("/")[2]: curve for tag, curve in found if tag.startswith(f"{name}/")}


def near(*points: tuple[int, float]) -> list[tuple[int, Any]]:
    # Event files hold 32-bit floats.
    return [(step, pytest.approx(value, rel=1e-6, abs=1e-9)) for step, value in points]


def text(folder: Path) -> str:
    (event,) = read(folder).Tensors("mfu/how_computed/text_summary")
    return str(event.tensor_proto.string_val[0].decode())


def test_every_curve_has_the_values_worked_out_by_hand(tmp_path: Path) -> None:
    train(tmp_path)
    # Windows end with steps 2, 4 and 5. The first step is not a steady one, so the windows are over
    # 1.5 s, 1.5 + 1.5 s (the wait of 0.25 s after the evaluation is the fourth step's), and 3.0 s.
    found = curves(tmp_path)
    for_other_tests = ("goodput", "goodput_stacked", "run")
    assert {t: found[t] for t in found if t.partition("/")[0] not in for_other_tests} == {
        "mfu/mfu": near((2, 0.5), (4, 0.5), (5, 0.25)),  # 0.75/1.5, 1.5/3.0, 0.75/3.0
        "mfu/hfu": near((2, 0.875 / 1.5), (4, 1.75 / 3.0), (5, 0.875 / 3.0)),
        "mfu/mfu_causal": near((2, 0.3125), (4, 0.3125), (5, 0.15625)),  # 0.46875/1.5, ..
        # 2, 4 and 5 times 0.75 s over the wall time since the start, waiting for the first batch
        # and the evaluation included.
        "mfu/end_to_end": near((2, 1.5 / 8.0), (4, 3.0 / 15.0), (5, 3.75 / 18.0)),
        # 1536/1.5 = 1024, 2*1536/3.0 = 1024, 1536/3.0 = 512 FLOP/s
        "throughput/model_tflops_per_s_per_device": near(
            (2, 1024e-12), (4, 1024e-12), (5, 512e-12)
        ),
        "throughput/tokens_per_s": near((2, 512.0), (4, 512.0), (5, 256.0)),  # 768/1.5, ..
        "throughput/samples_per_s": near((2, 4.0), (4, 4.0), (5, 2.0)),  # 6/1.5, 12/3.0, 6/3.0
        "time/step_s": near((2, 1.5), (4, 1.5), (5, 3.0)),
        "time/step_s_p95": near((2, 1.5), (4, 1.5), (5, 3.0)),
        # The wait for a batch ends the step before: 0.25/1.5, (0.5 + 0.25)/3.0, none.
        "time/data_wait_share": near((2, 0.25 / 1.5), (4, 0.25), (5, 0.0)),
        "time/phase_forward_share": near((2, 0.25 / 1.5), (4, 0.5 / 3.0), (5, 0.25 / 3.0)),
        # The clock stands still in forward and backward: 0.25 s of each step are before backward.
        "time/loss_share": near((2, 0.25 / 1.5), (4, 0.5 / 3.0), (5, 0.25 / 3.0)),
        # 1.25 - 0.25 s, 1.0 - 0.25 + 0.75 - 0.25 s, and 3.0 - 0.25 s
        "time/rest_share": near((2, 1.0 / 1.5), (4, 1.25 / 3.0), (5, 2.75 / 3.0)),
        "time/between_share": near((2, 0.0), (4, 0.5 / 3.0), (5, 0.0)),
        # A third of the model FLOPs, 0.25 s at the peak, in the 0.25 s of forward and loss.
        "mfu/hfu_forward": near((2, 1.0), (4, 1.0), (5, 1.0)),
    }


def test_the_shares_of_the_wall_time_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    train(tmp_path)
    # Of 8, 15 and 18 s: 2 s until the first step, 4.5 s in it, 1.5 s in each of the next three,
    # 4 s of evaluation, 3 s in the last. At the peak a step takes 0.75 s for the model, 0.875 s in
    # all, also the first.
    assert group(tmp_path, "goodput") == {
        "model": near((2, 1.5 / 8), (4, 3.0 / 15), (5, 3.75 / 18)),
        "recompute": near((2, 0.25 / 8), (4, 0.5 / 15), (5, 0.625 / 18)),
        # 1.5 - 0.875 s in each of the first three steady steps, 3.0 - 0.875 s in the last
        "below_peak": near((2, 0.625 / 8), (4, 1.875 / 15), (5, 4.0 / 18)),
        "FLOPs_were_being_counted": near((2, 3.625 / 8), (4, 3.625 / 15), (5, 3.625 / 18)),
        "init": near((2, 2.0 / 8), (4, 2.0 / 15), (5, 2.0 / 18)),
        "eval": near((4, 4.0 / 15), (5, 4.0 / 18)),
        "other": near((2, 0.0), (4, 0.0), (5, 0.0)),
    }


def test_stacked_the_shares_begin_at_nothing_and_end_at_the_whole(tmp_path: Path) -> None:
    train(tmp_path)
    assert group(tmp_path, "goodput_stacked") == {
        "zero": near((2, 0.0), (4, 0.0), (5, 0.0)),
        "model": near((2, 1.5 / 8), (4, 3.0 / 15), (5, 3.75 / 18)),
        "recompute": near((2, 1.75 / 8), (4, 3.5 / 15), (5, 4.375 / 18)),
        "below_peak": near((2, 2.375 / 8), (4, 5.375 / 15), (5, 8.375 / 18)),
        "excluded": near((2, 6.0 / 8), (4, 9.0 / 15), (5, 12.0 / 18)),
        "pauses": near((2, 1.0), (4, 1.0), (5, 1.0)),
        "earlier_attempts": near((2, 1.0), (4, 1.0), (5, 1.0)),
        "other": near((2, 1.0), (4, 1.0), (5, 1.0)),
    }


def test_the_figures_of_the_run_are_over_all_its_steps_so_far(tmp_path: Path) -> None:
    train(tmp_path)
    assert group(tmp_path, "run") == {
        "mfu": near((2, 0.5), (4, 0.5), (5, 0.4)),  # 0.75/1.5, 2.25/4.5, 3.0/7.5
        "hfu": near((2, 0.875 / 1.5), (4, 2.625 / 4.5), (5, 3.5 / 7.5)),
        "end_to_end": near((2, 1.5 / 8.0), (4, 3.0 / 15.0), (5, 3.75 / 18.0)),
        "step_s": near((2, 1.5), (4, 1.5), (5, 7.5 / 4)),
        "tokens_per_s": near((2, 512.0), (4, 512.0), (5, 4 * 768 / 7.5)),
    }


def test_the_last_figures_of_the_run_are_those_of_the_report(tmp_path: Path) -> None:
    train(tmp_path, late_s=2.0)
    expected = run_figures(read_run(tmp_path))
    last = {name: curve[-1][1] for name, curve in group(tmp_path, "run").items()}
    assert last["end_to_end"] == pytest.approx(3.75 / 20.0)  # and not 3.75/18.0
    for name, value in last.items():
        assert value == pytest.approx(getattr(expected, name), rel=1e-6)


def test_under_the_causal_convention_mfu_and_hfu_count_what_the_mask_keeps(tmp_path: Path) -> None:
    train(tmp_path, attention="causal")
    found = curves(tmp_path)
    assert (
        found["mfu/mfu"] == found["mfu/mfu_causal"] == near((2, 0.3125), (4, 0.3125), (5, 5 / 32))
    )
    assert found["mfu/hfu"] == near((2, 0.546875 / 1.5), (4, 1.09375 / 3.0), (5, 0.546875 / 3.0))
    assert found["mfu/end_to_end"] == near(
        (2, 0.9375 / 8.0), (4, 1.875 / 15.0), (5, 2.34375 / 18.0)
    )
    # 960/1.5 = 640 FLOP/s
    assert found["throughput/model_tflops_per_s_per_device"][0] == near((2, 640e-12))[0]
    assert "| attention | only the attention scores that the mask keeps are counted" in text(
        tmp_path
    )


def test_a_window_of_the_first_step_alone_has_only_an_end_to_end_value(tmp_path: Path) -> None:
    clock = FakeClock()
    model, x = Attention(), torch.randn(1, 1, 4, 8)
    with Meter(model, log_dir=tmp_path, log_every=1, peak=PEAK, clock=clock) as meter:
        for _ in range(2):
            with meter.step():
                model(x).sum().backward()
                clock.advance(3.0)
    found = curves(tmp_path)
    assert found["mfu/end_to_end"] == near((1, 0.25), (2, 0.25))  # 0.75/3.0, 1.5/6.0
    assert found["mfu/mfu"] == near((2, 0.25))
    assert "throughput/tokens_per_s" not in found  # step() was not given tokens


def test_a_loop_that_does_not_wait_through_the_meter_has_no_curve_of_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    model, x = Attention(), torch.randn(1, 1, 4, 8)
    with Meter(model, log_dir=tmp_path, log_every=2, peak=PEAK, clock=clock) as meter:
        for _ in range(2):
            with meter.step(tokens=768):
                model(x).sum().backward()
                clock.advance(1.5)
    assert "time/step_s" in curves(tmp_path)
    assert "time/data_wait_share" not in curves(tmp_path)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "step     2  1.50 s/step  MFU 50.0 %  HFU 58.3 %  1.02 kFLOP/s  512 tok/s"
    )


def test_a_later_run_in_the_same_folder_has_curves_of_its_own(tmp_path: Path) -> None:
    for peak in (PEAK, "4096 FLOP/s", "8192 FLOP/s"):
        train(tmp_path, peak=peak)
    # 0.5 as worked out above, at one, two and four times the peak.
    for folder, mfu in ((tmp_path, 0.5), (tmp_path / "run-2", 0.25), (tmp_path / "run-3", 0.125)):
        assert curves(folder)["mfu/mfu"] == near((2, mfu), (4, mfu), (5, mfu / 2))
        assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    # The run files stay side by side, where `mfu-torch report FOLDER` finds them.
    assert sorted(path.name for path in tmp_path.rglob("*.jsonl")) == [
        "run-2.jsonl",
        "run-3.jsonl",
        "run.jsonl",
    ]
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {tmp_path}


def test_without_a_peak_of_its_dtype_there_are_rates_and_times_but_no_share(
    tmp_path: Path,
) -> None:
    train(tmp_path, peak=Peak(flops_per_s=1e12, dtype="bf16", source="a test", provenance="given"))
    found = curves(tmp_path)
    assert sorted(tag for tag in found if not tag.startswith("goodput")) == [
        "run/step_s",
        "run/tokens_per_s",
        "throughput/model_tflops_per_s_per_device",
        "throughput/samples_per_s",
        "throughput/tokens_per_s",
        "time/between_share",
        "time/data_wait_share",
        "time/loss_share",
        "time/phase_forward_share",
        "time/rest_share",
        "time/step_s",
        "time/step_s_p95",
    ]
    assert found["throughput/model_tflops_per_s_per_device"][0] == near((2, 1024e-12))[0]
    assert "| fp32 | unknown |  | no fp32 peak for " in text(tmp_path)
    # 1.5 + 1.5 + 1.5 + 3.0 s in steady steps, of 18 s
    assert found["goodput/steady_steps"][-1] == near((5, 7.5 / 18))[0]
    assert not any(tag.startswith("goodput_stacked/") for tag in found)


def test_the_text_page_holds_the_convention_the_peak_and_how_flops_were_counted(
    tmp_path: Path,
) -> None:
    train(tmp_path)
    page = text(tmp_path)
    assert "| attention | every attention score is counted (convention `full`) |" in page
    assert "| fp32 | 2.05 kFLOP/s | given | Meter(peak=...) |" in page
    assert "| model | Attention, 8 parameters |" in page
    assert "| FLOPs | counted on step 0 as it trained |" in page
    assert "| not counted | nothing: every op that looks like a contraction has a formula |" in page
    assert "| time | a fake clock |" in page
    assert f"torch {torch.__version__}" in page


def test_the_console_beside_it_prints_a_line_per_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mfu_torch on ") and lines[0].endswith(", attention full")
    assert lines[1] == "peak fp32 2.05 kFLOP/s dense, given: Meter(peak=...)"
    assert [line.removeprefix("step     ") for line in lines[2:]] == [
        "2  1.50 s/step  MFU 50.0 %  HFU 58.3 %  1.02 kFLOP/s  512 tok/s  data wait 16.7 %",
        "4  1.50 s/step  MFU 50.0 %  HFU 58.3 %  1.02 kFLOP/s  512 tok/s  data wait 25.0 %",
        "5  3.00 s/step  MFU 25.0 %  HFU 29.2 %  512 FLOP/s  256 tok/s  data wait 0.0 %",
    ]
