"""Where steps begin and end."""

from __future__ import annotations

import pytest
from hand_trace import AUTOGRAD, COPY, GEMM, Hand, Span, Work

from mfu_torch.insight.breakdown.edges import Edges, find_edges

STEPS = [Span(0, 100, "ProfilerStep#5"), Span(100, 200, "ProfilerStep#6")]


def found(hand: Hand, mode: str = "gpu", steps: str | None = None) -> Edges:
    return find_edges(hand.trace(), mode, steps)


def test_a_step_begins_with_the_first_work_that_it_launched_and_ends_with_the_next() -> None:
    # The host is a step ahead: it has left both steps before the device begins the first.
    hand = Hand(
        work=[Work(GEMM, 300, 400, 10), Work(GEMM, 410, 500, 90), Work(GEMM, 520, 600, 110)],
        steps=STEPS,
    )
    edges = found(hand)
    assert (edges.mode, edges.names) == ("gpu", ("ProfilerStep#5", "ProfilerStep#6"))
    assert edges.bounds_ns.tolist() == [300, 520, 600]
    assert edges.notes == () and edges.warnings == ()


def test_the_last_step_ends_with_the_last_end_of_its_work_not_with_its_last_launch() -> None:
    long = Work(COPY, 320, 700, 110, stream=9)
    hand = Hand(
        work=[Work(GEMM, 300, 310, 10), long, Work(GEMM, 520, 600, 120)],
        steps=STEPS,
    )
    assert found(hand).bounds_ns.tolist() == [300, 320, 700]


def test_a_copy_that_runs_ahead_does_not_begin_a_step_while_the_main_stream_is_busy() -> None:
    # The batch of step 6 is copied while the device still works on step 5.
    ahead = Work(COPY, 350, 360, 110, stream=9)
    hand = Hand(work=[Work(GEMM, 300, 400, 10), ahead, Work(GEMM, 420, 500, 120)], steps=STEPS)
    assert found(hand).bounds_ns.tolist() == [300, 400, 500]


def test_steps_of_a_device_far_behind_the_host_are_equally_long() -> None:
    # Each of three steps copies at once; what it computes begins 300 ns after its launch.
    work = [Work(GEMM, 210, 300, -1)]  # of the step before the recording
    for i in range(3):
        work.append(Work(COPY, 100 * i + 5, 100 * i + 6, 100 * i + 1, stream=9))
        work.append(Work(GEMM, 100 * i + 310, 100 * i + 400, 100 * i + 10))
    steps = [Span(100 * i, 100 * i + 100, f"ProfilerStep#{i}") for i in range(3)]
    assert found(Hand(work=work, steps=steps)).bounds_ns.tolist() == [300, 400, 500, 600]


def test_a_receive_that_waits_while_the_main_stream_is_free_belongs_to_its_step() -> None:
    # A later stage of a pipeline: each step begins with waiting for the stage before.
    recv = [Work("ncclDevKernel_SendRecv", 250, 300, 5, stream=20)]
    recv.append(Work("ncclDevKernel_SendRecv", 390, 450, 105, stream=20))
    hand = Hand(work=[*recv, Work(GEMM, 300, 400, 10), Work(GEMM, 450, 500, 110)], steps=STEPS)
    hand.work += [Work(GEMM, 400, 401, 20), Work(GEMM, 500, 501, 120)]
    assert found(hand).bounds_ns.tolist() == [250, 401, 501]


def test_the_main_stream_is_that_with_most_kernels_not_with_most_time() -> None:
    waits = Work("ncclDevKernel_AllReduce", 150, 470, 5, stream=20)
    hand = Hand(
        work=[waits, Work(GEMM, 200, 300, 10), Work(GEMM, 310, 320, 20), Work(GEMM, 400, 500, 110)],
        steps=STEPS,
    )
    assert found(hand).bounds_ns.tolist() == [150, 400, 500]


def test_without_kernels_the_copies_tell_where_steps_begin() -> None:
    hand = Hand(work=[Work(COPY, 20, 30, 10), Work(COPY, 120, 130, 110)], steps=STEPS)
    assert found(hand).bounds_ns.tolist() == [20, 120, 130]


