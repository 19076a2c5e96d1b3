"""What to fix first: one answer, decided by what can be gained."""

from __future__ import annotations

from typing import Any

import pytest
from breakdowns import breakdown
from msgspec.structs import replace
from samples import T, count, flop_count, run, step, term

from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.advice import Advice, advice
from mfu_torch.insight.html.page import render_page
from mfu_torch.insight.report import render_report
from mfu_torch.insight.summary import summary
from mfu_torch.records import Run, Telemetry, Window
from mfu_torch.records.breakdown import BreakdownEntry
from mfu_torch.step_parts import PARTS, SplitSteps

NO_RECOMPUTE = flop_count(terms=(term("forward", 10 * T, 9 * T), term("backward", 20 * T, 18 * T)))


def split(**changes: Any) -> SplitSteps:
    """Ten steps of 1 s; what is changed is taken from the backward.

    To be gained, beside 75 % of the peak: forward 0.35 (1 - 40/75) / 2 = 8.2 %, backward
    0.5 (1 - 50/75) / 2 = 8.3 %, optimizer 2.5 %, waiting 2 %, rest 5 %, between the steps 3 %.
    """
    parts_s = dict(zip(PARTS, (3.0, 0.5, 5.0, 0.5, 0.2, 0.5, 0.3), strict=True))
    made = SplitSteps(
        steps=10, time_s=10.0, parts_s=parts_s, of_peak={"forward": 0.4, "backward": 0.5}
    )
    changed = {name: changes.pop(name) for name in PARTS if name in changes}
    rest = sum(parts_s[name] - part_s for name, part_s in changed.items())
    parts_s |= {"backward": parts_s["backward"] + rest} | changed
    assert sum(parts_s.values()) == pytest.approx(10.0)
    return replace(made, **changes)


def figures_of(found: SplitSteps | None, **changes: Any) -> Figures:
    known: dict[str, Any] = {"step": 10, "steps": 10, "time_s": 10.0, "step_s": 1.0}
    return Figures(**known | {"mfu": 0.3, "hfu": 0.3, "split": found} | changes)


def run_of(steps: int = 100, util: float | None = None, **changes: Any) -> Run:
    made = tuple(step(i, 1.0) for i in range(steps))
    fields: dict[str, Any] = {
        "windows": (Window(steps=made, wall_s=float(steps)),),
        "counts": {0: count(terms=NO_RECOMPUTE.terms)},
        "pauses": (),
    }
    if util is not None:
        seen = Telemetry(after_step=steps, samples=9, time_s=9.0, gpu_util=util)
        fields["telemetry"] = (seen,)
    return run(**fields | changes)


def entry(parts: dict[str, int], slowed: float = 1.0, **more: Any) -> BreakdownEntry:
    found = breakdown(parts, **more)
    return BreakdownEntry(
        after_step=14, steps=(11, 12), breakdown=found, traced_s=slowed, untraced_s=1.0
    )


def first(found: SplitSteps | None, of: Run | None = None, **changes: Any) -> Advice:
    made = advice(of or run_of(), figures_of(found, **changes))
    assert made is not None
    return made


def test_size_decides_and_not_order() -> None:
    found = first(split(optimizer=4.2, data_wait=0.6))  # 42 %, of which half counts, beside 6 %
    assert found.name == "optimizer" and found.share == pytest.approx(0.21)
    assert found.text.startswith("optimizer is 42.0 % of the step time (420 ms a step): fused=True")
    assert "foreach=True" in found.text and "fewer steps" in found.text
    assert first(split(data_wait=2.2, optimizer=4.2)).name == "data_wait"


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("data_wait", "waiting for data is 10.0 % of the step time (100 ms a step): more loader"),
        ("between", "the time between the steps is 10.0 % of the step time (100 ms a step): see"),
        ("rest", "the rest of the step is 10.0 % of the step time (100 ms a step): making or"),
    ],
)
def test_what_can_go_to_zero_counts_in_full(part: str, says: str) -> None:
    found = first(split(**{part: 1.0}))
    assert (found.name, found.share) == (part, pytest.approx(0.1))
    assert found.text.startswith(says)


def test_a_part_that_computes_counts_half_of_what_good_kernels_would_not_need() -> None:
    found = first(split())
    assert found.name == "backward"
    assert found.share == pytest.approx(0.5 * (1 - 0.5 / 0.75) / 2)
    better = first(split(of_peak={"forward": 0.4, "backward": 0.6}))
    assert better.text.startswith("forward with the loss is 35.0 % of the step time, at 40.0 %")


def test_waits_that_are_not_measured_may_be_between_the_steps() -> None:
    made = split(between=2.0, data_wait=0.0)
    del made.parts_s["data_wait"]
    assert first(made).text.endswith("meter.pause, waiting for data into meter.data")


