"""The console: one line per window, remarks once."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from samples import count, header, peak

from mfu_torch.figures import Figures
from mfu_torch.records import Earlier, End, Entry, Pause, Peak, PeakEntry, Telemetry
from mfu_torch.run.sinks import ConsoleSink, Sink


def now(**changes: Any) -> Figures:
    fields: dict[str, Any] = {
        "step": 40,
        "steps": 10,
        "time_s": 3.12,
        "mfu": 0.412,
        "hfu": 0.419,
        "model_flops_per_s": 408e12,
        "tokens_per_s": 13_100.0,
        "samples_per_s": 6.4,
        "step_s": 0.312,
        "data_wait_share": 0.021,
    }
    return Figures(**fields | changes)


def printed(*records: Entry | Figures) -> list[str]:
    stream = io.StringIO()
    sink: Sink = ConsoleSink(stream)
    for record in records:
        sink.write(record)
    sink.close()
    return stream.getvalue().splitlines()


LINE = "step    40  312 ms/step  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s  13.1k tok/s  data wait 2.1 %"


def test_a_window_is_one_line() -> None:
    assert printed(now()) == [LINE]


def test_the_run_begins_with_the_device_the_convention_and_the_peak() -> None:
    lines = printed(header(), peak(), peak(), Pause(name="eval", after_step=1, duration_s=1.0))
    assert lines == [
        "mfu_torch on NVIDIA H100 80GB HBM3, attention full",
        "peak bf16 100 TFLOP/s dense, given: Made-up sheet",
    ]


def test_another_attention_convention_stands_beside_mfu() -> None:
    assert "  MFU(causal) 41.2 %  HFU 41.9 %" in printed(header(attention="causal"), now())[-1]


def test_a_wait_that_was_not_measured_is_not_shown_as_none() -> None:
    assert printed(now(data_wait_share=0.0)) == [LINE.replace("2.1 %", "0.0 %")]
    assert printed(now(data_wait_share=None)) == [LINE.removesuffix("  data wait 2.1 %")]


def test_samples_are_shown_where_tokens_are_not_known() -> None:
    assert "  6.40 samples/s  " in printed(now(tokens_per_s=None))[0]


def test_an_unknown_mfu_is_a_dash_and_its_reason_is_printed_once() -> None:
    unknown = now(mfu=None, hfu=None, absent={"mfu": "no peak for 'RTX 9090'", "hfu": "same"})
    assert printed(unknown, unknown) == [
        "step    40  312 ms/step  MFU -  408 TFLOP/s  13.1k tok/s  data wait 2.1 %",
        "      MFU unknown: no peak for 'RTX 9090'",
        "step    40  312 ms/step  MFU -  408 TFLOP/s  13.1k tok/s  data wait 2.1 %",
    ]


def test_a_window_without_a_steady_step_says_so_and_nothing_else() -> None:
    reason = "no steady step (first step); steps after it have figures"
    compiling = Figures(step=1, steps=0, time_s=0.0, absent={"mfu": reason})
    assert printed(compiling) == [f"step     1  {reason}"]


def test_more_than_the_peak_is_printed_as_measured_with_the_causes_once() -> None:
    above = now(mfu=1.31, hfu=1.31)
    lines = printed(above, above)
    assert lines[0].startswith("step    40  312 ms/step  MFU 131.0 %  HFU 131.0 %")
    indent = 6 * " "
    causes = "the peak of another dtype, a sparse peak, a clock"
    more = "above the rated boost or above that of the measurement, a factor 1000 in the inputs"
    assert lines[1:3] == [
        f"{indent}MFU above 100 % of the peak; likely causes: {causes}",
        f"{indent}{more}",
    ]
    assert lines[3:] == lines[:1]


def test_hardware_flops_above_the_peak_are_remarked_too() -> None:
    assert printed(now(mfu=0.9, hfu=1.1))[1].startswith("      HFU above 100 % of the peak")


def test_figures_that_are_estimated_say_within_how_much_once() -> None:
    remark = "FLOPs are estimated in part, since they depend on data: within 2.3 % of these figures"
    printed_lines = printed(now(uncertainty=0.023), now(uncertainty=0.021))
    assert printed_lines == [LINE, f"      {remark}", LINE]


def test_uncounted_ops_are_printed_once() -> None:
    lines = printed(
        count(0, uncounted={"my::scan": 4}),
        count(1, uncounted={"my::scan": 8}),
        count(2, uncounted={"my::scan": 8, "my::conv": 1}),
        count(3),
    )
    assert lines == [
        "not counted, no FLOP formula: my::scan",
        "not counted, no FLOP formula: my::conv",
    ]


def test_what_has_no_line_of_its_own_prints_nothing() -> None:
    unknown = PeakEntry(dtype="bf16", unknown="new device")
    assert printed(unknown, count(), End(wall_s=1.0, reason="completed")) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 10**40},
        {"step": 10**120},
        {"step_s": 1e9, "mfu": 1e7, "hfu": 1e7, "model_flops_per_s": 1e30, "tokens_per_s": 1e30},
        {"mfu": float("nan"), "hfu": float("inf"), "step_s": float("nan")},
        {"mfu": None, "absent": {"mfu": "because " * 60}},
        {"steps": 0, "absent": {"mfu": "no steady step (" + "x" * 300}},
        {"mfu": None, "absent": {"mfu": "x" * 300}},
        dict.fromkeys(("mfu", "hfu", "step_s", "model_flops_per_s", "tokens_per_s")),
    ],
)
def test_no_line_is_longer_than_100_columns(changes: dict[str, Any]) -> None:
    lines = printed(header(attention="causal"), peak(), now(**changes))
    assert max(map(len, lines)) <= 100


def test_the_last_figures_are_left_out_where_the_line_would_be_too_long() -> None:
    (line,) = printed(now(step=10**40))
    assert line.endswith("  MFU 41.2 %  HFU 41.9 %  408 TFLOP/s")


def test_stdout_is_looked_up_when_it_is_written_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ConsoleSink()
    sink.write(now())
    assert capsys.readouterr().out == LINE + "\n"
    monkeypatch.setattr(sys, "stdout", None)  # a service without a console
    sink.write(now())


def test_what_cannot_be_written_to_is_refused() -> None:
    for stream in (5, "out.txt"):
        with pytest.raises(TypeError, match="expected an open text file, or None for stdout"):
            ConsoleSink(stream)  # type: ignore[arg-type]


def test_a_closed_stream_raises_once_and_is_then_left_alone() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(now())
    sink.write(now())
    sink.write(header())
    sink.close()


def test_a_name_that_the_stream_cannot_encode_is_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    ConsoleSink(stream).write(now(mfu=None, absent={"mfu": "Größe"}))
    assert b"MFU unknown: Gr??e" in raw.getvalue()


def throttled(**shares: float) -> Telemetry:
    return Telemetry(after_step=10, samples=10, time_s=10.0, throttle=shares)


def test_what_holds_the_clock_down_is_said_once() -> None:
    assert printed(
        throttled(thermal=0.05, idle=0.9),
        throttled(thermal=0.1, power=0.87),
        throttled(thermal=0.5, power=0.95),
    ) == [
        "the clock is held down: thermal, 10.0 % of the samples",
        "the clock is held down: power, 87.0 % of the samples",
    ]


def test_a_peak_that_may_be_off_says_by_how_much() -> None:
    off = Peak(
        flops_per_s=130.5e12,
        dtype="fp16",
        source="A sheet",
        provenance="datasheet",
        uncertainty=0.09,
    )
    assert printed(PeakEntry(dtype="fp16", peak=off)) == [
        "peak fp16 130 TFLOP/s dense, datasheet (up to 9.0 % off): A sheet"
    ]


def test_a_run_that_goes_on_says_what_its_end_to_end_mfu_is_over() -> None:
    earlier = Earlier(started="2026-01-01T00:00:00+00:00", wall_s=9.0, steps=40)
    stream = io.StringIO()
    ConsoleSink(stream).write(header(earlier=earlier))
    assert (
        stream.getvalue()
        .splitlines()[1]
        .startswith(
            "resumed after 40 steps: end-to-end MFU is over all attempts, the time between them"
        )
    )
