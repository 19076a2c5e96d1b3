"""A hint and the table beside it have the same share, in every form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from breakdowns import breakdown, bucket
from matmuls import analysed
from msgspec.structs import replace
from samples import header
from trace_builder import TraceBuilder

from mfu_torch.insight import ranks_table
from mfu_torch.insight.breakdown.explain import Analysis
from mfu_torch.insight.breakdown.printed import hint_beside, printed_shares
from mfu_torch.insight.breakdown.ranks import combine, rank_trace
from mfu_torch.insight.breakdown_block import breakdown_block
from mfu_torch.insight.breakdown_export import markdown
from mfu_torch.insight.breakdown_table import render
from mfu_torch.insight.breakdown_words import fix_first
from mfu_torch.insight.html.page import _breakdown
from mfu_torch.integrations.tensorboard.breakdown import table
from mfu_torch.records import BreakdownEntry, Run
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import first_loss

MS = 1_000_000


def thirds_of(folder: Path, rank: int | None = None) -> Analysis:
    """Other compute, a collective and a copy of a third each: 33.4, 33.3 and 33.3 %."""
    trace = TraceBuilder(rank=rank, world_size=None if rank is None else 2)
    trace.op("aten::relu", 0, 2_000)
    trace.kernel("relu_kernel", 10_000, MS, launch_ns=500)
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    trace.kernel(name, 10_000 + MS, MS, launch_ns=1_000, stream=8)
    trace.memcpy(10_000 + 2 * MS, MS, launch_ns=1_500)
    return analysed(trace, folder)


@pytest.fixture
def thirds(tmp_path: Path) -> Breakdown:
    return thirds_of(tmp_path).breakdown


def in_run(found: Breakdown) -> tuple[Run, BreakdownEntry]:
    entry = BreakdownEntry(
        after_step=9, steps=(8,), breakdown=found, traced_s=0.1, trace="traces/a.json.gz"
    )
    return Run.from_entries([header(), entry]), entry


def test_the_hints_of_thirds_add_up_as_the_table_does(thirds: Breakdown) -> None:
    assert [one.hint[:6] for one in thirds.buckets] == ["33.4 %", "33.3 %", "33.3 %"]
    assert list(printed_shares(thirds, 1).values()) == ["33.4", "33.3", "33.3"]


def test_the_table_of_tensorboard_and_the_page_say_the_shares_of_their_hints(
    thirds: Breakdown,
) -> None:
    run, entry = in_run(thirds)
    rows = [line for line in table(entry).splitlines() if " of the time" in line]
    assert len(rows) == 4  # the last one says what to fix first
    for row in rows[:3]:
        assert re.search(r"\| ([\d.]+)&nbsp;% \| \1 % of the time", row)
    page = str(_breakdown(run))
    assert "33.4 % of the time, in 1 kernel" in page and "33.3 % of the time, in" not in page
    block = "\n".join(breakdown_block(run))
    assert "other compute                    33.4 %" in block


def test_the_ranks_have_the_share_of_their_hints(tmp_path: Path) -> None:
    job = combine([rank_trace(thirds_of(tmp_path, rank)) for rank in (0, 1)])
    text = ranks_table.render(job)
    assert "Rank 0, like the others: 33.4 % of its time, in 1 kernel" in " ".join(text.split())
    assert text.count("  other compute 33.4 %") == 2  # the largest loss of each


def test_text_and_markdown_say_what_their_own_table_rounds_to() -> None:
    # 4.646 % is 4.65 in a table of two decimals and 4.6 in one of one: each has its own hint.
    parts = (bucket("other_compute", 4_646, hint="4.6 % of the time, in 3 kernels"),)
    rest = (bucket("matrix/below_peak", 95_354, hint="95.4 % of the time: gemm"),)
    found = replace(breakdown(unit=1), buckets=(*rest, *parts), wall_ns=100_000)
    assert hint_beside(found, "other_compute", "4.6 % of the time, x") == "4.7 % of the time, x"
    for text in (render(found), markdown(found)):
        assert "4.65 %" in text and "4.7 % of the time, in 3 kernels" in text
    assert fix_first(found).startswith("Fix first: matrix below peak. 95.4 % of the time: gemm")
    assert hint_beside(found, "other_compute", "why: 9 % of the time") == "why: 9 % of the time"


# --- nothing to name first --------------------------------------------------------------------


def test_a_loss_of_next_to_nothing_is_not_named_before_what_nobody_knows() -> None:
    found = breakdown({"matrix": 100_000_000, "idle/device_gap": 6_800}, unit=1, peak=None)
    text = fix_first(found)
    assert text.startswith("Fix first: not known. 100.0 % of the time is in matrix kernels")
    assert "not known without a peak" in text
    assert text.endswith("Of the rest most is idle: device gaps, 0.0068 % of the time.")
    assert first_loss(found) is None and "<- fix first" not in render(found)


def test_with_no_loss_at_all_what_is_not_known_is_still_said() -> None:
    text = fix_first(breakdown({"matrix": 100}, peak=None))
    assert text.startswith("Fix first: not known. 100.0 % of the time is in matrix kernels")
    assert "no loss was found" not in text and "Of the rest" not in text


def test_a_loss_far_smaller_than_what_is_not_known_comes_second() -> None:
    known = breakdown({"matrix": 90, "other_compute": 10}, peak=None)
    assert fix_first(known).startswith("Fix first: other compute, 10.0 % of the time. But 90.0 %")
    small = breakdown({"matrix": 95, "other_compute": 5}, peak=None)
    assert fix_first(small).startswith("Fix first: not known. 95.0 % of the time")
    assert fix_first(small).endswith("Of the rest most is other compute, 5.0 % of the time.")


def test_losses_below_one_percent_are_nothing_to_fix() -> None:
    found = breakdown({"matrix/model_flops": 995, "other_compute": 5})
    assert fix_first(found) == (
        "Fix first: nothing stands out; the largest loss is other compute, 0.50 % of the time."
    )


# --- the command of a report ------------------------------------------------------------------


def test_the_report_tells_explain_a_peak_that_no_table_has() -> None:
    found = breakdown(device=None, peak=replace(breakdown().peak, flops_per_s=1e11, dtype="fp32"))
    lines = list(breakdown_block(in_run(found)[0]))
    text = " ".join("\n".join(lines).split())
    assert 'explain traces/a.json.gz --peak "100 GFLOP/s" --dtype fp32 --model-flops' in text
    assert "in the folder of the run file" in text


def test_the_peak_of_the_table_needs_no_option() -> None:
    peak = replace(breakdown().peak, flops_per_s=989.4e12)
    text = "\n".join(breakdown_block(in_run(breakdown(peak=peak))[0]))
    flops = "--model-flops 25000000000000 --recompute-flops 5000000000000"
    assert f"explain traces/a.json.gz {flops}" in " ".join(text.split())
    assert "--peak" not in text
