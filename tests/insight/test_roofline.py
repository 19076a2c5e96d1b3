"""Each op against both roofs, by hand: H100, 989.4 TFLOP/s in bf16 and 3.352 TB/s."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from matmuls import add_mm, analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.matrix import split
from mfu_torch.insight.breakdown.roofline import Roofline, roofline


def _roofline(trace: TraceBuilder, folder: Path) -> Roofline:
    analysis = analysed(trace, folder)
    return roofline(analysis.trace, analysis.labels, split(analysis.trace, analysis.labels))


def test_a_large_product_is_bound_by_compute(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 4_000)
    found = _roofline(trace, tmp_path)
    (roof,) = found.roofs
    assert (roof.flops, roof.bytes) == (2 * 10**9, 3 * 2 * 10**6)
    assert roof.intensity == pytest.approx(1000 / 3)  # above 989.4e12 / 3.352e12 = 295
    assert roof.attainable_flops_per_s == pytest.approx(989.4e12)
    assert roof.flops_per_s == pytest.approx(2e9 / 4e-6)
    assert (roof.least_ns, roof.bound) == (2021, "compute")
    assert (found.compute_ns, found.memory_ns, found.neither_ns) == (4_000, 0, 0)


def test_a_thin_product_is_bound_by_memory(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 1_000, (1, 1000, 1000))  # a matrix times a vector
    (roof,) = _roofline(trace, tmp_path).roofs
    moved = 2 * (1000 + 10**6 + 1000)
    assert roof.intensity == pytest.approx(2e6 / moved)
    assert roof.attainable_flops_per_s == pytest.approx(2e6 / moved * 3.352e12)
    assert (roof.least_ns, roof.bound) == (round(moved / 3.352e12 * 1e9), "memory")


def test_an_op_that_needs_more_than_twice_its_least_time_is_below_both_roofs(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 5_000)
    found = _roofline(trace, tmp_path)
    assert found.roofs[0].bound == "neither" and found.neither_ns == 5_000


def test_elementwise_ops_and_copies_stand_against_the_roof_of_bytes(tmp_path: Path) -> None:
    trace = TraceBuilder()
    sizes = [1000, 1000]
    half, single = "c10::BFloat16", "float"
    # 2 + 2 (broadcast: 0.002) in, 2 out MB; fp32 4 out, bf16 2 in MB; in place: 2 + 2 in, 2 out
    trace.op("aten::add", 0, 100, dims=[sizes, [1000], []], types=[half, half, "Scalar"])
    trace.kernel("add_kernel", 1_000, 2_000, launch_ns=50)
    trace.op("aten::copy_", 200, 100, dims=[sizes, sizes, []], types=[single, half, "Scalar"])
    trace.kernel("copy_kernel", 4_000, 2_000, launch_ns=250)
    trace.op("aten::mul_", 400, 100, dims=[sizes, sizes], types=[half, half])
    trace.kernel("mul_kernel", 7_000, 2_000, launch_ns=450)
    trace.op("aten::sum", 600, 100, dims=[sizes, []], types=[single, ""])
    trace.kernel("reduce_kernel", 10_000, 2_000, launch_ns=650)
    found = _roofline(trace, tmp_path)
    moved = {roof.op: roof.bytes for roof in found.roofs}
    assert moved == {
        "aten::add": 4_002_000,
        "aten::copy_": 6_000_000,
        "aten::mul_": 6_000_000,
        "aten::sum": 4_000_000,
    }
    assert found.memory_ns == 8_000
    assert {roof.attainable_flops_per_s for roof in found.roofs} == {0.0}


def test_a_copy_from_the_host_has_another_roof_and_is_unknown(tmp_path: Path) -> None:
    trace = TraceBuilder()
    sizes = [1000, 1000]
    trace.op("aten::copy_", 0, 100, dims=[sizes, sizes], types=["float", "float"])
    trace.memcpy(1_000, 2_000, kind="HtoD (Pageable -> Device)", launch_ns=50)
    found = _roofline(trace, tmp_path)
    assert found.roofs == () and found.unknown_ns == 2_000


def test_an_op_of_unknown_bytes_is_unknown_and_the_parts_are_the_busy_time(tmp_path: Path) -> None:
    trace = TraceBuilder()
    add_mm(trace, 10_000, 4_000)
    trace.op("mine::thing", 0, 100, dims=[[8]], types=["float"])
    trace.kernel("thing_kernel", 1_000, 3_000, launch_ns=50)
    found = _roofline(trace, tmp_path)
    assert found.unknown_ns == 3_000
    parts = found.compute_ns + found.memory_ns + found.neither_ns + found.unknown_ns
    assert parts == 7_000


def test_a_device_that_is_not_known_has_no_roof_and_says_so(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    add_mm(trace, 10_000, 4_000)
    found = _roofline(trace, tmp_path)
    assert found.bytes_per_s is None
    assert found.roofs[0].bound == "unknown" and found.roofs[0].least_ns is None
    assert "bandwidth of a device that the trace does not name" in found.notes[0]


def test_equal_calls_are_one_row_and_all_of_it_is_json(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for index in range(3):
        add_mm(trace, 10_000 * (index + 1), 4_000)
    found = _roofline(trace, tmp_path)
    (roof,) = found.roofs
    assert (roof.calls, roof.time_ns, roof.flops) == (3, 12_000, 6 * 10**9)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Roofline) == found
