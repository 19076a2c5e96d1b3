"""The report, block by block, of runs built by hand."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import pytest
from samples import T, count, entries, flop_count, header, peak, run, step, term

from mfu_torch.insight.report import render_report
from mfu_torch.records import (
    Attention,
    CountEntry,
    Device,
    End,
    FlopCount,
    Pause,
    Peak,
    PeakEntry,
    Run,
    Window,
)


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def blocks(of: Run) -> list[str]:
    text = render_report(of)
    assert text.endswith("\n")
    return text[:-1].split("\n\n")


# Worked out in test_figures: steady-state 0.30, end-to-end 5 * 0.30 / 20, causal 0.27, HFU 0.41.
# 40.5 T hardware FLOPs: 10 / 40.5 = 24.7 %, 20 / 40.5 = 49.4 %, 0.5 / 40.5 = 1.2 %.
WHOLE = block(
    """
NVIDIA H100 80GB HBM3 | 5 steps | 20.0 s | completed

MFU           30.0 % steady-state, 7.5 % end-to-end   (attention full; causal: 27.0 %)
HFU           41.0 % steady-state
model         30.0 TFLOP/s per device
throughput    1.00k tokens/s, 2 samples/s
step time     1.00 s mean, 1.10 s p95, over 4 steady steps
data wait     2.0 % of the step time
memory        61.0 GB at its peak

Where the wall time went                                 seconds     share %   MFU gap, points
  steady steps (4)                                          4.00        20.0               0.0
  excluded: first step, compiling (1)                      10.00        50.0              13.5
  pause: init (1)                                           2.00        10.0               3.0
  pause: eval (2)                                           3.00        15.0               4.5
  other                                                     1.00         5.0               1.5
  total                                                    20.00       100.0              22.5

FLOPs per step (5 of 5 steps)
  forward                         10.0 TFLOP (24.7 %)
  backward                        20.0 TFLOP (49.4 %)
  recompute                       10.0 TFLOP (24.7 %)
  optimizer                       500 GFLOP (1.2 %)
  model FLOPs                     30.0 TFLOP   (attention causal: 27.0 TFLOP)
  hardware FLOPs                  40.5 TFLOP
  by dtype                        bf16 40.0 TFLOP (98.8 %), fp32 500 GFLOP (1.2 %)
  how                             counted on the first step as it trained
  left out by definition          1.20G elements of elementwise and reduction ops
  not counted                     nothing: every op that looks like a contraction has a formula

Peaks, dense, per device
  bf16        100 TFLOP/s, given: Made-up sheet
  fp32        50.0 TFLOP/s, given: Made-up sheet
