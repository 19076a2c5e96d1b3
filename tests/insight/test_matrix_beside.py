"""Matrix work that is not the model's step: recompute, the optimizer's, and what runs beside it.

H100: 2 GFLOP (1000^3) take 2021.43 ns at 989.4 TFLOP/s in bf16.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import add_mm, analysed, times_of
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.totals import total
from mfu_torch.insight.breakdown_export import summary
from mfu_torch.insight.breakdown_table import mfu_text


def test_what_given_model_flops_leave_over_ran_beside_the_model(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    found = analysed(trace, tmp_path, model_flops=3 * 10**9)
    times = times_of(found)
    assert times["matrix/model_flops"] == 3032  # 3 GFLOP
    assert times["matrix/beside_model"] == 4043 - 3032
    assert "matrix/recompute" not in times  # nothing is repeated
    assert sum(times.values()) == found.breakdown.wall_ns
    assert found.breakdown.model_flops == found.breakdown.hardware_flops == 3 * 10**9
    assert not any("that were given" in one for one in found.breakdown.warnings)
    text = mfu_text(found.breakdown)
    assert text.startswith("MFU 30.3 %: 3.000 GFLOP") and "HFU" not in text


def test_what_a_counter_saw_computed_twice_is_recompute(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    given = {"model_flops": 2 * 10**9, "recompute_flops": 10**9}
    found = analysed(trace, tmp_path, **given)
    times = times_of(found)
    assert times["matrix/recompute"] == 1011  # 1 GFLOP
    assert times["matrix/beside_model"] == 4043 - 2021 - 1011
    assert found.breakdown.hardware_flops == 3 * 10**9
    assert "HFU 30.3 %" in mfu_text(found.breakdown)


def test_recompute_that_the_trace_shows_stays_recompute_beside_given_flops(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("ReluBackward0", 19_000, 900)
    add_mm(trace, 20_000, 10_000, op="aten::linear", launch_ns=19_500)
    add_mm(trace, 30_000, 10_000)  # an evaluation
    times = times_of(analysed(trace, tmp_path, model_flops=2 * 10**9))
    assert times["matrix/model_flops"] == times["matrix/recompute"] == 2021
    # 6 GFLOP are 6064 ns: no more than that is handed out
    assert times["matrix/beside_model"] in (2021, 2022)


def test_scores_that_a_mask_discards_are_no_work_beside_the_model(tmp_path: Path) -> None:
    trace = TraceBuilder()
    qkv = [[1, 16, 1024, 64]] * 3
    trace.op(
        "aten::_scaled_dot_product_flash_attention",
        *(9_400, 300),
        dims=[*qkv, [], [], []],
        types=["c10::BFloat16"] * 3 + ["Scalar", "Scalar", "Scalar"],
        concrete=["", "", "", "0.", "True", "False"],
    )
    trace.kernel("flash_fwd_kernel", 10_000, 90_000, launch_ns=9_500)
    full = analysed(trace, tmp_path).breakdown.model_flops
    assert full == 4 * 16 * 1024 * 1024 * 64
    causal = analysed(trace, tmp_path, model_flops=full / 2 * (1 + 1 / 1024))
    assert "matrix/beside_model" not in times_of(causal)


def test_products_of_an_optimizer_are_its_own_and_count_in_the_hfu(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.annotation("Optimizer.step#Muon.step", 19_000, 5_000)
    add_mm(trace, 20_000, 10_000)
    for given in (None, 2 * 10**9):
        found = analysed(trace, tmp_path, model_flops=given)
        times = times_of(found)
        assert times["matrix/model_flops"] == times["matrix/optimizer"] == 2021
        assert "matrix/beside_model" not in times and "matrix/recompute" not in times
        assert found.breakdown.model_flops == 2 * 10**9
        assert found.breakdown.hardware_flops == 4 * 10**9
        assert summary(found.breakdown)["hfu"] == pytest.approx(4042 / 20_000)
    (bucket,) = (one for one in found.breakdown.buckets if one.name == "matrix/optimizer")
    assert "50.0 % of the FLOPs are products of the optimizer's step (1 op)" in bucket.hint


def test_forward_and_backward_in_the_closure_of_an_optimizer_are_the_models(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    trace.annotation("Optimizer.step#Muon.step", 5_000, 30_000)
    add_mm(trace, 10_000, 10_000)  # the forward
    trace.op("autograd::engine::evaluate_function: MmBackward0", 19_000, 1_000, thread=2)
    add_mm(trace, 21_000, 10_000)  # after the backward: the optimizer's own
    times = times_of(analysed(trace, tmp_path))
    assert times["matrix/model_flops"] == times["matrix/optimizer"] == 2021


def test_an_evaluation_inside_one_of_the_steps_is_told_from_the_others(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 100_000, 100_000)
        add_mm(trace, number * 100_000 + 10_000, 20_000)
    add_mm(trace, 150_000, 20_000)
    found = analysed(trace, tmp_path, model_flops=2 * 10**9).breakdown
    per_step = {one.name: one.per_step_ns for one in found.buckets}
    assert per_step["matrix/model_flops"] == (2021, 2021, 2021)
    assert per_step["matrix/beside_model"] == (0, 2022, 0)
    (bucket,) = (one for one in found.buckets if one.name == "matrix/beside_model")
    assert not bucket.top  # which kernels it was in is not known


def test_work_beside_the_model_has_a_hint_and_is_no_recompute(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    found = analysed(trace, tmp_path, model_flops=2 * 10**9).breakdown
    (hint,) = (one.hint for one in found.buckets if one.name == "matrix/beside_model")
    assert "repeat nothing that the trace shows (an evaluation, a teacher, metrics)" in hint
    assert "meter.pause" in hint


def test_ranks_sum_what_ran_beside_the_model(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        trace = TraceBuilder(rank=rank, world_size=2)
        add_mm(trace, 10_000, 10_000, (1000, 1000, 2000 + 1000 * rank))
        ranks.append(analysed(trace, tmp_path, model_flops=2 * 10**9).breakdown)
    times = {one.name: one.time_ns for one in total(ranks).buckets}
    assert times["matrix/beside_model"] == 2022 + 4043  # 2 and 4 GFLOP
    assert sum(times.values()) == 20_000


def test_counts_that_hardly_differ_leave_nothing_beside_the_model(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    for given, is_beside in ((1.999e9, False), (1.99e9, True)):
        times = times_of(analysed(trace, tmp_path, model_flops=given))
        assert ("matrix/beside_model" in times) == is_beside
        assert sum(times.values()) == 10_000
