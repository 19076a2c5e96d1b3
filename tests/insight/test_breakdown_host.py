"""Traces without a device: the time of the main thread."""

from __future__ import annotations

from hand_trace import MAIN, WORKER, Hand, Span

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS
from mfu_torch.insight.breakdown.explain import explain
from mfu_torch.insight.breakdown.host_labels import IDLE_MEANS, main_thread
from mfu_torch.insight.breakdown.partition import labels_of

STEPS = [Span(0, 100, "ProfilerStep#1"), Span(100, 200, "ProfilerStep#2")]
OPS = [
    Span(10, 50, "aten::einsum"),
    Span(12, 20, "aten::t"),
    Span(20, 45, "aten::addmm"),
    Span(30, 35, "aten::expand"),
    Span(60, 80, "aten::relu"),
    Span(60, 70, "aten::clamp_min"),
    Span(110, 150, "aten::conv2d"),
    Span(110, 148, "aten::mkldnn_convolution"),
]


def by_bucket(hand: Hand) -> dict[str, list[int]]:
    labels = labels_of(hand.trace())
    found = {
        name: labels.per_step_ns(labels.bucket == code).tolist()
        for code, name in enumerate(BASE_BUCKETS)
    }
    return {name: times for name, times in found.items() if any(times)}


def test_ops_of_the_main_thread_by_class() -> None:
    # The convolution has all of aten::conv2d, addmm only its own time in aten::einsum.
    assert by_bucket(Hand(ops=OPS, steps=STEPS)) == {
        "matrix": [25, 40],
        "other_compute": [15 + 20, 0],
        "idle/unknown": [10 + 10 + 20, 10 + 50],
    }


def test_waiting_for_the_loader_is_data_wait_also_while_it_runs_ops_itself() -> None:
    hand = Hand(
        ops=[*OPS, Span(82, 90, "aten::stack")], steps=STEPS, data_waits=[Span(81, 99, "loader")]
    )
    assert by_bucket(hand)["idle/data_wait"] == [18, 0]
    assert by_bucket(hand)["other_compute"] == [35, 0]


def test_other_threads_do_not_count() -> None:
    busy = [Span(0, 200, "aten::mm", WORKER), Span(0, 200, "wait", WORKER)]
    hand = Hand(ops=[*OPS, busy[0]], steps=STEPS, data_waits=[busy[1]])
    assert by_bucket(hand) == by_bucket(Hand(ops=OPS, steps=STEPS))


def test_without_steps_the_main_thread_is_the_one_with_most_ops() -> None:
    trace = Hand(ops=[*OPS, Span(0, 5, "aten::mul", WORKER)]).trace()
    assert trace.threads[main_thread(trace)] == MAIN
    assert labels_of(trace).edges.mode == "trace"


def test_segments_name_the_innermost_op() -> None:
    trace = Hand(ops=OPS, steps=STEPS).trace()
    labels = labels_of(trace)
    at_31 = labels.work[labels.bounds_ns[:-1].searchsorted(31, side="right") - 1]
    assert labels.of_ops and trace.names[trace.ops.name[at_31]] == "aten::expand"
    assert (labels.work[labels.cause >= 0] == -1).all()


def test_the_breakdown_of_a_cpu_trace_says_what_its_time_is() -> None:
    breakdown = explain(Hand(ops=OPS, steps=STEPS).trace())
    assert (breakdown.edges, breakdown.wall_ns, breakdown.device) == ("cpu", 200, None)
    assert sum(bucket.time_ns for bucket in breakdown.buckets) == 200
    assert IDLE_MEANS in breakdown.notes
    assert breakdown.coverage.work == 0 and breakdown.warnings == ()
    other = next(one for one in breakdown.buckets if one.name == "other_compute")
    assert {(top.name, top.op, top.time_ns) for top in other.top} == {
        ("aten::einsum", None, 7),
        ("aten::t", None, 8),
        ("aten::relu", None, 10),
        ("aten::clamp_min", None, 10),
    }
