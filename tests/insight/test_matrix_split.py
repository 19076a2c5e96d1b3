"""The matrix time in its parts, by hand: H100, 989.4 TFLOP/s in bf16, 66.9 in fp32, 494.7 in TF32.

2 GFLOP (1000^3) take 2021.43 ns at 989.4, 4042.85 ns at 494.7, 29895.37 ns at 66.9 TFLOP/s.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import SGEMM, add_mm, analysed, times_of
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.matrix import split
from mfu_torch.records import Peak

TF32 = "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"


def test_flops_at_the_peak_and_what_is_below_it_are_the_matrix_time(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path)
    assert times_of(found) == {"matrix/model_flops": 2021, "matrix/below_peak": 7979}
    assert found.breakdown.model_flops == found.breakdown.hardware_flops == 2 * 10**9
    assert found.breakdown.peak is not None and found.breakdown.peak.flops_per_s == 989.4e12
    assert found.breakdown.coverage.matrix_known_ns == found.breakdown.coverage.matrix_ns == 10_000


def test_an_op_of_several_kernels_counts_once(tmp_path: Path) -> None:
    trace = TraceBuilder()
    sizes = [[1000, 1000], [1000, 1000]]
    trace.op("aten::mm", 100, 1000, dims=sizes, types=["c10::BFloat16"] * 2)
    trace.kernel("sm90_xmma_gemm", 10_000, 6_000, launch_ns=200)
    trace.kernel("cublasLt::splitKreduce_kernel", 16_000, 4_000, launch_ns=400)
    found = analysed(trace, tmp_path)
    assert times_of(found) == {"matrix/model_flops": 2021, "matrix/below_peak": 7979}


def test_an_op_in_an_op_does_not_count_twice(tmp_path: Path) -> None:
    trace = TraceBuilder()
    types = ["c10::BFloat16"] * 3
    trace.op("aten::linear", 100, 1000, dims=[[1000, 1000], [1000, 1000], [1000]], types=types)
    trace.op(
        "aten::addmm", 200, 500, dims=[[1000], [1000, 1000], [1000, 1000], [], []], types=types
    )
    trace.kernel("sm90_xmma_gemm", 10_000, 6_000, launch_ns=300)
    trace.kernel("sm90_xmma_gemm_of_linear_itself", 16_000, 4_000, launch_ns=900)
    found = analysed(trace, tmp_path)
    assert found.breakdown.model_flops == 2 * 10**9
    assert found.breakdown.coverage.matrix_known_ns == 10_000


def test_flops_belong_to_the_step_in_which_their_first_kernel_starts(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(2):
        trace.step(number, number * 100_000, 100_000)
        add_mm(trace, number * 100_000 + 10_000, 20_000)
    add_mm(trace, 150_000, 20_000)
    found = analysed(trace, tmp_path)
    (model,) = (b for b in found.breakdown.buckets if b.name == "matrix/model_flops")
    assert model.per_step_ns == (2021, 4043)  # 2 and 4 GFLOP


def test_a_kernel_that_another_one_hides_adds_flops_and_no_time(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    add_mm(trace, 12_000, 4_000, stream=8)
    assert times_of(analysed(trace, tmp_path)) == {
        "matrix/model_flops": 4043,  # 4 GFLOP
        "matrix/below_peak": 5957,
    }


def test_a_slower_dtype_is_what_its_flops_take_beyond_the_reference(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    add_mm(trace, 30_000, 40_000, kernel=SGEMM, dtype="float")
    times = times_of(analysed(trace, tmp_path))
    assert times["matrix/model_flops"] == 4043 + 2021
    assert times["matrix/low_rate_dtype"] == 29_895 - 2021
    assert times["matrix/below_peak"] == 50_000 - 4043 - 29_895


def test_the_name_of_a_kernel_proves_tf32(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    add_mm(trace, 30_000, 10_000, kernel=TF32, dtype="float")
    found = analysed(trace, tmp_path)
    assert times_of(found)["matrix/low_rate_dtype"] == 4043 - 2021
    assert not any("TF32" in note for note in found.breakdown.notes)


def test_fp32_of_which_no_name_tells_is_measured_as_fp32_and_says_so(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 40_000, kernel="nvjet_sss_128x128", dtype="float")
    found = analysed(trace, tmp_path)
    assert found.breakdown.peak is not None and found.breakdown.peak.dtype == "fp32"
    assert times_of(found)["matrix/model_flops"] == 29_895
    assert any("may be multiplied as TF32" in note for note in found.breakdown.notes)


def test_a_device_without_tf32_leaves_nothing_open(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="Tesla V100-SXM2-32GB", sm_count=80)
    add_mm(trace, 10_000, 400_000, kernel="nvjet_sss_128x128", dtype="float")
    assert not any("TF32" in note for note in analysed(trace, tmp_path).breakdown.notes)


def test_a_faster_dtype_than_the_reference_needs_its_own_ideal_time(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (1000, 1000, 2000))
    add_mm(trace, 30_000, 10_000, dtype="c10::Float8_e4m3fn", op="aten::_scaled_mm")
    # 2 GFLOP at fp8's 1978.9 TFLOP/s: 1010.66 ns
    assert times_of(analysed(trace, tmp_path))["matrix/model_flops"] == 4043 + 1011


def test_a_custom_op_has_unknown_flops_never_none(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("mine::gemm_of_experts", 30_000, 1_000, dims=[[8, 8]], types=["c10::BFloat16"])
    trace.kernel("expert_gemm", 35_000, 30_000, launch_ns=30_500)
    found = analysed(trace, tmp_path)
    assert times_of(found)["matrix/unknown_flops"] == 30_000
    assert found.breakdown.coverage.matrix_known_ns == 10_000
    (note,) = (one for one in found.breakdown.notes if "not known" in one)
    assert "75.0 % of the matrix time" in note and "30.0 us: the op is none" in note


def test_a_negative_rest_is_a_warning_with_its_causes_and_is_not_clamped(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 1_000)
    found = analysed(trace, tmp_path)
    assert times_of(found)["matrix/below_peak"] == 1_000 - 2021
    (warning,) = (one for one in found.breakdown.warnings if "less than" in one)
    assert "1.02 us less than their FLOPs take at the peak" in warning
    assert "989.4 TFLOP/s in bf16" in warning and "--peak" in warning


def test_given_model_flops_beyond_those_seen_ran_in_kernels_of_unknown_flops(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("mine::gemm_of_experts", 30_000, 1_000)
    trace.kernel("expert_gemm", 35_000, 30_000, launch_ns=30_500)
    times = times_of(analysed(trace, tmp_path, model_flops=4 * 10**9))
    assert times["matrix/model_flops"] == 4043
    assert times["matrix/unknown_flops"] == 30_000 - (4043 - 2021)


def test_more_model_flops_than_fit_are_a_warning(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path, model_flops=10**13)
    assert any("of one step of one device" in one for one in found.breakdown.warnings)
    assert times_of(found)["matrix/below_peak"] < 0


def test_without_a_device_matrix_time_is_one_bucket_and_a_peak_divides_it(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path)
    assert times_of(found) == {"matrix": 10_000}
    assert found.breakdown.peak is None and found.breakdown.model_flops == 2 * 10**9
    assert any("names no device" in note for note in found.breakdown.notes)
    given = analysed(trace, tmp_path, peak="400 TFLOP/s")
    assert times_of(given) == {"matrix/model_flops": 5000, "matrix/below_peak": 5000}


def test_a_device_that_the_table_does_not_have_says_why(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="NVIDIA A100-PG509-200", sm_count=108)
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path)
    assert times_of(found) == {"matrix": 10_000}
    assert any("does not have that name" in note for note in found.breakdown.notes)


def test_a_given_peak_holds_for_dtypes_of_which_nothing_is_known(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    add_mm(trace, 10_000, 10_000, kernel=SGEMM, dtype="float")
    peak = Peak(flops_per_s=400e12, dtype="bf16")
    found = analysed(trace, tmp_path, peak=peak)
    assert times_of(found) == {"matrix/model_flops": 5000, "matrix/below_peak": 5000}
    assert any("FLOPs in fp32 are measured against the bf16" in x for x in found.breakdown.notes)


def test_the_reference_is_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 40_000, kernel=SGEMM, dtype="float")
    times = times_of(analysed(trace, tmp_path, dtype="bfloat16"))
    assert times["matrix/model_flops"] == 2021
    assert times["matrix/low_rate_dtype"] == 29_895 - 2021


def test_a_trace_without_shapes_is_one_bucket_that_says_how_to_record_them(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 100, 300)
    trace.kernel("sm90_xmma_gemm", 10_000, 10_000, launch_ns=200)
    found = analysed(trace, tmp_path)
    assert times_of(found) == {"matrix": 10_000}
    assert any("record_shapes=True" in note for note in found.breakdown.notes)


def test_the_kernels_of_each_part_sum_to_it(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    add_mm(trace, 30_000, 40_000, kernel=SGEMM, dtype="float")
    found = analysed(trace, tmp_path, dtype="bf16")
    matrix = split(found.trace, found.labels, dtype="bf16")
    for name, per_step in matrix.buckets.items():
        if name == "matrix/beside_model":
            continue  # of FLOPs beyond given ones nobody knows which kernels they ran in
        work_ns = matrix.top_work[name]
        assert work_ns is not None
        assert work_ns.sum() == pytest.approx(sum(per_step), abs=2)  # each is rounded


def test_old_convolutions_count_by_what_their_backward_shows(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="Tesla V100-SXM2-32GB", sm_count=80)
    x, weight, grad = [2, 4, 9, 9], [6, 4, 3, 3], [2, 6, 4, 4]
    trace.op("aten::cudnn_convolution", 0, 500, dims=[x, weight], types=["float"] * 2)
    trace.kernel("volta_scudnn_128x64_relu", 1_000, 1_000, launch_ns=100)
    trace.op(
        "aten::cudnn_convolution_backward",
        *(2_000, 900),
        dims=[x, grad, weight],
        types=["float"] * 3,
    )
    for name, at, dims in (
        ("aten::cudnn_convolution_backward_input", 2_100, [[], grad, weight]),
        ("aten::cudnn_convolution_backward_weight", 2_500, [[], grad, x]),
    ):
        trace.op(name, at, 300, dims=dims, types=["GenericList", "float", "float"])
        trace.kernel("volta_scudnn_stridedB", at + 2_000, 300, launch_ns=at + 50)
    found = analysed(trace, tmp_path)
    each = 2 * 2 * (4 * 4) * (6 * 4 * 3 * 3)  # b * positions * filters
    assert found.breakdown.model_flops == 3 * each
    assert any("old torch" in note for note in found.breakdown.notes)


def test_flops_whose_kernels_are_classed_as_something_else_are_left_out_aloud(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("aten::dot", 30_000, 500, dims=[[1000], [1000]], types=["float", "float"])
    trace.kernel("a_kernel_of_mine", 40_000, 5_000, launch_ns=30_100)
    found = analysed(trace, tmp_path, classes={"a_kernel_of_mine": "other"})
    assert found.breakdown.model_flops == 2 * 10**9
    (warning,) = (one for one in found.breakdown.warnings if "left out" in one)
    assert "2.00 kFLOP" in warning and "aten::dot" in warning


def test_an_op_that_an_edge_cuts_does_not_count(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 50_000)
    add_mm(trace, 10_000, 10_000)
    add_mm(trace, 45_000, 10_000)  # 5 us of it in the step
    found = analysed(trace, tmp_path, edges="cpu")
    assert found.breakdown.model_flops == 2 * 10**9
    assert times_of(found)["matrix/unknown_flops"] == 5_000
    assert any("cuts the op" in note for note in found.breakdown.notes)


def test_a_missing_peak_is_one_line_with_its_reason(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="AMD Radeon Graphics", sm_count=96)
    add_mm(trace, 10_000, 10_000)
    assert analysed(trace, tmp_path).breakdown.notes[-1] == (
        "no bf16 peak for 'AMD Radeon Graphics': the table of devices does not have that name "
        "(--peak gives one; mfu-torch peak --list has the names for --device)"
    )


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("Tesla V100-DGXS-32GB", "v100-sxm2, v100-pcie"),
        (
            "NVIDIA A100-PG509-200",
            "a100-sxm-40gb, a100-sxm-80gb, a100-pcie-40gb, a100-pcie-80gb",
        ),
        ("NVIDIA H100 80GB HBM2e", "h100-sxm, h100-pcie, h100-nvl"),
    ],
)
def test_a_missing_peak_names_devices_of_the_same_model_and_takes_none(
    tmp_path: Path, name: str, alike: str
) -> None:
    trace = TraceBuilder(device_name=name, sm_count=80)
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path).breakdown
    assert found.peak is None
    assert found.notes[-1].endswith(f"has the names for --device; alike by name: {alike})")


def test_a_name_that_several_devices_share_asks_for_one_of_them(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name="v100", sm_count=80)
    add_mm(trace, 10_000, 10_000)
    (note,) = [
        one for one in analysed(trace, tmp_path, dtype="fp16").breakdown.notes if "v100" in one
    ]
    assert "v100-sxm2" in note and "v100-pcie" in note
    assert note.endswith("say which (--device takes one of them, --peak gives the figure)")


def test_that_no_flops_are_known_is_said_once(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 0, 100)
    trace.kernel("sm90_xmma_gemm", 10_000, 10_000, launch_ns=50)
    (said,) = [one for one in analysed(trace, tmp_path).breakdown.notes if "FLOPs" in one]
    assert said.startswith("the FLOPs of 100.0 % of the matrix time are not known (10.0 us: the")


def test_model_flops_without_a_dtype_ask_for_one(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 0, 100)
    trace.kernel("sm90_xmma_gemm", 10_000, 10_000, launch_ns=50)
    notes = analysed(trace, tmp_path, model_flops=4.947e9).breakdown.notes
    assert any("--dtype gives one" in one for one in notes)
    given = analysed(trace, tmp_path, model_flops=4.947e9, dtype="bf16")
    # 4.947 GFLOP at 989.4 TFLOP/s
    assert times_of(given) == {"matrix/model_flops": 5000, "matrix/unknown_flops": 5000}