def test_where_all_parts_are_near_the_peak_nothing_stands_out() -> None:
    near = split(rest=0.3, of_peak={"forward": 0.7, "backward": 0.72})
    assert first(near) == Advice(
        "",
        0.0,
        "nothing stands out: forward runs at 70.0 % of the peak and backward runs at 72.0 % of the "
        "peak, and no wait or other loss is worth 5 % of the step time",
    )


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (1000, "; Meter(explain_every=100) says which ops it goes to"),
        (40, "; Meter(explain_every=10) says which ops it goes to"),
        (12, "; Meter(explain_every=10), in a run of 15 steps or more, says which ops it goes to"),
    ],
)
def test_explain_every_is_advised_with_a_number_that_fits_the_run(steps: int, says: str) -> None:
    assert first(split(), run_of(steps)).text.endswith(says)


def test_on_a_gpu_it_says_which_kernels() -> None:
    found = first(split(lead_s=0.2, lead_most_s=0.3))
    assert found.text.endswith("says which kernels it goes to")


# --- loss, recompute, phases ---------------------------------------------------------------------


def test_a_slow_loss_is_named_though_it_is_shorter_than_the_forward() -> None:
    found = first(split(loss=2.7))
    assert (found.name, found.share) == ("loss", pytest.approx(0.27))
    assert found.text.startswith(
        "the loss is 27.0 % of the step time (270 ms a step), from the end of the forward (300 ms)"
    )


def test_a_loss_whose_products_explain_it_is_not_named() -> None:
    # Were all FLOPs of both its own, the forward would run at 0.6 * 5.7 / 3 = 114 % of the peak.
    assert first(split(loss=2.7, of_peak={"forward": 0.6, "backward": 0.5})).name != "loss"


def test_beside_a_loss_the_forward_is_judged_by_itself() -> None:
    # Forward alone 0.2 * 5.7 / 3 = 38 %: 0.3 (1 - 38/75) / 2 = 7.4 %, and the loss 27 %.
    assert first(split(loss=2.7, of_peak={"forward": 0.2, "backward": 0.7})).name == "loss"
    assert first(split(loss=0.9, of_peak={"forward": 0.2, "backward": 0.7})).text.startswith(
        "forward with the loss is 39.0 %"
    )


def test_recompute_is_told_with_what_it_costs_in_time() -> None:
    # 10 T are recomputed of a forward of 10 T, so it costs 3 s of 10: the forward's time.
    found = first(split(), run_of(counts={0: count()}), hfu=0.41)
    assert (found.name, found.share) == ("recompute", pytest.approx(0.3))
    assert found.text == (
        "24.7 % of the FLOPs run a second time in the backward (HFU 41.0 %, MFU 30.0 %), about "
        "300 ms a step (30.0 %), if it takes as long as in the forward: checkpoint fewer layers, "
        "selective checkpointing, a larger memory budget"
    )


def test_the_rest_is_told_by_the_phase_that_explains_it() -> None:
    found = first(split(rest=2.0), phases={"clip": 0.15, "forward": 0.4, "metrics": 0.05})
    assert found.text == (
        "the rest of the step is 20.0 % of the step time (200 ms a step), and your phase 'clip' "
        "takes 150 ms a step: look at what is in it"
    )
    assert "meter.phase says which" in first(split(rest=2.0), phases={"clip": 0.09}).text


# --- a GPU and its host --------------------------------------------------------------------------


def test_a_gpu_that_has_nothing_queued_waits_for_the_host() -> None:
    found = first(split(lead_s=0.001, lead_most_s=0.019), run_of(util=0.6))
    # Of the time inside of the steps without waiting for data, 95 %, 60 % were busy.
    assert (found.name, found.share) == ("launch_bound", pytest.approx(0.35))
    assert found.text.startswith(
        "the GPU waits for the host: at most 19.0 ms of work was seen queued in steps of 1.00 s, "
        "and GPU-Util is 60.0 %. A larger batch"
    )
    assert first(split(lead_s=0.0, lead_most_s=0.02), run_of(util=0.6)).name == "backward"


def test_it_is_not_said_of_a_gpu_that_is_busy_nor_of_a_cpu() -> None:
    bound = split(lead_s=0.0, lead_most_s=0.0)
    assert first(bound, run_of(util=0.98)).name == "backward"
    assert first(split(), run_of(util=0.5)).name == "backward"
    assert "(unless GPU-Util is near 100 %)" in first(bound).text


def test_a_queue_that_is_empty_at_the_end_of_the_step_was_waited_for() -> None:
    waits = split(lead_s=0.019, lead_most_s=0.1)
    found = first(waits, run_of(util=0.8))
    assert (found.name, found.share) == ("host_sync", pytest.approx(0.15))
    assert found.text.startswith(
        "something at the end of the step waits for the GPU: 100 ms of work is queued within it, "
        "and 19.0 ms when the loop leaves it. .item(), "
    )


# --- what is not known ---------------------------------------------------------------------------


def test_without_a_rate_a_part_is_named_only_where_no_gain_is_known() -> None:
    unknown = split(of_peak={}, absent="the peak of bf16 is not known", rest=0.4)
    found = first(unknown)
    assert (found.name, found.share) == ("backward", None)
    assert "how near the peak that is, is not known (the peak of bf16 is not known)" in found.text
    assert first(split(of_peak={}, data_wait=0.6)).name == "data_wait"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert advice(run_of(), figures_of(None)) is None
    parts_s = {"backward": 3.0, "optimizer": 0.5, "rest": 6.2, "between": 0.3}
    unseen = SplitSteps(steps=10, time_s=10.0, parts_s=parts_s)
    assert advice(run_of(), figures_of(unseen)) is None  # the rest is the forward


