"""Work that ran and is not in the trace, or with times that cannot be: said, and how much it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight import explain
from mfu_torch.insight.trace.reading import read_trace


def two_steps(kernels: int = 1) -> TraceBuilder:
    """Of each a matmul of 500 us, and other kernels of 1 us."""
    built = TraceBuilder()
    for i in range(2):
        at = 1_000_000 * i
        built.step(i, at, 900_000)
        built.op("aten::mm", at + 100, 5_000, dims=[[64, 64], [64, 64]], types=["float", "float"])
        built.kernel("gemm", at + 20_000, 500_000, launch_ns=at + 300)
        for j in range(kernels):
            built.kernel(f"scale {j}", at + 600_000 + 1_000 * j, 1_000, launch_ns=at + 400 + j)
    return built


def with_first(built: TraceBuilder, which: str, path: Path, **changes: Any) -> Path:
    next(event for event in built.events if event["name"] == which).update(changes)
    path.write_text(json.dumps(built.to_dict()))
    return path


@pytest.mark.parametrize(
    "changes", [{"dur": float("nan")}, {"dur": -500}, {"dur": 9e15}, {"ts": None}, {"ts": 1e14}]
)
def test_a_lost_matmul_is_a_warning_with_its_share(changes: dict[str, Any], tmp_path: Path) -> None:
    found = explain(with_first(two_steps(), "gemm", tmp_path / "t.json", **changes))
    # The other gemm has 500 of the 502 us that are left: 500 of 1002 are lost.
    warning = found.warnings[0]
    assert warning.startswith(
        "1 kernel or copy with an impossible time was left out, by the others"
    )
    assert (
        "about 49.9 % of the device's time: the time of steps, FLOPs and MFU are wrong" in warning
    )
    assert any(note.startswith("1 event") and note.endswith("left out") for note in found.notes)


def test_a_lost_kernel_without_others_of_its_name_counts_as_the_mean(tmp_path: Path) -> None:
    trace = read_trace(with_first(two_steps(), "scale 0", tmp_path / "t.json", dur=-1, name="x"))
    assert "about 25.0 % of the device's time" in trace.warnings[0]


def test_what_is_lost_of_little_is_a_note_alone(tmp_path: Path) -> None:
    trace = read_trace(with_first(two_steps(), "scale 0", tmp_path / "t.json", dur=-1))
    assert trace.warnings == ()
    assert trace.notes == ("1 event with an impossible time or duration was left out",)


def test_a_lost_op_is_no_lost_work(tmp_path: Path) -> None:
    trace = read_trace(with_first(two_steps(), "aten::mm", tmp_path / "t.json", dur=-1))
    assert trace.warnings == ()


def test_a_trace_whose_work_is_all_lost_is_no_trace_of_a_cpu(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 10_000)
    built.kernel("gemm", 2_000, 5_000)
    trace = read_trace(with_first(built, "gemm", tmp_path / "t.json", dur=-1))
    assert trace.warnings == (
        "all kernels and copies have impossible times; record the trace again",
    )


def captured(launches: int, run: int, device: int = 0) -> TraceBuilder:
    """Launches between begin and end of a capture, and launches that run."""
    built = TraceBuilder()
    built.op("aten::mm", 0, 10_000)
    built.runtime("hipStreamBeginCapture", 1_000, 10)
    for i in range(launches):
        built.runtime("hipLaunchKernel", 2_000 + 10 * i, 5)
    built.runtime("hipStreamEndCapture", 900_000, 10)
    for i in range(run):
        at = 1_000_000 + 1_000 * i
        built.kernel("gemm", at + 500, 100, launch_ns=at, device=device)
    built.kernel("more", 3_000_000, 10_000, launch_ns=2_900_000)
    return built


def test_a_trace_of_a_capture_is_a_warning(tmp_path: Path) -> None:
    trace = read_trace(captured(40, 9).write(tmp_path / "t.json"))
    assert trace.warnings == (
        "40 of 50 launches of kernels are captured into a graph and not run: the time of capturing "
        "is no step; record the steps that replay the graph",
    )


def test_a_trace_of_nothing_but_a_capture_says_so(tmp_path: Path) -> None:
    built = captured(40, 0)
    built.events = [event for event in built.events if event["cat"] != "kernel"]
    warnings = read_trace(built.write(tmp_path / "t.json")).warnings
    assert warnings[0].startswith("40 of 41 launches of kernels are captured into a graph")
    assert warnings[1].startswith("a device was used")


def test_a_small_capture_is_a_note(tmp_path: Path) -> None:
    trace = read_trace(captured(2, 37).write(tmp_path / "t.json"))
    assert trace.warnings == ()
    assert trace.notes[0].startswith("2 of 40 launches of kernels are captured into a graph")


@pytest.mark.parametrize(("lost", "said"), [(1, False), (3, True)])
def test_launches_of_which_nothing_is_recorded_are_a_note_where_they_are_many(
    lost: int, said: bool, tmp_path: Path
) -> None:
    built = two_steps(5)
    kernels = [event for event in built.events if event["cat"] == "kernel"]
    for kernel in kernels[-lost:]:
        built.events.remove(kernel)
    notes = read_trace(built.write(tmp_path / "t.json")).notes
    expected = f"{lost} of 12 launches of kernels have no record of what ran: it ran after"
    assert [note.startswith(expected) for note in notes] == [True] * said


def test_work_of_another_device_was_run_and_is_not_missing(tmp_path: Path) -> None:
    trace = read_trace(captured(0, 30, device=1).write(tmp_path / "t.json"))
    assert not any("launches of kernels" in text for text in trace.notes)


def test_memsets_and_copies_of_nothing_leave_no_record_and_are_not_missing(tmp_path: Path) -> None:
    built = two_steps()
    for i in range(30):
        built.runtime("cudaMemsetAsync", 50_000 + i, 1)
        built.runtime("cudaMemcpyAsync", 60_000 + i, 1)
    trace = read_trace(built.write(tmp_path / "t.json"))
    assert (trace.notes, trace.warnings) == ((), ())