"""
)


def test_a_complete_run_is_reported_whole() -> None:
    assert render_report(Run.from_entries(entries())) == WHOLE + "\n"


def test_the_causal_convention_changes_places_with_the_full_one() -> None:
    # e2e: 5 * 0.27 / 20 = 6.75 %, printed 6.8; HFU 0.37
    lines = blocks(run(header=header(attention="causal")))[1].splitlines()
    assert lines[:3] == [
        "MFU           27.0 % steady-state, 6.8 % end-to-end   (attention causal; full: 30.0 %)",
        "HFU           37.0 % steady-state",
        "model         27.0 TFLOP/s per device",
    ]


@pytest.mark.parametrize("attention", ["full", "causal"])
def test_where_both_conventions_agree_the_other_one_is_not_shown(attention: Attention) -> None:
    terms = (term("forward", 10 * T, 10 * T), term("backward", 20 * T, 20 * T))
    made = blocks(run(header=header(attention=attention), counts={0: count(terms=terms)}))
    # 30 T / 100 T/s = 0.30 s a step of 1 s; 5 * 0.30 / 20
    assert made[1].splitlines()[0] == (
        f"MFU           30.0 % steady-state, 7.5 % end-to-end   (attention {attention})"
    )
    assert "  model FLOPs                     30.0 TFLOP" in made[3].splitlines()


def test_a_run_that_does_not_wait_through_the_meter_has_no_line_on_data() -> None:
    steps = (step(0, 1.0, data_wait_s=None), step(1, 1.0, data_wait_s=None))
    made = blocks(run(windows=(Window(steps=steps, wall_s=2.0),)))
    assert "data wait" not in "\n".join(made)
    assert not made[-1].startswith("Not known")


def test_one_rank_of_many_says_so() -> None:
    title = blocks(run(header=header(rank=3, world_size=8)))[0]
    assert title.splitlines()[1] == "rank 3 of 8: the figures are those of this rank's device"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End(wall_s=20.0, reason="completed"), "20.0 s | completed"),
        (End(wall_s=20.0, reason="KeyboardInterrupt"), "20.0 s | ended by KeyboardInterrupt"),
        (None, "19.0 s | no end record: still running, or its process was killed"),
    ],
)
def test_the_title_says_how_the_run_ended(end: End | None, words: str) -> None:
    assert blocks(run(end=end))[0] == f"NVIDIA H100 80GB HBM3 | 5 steps | {words}"


def test_phases_are_shares_of_the_step_time() -> None:
    steps = (step(0, 1.0, phases={"forward": 0.25, "backward": 0.5}),)
    headline = blocks(run(windows=(Window(steps=steps, wall_s=1.0),)))[1]
    assert "phases        forward 25.0 %, backward 50.0 % of the step time" in headline


def test_the_printed_times_and_shares_sum_to_the_printed_totals() -> None:
    # Three parts of a third each would print as 33.3 + 33.3 + 33.3 = 99.9.
    made = run(
        windows=(Window(steps=(step(0, 100 / 3),), wall_s=100.0),),
        pauses=(Pause(name="eval", after_step=1, duration_s=100 / 3),),
        end=End(wall_s=100.0, reason="completed"),
    )
    rows = [line.split() for line in blocks(made)[2].splitlines()[1:]]
    times = [float(row[-3]) for row in rows]
    shares = [float(row[-2]) for row in rows]
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=1e-9)
    assert times[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(shares[-1], abs=1e-9)
    assert shares[-1] == 100.0


def test_parts_that_are_longer_than_the_wall_time_are_not_hidden() -> None:
    table = blocks(run(end=End(wall_s=18.0, reason="completed")))[2].splitlines()
    assert table[5].split()[:3] == ["other", "-1.00", "-5.6"]  # -1/18
    assert table[7] == "  other is negative: the recorded parts are longer than the wall time"


def test_the_most_frequent_count_is_shown_with_the_number_of_others() -> None:
    terms = (term("given", 6 * T, 6 * T),)
    given = CountEntry(id=1, count=FlopCount(terms=terms, method="given by the user"))
    steps = tuple(step(i, 1.0, count_ids=(0 if i == 0 else i % 2 + 1,)) for i in range(6))
    third = CountEntry(id=2, count=flop_count())
    # ids 0, 2, 1, 2, 1, 2: id 2 on 3 of 6 steps
    made = run(windows=(Window(steps=steps, wall_s=6.0),), counts={0: count(), 1: given, 2: third})
    lines = blocks(made)[3].splitlines()
    assert lines[0] == "FLOPs per step (3 of 6 steps; the others have 2 other counts)"
    # 30 TFLOP on 1 + 3 steps, 6 TFLOP on 2: (4 * 30 + 2 * 6) / 6 = 22
    spread = "  model FLOPs of all steps        6.00 TFLOP to 30.0 TFLOP, mean 22.0 TFLOP"
    assert lines[-2] == spread


def test_given_flops_are_a_phase_of_their_own() -> None:
    terms = (term("given", 6 * T, 6 * T),)
    given = CountEntry(id=0, count=FlopCount(terms=terms, method="given to the meter"))
    assert blocks(run(counts={0: given}))[3] == block(
        """
FLOPs per step (5 of 5 steps)
  given                           6.00 TFLOP (100.0 %)
  model FLOPs                     6.00 TFLOP
  hardware FLOPs                  6.00 TFLOP
  by dtype                        bf16 6.00 TFLOP (100.0 %)
  how                             given to the meter
  not counted                     nothing: every op that looks like a contraction has a formula
