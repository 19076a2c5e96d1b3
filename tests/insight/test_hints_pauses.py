"""Long pauses of the device: the hint says what the host did in them, as far as the trace knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import analysed
from trace_builder import TraceBuilder

US = 1_000
MS = 1_000_000
FIRST_CALL = "a first call loads kernels, chooses an algorithm or compiles"


def hint(trace: TraceBuilder, folder: Path, bucket: str = "idle/launch_bound") -> str:
    found = analysed(trace, folder)
    return {one.name: one.hint for one in found.breakdown.buckets}[bucket]


def pause(
    trace: TraceBuilder, begin_ns: int, *, op_ns: int = 0, call_ns: int = 0, op: str = "aten::relu"
) -> int:
    """A kernel of 1 ms, 10 ms in which nothing runs, and a kernel: returns when that ends.

    The op around the second launch begins ``op_ns`` before it, and the launch takes ``call_ns``.
    """
    trace.op("aten::add", begin_ns, 20 * US)
    trace.kernel("add_kernel", begin_ns + 15 * US, MS, launch_ns=begin_ns + 10 * US)
    start = begin_ns + 11 * MS + 15 * US
    launch = start - 2 * US - call_ns
    trace.op(op, launch - op_ns - US, op_ns + call_ns + 2 * US)
    trace.op("aten::inner", launch - US, call_ns + 2 * US)
    trace.kernel("relu_kernel", start, MS, launch_ns=launch, launch_duration_ns=call_ns + 100)
    return start + MS


@pytest.mark.parametrize(("op_ms", "call_ms"), [(8, 0), (0, 8), (3, 3)])
def test_a_pause_inside_an_op_is_a_first_call(op_ms: int, call_ms: int, tmp_path: Path) -> None:
    trace = TraceBuilder()
    pause(trace, 0, op_ns=op_ms * MS, call_ns=call_ms * MS, op="aten::conv2d")
    text = hint(trace, tmp_path)
    assert f"in which the host is inside aten::conv2d ({FIRST_CALL})" in text
    assert "warmup=2" in text and "if it stays, shapes change" in text
    assert "other work between ops" not in text


def test_a_launch_without_an_op_is_named_by_its_kernel(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("first", 10 * US, MS, launch_ns=5 * US)
    trace.kernel("late", 10 * MS, MS, launch_ns=2 * MS, launch_duration_ns=7_900 * US)
    assert "inside the launch of late (a first call" in hint(trace, tmp_path)


def steps(*held: bool) -> TraceBuilder:
    """Steps of 20 ms with a pause each: inside an op where ``held``, else between ops."""
    trace = TraceBuilder()
    for number, inside in enumerate(held):
        begin = number * 20 * MS
        trace.step(number, begin, 20 * MS)
        pause(trace, begin, op_ns=9 * MS * inside, op="aten::conv2d")
        if not inside:
            trace.kernel("filler", begin + 2 * MS, 9 * MS, launch_ns=begin + MS)
        trace.kernel("last", begin + 13 * MS, 7 * MS, launch_ns=begin + 12 * MS)
    return trace


def test_pauses_of_the_first_step_alone_are_told(tmp_path: Path) -> None:
    text = hint(steps(True, False, False), tmp_path)
    assert f"hardly ever after the first step ({FIRST_CALL})" in text
    assert "if it stays" not in text


def test_pauses_inside_an_op_in_every_step_are_no_first_call(tmp_path: Path) -> None:
    text = hint(steps(True, True, True), tmp_path)
    assert "inside aten::conv2d, in every step: it compiles or chooses an algorithm anew" in text
    assert "warmup" not in text


def test_pauses_in_which_gradients_are_added_up_are_hooks(tmp_path: Path) -> None:
    trace = TraceBuilder()
    op = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    for number in range(3):
        trace.step(number, number * 20 * MS, 20 * MS)
        end = pause(trace, number * 20 * MS, op_ns=9 * MS, op=op)
        trace.kernel("last", end, 7 * MS, launch_ns=end - 1 * US)
    text = hint(trace, tmp_path)
    assert "the host is inside AccumulateGrad, which is to add up gradients only: hooks" in text
    assert "evaluate_function" not in text


def test_an_annotation_that_fills_the_pauses_is_named(tmp_path: Path) -> None:
    trace = TraceBuilder()
    end = pause(trace, 0)
    trace.annotation("## the_whole_loop ##", 0, 100 * MS)
    trace.annotation("## write_checkpoint ##", 2 * MS, 9 * MS)
    text = hint(trace, tmp_path)
    assert "of them the host is in ## write_checkpoint ##: make that faster" in text
    assert "the_whole_loop" not in text and end > 0


def test_of_annotations_in_each_other_the_innermost_is_named(tmp_path: Path) -> None:
    trace = TraceBuilder()
    pause(trace, 0)
    trace.annotation("prepare", MS, 11 * MS)
    trace.annotation("decode_images", 1_500 * US, 9_500 * US)
    trace.annotation("open_file", 2 * MS, 6 * MS)  # explains less of it
    assert "the host is in decode_images: make that faster" in hint(trace, tmp_path)


def test_an_annotation_around_everything_explains_no_pause(tmp_path: Path) -> None:
    trace = TraceBuilder()
    pause(trace, 0)
    trace.annotation("## the_whole_loop ##", 0, 100 * MS)
    text = hint(trace, tmp_path)
    assert "the_whole_loop" not in text
    assert "a loader that has no mark in the trace" in text and "; it ends with aten::relu" in text


def test_a_compiled_graph_is_told_to_warm_up(tmp_path: Path) -> None:
    trace = TraceBuilder()
    pause(trace, 0)
    trace.annotation("## Call CompiledFxGraph fb3en3 ##", 2 * MS, 9 * MS)
    text = hint(trace, tmp_path)
    assert "CompiledFxGraph fb3en3 ## (a first call" in text and "make that faster" not in text


def test_ops_on_the_cpu_are_named_as_what_fills_a_pause(tmp_path: Path) -> None:
    trace = TraceBuilder()
    pause(trace, 0)
    trace.op("aten::stack", 2 * MS, 8 * MS)
    trace.op("aten::cat", 2 * MS, 8 * MS - US)  # inside it
    text = hint(trace, tmp_path)
    assert "the host runs ops that launch nothing, most of it aten::stack" in text
    assert "on the device, or in the loader's workers" in text


def test_an_annotation_of_the_main_thread_explains_time_without_an_op(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    trace.step(0, 0, 10 * MS)
    trace.op("aten::relu", 0, MS)
    trace.annotation("logging", 2 * MS, 8 * MS)
    text = hint(trace, tmp_path, "idle/unknown")
    assert text.endswith("; for 88.9 % of it, it is in logging")  # 8 of 9 ms


# --- work that was launched, and seems not to begin ------------------------------------------


def queued(shared: int) -> TraceBuilder:
    """Three waits of 20 ms before kernels that were launched long ago; ``shared``: as a graph."""
    trace = TraceBuilder()
    trace.kernel("first", 10 * US, MS, launch_ns=0)
    graph = trace.kernel("node", 21 * MS, MS, launch_ns=100 * US)
    for at in (1, 2):
        start = (21 + 21 * at) * MS
        if at < shared:
            trace.kernel("node", start, MS, correlation=graph)
        else:
            trace.kernel("alone", start, MS, launch_ns=(100 + 10 * at) * US)
    return trace


def test_waits_before_nodes_of_a_cuda_graph_may_be_kernels_that_are_not_recorded(
    tmp_path: Path,
) -> None:
    text = hint(queued(3), tmp_path, "idle/queued_wait")
    assert "the device seems empty (3 waits, 100.0 % of it before work of CUDA graphs)" in text
    assert "look for an event" not in text


def test_waits_before_work_with_a_launch_of_its_own_are_no_matter_of_graphs(tmp_path: Path) -> None:
    text = hint(queued(1), tmp_path, "idle/queued_wait")
    assert "CUDA graphs" not in text and "look for an event" in text


def test_the_first_recorded_work_of_a_stream_may_wait_for_what_is_not_recorded(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    trace.kernel("copy_of_a_flag", 10 * US, US, launch_ns=0, stream=3)
    trace.kernel("first_of_7", 50 * MS, MS, launch_ns=20 * US)
    text = hint(trace, tmp_path, "idle/queued_wait")
    assert "the device seems empty (1 wait of 50.0 ms before first_of_7)" in text
    assert "what was launched before the recording began may still have run" in text
    assert "another process" not in text