# --- with a trace --------------------------------------------------------------------------------


def test_a_wait_that_both_see_is_named_once_and_the_trace_deepens_it() -> None:
    hint = {"idle/data_wait": 60, "other_compute": 80, "matrix/model_flops": 140}
    found = first(split(data_wait=2.0), run_of(breakdowns=(entry(hint),)))
    assert found.name == "data_wait"
    assert found.text.endswith(
        "cheaper transforms. In the traced steps 11-12, idle: data wait: The loop waits for its "
        "loader: raise num_workers (now 0)."
    )


def test_other_compute_that_is_larger_does_not_win_over_a_wait() -> None:
    # 24 % of other compute count 12 %, and 20 % of waiting count in full.
    traced = entry({"other_compute": 24, "idle/data_wait": 20, "matrix/model_flops": 56})
    assert first(split(data_wait=2.0), run_of(breakdowns=(traced,))).name == "data_wait"


def test_forward_and_backward_give_way_to_what_the_trace_says_of_them() -> None:
    traced = entry({"other_compute": 60, "matrix/model_flops": 40})
    found = first(split(), run_of(breakdowns=(traced,)))
    assert found.name == "other_compute"
    assert found.text == (
        "other compute in the traced steps 11-12 is 60.0 % of their time. Of the parts of a step, "
        "backward is 50.0 % of the step time, at 50.0 % of the peak"
    )
    idle = entry({"exposed_communication": 60, "matrix/model_flops": 40})
    assert "Of the parts" not in first(split(), run_of(breakdowns=(idle,))).text


def test_where_the_host_is_slow_the_part_says_where() -> None:
    traced = entry({"idle/unknown": 40, "matrix/model_flops": 60})
    found = first(split(loss=2.7), run_of(breakdowns=(traced,)))
    assert found.name == "loss" and "In the traced steps 11-12, idle: cause" not in found.text
    # Nothing of the parts is half as large: the trace has the word.
    assert first(split(), run_of(breakdowns=(traced,))).name == "idle/unknown"


def test_what_tracing_took_does_not_count() -> None:
    # Twice as long: half of the time is from tracing, and all idle time of unknown cause with it.
    parts = {"idle/unknown": 50, "matrix/model_flops": 50}
    found = first(split(rest=0.9), run_of(breakdowns=(entry(parts, slowed=2.0),)))
    assert found.name == "rest"
    # On a CPU the ops are slower, too: 40 % of 80 % are left, 16 of 100.
    parts = {"other_compute": 40, "idle/unknown": 40, "matrix/model_flops": 20}
    slow = entry(parts, slowed=1 / (1 - 0.48), device=None)
    found = first(split(rest=0.4), run_of(breakdowns=(slow,)))
    assert (found.name, found.share) == ("idle/unknown", pytest.approx(0.16))


def test_matrix_time_that_nobody_can_judge_is_said_to_be_unknown() -> None:
    traced = entry({"matrix": 97, "other_compute": 3}, peak=None)
    found = first(split(rest=0.4), run_of(breakdowns=(traced,)))
    assert (found.name, found.share) == ("matrix", None)
    assert found.text.startswith("not known. 97.0 % of the time is in matrix kernels")


# --- in the report -------------------------------------------------------------------------------


def test_a_report_says_it_once_right_under_the_headline() -> None:
    traced = entry({"other_compute": 60, "matrix/model_flops": 40})
    report = render_report(run_of(breakdowns=(traced,)))
    assert report.lower().count("fix first") == 1
    assert report.split("\n\n")[2].startswith("Fix first: other compute in the traced steps 11-12")


def test_the_page_has_it_in_a_box_under_the_title() -> None:
    page = render_page(run_of(breakdowns=(entry({"other_compute": 60, "matrix": 40}),)))
    body = page.partition("<h1>")[2]
    box = '</h1><p class="first"><strong>Fix first</strong>Other compute in the traced'
    assert box in body.replace("\n", "")
    shown = body.partition("<h2>Everything</h2>")[0]
    assert shown.lower().count("fix first") == 1


def test_programs_get_it_too() -> None:
    made = run_of(breakdowns=(entry({"other_compute": 60, "matrix/model_flops": 40}),))
    found = advice(made, run_figures(made))
    assert found is not None
    assert summary(made)["fix_first"] == {
        "name": "other_compute",
        "share": found.share,
        "text": found.text,
    }
    assert summary(run())["fix_first"] is None


def test_a_traced_run_that_is_not_split_and_has_nothing_to_gain_says_so() -> None:
    traced = run_of(breakdowns=(entry({"matrix/model_flops": 990, "idle/device_gap": 10}),))
    found = advice(traced, figures_of(None))
    assert found == Advice(
        "", 0.0, "nothing stands out: no wait or other loss is worth 5 % of the step time"
    )