"""
    )


def test_uncounted_ops_are_listed_with_the_line_that_counts_them() -> None:
    uncounted = count(uncounted={"my::scan": 4, "my::conv": 1})
    lines = blocks(run(counts={0: uncounted}))[3].splitlines()
    assert lines[-2:] == [
        f"{'  not counted':34}my::scan (4 calls a step), my::conv (1 call a step); MFU is a",
        f"{'':34}lower bound -> mfu_torch.register_flops(op, formula)",
    ]


def test_notes_of_counts_of_the_run_and_of_the_reader_are_listed_once() -> None:
    made = run(
        counts={0: count(notes=("An upper bound.",)), 1: count(1, notes=("An upper bound.",))},
        end=End(wall_s=20.0, reason="completed", notes=("A sink failed.",)),
        notes=("line 7 is cut short and was left out",),
    )
    assert blocks(made)[-1] == block(
        """
Notes
  - An upper bound.
  - A sink failed.
  - line 7 is cut short and was left out
"""
    )


def test_an_unknown_peak_is_explained_with_the_line_that_supplies_it() -> None:
    unknown = {"bf16": PeakEntry(dtype="bf16", unknown="no peak for 'RTX 9090' bf16")}
    made = blocks(run(peaks=unknown))
    assert made[1].splitlines()[:3] == [
        "MFU           - steady-state, - end-to-end   (attention full)",
        "HFU           - steady-state",
        "model         30.0 TFLOP/s per device",
    ]
    assert made[2].splitlines()[1].split() == ["steady", "steps", "(4)", "4.00", "20.0", "-"]
    assert made[4:] == [
        "Peaks, dense, per device\n  bf16        unknown: no peak for 'RTX 9090' bf16",
        "Not known\n  MFU, HFU, end-to-end MFU: no peak for 'RTX 9090' bf16 -> "
        'Meter(..., peak="... TFLOP/s")',
    ]


def test_a_reason_that_names_the_remedy_is_not_given_another() -> None:
    unknown = {"bf16": PeakEntry(dtype="bf16", unknown="new device; pass peak=")}
    assert blocks(run(peaks=unknown))[-1].endswith("end-to-end MFU: new device; pass peak=")


def test_an_unknown_count_is_explained_with_the_line_that_supplies_it() -> None:
    made = blocks(run(counts={0: CountEntry(id=0, unknown="the count failed: KeyError")}))
    assert made[3] == "FLOPs per step: not known (5 of 5 steps)"
    assert made[-1] == block(
        """
Not known
  MFU, HFU, end-to-end MFU, model FLOP/s: the count failed: KeyError -> Meter(..., flops={"bf16":
    MODEL_FLOPS_PER_STEP})
"""
    )


def test_a_missing_throughput_names_the_line_that_supplies_it() -> None:
    steps = (step(0, 1.0, tokens=None, samples=None),)
    made = blocks(run(windows=(Window(steps=steps, wall_s=1.0),)))
    assert "throughput  " not in made[1]
    assert made[-1] == block(
        """
Not known
  throughput: Meter.step was not given tokens= -> with meter.step(tokens=n, samples=b):
"""
    )


def test_samples_alone_are_throughput_enough() -> None:
    steps = (step(0, 1.0, tokens=None),)
    made = blocks(run(windows=(Window(steps=steps, wall_s=1.0),)))
    assert "throughput    2 samples/s" in made[1]
    assert not made[-1].startswith("Not known")


def test_more_than_the_peak_is_reported_as_measured_with_the_likely_causes() -> None:
    # at 20 TFLOP/s the 30 T of a 1 s step are 150 %
    lines = blocks(run(peaks={"bf16": peak("bf16", 20e12), "fp32": peak("fp32")}))[1].splitlines()
    assert lines[0].startswith("MFU           150.0 % steady-state, 37.5 % end-to-end")
    indent = 14 * " "
    assert lines[2:5] == [
        indent
        + "above 100 % of the peak; likely causes: the peak of another dtype, a sparse peak, a",
        indent
        + "clock above the rated boost or above that of the measurement, a factor 1000 in the",
        indent + "inputs",
    ]


def test_a_run_without_steps_shows_where_its_time_went() -> None:
    made = run(windows=(), pauses=run().pauses[:1], counts={}, peaks={})
    assert render_report(made) == (
        block(
            """
