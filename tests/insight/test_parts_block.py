"""Where a step's time goes, in the report: rows that add up, and one piece of advice."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from samples import header, run, step

from mfu_torch.figures import run_figures
from mfu_torch.insight.html.page import render_page
from mfu_torch.insight.parts_block import NAMES, fix_first, lead_text, parts_block, parts_rows
from mfu_torch.insight.report import render_report
from mfu_torch.records import Run, Step, StepParts, Telemetry, Window
from mfu_torch.step_parts import PARTS, SplitSteps


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def parts(**changes: Any) -> StepParts:
    """Of a step of 1 s, with 0.02 s of waiting in its tail, 0.05 s are left: the rest."""
    fields: dict[str, Any] = {
        **{"forward_s": 0.30, "loss_s": 0.05, "backward_s": 0.50, "optimizer_s": 0.06},
        **{"tail_s": 0.04, "lead_s": 0.2, "lead_most_s": 0.3},
    }
    return StepParts(**fields | changes)


def split_step(index: int = 0, duration_s: float = 1.0, **changes: Any) -> Step:
    return step(index, duration_s, parts=parts(**changes))


def run_of(*steps: Step, **changes: Any) -> Run:
    wall_s = sum(one.duration_s for one in steps)
    return run(**{"windows": (Window(steps=steps, wall_s=wall_s),), "pauses": (), **changes})


def split(**changes: Any) -> SplitSteps:
    """Ten steps of 1 s with nothing that stands out; what is changed is taken from the backward.

    Below the peak: forward 3.5 * 0.6 = 2.1 s, backward 5.0 * 0.5 = 2.5 s, optimizer 0.5 s.
    """
    parts_s = dict(zip(PARTS, (3.0, 0.5, 5.0, 0.5, 0.2, 0.5, 0.3), strict=True))
    of_peak = {"forward": 0.4, "backward": 0.5}
    made = SplitSteps(steps=10, time_s=10.0, parts_s=parts_s, of_peak=of_peak)
    changed = {name: changes.pop(name) for name in PARTS if name in changes}
    rest = sum(parts_s[name] - part_s for name, part_s in changed.items())
    parts_s |= {"backward": parts_s["backward"] + rest} | changed
    assert sum(parts_s.values()) == pytest.approx(10.0)
    return replace(made, **changes)


# --- the block -----------------------------------------------------------------------------------

# HFU, at 100 TFLOP/s bf16 and 50 TFLOP/s fp32: forward and loss 10 T in 0.35 s, so
# 0.1 / 0.35 = 28.6 %; backward 20 T and 10 T recomputed in 0.5 s: 60 %; optimizer 0.5 T in
# 0.06 s: 0.01 / 0.06 = 16.7 %.
BLOCK = block(
    """
Where a step's time goes                             ms per step     share %         of peak %
  forward                                                  300.0        30.0              28.6
  loss, from forward to backward                            50.0         5.0      with forward
  backward                                                 500.0        50.0              60.0
  optimizer                                                 60.0         6.0              16.7
  waiting for data                                          20.0         2.0                 -
  rest of the step                                          50.0         5.0                 -
  between the steps                                         20.0         2.0                 -
  total                                                   1000.0       100.0                 -
  2 of 2 steady steps split
  when the loop leaves a step, at least 200 ms of work is queued on the GPU; within a step, up to
    300 ms (means)
  fix first: forward with the loss is 35.0 % of the step time, at 28.6 % of the peak;
    Meter(explain_every=1000) says which kernels it goes to
