"""The bubble of pipelines, simulated event by event, against the closed form."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_jobs import MS, SENDRECV, Pipeline, gpipe, interleaved, one_f_one_b
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.collectives import Call
from mfu_torch.insight.breakdown.explain import analyse
from mfu_torch.insight.breakdown.pipeline import peers
from mfu_torch.insight.breakdown.ranks import Job, combine, rank_trace
from mfu_torch.insight.ranks_table import markdown, render, summary

P, M = 4, 8
EVEN = 3 / 11  # (p - 1) / (m + p - 1)
SCHEDULES = pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])


def orders(schedule: object, p: int = P, m: int = M) -> list[object]:
    return [schedule(stage, p, m) for stage in range(p)]  # type: ignore[operator]


def joined(paths: list[Path], **options: object) -> Job:
    return combine([rank_trace(analyse(path, **options)) for path in paths])


def text_of(job: Job) -> str:
    return " ".join(render(job).split())


@SCHEDULES
def test_the_bubble_of_even_stages_is_the_closed_form(tmp_path: Path, schedule: object) -> None:
    # Of the last step, what later stages idle after it is not in their traces.
    job = joined(Pipeline(orders(schedule)).write(tmp_path, 4), steps="4:6")
    (one,) = job.pipelines
    assert job.bubble_ns is not None
    assert job.bubble_ns / job.total.wall_ns == pytest.approx(EVEN, abs=1e-5)
    assert (one.stages, one.micro_batches, one.chunks) == (P, M, 1)
    assert one.floor == pytest.approx(EVEN)
    assert one.outside_ns <= 100
    text = text_of(job)
    assert (
        "1F1B or GPipe with 4 even stages and 8 micro-batches (8 messages per step between "
        "neighbours) idles for (p-1)/(m+p-1) = 27.3 % of a step; measured are 27.3 %"
    ) in text
    assert "the stages are even." in text
    assert "works longest" not in text


@SCHEDULES
@pytest.mark.parametrize("steps", [1, 3])
def test_what_stages_idle_outside_of_their_steps_counts(
    tmp_path: Path, schedule: object, steps: int
) -> None:
    (one,) = joined(Pipeline(orders(schedule)).write(tmp_path, steps)).pipelines
    assert one.bubble_ns / one.wall_ns < EVEN - 0.01
    assert one.share == pytest.approx(EVEN, abs=1e-5)


@SCHEDULES
def test_even_stages_have_no_late_rank(tmp_path: Path, schedule: object) -> None:
    for steps in (1, 3):
        assert joined(Pipeline(orders(schedule)).write(tmp_path, steps)).late == ()


def test_interleaved_stages_have_a_smaller_bubble(tmp_path: Path) -> None:
    paths = Pipeline(orders(interleaved), chunks=2).write(tmp_path)
    (one,) = joined(paths).pipelines
    assert (one.stages, one.micro_batches, one.chunks) == (P, M, 2)
    assert one.floor == pytest.approx(3 / (2 * 8 + 3))
    assert one.share == pytest.approx(3 / 19, abs=1e-4)
    assert "interleaved 1F1B with 4 even stages and 2 chunks of layers per rank" in text_of(
        joined(paths)
    )


@pytest.mark.parametrize(("schedule", "chunks"), [(one_f_one_b, 1), (interleaved, 2)])
def test_without_peers_it_follows_from_how_much_each_rank_sends(
    tmp_path: Path, schedule: object, chunks: int
) -> None:
    made = Pipeline(orders(schedule), chunks=chunks, with_peers=False)
    (one,) = joined(made.write(tmp_path)).pipelines
    assert (one.stages, one.micro_batches, one.chunks) == (P, M, chunks)


def test_a_slow_stage_is_named_with_what_it_costs(tmp_path: Path) -> None:
    slower = (1.0, 1.0, 1.5, 1.0)
    job = joined(Pipeline(orders(one_f_one_b), slower=slower).write(tmp_path))
    (one,) = job.pipelines
    assert one.floor is not None
    assert one.share > one.floor + 0.1
    (late,) = job.late
    assert (late.ranks, late.groups, late.peers) == ((2,), ("pp0",), (0, 1, 3))
    # Per step 8 x 3 ms of even work, of it half more on rank 2: 12 ms.
    assert late.late_ns / late.steps == pytest.approx(12e6, rel=1e-4)
    text = text_of(job)
    assert "They wait for rank 2, which itself waits least: it takes 12 ms per step more" in text
    assert "What is more comes from uneven stages" in text
    # (24 * 4 + 12) / 4 = 27 ms are the mean; 36 are a third more.
    assert "Of ranks 0, 1, 2 and 3, rank 2 works longest: 33.3 % more than their mean." in text


def test_a_stage_that_is_not_given_leaves_the_closed_form_open(tmp_path: Path) -> None:
    paths = Pipeline(orders(one_f_one_b)).write(tmp_path)
    job = joined([paths[0], paths[1], paths[3]])
    assert job.bubble_ns
    assert {one.floor for one in job.pipelines} == {None}
    assert "is not known: of some of its stages no rank is given" in text_of(job)


def test_two_pipelines_side_by_side_are_two(tmp_path: Path) -> None:
    paths = Pipeline(orders(one_f_one_b), world=8).write(tmp_path)
    paths += Pipeline(orders(one_f_one_b), world=8, first_rank=4).write(tmp_path)
    job = joined(paths)
    assert [one.ranks for one in job.pipelines] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert render(job).count("Closed form") == 1


def test_the_other_forms_have_it(tmp_path: Path) -> None:
    job = joined(Pipeline(orders(gpipe)).write(tmp_path))
    assert summary(job)["pipelines"][0]["floor"] == pytest.approx(EVEN)
    assert "idles for (p-1)/(m+p-1) = 27.3 % of a step" in markdown(job)


def test_a_stage_alone_is_told_of_the_bubble_and_not_of_buckets(tmp_path: Path) -> None:
    paths = Pipeline(orders(one_f_one_b)).write(tmp_path)
    (hint,) = [b.hint for b in analyse(paths[3]).breakdown.buckets if "communication" in b.name]
    assert "it is sends and receives; in a pipeline, more micro-batches" in hint
    assert "bucket_cap_mb" not in hint


def test_waiting_in_a_receive_beside_compute_is_no_waiting(tmp_path: Path) -> None:
    job = joined(Pipeline(orders(interleaved), chunks=2).write(tmp_path))
    assert sum(one.waited_ns for one in job.waits) == job.bubble_ns


def test_two_stages_may_be_interleaved_unseen(tmp_path: Path) -> None:
    job = joined(Pipeline(orders(one_f_one_b, p=2)).write(tmp_path))
    assert job.pipelines[0].floor == pytest.approx(1 / 9)
    assert "= 11.1 % of a step, if a rank has one chunk of layers" in text_of(job)


# --- what has no closed form -----------------------------------------------------------------


def exchanged(folder: Path, sent: dict[int, list[tuple[int, int]]], world: int) -> Job:
    """Each rank sends and receives what is listed, one after another, 1 ms each."""
    ranks = range(world)
    paths = []
    for rank in ranks:
        trace = TraceBuilder(rank=rank, world_size=world, groups={"0": list(ranks)})
        trace.step(3, 0, 1000)
        for at, pair in enumerate(sent[rank]):
            said = {"Process Group Name": "0", "In msg nelems": 9, "dtype": "Float"}
            said |= {"Src Rank": pair[0], "Dst Rank": pair[1]}
            said["Collective name"] = "send" if pair[0] == rank else "recv"
            trace.kernel(SENDRECV, at * MS, MS, stream=20, launch_ns=1, **said)
        paths.append(trace.write(folder / f"rank{rank}.json"))
    return joined(paths)


def test_a_ring_is_no_pipeline(tmp_path: Path) -> None:
    # As ring attention does: each sends to the next, and receives from the one before.
    sent = {r: [(r, (r + 1) % 4), ((r - 1) % 4, r)] for r in range(4)}
    job = exchanged(tmp_path, sent, 4)
    assert (job.pipelines, job.bubble_ns) == ((), None)
    assert "Pipeline bubble" not in render(job)


def test_a_star_is_no_path_of_stages(tmp_path: Path) -> None:
    sent = {0: [(0, 1), (0, 2), (0, 3)], **{r: [(0, r)] for r in (1, 2, 3)}}
    (one,) = exchanged(tmp_path, sent, 4).pipelines
    assert (one.floor, one.unknown) == (None, "its ranks are not connected one after another")


def test_a_pipeline_that_only_goes_forward_has_the_same_closed_form(tmp_path: Path) -> None:
    sent = {0: [(0, 1)] * 4, 1: [(0, 1), (1, 2)] * 4, 2: [(1, 2)] * 4}
    (one,) = exchanged(tmp_path, sent, 3).pipelines
    assert (one.stages, one.micro_batches) == (3, 4)
    assert one.floor == pytest.approx(2 / 6)


def test_unequal_numbers_of_messages_have_no_closed_form(tmp_path: Path) -> None:
    sent = {0: [(0, 1)] * 4, 1: [(0, 1)] * 4 + [(1, 2)] * 3, 2: [(1, 2)] * 3}
    (one,) = exchanged(tmp_path, sent, 3).pipelines
    assert one.floor is None
    assert "the numbers of messages between stages differ" in one.unknown


def test_peers_may_be_numbered_within_their_group() -> None:
    call = Call(
        **{"group": "7", "label": "7", "members": (4, 5, 6, 7), "name": "send", "number": -1},
        **{"size_bytes": 1, "pair": (1, 2), "begin_ns": 0, "duration_ns": 1},
        **{"launched_in": None, "began_in": None, "is_launched": False},
    )
    assert peers(call, 5, (4, 5, 6, 7)) == (5, 6)
    assert peers(call, 2, ()) == (1, 2)
    assert peers(call, 9, ()) is None


def test_kernels_that_send_and_receive_at_once_are_said(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        trace.step(3, 0, 1000)
        trace.kernel(SENDRECV, 0, MS, stream=20, launch_ns=1)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    assert "2 kernels send and receive at once" in " ".join(joined(paths).notes)