NVIDIA H100 80GB HBM3 | 0 steps | 20.0 s | completed

MFU           - steady-state, - end-to-end   (attention full)
HFU           - steady-state

Where the wall time went                                 seconds     share %   MFU gap, points
  steady steps (0)                                          0.00         0.0                 -
  pause: init (1)                                           2.00        10.0                 -
  other                                                    18.00        90.0                 -
  total                                                    20.00       100.0                 -

Not known
  MFU, HFU, end-to-end MFU, model FLOP/s: no step is recorded
"""
        )
        + "\n"
    )


def test_a_run_that_has_only_begun_has_a_report() -> None:
    assert render_report(Run(header=header())) == (
        block(
            """
NVIDIA H100 80GB HBM3 | 0 steps | 0 s | no end record: still running, or its process was killed

MFU           - steady-state, - end-to-end   (attention full)
HFU           - steady-state

Not known
  MFU, HFU, end-to-end MFU, model FLOP/s: no step is recorded
"""
        )
        + "\n"
    )


def test_a_run_of_excluded_steps_has_an_end_to_end_mfu_only() -> None:
    steps = (step(0, 2.0, excluded="first step"), step(1, 1.0, excluded="shapes changed"))
    made = blocks(
        run(windows=(Window(steps=steps, wall_s=3.0),), pauses=(), end=None)
    )  # end-to-end: 2 * 0.30 / 3 = 20 %
    assert made[1].splitlines() == [
        "MFU           - steady-state, 20.0 % end-to-end   (attention full)",
        "HFU           - steady-state",
    ]
    rows = [line.split("  ") for line in made[2].splitlines()[1:4]]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["steady steps (0)", "0.0000", "0.0", "-"],
        ["excluded: first step (1)", "2.0000", "66.7", "-"],
        ["excluded: shapes changed (1)", "1.0000", "33.3", "-"],
    ]
    assert made[-1] == block(
        """
Not known
  MFU, HFU, model FLOP/s: no steady step (shapes changed); steps after it have figures
"""
    )


@dataclass
class Long:
    """Texts as long as they come, with and without spaces."""

    words: str = "a very long text " * 20
    word: str = "x" * 300


@pytest.mark.parametrize("text", [Long.words, Long.word])
def test_no_line_is_longer_than_100_columns(text: str) -> None:
    device = Device(name=text, kind="cuda")
    sourced = Peak(flops_per_s=1e12, dtype="bf16", source=text, provenance="datasheet")
    steps = (step(0, 1e9, excluded=text), step(1, 1e9, phases={text: 1.0}, tokens=10**30))
    made: dict[str, Any] = {
        "header": header(device=device, attention="causal", rank=99_999, world_size=100_000),
        "peaks": {"bf16": PeakEntry(dtype="bf16", peak=sourced), "fp32": peak("fp32")},
        "counts": {0: count(method=text, notes=(text,), uncounted={text: 10**9})},
        "windows": (Window(steps=steps, wall_s=3e9, memory_bytes=10**20),),
        "pauses": (Pause(name=text, after_step=1, duration_s=1e8),),
        "end": End(wall_s=4e9, reason=text, notes=(text,)),
        "notes": (text,),
    }
    unknown = {0: CountEntry(id=0, unknown=text)}
    for variant in ({}, {"peaks": {"bf16": PeakEntry(dtype="bf16", unknown=text)}}):
        report = render_report(Run(**made | variant))
        assert max(map(len, report.splitlines())) <= 100
    report = render_report(Run(**made | {"counts": unknown}))
    assert max(map(len, report.splitlines())) <= 100


def test_an_estimate_says_how_far_off_the_figures_may_be() -> None:
    sure, about = count(0), count(1, uncertainty=0.08)
    steps = (step(0, 1.0), step(1, 1.0, count_ids=(1,)))
    found = run(counts={0: sure, 1: about}, windows=(Window(steps=steps, wall_s=2.0),), pauses=())
    # Half of the FLOPs are counted, the other half may be 8 % off.
    assert "FLOPs are estimated in part, since they depend on data: within 4.0 %" in (
        render_report(found)
    )
    assert "estimated in part" not in render_report(run())