"""
)


def test_the_block_stands_between_the_wall_time_and_the_flops() -> None:
    blocks = render_report(run_of(split_step(0), split_step(1))).split("\n\n")
    at = blocks.index(BLOCK)
    assert blocks[at - 1].startswith("Where the wall time went")
    assert blocks[at + 1].startswith("FLOPs per step")


def test_shares_and_times_sum_to_the_printed_totals() -> None:
    # Thirds of 1 s, of which each would print as 333.3 and 33.3.
    third = parts(forward_s=1 / 3, loss_s=0.0, backward_s=1 / 3, optimizer_s=1 / 3, tail_s=0.0)
    made = run_of(step(0, 1.0, parts=third, data_wait_s=None))
    found = run_figures(made).split
    assert found is not None
    *rows, total = parts_rows(found)
    assert total[1:3] == ("1000.0", "100.0")
    assert sum(float(row[1]) for row in rows) == pytest.approx(1000.0, abs=1e-9)
    assert sum(float(row[2]) for row in rows) == pytest.approx(100.0, abs=1e-9)


def test_short_steps_have_more_decimals() -> None:
    rows = parts_rows(SplitSteps(steps=2, time_s=0.003, parts_s={"backward": 0.003}))
    assert [row[1] for row in rows] == ["1.5000", "1.5000"]
    rows = parts_rows(SplitSteps(steps=2, time_s=0.03, parts_s={"backward": 0.03}))
    assert [row[1] for row in rows] == ["15.00", "15.00"]


def test_what_no_step_had_has_no_row_but_a_wait_of_nothing_has() -> None:
    rows = parts_rows(split(optimizer=0.0, data_wait=0.0))
    assert [row[0] for row in rows] == [
        "forward", "loss, from forward to backward", "backward", "waiting for data",
        "rest of the step", "between the steps", "total",
    ]  # fmt: skip


def test_steps_that_were_not_split_are_told_of() -> None:
    lines = render_report(run_of(split_step(0), step(1, 1.0), step(2, 1.0))).splitlines()
    assert "  1 of 3 steady steps split; where steps are short, not all are" in lines


def test_without_peaks_there_is_no_column_for_them() -> None:
    lines = render_report(run_of(split_step(), peaks={})).splitlines()
    (title,) = [line for line in lines if line.startswith("Where a step's time")]
    assert title.split()[-2:] == ["share", "%"]
    assert "  backward                                                 500.0        50.0" in lines


def test_on_the_cpu_there_is_no_lead_and_ops_take_the_place_of_kernels() -> None:
    made = run_of(split_step(lead_s=None, lead_most_s=None))
    words = "\n".join(parts_block(made, run_figures(made)))
    assert "when the loop leaves" not in words and "kernels" not in words
    assert words.endswith("Meter(explain_every=1000) says which ops it goes to")


def test_a_lead_without_the_most_of_it_is_a_sentence_too() -> None:
    assert lead_text(split(lead_s=0.01)) == (
        "when the loop leaves a step, at least 10.0 ms of work is queued on the GPU"
    )


def test_nothing_is_printed_where_nothing_is_known() -> None:
    assert "Where a step's time" not in render_report(run())
    assert "Where a step's time" not in render_page(run())
    # A loop of forwards without a model: all of it would be the rest.
    nothing = {"forward_s": None, "loss_s": None, "backward_s": 0.0, "optimizer_s": 0.0}
    report = render_report(run_of(split_step(**nothing)))
    assert "Where a step's time" not in report and "Not known" not in report


def test_the_page_has_a_bar_for_every_part() -> None:
    made = run_of(split_step())
    page = render_page(made)
    section = page.partition("Where the time of a step went")[2].partition("</section>")[0]
    assert section.count("<rect") == len(PARTS)
    # 35 % come before the backward, which is half of the step.
    assert '<rect class="b2" x="350" y="0" width="500"' in section.replace(".0", "")
    assert "fix first" in section


def test_the_documentation_explains_every_row_and_no_other() -> None:
    page = Path(__file__).parents[2] / "docs" / "reading-the-numbers.md"
    section = page.read_text(encoding="utf-8").partition("## Where a step's time goes")[2]
    table = section.partition("| row | what is in it |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == list(NAMES.values())
    assert tuple(NAMES) == PARTS


# --- what is not known ---------------------------------------------------------------------------

SYNC = "host clock, cuda synchronised at every mark"


def not_known(of: Run) -> str:
    return render_report(of).partition("Not known\n")[2]


def test_a_synchronised_run_says_why_its_steps_were_not_split() -> None:
    made = run_of(step(0, 1.0), header=header(clock=SYNC))
    assert not_known(made) == (
        "  where a step's time goes: every mark of Meter(sync=True) stalls the device, so steps "
        "are not split\n    -> Meter(sync=False)\n"
    )


def test_no_reason_is_given_where_nothing_can_be_done() -> None:
    assert not_known(run_of(step(0, 1.0))) == ""  # short, or on another device
    excluded = step(0, 1.0, excluded="first step")
    # No whole window of steady steps: there was hardly a step to be split.
    made = run_of(excluded, step(1, 1.0), header=header(clock=SYNC))
    assert "where a step's time goes" not in not_known(made)


def test_a_forward_that_was_not_seen_is_told_with_the_line_that_shows_it() -> None:
    unseen = split_step(forward_s=None, loss_s=None)
    assert not_known(run_of(unseen)) == (
        "  forward and loss: no forward call of the model was seen in at least one step -> "
        "Meter(model), with\n    the one that the loop calls\n"
    )
    assert not_known(run_of(split_step())) == ""


def test_a_model_that_is_never_called_is_told_even_where_nothing_else_was_seen() -> None:
    nothing = {"forward_s": None, "loss_s": None, "backward_s": 0.0, "optimizer_s": 0.0}
    made = run_of(split_step(**nothing), header=header(model="GPT"))
    assert not_known(made).startswith("  forward and loss: no forward call")


# --- what to fix first ---------------------------------------------------------------------------


def test_the_part_with_the_most_time_below_its_peak_is_the_last_resort() -> None:
    assert fix_first(split()) == (
        "backward is 50.0 % of the step time, at 50.0 % of the peak; Meter(explain_every=1000) "
        "says which ops it goes to"
    )
    # forward 3.5 * 0.6 = 2.1 s below the peak, backward 5.0 * 0.2 = 1.0 s
    better = split(of_peak={"forward": 0.4, "backward": 0.8})
    assert fix_first(better).startswith("forward with the loss is 35.0 % of the step time, at 40.0")


def test_after_a_trace_the_breakdown_below_is_named_in_place_of_the_argument() -> None:
    assert fix_first(split(), traced=True).endswith(
        "the traced steps below say which ops it goes to"
    )


def test_an_optimizer_without_matrix_products_is_all_below_the_peak() -> None:
    found = fix_first(split(optimizer=2.5))  # backward 3.0 * 0.5 = 1.5 s, forward 2.1 s
    assert found.startswith(
        "optimizer is 25.0 % of the step time: fused=True where it has that, or larger batches; "
    )


def test_where_all_parts_are_near_the_peak_there_is_no_advice() -> None:
    parts_s = {"forward": 3.0, "loss": 0.5, "backward": 6.0, "optimizer": 0.2, "rest": 0.3}
    near = split(of_peak={"forward": 0.9, "backward": 0.95})  # 0.35 s and 0.3 s: below 5 %
    near = replace(near, parts_s=parts_s | {"between": 0.0})
    assert fix_first(near) == ""
    # 1.05 s of 10 s
    assert fix_first(replace(near, of_peak={"forward": 0.7, "backward": 0.95}))


def test_a_wait_for_data_of_a_twentieth_comes_first() -> None:
    assert fix_first(split(data_wait=0.5)) == (
        "waiting for data is 5.0 % of the step time (50.0 ms a step): more loader workers, "
        "prefetching, cheaper transforms"
    )
    assert "waiting" not in fix_first(split(data_wait=0.49))


def test_a_tenth_between_the_steps_comes_first() -> None:
    assert fix_first(split(between=1.0)) == (
        "the time between the steps is 10.0 % of the step time (100 ms a step): see what the loop "
        "does there (logging, schedules, metrics); evaluation and checkpoints belong into "
        "meter.pause"
    )
    assert "between" not in fix_first(split(between=0.99))


def test_where_waits_are_not_measured_they_may_be_between_the_steps() -> None:
    unknown = split(between=1.0)
    parts_s = {name: part_s for name, part_s in unknown.parts_s.items() if name != "data_wait"}
    assert fix_first(replace(unknown, parts_s=parts_s, time_s=9.8)).endswith(
        "meter.pause, waiting for data into meter.data"
    )


@pytest.mark.parametrize(
    ("wait_s", "between_s", "first"),
    [(0.6, 1.2, "the time between"), (1.2, 1.0, "waiting"), (0.6, 0.9, "waiting")],
)
def test_of_both_the_larger_one_is_named(wait_s: float, between_s: float, first: str) -> None:
    assert fix_first(split(data_wait=wait_s, between=between_s)).startswith(first)


def test_a_gpu_that_has_nothing_queued_waits_for_the_host() -> None:
    bound = split(lead_s=0.001, lead_most_s=0.019)  # of steps of 1 s
    assert fix_first(bound, gpu_util=0.6).startswith(
        "the GPU waits for the host: at most 19.0 ms of work was seen queued in steps of 1.00 s, "
        "and GPU-Util is 60.0 %. A larger batch"
    )
    # Two hundredths of the step are queued: so it does not always wait.
    assert "host" not in fix_first(split(lead_s=0.001, lead_most_s=0.02), gpu_util=0.6)


def test_it_is_not_said_of_the_cpu_nor_of_a_gpu_that_is_busy() -> None:
    assert "host" not in fix_first(split())
    bound = split(lead_s=0.0, lead_most_s=0.0)
    assert "host" not in fix_first(bound, gpu_util=0.98)
    assert "host" in fix_first(bound, gpu_util=0.97)
    assert "waits for the host (unless GPU-Util is near 100 %): at most" in fix_first(bound)


def test_gpu_util_comes_from_the_samples_of_the_run() -> None:
    made = run_of(*(split_step(i, lead_s=0.0, lead_most_s=0.0) for i in range(2)))
    for util, said in ((0.7, True), (0.99, False)):
        seen = Telemetry(after_step=2, samples=2, time_s=2.0, gpu_util=util)
        report = render_report(replace(made, telemetry=(seen,)))
        assert ("the GPU waits for the host: at most 0 s of work" in report) is said


def test_a_rest_of_a_tenth_is_named_with_what_is_in_it() -> None:
    assert fix_first(split(rest=1.0)) == (
        "the rest of the step is 10.0 % of the step time (100 ms a step): making or copying the "
        "batch, clipping, zeroing, .item() and printing, or an optimizer that is no "
        "torch.optim.Optimizer; meter.phase says which"
    )
    assert "rest" not in fix_first(split(rest=0.99))


def test_without_a_forward_the_rest_is_no_loss() -> None:
    parts_s = {"backward": 3.0, "optimizer": 0.5, "rest": 6.0, "between": 0.5}
    unseen = SplitSteps(steps=10, time_s=10.0, parts_s=parts_s)
    assert fix_first(unseen) == ""
    more = SplitSteps(steps=10, time_s=10.0, parts_s=parts_s | {"backward": 6.0, "rest": 3.0})
    assert fix_first(more).startswith("backward is 60.0 % of the step time; Meter(")


def test_a_loss_that_is_longer_than_the_forward_is_named() -> None:
    assert fix_first(split(forward=1.0, loss=1.1)).startswith(
        "the loss is 11.0 % of the step time (110 ms a step), more than the "
        "forward: what the loop does before backward()"
    )
    assert "the loss" not in fix_first(split(forward=1.2, loss=1.1))  # shorter than the forward
    assert "the loss" not in fix_first(split(forward=0.9, loss=0.95))  # below a tenth


def test_a_queue_that_is_empty_at_the_end_of_the_step_was_waited_for() -> None:
    waits = split(lead_s=0.019, lead_most_s=0.1)
    assert fix_first(waits, gpu_util=0.9).startswith(
        "something at the end of the step waits for the GPU: 100 ms of work is queued within it, "
        "and 19.0 ms when the loop leaves it. .item(), "
    )
    for other in (split(lead_s=0.02, lead_most_s=0.1), split(lead_s=0.0, lead_most_s=0.099)):
        assert "waits for the GPU" not in fix_first(other)
    assert "waits for the GPU" not in fix_first(waits, gpu_util=0.98)


def test_the_rules_come_in_the_order_that_is_documented() -> None:
    everything = split(
        forward=0.4, loss=1.1, data_wait=0.6, rest=1.5, between=0.3, lead_s=0.0, lead_most_s=0.0
    )
    assert fix_first(everything).startswith("waiting for data")
    everything = replace(everything, parts_s=everything.parts_s | {"data_wait": 0.2})
    assert fix_first(everything).startswith("the GPU waits for the host")
    everything = replace(everything, lead_most_s=0.5)
    assert fix_first(everything).startswith("the rest of the step")
    everything = replace(everything, parts_s=everything.parts_s | {"rest": 0.5})
    assert fix_first(everything).startswith("the loss is 11.0 %")
    everything = replace(everything, parts_s=everything.parts_s | {"loss": 0.2})
    assert fix_first(everything).startswith("something at the end of the step")