def test_the_last_step_ends_when_all_that_the_steps_launched_is_done() -> None:
    late = Work("ncclDevKernel_AllReduce", 300, 900, 30, stream=20)
    hand = Hand(
        work=[Work(GEMM, 300, 400, 10), Work(GEMM, 410, 420, 20), late, Work(GEMM, 450, 500, 110)],
        steps=STEPS,
    )
    assert found(hand).bounds_ns.tolist() == [300, 450, 900]


def test_a_step_with_work_on_other_streams_only_begins_with_that() -> None:
    hand = Hand(work=[Work(GEMM, 300, 400, 10), Work(COPY, 450, 500, 110, stream=9)], steps=STEPS)
    edges = found(hand)
    assert edges.names == ("ProfilerStep#5", "ProfilerStep#6")
    assert edges.bounds_ns.tolist() == [300, 450, 500]


def test_launches_of_the_autograd_thread_belong_to_the_step_around_them() -> None:
    hand = Hand(
        work=[Work(GEMM, 300, 400, 10), Work(GEMM, 450, 500, 150, thread=AUTOGRAD)],
        steps=STEPS,
    )
    assert found(hand).bounds_ns.tolist() == [300, 450, 500]


def test_a_step_that_launched_nothing_is_no_step_and_named() -> None:
    steps = [*STEPS, Span(200, 300, "ProfilerStep#7")]
    hand = Hand(work=[Work(GEMM, 50, 60, 10), Work(GEMM, 250, 260, 210)], steps=steps)
    edges = found(hand)
    assert edges.names == ("ProfilerStep#5", "ProfilerStep#7")
    assert edges.bounds_ns.tolist() == [50, 250, 260]
    assert edges.notes == ("steps that launched no work are no steps of their own: ProfilerStep#6",)


def test_without_launch_records_steps_begin_on_the_host_and_that_is_said() -> None:
    edges = found(Hand(work=[Work(GEMM, 50, 60)], steps=STEPS))
    assert (edges.mode, edges.bounds_ns.tolist()) == ("cpu", [0, 100, 200])
    assert edges.warnings == ("no step has a launch record, so steps begin on the host",)


def test_a_trace_of_a_cpu_has_the_edges_of_its_annotations() -> None:
    edges = found(Hand(ops=[Span(10, 20, "aten::mm")], steps=STEPS))
    assert (edges.mode, edges.bounds_ns.tolist()) == ("cpu", [0, 100, 200])
    assert edges.warnings == ()


def test_cpu_edges_are_those_of_the_annotations_and_say_what_ran_later() -> None:
    hand = Hand(work=[Work(GEMM, 150, 190, 10), Work(GEMM, 190, 250, 110)], steps=STEPS)
    edges = found(hand, "cpu")
    assert (edges.mode, edges.bounds_ns.tolist()) == ("cpu", [0, 100, 200])
    assert edges.warnings == (
        "0.000 ms of kernels and copies (50.0 %) run outside the steps and are left out; "
        'edges="gpu" follows the work of a step',
    )


def test_a_last_step_in_which_the_loop_ended_is_none_and_said() -> None:
    steps = [Span(0, 1000, "ProfilerStep#7"), Span(1000, 1099, "ProfilerStep#8")]
    edges = found(Hand(ops=[Span(0, 10, "aten::mm")], steps=steps))
    assert (edges.names, edges.bounds_ns.tolist()) == (("ProfilerStep#7",), [0, 1000])
    assert edges.notes == (
        "the last step, ProfilerStep#8, takes 0.000 ms on the host, less than a tenth of the "
        "others: the loop or the recording ended in it, so it is left out",
    )
    assert found(Hand(ops=[Span(0, 10, "aten::mm")], steps=steps), steps="8").names == (
        "ProfilerStep#8",
    )
    steps[1] = Span(1000, 1100, "ProfilerStep#8")
    assert len(found(Hand(ops=[Span(0, 10, "aten::mm")], steps=steps)).names) == 2


def test_time_between_two_annotations_belongs_to_the_step_before() -> None:
    steps = [Span(0, 60, "train"), Span(100, 200, "train")]
    assert found(Hand(work=[Work(GEMM, 1, 2)], steps=steps), "cpu").bounds_ns.tolist() == [
        *(0, 100, 200),
    ]


