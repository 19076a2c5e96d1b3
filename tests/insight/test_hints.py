"""Hints say the evidence of the trace at hand, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import SGEMM, add_mm, analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.hints import hints
from mfu_torch.insight.breakdown.shapes import shapes_text


def hint(trace: TraceBuilder, folder: Path, bucket: str, **options: object) -> str:
    found = analysed(trace, folder, **options)
    return {one.name: one.hint for one in found.breakdown.buckets}[bucket]


def kernels(trace: TraceBuilder, *starts_ns: int, duration_ns: int = 1_000, lead_ns: int) -> None:
    """Elementwise kernels, each launched ``lead_ns`` before it starts."""
    for start_ns in starts_ns:
        launch_ns = start_ns - lead_ns
        trace.op("aten::add", launch_ns - 50, 100, dims=[[8], [8]], types=["float", "float"])
        trace.kernel("add_kernel", start_ns, duration_ns, launch_ns=launch_ns)


def _waiting(annotation: str) -> TraceBuilder:
    trace = TraceBuilder()
    kernels(trace, 10_000, 110_000, lead_ns=500)
    trace.annotation(annotation, 20_000, 80_000)
    return trace


def test_a_loader_without_workers_is_told_to_have_some(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    text = hint(_waiting(name), tmp_path, "idle/data_wait")
    # 80 of the 101 us from the first kernel to the end of the last
    assert text.startswith(f"79.2 % of the time the loop waits in {name} (1 wait of 80.0 us")
    assert "num_workers" in text


def test_a_loader_with_workers_is_told_that_they_are_too_slow(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    text = hint(_waiting(name), tmp_path, "idle/data_wait")
    assert "its workers do not keep up" in text and "prefetch_factor" in text


@pytest.mark.parametrize(
    ("op", "advice"),
    [
        ("aten::_local_scalar_dense", ".item()"),
        ("aten::nonzero", "depends on the data"),
        ("aten::copy_", "non_blocking=True"),
        ("mine::wait", "call it less often"),
        (None, "torch.cuda.synchronize()"),
    ],
)
def test_a_sync_is_named_with_its_call_and_its_op(
    op: str | None, advice: str, tmp_path: Path
) -> None:
    trace = TraceBuilder()
    kernels(trace, 10_000, 110_000, lead_ns=500)
    if op is not None:
        trace.op(op, 15_000, 90_000)
    trace.sync(20_000, 80_000)
    text = hint(trace, tmp_path, "idle/host_sync")
    assert "1 sync, most in cudaStreamSynchronize" in text
    assert (f"in {op}" in text) == (op is not None)
    assert advice in text


def test_allocations_in_steps_are_counted_by_call(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 10_000, 110_000, lead_ns=500)
    trace.alloc(20_000, 30_000)
    trace.alloc(60_000, 30_000)
    text = hint(trace, tmp_path, "idle/alloc")
    assert "2 x cudaMalloc" in text and "expandable_segments:True" in text


def test_many_short_kernels_are_launch_bound(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, *range(10_000, 110_000, 10_000), lead_ns=500)
    text = hint(trace, tmp_path, "idle/launch_bound")
    # 9 gaps of 9 us, the last 0.5 us of each behind the launch
    assert "10 kernels of 1.00 us on average, and 9 gaps of 8.50 us" in text
    assert 'CUDA graphs or torch.compile(mode="reduce-overhead"), or a larger batch' in text


def test_counts_are_per_step_where_there_are_several(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(3):
        begin = number * 200_000
        trace.step(number, begin, 200_000)
        kernels(trace, *range(begin + 10_000, begin + 110_000, 10_000), lead_ns=500)
    text = hint(trace, tmp_path, "idle/launch_bound")
    # between the steps, too: 29 gaps, 9 or 10 of them in each
    assert "10 kernels a step, 1.00 us on average, and 10 gaps a step, " in text
    text = hint(trace, tmp_path, "other_compute")
    assert "in 10 kernels a step, 1.00 us on average: aten::add" in text


def test_what_is_not_in_each_step_says_in_how_many_it_was_seen(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 200_000, 200_000)
        kernels(trace, number * 200_000 + 10_000, lead_ns=500)
    trace.sync(20_000, 180_000)
    assert "1 sync in 3 steps, most in cudaStream" in hint(trace, tmp_path, "idle/host_sync")


def test_only_what_trains_has_an_optimizer_to_fuse(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, *range(10_000, 110_000, 10_000), lead_ns=500)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 95_000, 500)
    assert "fused optimizers, or a larger batch" in hint(trace, tmp_path, "idle/launch_bound")


def test_a_long_pause_of_the_host_is_no_matter_of_launching(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 10_000, 5_010_000, lead_ns=500)
    text = hint(trace, tmp_path, "idle/launch_bound")
    assert "1 pause of 5.00 ms" in text and "aten::add" in text
    assert "CUDA graphs" not in text


def test_gaps_of_the_device_are_its_own_cost(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 20_000, 24_000, 28_000, lead_ns=9_000)
    assert "2 gaps of 3.00 us" in hint(trace, tmp_path, "idle/device_gap")


def test_a_queued_wait_says_what_it_is_not(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 100_000, 190_000, lead_ns=95_000)
    text = hint(trace, tmp_path, "idle/queued_wait")
    assert "1 wait of 89.0 us before aten::add" in text
    assert "not the host, and not launching" in text


def test_time_without_launch_records_says_how_to_record_them(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 10_000, lead_ns=500)
    trace.kernel("add_kernel", 100_000, 1_000)
    text = hint(trace, tmp_path, "idle/unknown")
    assert "(50.0 % of all work)" in text and "warm-up" in text


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("HtoD (Pageable -> Device)", "pin_memory=True"),
        ("HtoD (Pinned -> Device)", "a stream of its own"),
        ("DtoH (Device -> Pageable)", "read results back less often"),
        ("DtoD (Device -> Device)", "contiguous()"),
        ("PtoP (Device -> Device)", "copies between GPUs"),
    ],
)
def test_a_copy_is_told_by_its_direction_and_memory(kind: str, advice: str, tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.memcpy(10_000, 5_000, kind=kind, launch_ns=9_000)
    text = hint(trace, tmp_path, "exposed_memcpy")
    assert f"most of it Memcpy {kind} (100.0 %; 1 copy)" in text
    assert advice in text


def test_communication_says_how_much_of_it_is_hidden(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 10_000, 40_000, launch_ns=9_000)
    add_mm(trace, 10_000, 10_000, stream=8)
    text = hint(trace, tmp_path, "exposed_communication")
    assert text.startswith("75.0 % of the time only communication runs (25.0 % of 1 collective")
    assert "AllReduce" in text and "give the traces of all ranks" in text


def test_other_compute_names_its_ops_and_what_they_are(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for op, at, length in (("aten::copy_", 10_000, 6_000), ("aten::add", 16_000, 4_000)):
        trace.op(op, at - 900, 100, dims=[[8], [8]], types=["float", "float"])
        trace.kernel("a_kernel", at, length, launch_ns=at - 850)
    text = hint(trace, tmp_path, "other_compute")
    assert "2 kernels of 5.00 us on average: aten::copy_ 60.0 % and aten::add 40.0 %" in text
    assert "only moves data" in text


def test_ops_that_nothing_is_known_of_get_no_advice(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("mine::thing", 9_000, 100)
    trace.kernel("a_kernel", 10_000, 6_000, launch_ns=9_050)
    assert hint(trace, tmp_path, "other_compute").endswith("mine::thing 100.0 %")


def test_misaligned_old_kernels_are_named_with_their_shapes(tmp_path: Path) -> None:
    trace = TraceBuilder()
    odd = "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1"
    add_mm(trace, 10_000, 20_214, (1001, 1000, 1000), kernel=f"cutlass::Kernel2<{odd}>(x::Params)")
    text = hint(trace, tmp_path, "matrix/below_peak")
    assert "gemm reaches 10.0 % of its peak" in text
    assert "100.0 % of matrix time is in misaligned kernels" in text
    assert f"{odd} in aten::mm [[1001,1000],[1000,1000]]" in text
    assert "multiples of 16 bytes" in text


def test_slow_products_without_a_reason_have_something_to_try(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 2_000_000, (8000, 8000, 8000))
    text = hint(trace, tmp_path, "matrix/below_peak")
    assert "show why; try larger products" in text and "max-autotune" in text


def test_tails_and_small_products_are_told_with_their_numbers(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 30_000, grid=[165, 1, 1])  # 1.25 waves in 2: 37.5 % lost
    text = hint(trace, tmp_path, "matrix/below_peak")
    assert "37.5 % of matrix time is lost in last waves (1.25 waves of 132 SMs" in text
    assert "1 small product (2.00 GFLOP on average, less than 5 us at the peak)" in text


def test_products_that_memory_bounds_are_told_with_their_intensity(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 20_000, (8, 8192, 2048))
    text = hint(trace, tmp_path, "matrix/below_peak")
    # 2 * 8 * 8192 * 2048 FLOPs; 2 * (8 * 8192 + 8192 * 2048 + 8 * 2048) bytes
    assert "aten::mm [[8,8192],[8192,2048]] with 7.96 FLOP per byte" in text
    assert "fuse it" in text


def test_fp32_where_bf16_would_do_is_said(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 60_000, kernel=SGEMM, dtype="float")
    text = hint(trace, tmp_path, "matrix/below_peak")
    assert (
        ": most of it runs in fp32, where bf16 (autocast) has 14.8 times the peak and gemm" in text
    )
    assert "older architecture" in text and "Try: autocast to bf16 first" in text
    assert "newer library" not in text  # whose fp32 would be as slow


def test_a_slow_dtype_is_named_with_its_share_of_the_flops(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000, (3000, 1000, 1000))
    add_mm(trace, 20_000, 40_000, kernel=SGEMM, dtype="float")
    text = hint(trace, tmp_path, "matrix/low_rate_dtype")
    assert "25.0 % of the FLOPs run in fp32, whose peak is 1/14.8 of bf16's" in text
    assert f"e.g. {SGEMM}" in text and "set_float32_matmul_precision" in text


def test_unknown_flops_say_why(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("mine::gemm_of_experts", 30_000, 1_000)
    trace.kernel("expert_gemm", 35_000, 30_000, launch_ns=30_500)
    text = hint(trace, tmp_path, "matrix/unknown_flops")
    assert "e.g. expert_gemm: the op is none whose FLOPs follow" in text
    assert "--model-flops" in text


def test_recompute_says_what_repeats(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    trace.op("ReluBackward0", 19_000, 900)
    add_mm(trace, 20_000, 10_000, op="aten::linear", launch_ns=19_500)
    text = hint(trace, tmp_path, "matrix/recompute")
    assert "50.0 % of the FLOPs repeat a forward inside the backward (1 op" in text
    assert "checkpoint fewer layers" in text


def test_without_a_peak_the_rate_that_was_reached_is_said(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    add_mm(trace, 10_000, 10_000)
    assert "; matrix kernels run at 200 TFLOP/s" in hint(trace, tmp_path, "matrix")


def test_a_small_bucket_gets_no_sentence(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 1_000_000)
    kernels(trace, 1_010_000, lead_ns=500)  # 0.1 % of the time
    assert hint(trace, tmp_path, "other_compute") == ""


def test_the_goal_gets_no_sentence(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 10_000)
    found = analysed(trace, tmp_path)
    said = hints(found.trace, found.labels, found.breakdown)
    assert set(said) == {"matrix/below_peak"}


def test_a_queued_wait_names_the_op_that_the_host_is_in(tmp_path: Path) -> None:
    trace = TraceBuilder()
    kernels(trace, 100_000, 190_000, lead_ns=95_000)
    trace.op("aten::copy_", 100_500, 89_000)
    text = hint(trace, tmp_path, "idle/queued_wait")
    assert "; meanwhile the host is in aten::copy_; look for an event" in text


def test_shapes_are_shown_on_one_line_whoever_wrote_them() -> None:
    assert shapes_text(b"[\n [1, 2],\n\t[ ]\r\n]") == "[[1,2],[]]"


@pytest.mark.parametrize(
    ("op", "advice"),
    [
        ("aten::native_layer_norm", "normalisation"),
        ("DropoutAddLayerNormFn", "normalisation"),
        ("aten::normal_", "random numbers"),
        ("aten::normal_functional_of_mine", ""),
        ("aten::linalg_vector_norm", ""),  # of gradients
        ("aten::_foreach_norm", "optimizer"),
        ("aten::_to_copy", "only moves data"),
        ("aten::scatter_add_", ""),  # neither "cat" nor "to"
        ("mine::bottom", ""),
        ("aten::_fused_adamw_", ""),  # fused already
        ("triton_poi_fused__to_copy_clone_native_layer_norm_0", ""),  # so is this
        ("aten::_softmax", "scaled_dot_product_attention"),
        ("aten::gelu_backward", "torch.compile fuses neighbours"),
    ],
)
def test_other_compute_is_advised_by_whole_words(op: str, advice: str, tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op(op, 0, 1_000)
    trace.kernel("some_kernel", 10_000, 5_000, launch_ns=500)
    text = hint(trace, tmp_path, "other_compute")
    assert advice in text
    assert text.endswith(f"{op} 100.0 %") == (advice == "")


@pytest.mark.parametrize(
    ("op", "kernel", "said"),
    [
        ("aten::sqrt", "sqrt_kernel", True),
        ("aten::_fused_adamw_", "some_kernel", False),
        ("apex", "multi_tensor_apply_kernel<AdamFunctor>", False),
    ],
)
def test_the_arithmetic_of_an_optimizer_is_told_by_its_annotation(
    op: str, kernel: str, said: bool, tmp_path: Path
) -> None:
    trace = TraceBuilder()
    trace.op("aten::gelu", 0, 1_000)
    trace.kernel("gelu_kernel", 20_000, 6_000, launch_ns=500)
    trace.annotation("Optimizer.step#AdamW.step", 2_000, 5_000)
    trace.op(op, 3_000, 1_000)
    trace.kernel(kernel, 26_000, 4_000, launch_ns=3_500)
    text = hint(trace, tmp_path, "other_compute")
    assert ("; 40.0 % of it is in the optimizer's step: try fused=True" in text) == said


def test_the_optimizer_of_a_cpu_is_told_too(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    trace.annotation("Optimizer.step#SGD.step", 2_000, 5_000)
    trace.op("aten::gelu", 0, 1_000)
    trace.op("aten::add_", 3_000, 3_000)
    text = hint(trace, tmp_path, "other_compute")
    assert text.endswith("; 75.0 % of it is in the optimizer's step: try fused=True")
