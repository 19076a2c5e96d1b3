"""fp32 matrix work on a device with a far faster dtype: named first, by what the device has."""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import GEMM, SGEMM, add_mm, analysed
from msgspec.structs import replace
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.precision import faster
from mfu_torch.insight.breakdown.totals import total
from mfu_torch.insight.breakdown_words import fix_first
from mfu_torch.records.losses import first_loss

V100 = "Tesla V100-SXM2-32GB"


def on(device: str | None, **more: object) -> TraceBuilder:
    """A product in fp32 for 60 of 100 us, then other compute for 40; and a backward."""
    trace = TraceBuilder(device_name=device, sm_count=80)
    add_mm(trace, 10_000, 60_000, **{"kernel": SGEMM, "dtype": "float", **more})  # type: ignore[arg-type]
    trace.op("autograd::engine::evaluate_function: MmBackward0", 15_000, 1_000)
    trace.op("aten::relu", 20_000, 500)
    trace.kernel("relu_kernel", 70_000, 40_000, launch_ns=20_100)
    return trace


@pytest.mark.parametrize(
    ("device", "slow", "dtype", "times", "tf32"),
    [
        ("NVIDIA H100 80GB HBM3", "fp32", "bf16", 989.4 / 66.9, 494.7 / 66.9),
        ("NVIDIA H100 80GB HBM3", "tf32", "bf16", 2.0, 1.0),
        (V100, "fp32", "fp16", 125 / 15.7, 1.0),  # neither bf16 nor TF32
        ("Tesla V100-DGXS-32GB", "fp32", "fp16", 125 / 15.7, 1.0),  # as other V100s
        ("NVIDIA A100-PG509-200", "fp32", "bf16", 16.0, 8.0),
    ],
)
def test_the_factor_is_that_of_the_table_and_the_dtype_one_that_the_device_has(
    device: str, slow: str, dtype: str, times: float, tf32: float
) -> None:
    found = faster(device, slow)
    assert found is not None
    assert (found.dtype, found.times) == (dtype, pytest.approx(times))
    assert found.tf32_times == pytest.approx(tf32)
    assert found.by_family == (device in ("Tesla V100-DGXS-32GB", "NVIDIA A100-PG509-200"))


@pytest.mark.parametrize("device", [None, "Some Accelerator 9000", "AMD Radeon Graphics"])
def test_of_a_device_that_nobody_knows_nothing_is_said(device: str | None, tmp_path: Path) -> None:
    assert faster(device, "fp32") is None
    assert analysed(on(device), tmp_path).breakdown.precision is None


def test_on_a_v100_half_precision_comes_first_and_tf32_is_never_named(tmp_path: Path) -> None:
    found = analysed(on(V100), tmp_path).breakdown
    assert found.precision is not None
    assert found.precision.time_ns == round(60_000 * (1 - 15.7 / 125))
    assert first_loss(found) is found.precision  # 52 % / 2 against 40 % / 2
    assert fix_first(found) == (
        "Fix first: mixed precision. 60.0 % of the time matrix kernels run in fp32 (e.g. "
        f"{SGEMM}), where fp16 (autocast) has 7.96 times the peak: try "
        'torch.autocast("cuda", torch.float16) and torch.amp.GradScaler.'
    )
    assert "TF32" not in "".join(one.hint for one in found.buckets)
    assert sum(one.time_ns for one in found.buckets) == found.wall_ns  # it is no part of these


def test_on_a_newer_device_bf16_is_named_and_tf32_beside_it(tmp_path: Path) -> None:
    found = analysed(on("NVIDIA H100 80GB HBM3"), tmp_path).breakdown
    assert found.precision is not None
    assert "where bf16 (autocast) has 14.8 times the peak" in found.precision.hint
    assert 'set_float32_matmul_precision("high") alone, which is TF32, has 7.39 times' in (
        found.precision.hint
    )
    assert "GradScaler" not in found.precision.hint


def test_fp32_that_may_run_as_tf32_counts_as_such(tmp_path: Path) -> None:
    found = analysed(on("NVIDIA H100 80GB HBM3", kernel="nvjet_sss_128x128"), tmp_path).breakdown
    assert found.precision is not None
    assert found.precision.time_ns == 30_000  # half of the peak, and not 1/14.8
    assert "run in tf32" in found.precision.hint


@pytest.mark.parametrize(
    ("kernel", "is_fp32"),
    [
        ("volta_sgemm_128x64_nn", True),
        ("volta_scudnn_128x64_relu", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn", True),
        ("volta_fp16_sgemm_fp16_128x32_nn", False),
        ("volta_fp16_s884gemm_fp16_128x128", False),
    ],
)
def test_without_shapes_the_name_of_a_kernel_tells(
    kernel: str, is_fp32: bool, tmp_path: Path
) -> None:
    trace = TraceBuilder(device_name=V100, sm_count=80)
    trace.op("aten::mm", 9_000, 500)
    trace.kernel(kernel, 10_000, 50_000, launch_ns=9_100)
    assert (analysed(trace, tmp_path).breakdown.precision is not None) == is_fp32


def test_what_runs_in_half_precision_has_nothing_to_gain(tmp_path: Path) -> None:
    trace = on(V100, kernel=GEMM, dtype="c10::Half")
    assert analysed(trace, tmp_path).breakdown.precision is None


def test_ranks_have_it_together(tmp_path: Path) -> None:
    one = analysed(on(V100), tmp_path).breakdown
    assert one.precision is not None
    both = total([replace(one, rank=0), replace(one, rank=1, precision=None)])
    assert both.precision is not None
    assert both.precision.per_step_ns == (one.precision.time_ns, 0)
    text = fix_first(total([replace(one, rank=rank) for rank in (0, 1)]))
    assert text.startswith("Fix first: mixed precision. Rank 0, like the others: 60.0 % of its")


def test_tf32_is_no_advice_for_a_slow_part_on_a_device_without_it(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=V100, sm_count=80)
    add_mm(trace, 10_000, 100_000, (3000, 1000, 1000), dtype="c10::Half")
    add_mm(trace, 110_000, 200_000, kernel="volta_sgemm_128x64_nn", dtype="float")
    (slow,) = (
        one
        for one in analysed(trace, tmp_path).breakdown.buckets
        if one.name == "matrix/low_rate_dtype"
    )
    assert slow.hint.endswith("; autocast it to fp16")