def test_work_before_the_first_and_after_the_last_edge_is_left_out_and_said() -> None:
    work = [Work(GEMM, 1_000_000, 3_500_000, -1), Work(GEMM, 5_000_000, 6_000_000, 10)]
    edges = found(Hand(work=work, steps=STEPS))
    assert edges.bounds_ns.tolist() == [5_000_000, 6_000_000]
    assert edges.notes[-1] == (
        "2.500 ms of kernels and copies (71.4 %) run outside the steps and are left out"
    )


def test_waits_for_the_loader_outside_the_work_of_the_steps_are_said() -> None:
    work = [Work(GEMM, 2_000_000, 3_000_000, 1_900_000)]
    hand = Hand(
        work=work,
        steps=[Span(0, 4_000_000, "ProfilerStep#1")],
        data_waits=[Span(0, 1_500_000), Span(2_100_000, 3_250_000)],
    )
    assert found(hand).notes == (
        "1.750 ms of waiting for the loader, before the first work of the first step or after "
        'the last work of the last, are left out; edges="cpu" has them',
    )
    assert found(hand, "cpu").notes == ()


def test_without_steps_the_whole_trace_is_one() -> None:
    hand = Hand(work=[Work(GEMM, 50, 300, 10), Work(GEMM, 60, 70, 20)])
    for mode in ("gpu", "cpu", "trace"):
        edges = found(hand, mode)
        assert (edges.mode, edges.names, edges.bounds_ns.tolist()) == (
            *("trace", ("trace",)),
            [50, 300],
        )
        assert "there are no step annotations" in edges.notes[0]


def test_the_whole_trace_can_be_asked_for() -> None:
    hand = Hand(work=[Work(GEMM, 50, 300, 10)], steps=STEPS)
    edges = found(hand, "trace")
    assert (edges.mode, edges.bounds_ns.tolist()) == ("trace", [50, 300])
    assert "asked for" in edges.notes[0]


NUMBERED = Hand(
    work=[Work(GEMM, 1000 * i + 10, 1000 * i + 500, 1000 * i) for i in range(6)],
    steps=[Span(1000 * i, 1000 * (i + 1), f"ProfilerStep#{i + 3}") for i in range(6)],
)


@pytest.mark.parametrize(
    ("steps", "names", "bounds"),
    [
        ("4:6", (4, 5), [1010, 2010, 3010]),
        ("5", (5,), [2010, 3010]),
        (":5", (3, 4), [10, 1010, 2010]),
        ("7:", (7, 8), [4010, 5010, 5500]),
        ("0:100", (3, 4, 5, 6, 7, 8), [10, 1010, 2010, 3010, 4010, 5010, 5500]),
    ],
)
def test_steps_are_chosen_by_their_number(
    steps: str, names: tuple[int, ...], bounds: list[int]
) -> None:
    edges = found(NUMBERED, steps=steps)
    assert edges.names == tuple(f"ProfilerStep#{number}" for number in names)
    assert edges.bounds_ns.tolist() == bounds


def test_chosen_steps_have_the_edges_that_they_have_among_all() -> None:
    whole, part = found(NUMBERED), found(NUMBERED, steps="4:7")
    assert part.bounds_ns.tolist() == whole.bounds_ns.tolist()[1:5]
    assert part.notes == ("3 of 6 steps were chosen",) and part.warnings == ()


def test_steps_without_numbers_are_counted_from_0() -> None:
    steps = [Span(1000 * i, 1000 * (i + 1), "train_step") for i in range(6)]
    edges = found(Hand(work=NUMBERED.work, steps=steps), steps="1:3")
    assert edges.bounds_ns.tolist() == [1010, 2010, 3010]


@pytest.mark.parametrize("steps", ["a", "", ":", "3-5", "3:5:7", "-1"])
def test_steps_that_are_no_range_are_refused(steps: str) -> None:
    with pytest.raises(ValueError, match='expected a range like "3:8", "3:", ":8" or "3"'):
        found(NUMBERED, steps=steps)


def test_steps_that_the_trace_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="steps '9:12' names none; the trace has 3:9"):
        found(NUMBERED, steps="9:12")
    with pytest.raises(ValueError, match="there are no steps to choose from: the trace has none"):
        found(Hand(work=[Work(GEMM, 1, 2)]), steps="0:2")
    with pytest.raises(ValueError, match='edges="trace" makes them one'):
        found(NUMBERED, "trace", steps="0:2")


def test_unknown_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="edges is 'host'; expected one of gpu, cpu, trace"):
        found(NUMBERED, "host")
