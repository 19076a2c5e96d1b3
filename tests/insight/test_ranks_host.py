"""Collectives that the host runs (gloo): exposed communication, and which rank is late."""

from __future__ import annotations

from pathlib import Path

from rank_jobs import job_of
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.explain import analyse
from mfu_torch.insight.breakdown.host_collectives import host_collectives
from mfu_torch.insight.breakdown.ranks import Job
from mfu_torch.insight.ranks_table import render
from mfu_torch.insight.trace.events import Trace
from mfu_torch.insight.trace.reading import read_trace

MS = 1_000_000
GLOO = "gloo:all_reduce"
GROUPS = {"0": [0, 1]}


def cpu(rank: int, groups: dict[str, list[int]] | None = None) -> TraceBuilder:
    found = GROUPS if groups is None else groups
    return TraceBuilder(device_name=None, rank=rank, world_size=2, groups=found)


def job(folder: Path, groups: dict[str, list[int]] | None = None) -> Job:
    """Steps of 100 ms: 20 of a matmul, 2 collectives of 10 ms each; rank 1 sleeps for 50 first."""
    paths = []
    for rank in (0, 1):
        trace = cpu(rank, groups)
        for number in (3, 4):
            begin = 100 * MS * (number - 3)
            late = 50 * MS * rank
            trace.step(number, begin, 100 * MS)
            trace.op("aten::mm", begin + late, 20 * MS, dims=[[1000, 1000], [1000, 1000]])
            asks = begin + late + 20 * MS
            ends = begin + 80 * MS  # the first; both threads wait for rank 1
            for at in (0, 1):
                trace.op("c10d::allreduce_", asks + at * 1000, 1000)
                length = ends + at * 10 * MS - (asks + 2000)
                trace.annotation(GLOO, asks + 2000, length, thread=7 + at)
        paths.append(trace.write(folder / f"rank{rank}.json"))
    return job_of(paths)


def test_a_collective_of_the_host_is_exposed_while_the_main_thread_runs_no_op(
    tmp_path: Path,
) -> None:
    trace = cpu(0)
    trace.step(3, 0, 100 * MS)
    trace.op("aten::mm", 0, 20 * MS)
    trace.op("c10d::allreduce_", 20 * MS, MS)
    trace.annotation(GLOO, 22 * MS, 60 * MS, thread=7)
    trace.op("aten::mul", 30 * MS, 10 * MS)  # beside it
    one = analyse(trace.write(tmp_path / "rank0.json")).breakdown
    found = {bucket.name: bucket.time_ns / MS for bucket in one.buckets if bucket.time_ns}
    assert found["exposed_communication"] == 1 + 50
    assert found["idle/unknown"] == 1 + 18
    assert (one.communication_ns / MS, one.overlapped_ns / MS) == (61, 10)
    top = next(b for b in one.buckets if b.name == "exposed_communication").top
    assert [(kernel.name, kernel.count, kernel.time_ns) for kernel in top] == [
        ("c10d::allreduce_", 1, 51 * MS)
    ]


def test_waiting_for_the_loader_stays_so_beside_a_collective(tmp_path: Path) -> None:
    trace = cpu(0)
    trace.step(3, 0, 100 * MS)
    trace.op("aten::mm", 0, 20 * MS)
    trace.data_wait(20 * MS, 80 * MS)
    trace.annotation(GLOO, 20 * MS, 80 * MS, thread=7)
    one = analyse(trace.write(tmp_path / "rank0.json")).breakdown
    assert {b.name: b.time_ns / MS for b in one.buckets if b.time_ns and "idle" in b.name} == {
        "idle/data_wait": 80
    }


def test_the_rank_that_sleeps_is_late_and_what_it_does_longer_is_said(tmp_path: Path) -> None:
    found = job(tmp_path)
    assert found.culprit == 1
    (late,) = found.late
    (both,) = found.exchanges
    assert (both.group, both.collective, both.calls, both.matched) == ("0", "all_reduce", 8, 8)
    # Of rank 0: 2 us, 60 ms - 2 us in the first and 10 ms in the second; of it the last 10 ms of
    # the first, and all that is exposed of the second, are the transfer: 50 ms of waiting.
    assert both.waiting_ns == 2 * 50 * MS
    assert late.late_ns == 2 * 50 * MS
    text = " ".join(render(found).split())
    assert "They wait for rank 1, which itself waits least: it takes 50 ms per step more" in text
    assert "in Python or a pause, in which the main thread runs no operator" in text
    assert "like the others" not in text.partition("Where the time goes")[0]


def test_what_waits_side_by_side_waits_once(tmp_path: Path) -> None:
    # Both threads of rank 0 wait for 50 ms a step, not for 100.
    assert [wait.waited_ns for wait in job(tmp_path).waits] == [2 * 50 * MS, 0]


def test_with_several_groups_the_order_matches_and_it_is_said(tmp_path: Path) -> None:
    found = job(tmp_path, {"0": [0, 1], "1": [0, 1]})
    assert found.culprit == 1
    assert "does not say of which process group" in " ".join(found.notes)


def asked(folder: Path, ops: list[int], marks: list[int]) -> list[int]:
    trace = cpu(0)
    trace.op("aten::mm", 0, 1)
    for begin in ops:
        trace.op("c10d::allreduce_", begin, 1)
    for begin in marks:
        trace.annotation(GLOO, begin, 5, thread=7)
    read: Trace = read_trace(trace.write(folder / "rank0.json"))
    found = host_collectives(read)
    return [int(read.ops.start_ns[op]) if op >= 0 else -1 for op in found.op.tolist()]


def test_each_collective_of_the_host_has_the_op_that_asked_for_it(tmp_path: Path) -> None:
    assert asked(tmp_path, [10, 20, 30], [15, 40, 50]) == [10, 20, 30]


def test_what_was_asked_for_before_the_recording_has_no_op(tmp_path: Path) -> None:
    assert asked(tmp_path, [20, 30], [5, 25, 40]) == [-1, 20, 30]


def test_what_is_asked_for_last_may_not_have_begun(tmp_path: Path) -> None:
    assert asked(tmp_path, [10, 20, 30], [15]) == [10]


def test_a_collective_that_gloo_makes_of_several_is_of_the_op_before(tmp_path: Path) -> None:
    trace = cpu(0)
    trace.op("aten::mm", 0, 1)
    trace.op("c10d::allreduce_", 10, 1)
    trace.op("c10d::reduce_scatter_", 30, 1)
    for begin in (12, 32, 34):
        trace.annotation(GLOO, begin, 1, thread=7)
    read = read_trace(trace.write(tmp_path / "rank0.json"))
    assert read.ops.start_ns[host_collectives(read).op].tolist() == [10, 30, 30]


def test_kinds_that_the_threads_take_in_another_order_are_still_the_same(tmp_path: Path) -> None:
    paths = []
    for rank, swapped in ((0, 0), (1, 1)):
        trace = cpu(rank)
        trace.step(3, 0, 100 * MS)
        trace.op("aten::mm", 0, MS)
        trace.op("c10d::allreduce_", 2 * MS, 1000)
        trace.op("c10d::broadcast_", 2 * MS + 1000, 1000)
        trace.annotation(GLOO, 3 * MS + swapped * 200, 10 * MS, thread=7)
        trace.annotation("gloo:broadcast", 3 * MS + 100, 20 * MS, thread=8)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    found = {one.collective: one.matched for one in job_of(paths).exchanges}
    assert found == {"all_reduce": 2, "broadcast": 2}
