"""Hints on traces without a device: what the main thread did, and what ran beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matmuls import analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.intervals import covered_ns
from mfu_torch.insight.breakdown_table import render

US = 1_000


def hint(trace: TraceBuilder, folder: Path, bucket: str) -> str:
    found = analysed(trace, folder)
    return {one.name: one.hint for one in found.breakdown.buckets}[bucket]


def step(busy_us: int = 100) -> TraceBuilder:
    """A step of 1 ms on the host, in which an op runs for some of the time."""
    trace = TraceBuilder(device_name=None)
    trace.step(0, 0, 1_000 * US)
    trace.op("aten::relu", 0, busy_us * US)
    return trace


def test_collectives_of_a_cpu_have_their_hint(tmp_path: Path) -> None:
    trace = step()
    for start in (200, 500):
        trace.op("c10d::allreduce_", start * US, 200 * US)
        trace.op("record_param_comms", (start + 10) * US, 100 * US)  # of the same collective
    text = hint(trace, tmp_path, "exposed_communication")
    assert text.startswith("40.0 % of the time only communication runs (0.0 % of 2 collectives is")
    assert "most in c10d::allreduce_" in text


@pytest.mark.parametrize(
    "op",
    [
        "aten::mm",
        "aten::convolution",
        "aten::_scaled_dot_product_flash_attention",
        "aten::copy_",
        "c10d::allreduce_",
        "aten::relu",
        "MyAttentionBackward",
    ],
)
def test_an_op_of_any_class_is_explained(op: str, tmp_path: Path) -> None:
    trace = step()
    trace.op(op, 200 * US, 500 * US)
    found = analysed(trace, tmp_path).breakdown
    assert sum(one.time_ns for one in found.buckets) == found.wall_ns == 1_000 * US
    assert all(one.hint for one in found.buckets if one.time_ns > found.wall_ns / 4)


def test_a_collective_on_another_thread_is_communication_that_the_main_thread_waits_for(
    tmp_path: Path,
) -> None:
    trace = step()
    trace.annotation("gloo:all_reduce", 190 * US, 410 * US, thread=2)
    trace.annotation("gloo:all_reduce", 500 * US, 320 * US, thread=3)
    text = hint(trace, tmp_path, "exposed_communication")
    # of 1000 us, 630 without an op
    assert text.startswith("63.0 % of the time the main thread runs no operator, and another one")
    assert text.endswith("give the traces of all ranks to see how much of it is waiting for peers")


def test_a_thread_that_runs_less_than_half_of_the_time_explains_nothing(tmp_path: Path) -> None:
    trace = step()
    trace.annotation("gloo:all_reduce", 50 * US, 450 * US, thread=2)
    assert 'record_function("...") around parts' in hint(trace, tmp_path, "idle/unknown")


def test_stacks_are_asked_for_last_and_not_where_they_are_there(tmp_path: Path) -> None:
    text = hint(step(), tmp_path, "idle/unknown")
    assert 0 < text.index("record_function") < text.index("with_stack=True")
    trace = step()
    trace.top_level["with_stack"] = 1
    text = hint(trace, tmp_path, "idle/unknown")
    assert text.endswith(
        "; the stacks in the trace show where, in a viewer such as ui.perfetto.dev"
    )
    assert "with_stack=True" not in text


def test_an_annotation_that_is_no_collective_is_only_named(tmp_path: Path) -> None:
    trace = step()
    trace.annotation("writing", 100 * US, 900 * US, thread=2)
    text = hint(trace, tmp_path, "idle/unknown")
    assert text.endswith("; for 100.0 % of it another thread runs writing")


def test_a_recurrent_layer_is_matrix_work(tmp_path: Path) -> None:
    trace = step()
    trace.op("aten::mkldnn_rnn_layer", 200 * US, 300 * US)
    trace.op("aten::mkldnn_rnn_layer_backward", 500 * US, 200 * US)
    times = {one.name: one.time_ns for one in analysed(trace, tmp_path).breakdown.buckets}
    assert times["matrix"] == 500 * US


def test_time_that_intervals_cover_before_a_moment() -> None:
    start, end = np.array([10, 15, 40, 60]), np.array([30, 20, 50, 60])
    found = covered_ns(start, end, np.array([0, 10, 12, 18, 25, 30, 35, 45, 70]))
    assert found.tolist() == [0, 0, 2, 8, 15, 20, 20, 25, 30]


def test_time_that_intervals_cover_is_that_of_a_count_of_every_moment() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        start = np.sort(random.integers(0, 100, 8))
        end = start + random.integers(0, 30, 8)
        on = [((start <= t) & (t < end)).any() for t in range(150)]
        found = covered_ns(start, end, np.arange(150))
        assert found.tolist() == np.append(0, np.cumsum(on))[:150].tolist()


ENGINE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def hooked(each_us: int) -> TraceBuilder:
    """Ten gradients whose hooks take so long each."""
    trace = step()
    for at in range(10):
        start = 100 * US + at * 60 * US
        trace.op(ENGINE, start, each_us * US)
        trace.op("torch::autograd::AccumulateGrad", start + 100, 800)
    return trace


def test_time_in_autograd_outside_of_ops_is_that_of_hooks(tmp_path: Path) -> None:
    text = hint(hooked(40), tmp_path, "other_compute")
    assert "(10 nodes of" not in text  # twice 10: the engine's, and the node itself
    assert "AccumulateGrad 100.0 %" not in text and "AccumulateGrad 40.0 %" in text
    assert "passes in autograd outside of ops" in text and "register_hook" in text
    assert "evaluate_function" not in text and "torch::autograd" not in text


def test_autograds_own_microseconds_are_no_hooks(tmp_path: Path) -> None:
    assert "hooks" not in hint(hooked(5), tmp_path, "other_compute")


def test_the_table_of_a_cpu_has_the_whole_name_of_an_op(tmp_path: Path) -> None:
    text = render(analysed(hooked(40), tmp_path).breakdown)
    assert "What took it (ms per step, times per step, op)\n" in text
    assert "AccumulateGrad\n" in text and "evaluate_function" not in text
    assert "the kernels for which the GPU waited" not in text
