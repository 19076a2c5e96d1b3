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
from mfu_torch.insight.parts_block import NAMES, lead_text, parts_block, parts_rows
from mfu_torch.insight.report import render_report
from mfu_torch.records import Run, Step, StepParts, Window
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
    assert (
        "  1 of 3 steady steps split; where steps are short, not all are, and the step time of all "
        "is 1.00 s"
    ) in lines


def test_without_peaks_there_is_no_column_for_them() -> None:
    lines = render_report(run_of(split_step(), peaks={})).splitlines()
    (title,) = [line for line in lines if line.startswith("Where a step's time")]
    assert title.split()[-2:] == ["share", "%"]
    assert "  backward                                                 500.0        50.0" in lines


def test_on_the_cpu_there_is_no_lead() -> None:
    made = run_of(split_step(lead_s=None, lead_most_s=None))
    assert "when the loop leaves" not in "\n".join(parts_block(made, run_figures(made)))


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
    assert section.count("<rect") == len(PARTS) + 2  # and two in the key of the colours
    # 35 % come before the backward, which is half of the step.
    assert '<rect class="b2" x="350" y="0" width="500"' in section.replace(".0", "")
    assert "500.0 ms a step, 60.0 % of the peak" in section
    assert section.count("legend") == 1 and "<pre" not in section


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


def test_an_optimizer_that_was_not_seen_is_told() -> None:
    made = run_of(split_step(optimizer_s=0.0))
    assert not_known(made) == (
        "  optimizer: no step of an optimizer was seen: it is compiled, or no "
        "torch.optim.Optimizer; its time\n    is in the rest\n"
    )
    assert not [row for row in parts_block(made, run_figures(made)) if row.startswith("  optim")]


def test_a_model_that_is_never_called_is_told_even_where_nothing_else_was_seen() -> None:
    nothing = {"forward_s": None, "loss_s": None, "backward_s": 0.0, "optimizer_s": 0.0}
    made = run_of(split_step(**nothing), header=header(model="GPT"))
    assert not_known(made).startswith("  forward and loss: no forward call")
