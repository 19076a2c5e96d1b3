"""Devices whose work is not read: a trace of one must not pass for a trace of a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.explain import explain
from mfu_torch.insight.breakdown.host_labels import IDLE_MEANS, MAIN_THREAD


def host(device_name: str | None = None) -> TraceBuilder:
    trace = TraceBuilder(device_name=device_name)
    trace.op("aten::mm", 0, 10_000)
    trace.step(0, 0, 20_000)
    return trace


@pytest.mark.parametrize(
    "category", ["mtia_ccp_events", "privateuse1_kernel", "npu_kernel", "hpu_op", "xla_launch"]
)
def test_work_of_a_device_of_another_kind_is_a_warning(category: str, tmp_path: Path) -> None:
    trace = host()
    for i in range(3):
        trace.event(category, "pe_exe", 1_000 * i, 500)
    found = explain(trace.write(tmp_path / "t.json"))
    (warning,) = found.warnings
    assert warning.startswith("a device was used (3 events of a kind that is not read), and none")
    hints = {one.name: one.hint for one in found.buckets}
    assert "the host is in matrix ops" in hints["matrix"] and "FLOP/s" not in hints["matrix"]
    assert hints["idle/unknown"].startswith("50.0 % of the time the main thread runs no operator; ")
    assert MAIN_THREAD in found.notes
    assert IDLE_MEANS not in found.notes
    assert category not in "".join((*found.warnings, *found.notes))


@pytest.mark.parametrize("category", ["mtia_runtime", "privateuse1_runtime", "cuda_runtime"])
def test_calls_of_a_device_without_its_work_are_a_warning(category: str, tmp_path: Path) -> None:
    trace = host()
    trace.event(category, "launch", 1_000, 500, args={"correlation": 1})
    (warning,) = explain(trace.write(tmp_path / "t.json")).warnings
    assert warning.startswith("a device was used (1 call of its runtime), and none of its work")
    assert "activities=[CPU, CUDA]" in warning


@pytest.mark.parametrize("category", ["cpu_instant_event", "fwdbwd", "Trace"])
def test_a_trace_of_a_cpu_alone_is_none(category: str, tmp_path: Path) -> None:
    trace = host()
    trace.event(category, "aten::mm", 1_000, 500)
    found = explain(trace.write(tmp_path / "t.json"))
    assert found.warnings == ()
    assert IDLE_MEANS in found.notes


def test_beside_work_that_is_read_other_kinds_are_nothing_to_warn_of(tmp_path: Path) -> None:
    trace = host("NVIDIA H100 80GB HBM3")
    trace.kernel("gemm", 10_000, 10_000, launch_ns=5_000)
    trace.event("overhead_kernel_x", "x", 1_000, 500)
    assert explain(trace.write(tmp_path / "t.json")).warnings == ()


def test_a_profiler_that_synchronises_a_device_without_work_is_no_use_of_it(
    tmp_path: Path,
) -> None:
    trace = host()
    for i, name in enumerate(["cudaDeviceSynchronize", "hipGetDeviceCount", "cuInit"]):
        trace.runtime(name, 100 * i, 50)
    assert explain(trace.write(tmp_path / "t.json")).warnings == ()
    trace.runtime("cudaLaunchKernel", 1_000, 50)
    (warning,) = explain(trace.write(tmp_path / "t.json")).warnings
    assert warning.startswith("a device was used (1 call of its runtime), and")
