"""The breakdown of a trace: its buckets, what is on top of them, and what is said beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hand_trace import COPY, GEMM, NCCL, OTHER, Hand, Span, Work
from trace_builder import TraceBuilder

import mfu_torch.insight
from mfu_torch.insight.breakdown.class_table import ClassTableError
from mfu_torch.insight.breakdown.explain import analyse, explain
from mfu_torch.insight.breakdown.remarks import DILATION
from mfu_torch.insight.breakdown.top import short
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.records.breakdown import Breakdown, Bucket

US = 1000
BATCH = Span(0, 900 * US, "aten::add_")


def two_steps() -> Hand:
    """Steps of 500 us; the second waits 100 us for its data."""
    work = []
    for at, wait in ((0, 0), (500, 100)):
        begin = at + wait
        work += [
            Work(GEMM, begin * US, (at + 200) * US, (begin - 3) * US if begin else 0),
            Work(OTHER, (at + 200) * US, (at + 300) * US, (at + 100) * US, op="aten::add_"),
            Work(NCCL, (at + 250) * US, (at + 400) * US, (at + 100) * US, stream=9),
            Work(COPY, (at + 400) * US, (at + 450) * US, (at + 100) * US),
        ]
    return Hand(
        work=work,
        ops=[BATCH],
        steps=[
            Span(0, 500 * US - 4 * US, "ProfilerStep#1"),
            Span(496 * US, 990 * US, "ProfilerStep#2"),
        ],
        data_waits=[Span(470 * US, 590 * US, "loader")],
    )


def bucket(breakdown: Breakdown, name: str) -> Bucket:
    return next(one for one in breakdown.buckets if one.name == name)


def times_us(breakdown: Breakdown) -> dict[str, tuple[float, ...]]:
    return {one.name: tuple(time / US for time in one.per_step_ns) for one in breakdown.buckets}


def test_every_nanosecond_of_two_steps_is_in_one_bucket() -> None:
    breakdown = explain(two_steps().trace())
    # Step 1 from its first kernel at 0 to that of step 2 at 600; step 2 to its last copy, 950.
    assert breakdown.step_ns == (600 * US, 350 * US)
    assert breakdown.wall_ns == 950 * US and breakdown.edges == "gpu"
    assert breakdown.steps == ("ProfilerStep#1", "ProfilerStep#2")
    assert times_us(breakdown) == {
        "matrix": (200, 100),
        "other_compute": (100, 100),
        "exposed_communication": (100, 100),
        "exposed_memcpy": (50, 50),
        "idle/data_wait": (120, 0),  # 470 .. 590
        "idle/launch_bound": (27, 0),  # 450 .. 470 and 590 .. 597
        "idle/device_gap": (3, 0),
    }


def test_communication_is_counted_beside_compute_too() -> None:
    breakdown = explain(two_steps().trace())
    assert breakdown.communication_ns == 2 * 150 * US
    assert breakdown.overlapped_ns == 2 * 50 * US


def test_a_bucket_names_its_kernels_and_their_ops() -> None:
    breakdown = explain(two_steps().trace())
    (top,) = bucket(breakdown, "other_compute").top
    assert (top.name, top.op, top.count, top.time_ns) == (OTHER, "aten::add_", 2, 200 * US)
    (top,) = bucket(breakdown, "idle/data_wait").top
    assert (top.name, top.op, top.count, top.time_ns) == (GEMM, None, 1, 120 * US)


def test_top_kernels_are_the_five_with_most_time_the_first_first() -> None:
    work = [
        Work(f"{OTHER}_{i}", 1000 * i, 1000 * i + 100 * i, 0, stream=i)
        for i in (3, 1, 7, 5, 2, 6, 4)
    ]
    top = bucket(explain(Hand(work=work).trace()), "other_compute").top
    assert [(one.name[-1], one.time_ns) for one in top] == [
        *(("7", 700), ("6", 600), ("5", 500), ("4", 400), ("3", 300)),
    ]


def test_a_hidden_kernel_is_on_top_of_nothing() -> None:
    work = [Work(GEMM, 0, 100, 0), Work(OTHER, 20, 60, 0, stream=9)]
    breakdown = explain(Hand(work=work).trace())
    assert [one.name for one in breakdown.buckets] == ["matrix"]
    assert [top.name for top in breakdown.buckets[0].top] == [GEMM]


def test_long_names_are_cut() -> None:
    assert short("void at::native::(anonymous namespace)::f<int>(int)") == "at::native::f<int>(int)"
    assert len(short("k" * 500)) == 96 and short("k" * 500).endswith("...")


def test_coverage_counts_launch_records_inside_the_steps() -> None:
    hand = two_steps()
    hand.work.append(Work(OTHER, 200 * US, 300 * US, stream=11))  # no record
    hand.work.append(Work(OTHER, 2000 * US, 2001 * US, 1990 * US))  # behind the last step
    coverage = explain(hand.trace()).coverage
    assert (coverage.launches, coverage.work) == (8, 9)
    assert coverage.matrix_ns == 300 * US


def test_few_launch_records_are_a_warning() -> None:
    hand = Hand(work=[Work(OTHER, 100 * i, 100 * i + 50, 1 if i else -1) for i in range(5)])
    (warning,) = explain(hand.trace()).warnings
    assert warning.startswith("only 4 of 5 kernels and copies have a launch record")
    assert times_us(explain(hand.trace()))["idle/device_gap"] == (0.2,)


def test_a_queue_that_does_not_move_is_a_warning_and_not_explained() -> None:
    work = [Work(OTHER, 0, 100 * US, 0), Work(OTHER, 200 * US, 300 * US, 50 * US)]
    (warning,) = explain(Hand(work=work).trace()).warnings
    assert warning.startswith("why work is queued and not begun for 33.3 % of the time is not")


def test_a_step_that_takes_much_longer_than_the_others_is_a_warning() -> None:
    steps = [(0, 5_000_000), (5_000_000, 7_000_000), (7_000_000, 9_000_000)]
    hand = Hand(
        work=[Work(OTHER, begin, end, begin) for begin, end in steps],
        steps=[Span(a, b, f"ProfilerStep#{i}") for i, (a, b) in enumerate(steps)],
    )
    (warning,) = explain(hand.trace()).warnings
    assert warning.startswith(
        "ProfilerStep#0 (5.0 ms) took more than 2 times the median step of 2.0 ms"
    )
    assert explain(hand.trace(), steps="1:3").warnings == ()


def test_that_profiled_steps_are_slower_is_always_said() -> None:
    assert DILATION in explain(two_steps().trace()).notes


def test_steps_can_be_chosen() -> None:
    breakdown = explain(two_steps().trace(), steps="2")
    assert breakdown.steps == ("ProfilerStep#2",) and breakdown.wall_ns == 350 * US
    assert "1 of 2 steps were chosen" in breakdown.notes


def test_classes_of_the_user_move_time() -> None:
    breakdown = explain(two_steps().trace(), classes={"elementwise": "gemm"})
    assert times_us(breakdown)["matrix"] == (300, 200)
    with pytest.raises(ClassTableError, match="expected one of gemm, conv"):
        explain(two_steps().trace(), classes={"elementwise": "matrix"})


def test_it_reads_a_file(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 1000 * US)
    trace.op("aten::add", 90 * US, 20 * US)
    trace.kernel("vectorized_elementwise_kernel", 110 * US, 200 * US, launch_ns=100 * US)
    trace.kernel("vectorized_elementwise_kernel", 400 * US, 200 * US, launch_ns=395 * US)
    trace.sync(300 * US, 20 * US)
    path = trace.write(tmp_path / "trace.json.gz")
    found = mfu_torch.insight.explain(path)
    assert found == mfu_torch.insight.explain(str(path))
    assert (found.file, found.edges, found.wall_ns) == ("trace.json.gz", "gpu", 490 * US)
    assert times_us(found) == {
        "other_compute": (400,),
        "idle/host_sync": (85,),
        "idle/device_gap": (5,),
    }
    assert bucket(found, "other_compute").top[0].op == "aten::add"


def test_several_ranks_are_summed() -> None:
    ranks = [replace(two_steps().trace(), rank=rank, world_size=2) for rank in (0, 1)]
    alone, both = explain(ranks[0]), explain(ranks)
    assert both.wall_ns == 2 * alone.wall_ns == 2 * 950 * US
    assert sum(one.time_ns for one in both.buckets) == both.wall_ns


def test_nothing_in_a_trace_is_an_error() -> None:
    with pytest.raises(TraceError, match=r"hand\.json has neither kernels nor operators"):
        explain(Hand().trace())
    with pytest.raises(TraceError, match="its steps take no time"):
        explain(Hand(work=[Work(GEMM, 5, 5, 1)]).trace())


def test_the_analysis_has_the_labels_of_every_nanosecond() -> None:
    analysis = analyse(two_steps().trace())
    assert analysis.labels.length_ns.sum() == analysis.breakdown.wall_ns
    assert analysis.trace.file == analysis.breakdown.file == "hand.json"


def test_a_slow_launching_call_in_a_file_is_launch_bound(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("vectorized_elementwise_kernel", 0, 100 * US, launch_ns=0)
    slow = {"launch_ns": 120 * US, "launch_duration_ns": 70 * US}
    trace.kernel("vectorized_elementwise_kernel", 200 * US, 100 * US, **slow)
    found = explain(trace.write(tmp_path / "trace.json"))
    assert times_us(found) == {
        "other_compute": (200,),
        "idle/launch_bound": (90,),
        "idle/device_gap": (10,),
    }
