"""Several ranks of one job: the sums, who waits for whom, and what is refused.

All times are in microseconds in the calls below, and nanoseconds in what is asserted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder
from traces import trace_path

from mfu_torch.insight.breakdown.collectives import NotOneJob
from mfu_torch.insight.breakdown.diff import diff
from mfu_torch.insight.breakdown.explain import Analysis, analyse
from mfu_torch.insight.breakdown.op_names import collective_name
from mfu_torch.insight.breakdown.ranks import Exchange, Job, combine, rank_trace
from mfu_torch.insight.ranks_table import csv_text, markdown, render, summary

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class Rank:
    """A trace of one rank, in microseconds. All is launched as its step begins."""

    def __init__(self, rank: int | None, *, world: int = 2, **more: Any) -> None:
        groups = more.pop("groups", {"0": list(range(world))})
        self.trace = TraceBuilder(rank=rank, world_size=world, groups=groups, **more)
        self._now = 0

    def step(self, number: int) -> Rank:
        self._now = 1000 * (number - 3)
        self.trace.step(number, self._now * US, 1000 * US)
        return self

    def compute(self, start: int, us: int) -> Rank:
        self._kernel("elementwise_kernel", start, us, 7)
        return self

    def collective(
        self,
        start: int,
        us: int,
        name: str = "allreduce",
        *,
        group: str | None = "0",
        elements: int = 1024,
        kernel: str = NCCL,
        **more: Any,
    ) -> Rank:
        said: dict[str, Any] = {
            "Collective name": name,
            "In msg nelems": elements,
            "dtype": "Float",
        }
        if group is not None:
            said["Process Group Name"] = group
        self._kernel(kernel, start, us, 20, **(said if group is not None else {}), **more)
        return self

    def _kernel(self, name: str, start: int, us: int, stream: int, **more: Any) -> None:
        begin = (self._now + start) * US
        self.trace.kernel(name, begin, us * US, stream=stream, launch_ns=self._now * US + 1, **more)

    def analyse(self, folder: Path, **options: Any) -> Analysis:
        name = f"rank{self.trace.rank}_{len(list(folder.iterdir()))}.json"
        return analyse(self.trace.write(folder / name), **options)


def job_of(folder: Path, *ranks: Rank) -> Job:
    return combine([rank_trace(rank.analyse(folder)) for rank in ranks])


def late_and_early() -> tuple[Rank, Rank]:
    """Rank 1 computes for longer, and rank 0 waits for it in the all-reduce.

    Rank 0: compute 0-110, all-reduce 100-160: exposed 110-160, of it 110-140 waiting.
    Rank 1: compute 0-140, all-reduce 140-160: exposed, none of it waiting.
    """
    early = Rank(0).step(3).compute(0, 110).collective(100, 60)
    return early, Rank(1).step(3).compute(0, 140).collective(140, 20)


# --- sums ------------------------------------------------------------------------------------


def test_walls_and_buckets_are_sums_over_ranks(tmp_path: Path) -> None:
    job = job_of(tmp_path, *late_and_early())
    assert job.total.wall_ns == 2 * 160 * US
    times = {one.name: one.time_ns for one in job.total.buckets}
    assert times == {"other_compute": 250 * US, "exposed_communication": 70 * US}
    assert job.total.step_ns == (160 * US, 160 * US)
    assert job.total.steps == ("rank 0 ProfilerStep#3", "rank 1 ProfilerStep#3")
    assert [one.rank for one in job.ranks] == [0, 1]


def test_communication_is_a_sum_with_what_is_beside_compute(tmp_path: Path) -> None:
    total = job_of(tmp_path, *late_and_early()).total
    assert (total.communication_ns, total.overlapped_ns) == (80 * US, 10 * US)


def test_the_parts_of_every_bucket_are_those_of_every_rank_and_step(tmp_path: Path) -> None:
    job = job_of(tmp_path, *late_and_early())
    for one in job.total.buckets:
        assert sum(one.per_step_ns) == one.time_ns
        assert len(one.per_step_ns) == len(job.total.steps)


def test_two_jobs_compare_like_two_traces(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    slow = job_of(tmp_path, *late_and_early()).total
    even = [Rank(rank).step(3).compute(0, 110).collective(110, 20) for rank in (0, 1)]
    found = diff(slow, job_of(tmp_path / "b", *even).total)
    assert found.step_change_ns == -30 * US
    (moved,) = [one for one in found.changes if one.name == "exposed_communication"]
    assert found.change_ns(moved) == -15 * US  # 70 in two steps, then 40


# --- transfer and waiting --------------------------------------------------------------------


def test_the_shortest_kernel_is_the_transfer_and_the_rest_is_waiting(tmp_path: Path) -> None:
    (one,) = job_of(tmp_path, *late_and_early()).exchanges
    assert one == Exchange(
        group="0",
        collective="all_reduce",
        calls=2,
        matched=2,
        exposed_ns=70 * US,
        transfer_ns=40 * US,
        waiting_ns=30 * US,
        unsplit_ns=0,
    )


def test_the_rank_that_waits_least_is_the_culprit(tmp_path: Path) -> None:
    job = job_of(tmp_path, *late_and_early())
    assert job.culprit == 1
    waited = [(one.rank, one.waited_ns, one.exposed_ns) for one in job.waits]
    assert waited == [(0, 40 * US, 30 * US), (1, 0, 0)]  # 10 of 40 lie beside its own compute


def test_clocks_need_not_agree(tmp_path: Path) -> None:
    early, late = late_and_early()
    late.trace.base_us = 77_000_000
    job = job_of(tmp_path, early, late)
    assert job.exchanges[0].waiting_ns == 30 * US


def test_equal_ranks_have_no_culprit(tmp_path: Path) -> None:
    job = job_of(tmp_path, *(Rank(rank).step(3).compute(0, 9).collective(9, 20) for rank in (0, 1)))
    assert job.culprit is None
    assert job.exchanges[0].waiting_ns == 0


def test_who_is_late_by_less_than_a_hundredth_of_the_time_is_no_culprit(tmp_path: Path) -> None:
    early = Rank(0).step(3).compute(0, 900).collective(900, 28)
    assert (
        job_of(tmp_path, early, Rank(1).step(3).compute(0, 908).collective(908, 20)).culprit is None
    )


def test_a_collective_that_begins_early_beside_compute_makes_nobody_late(tmp_path: Path) -> None:
    early = Rank(0).step(3).compute(0, 100).collective(10, 100)
    job = job_of(tmp_path, early, Rank(1).step(3).compute(0, 100).collective(90, 20))
    assert [one.waited_ns for one in job.waits] == [80 * US, 0]
    assert job.late == ()


def test_in_turn_late_ranks_have_no_culprit(tmp_path: Path) -> None:
    # 100: rank 1 is late by 40; 200: rank 0 is late by 40
    one = Rank(0).step(3).collective(100, 60).collective(240, 20)
    other = Rank(1).step(3).collective(140, 20).collective(200, 60)
    assert job_of(tmp_path, one, other).culprit is None


def test_collectives_are_matched_by_their_order_within_a_step(tmp_path: Path) -> None:
    one, other = Rank(0), Rank(1)
    for number in (3, 4):
        one.step(number).collective(0, 50).collective(100, 30, elements=99)
        other.step(number).collective(0, 20).collective(100, 70, elements=99)
    (found,) = job_of(tmp_path, one, other).exchanges
    assert (found.calls, found.matched) == (8, 8)
    assert found.waiting_ns == 2 * (30 + 40) * US
    assert found.transfer_ns == 2 * (2 * 20 + 2 * 30) * US


def test_each_process_group_stands_by_itself(tmp_path: Path) -> None:
    # (tensor parallel: 0 with 1, 2 with 3), (data parallel: 0 with 2, 1 with 3)
    groups = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}
    mine = {0: ("tp0", "dp0"), 1: ("tp0", "dp1"), 2: ("tp1", "dp0"), 3: ("tp1", "dp1")}
    times = {0: (10, 90), 1: (30, 90), 2: (10, 20), 3: (10, 20)}
    ranks = [Rank(rank, world=4, groups=groups).step(3) for rank in range(4)]
    for rank, one in enumerate(ranks):
        one.collective(0, times[rank][0], group=mine[rank][0])
        one.collective(100, times[rank][1], group=mine[rank][1])
    found = {one.group: one.waiting_ns for one in job_of(tmp_path, *ranks).exchanges}
    assert sum(found.values()) == (20 + 0 + 70 + 70) * US
    assert sorted(found.values()) == [0, 20 * US, 70 * US, 70 * US]


def test_numbers_of_the_process_group_match_where_one_kernel_is_missing(tmp_path: Path) -> None:
    one = Rank(0).step(3).collective(0, 30, Seq=5).collective(100, 50, Seq=6)
    other = Rank(1).step(3).collective(100, 20, Seq=6)
    (found,) = job_of(tmp_path, one, other).exchanges
    assert (found.calls, found.matched) == (3, 2)
    assert (found.waiting_ns, found.unsplit_ns) == (30 * US, 30 * US)


def test_a_kernel_without_a_counterpart_is_not_split(tmp_path: Path) -> None:
    one = Rank(0).step(3).collective(0, 50)
    other = Rank(1).step(3).collective(0, 20).collective(100, 10)
    job = job_of(tmp_path, one, other)
    (found,) = job.exchanges
    assert (found.calls, found.matched) == (3, 0)
    assert (found.exposed_ns, found.unsplit_ns) == (80 * US, 80 * US)
    assert "3 of 3 collectives have no counterpart" in " ".join(job.notes)
    assert job.culprit is None


def test_without_named_groups_a_stream_stands_for_one(tmp_path: Path) -> None:
    one = Rank(0).step(3).collective(0, 50, group=None)
    job = job_of(tmp_path, one, Rank(1).step(3).collective(0, 20, group=None))
    assert (job.exchanges[0].group, job.exchanges[0].waiting_ns) == ("stream 20", 30 * US)
    assert "a stream stands for one" in " ".join(job.notes)


def test_groups_without_names_may_take_turns_on_a_stream(tmp_path: Path) -> None:
    gather = {"kernel": "ncclDevKernel_AllGather_RING_LL(...)", "group": None}
    one = Rank(0).step(3).collective(0, 50, group=None).collective(60, 10, **gather)
    other = Rank(1).step(3).collective(0, 30, **gather).collective(60, 20, group=None)
    waits = {one.collective: one.waiting_ns for one in job_of(tmp_path, one, other).exchanges}
    assert waits == {"all_reduce": 30 * US, "all_gather": 20 * US}


def test_an_op_around_the_launch_names_the_collective(tmp_path: Path) -> None:
    ranks = [Rank(0).step(3), Rank(1).step(3)]
    for one in ranks:
        one.trace.op("c10d::alltoall_base_", 0, 100)
        one.trace.op("record_param_comms", 0, 90)
        one.collective(0, 20, group=None, kernel=SENDRECV)
    (found,) = job_of(tmp_path, *ranks).exchanges
    assert (found.collective, found.matched) == ("all_to_all", 2)


def test_ranks_that_are_not_given_are_spoken_of(tmp_path: Path) -> None:
    ranks = [Rank(rank, world=8).step(3).collective(0, 9) for rank in (0, 5)]
    assert "2 of 8 ranks are given" in job_of(tmp_path, *ranks).notes[0]


# --- pipelines -------------------------------------------------------------------------------


def test_a_receive_beyond_the_shortest_of_its_size_is_bubble(tmp_path: Path) -> None:
    # Stage 1 waits in its first receive until stage 0 has computed; its second comes at once.
    first = Rank(0).step(3).compute(0, 100)
    for start in (100, 210):
        first.collective(start, 10, "send", kernel=SENDRECV)
    second = Rank(1).step(3).collective(0, 110, "recv", kernel=SENDRECV).compute(110, 100)
    second.collective(210, 10, "recv", kernel=SENDRECV)
    job = job_of(tmp_path, first, second)
    assert {one.collective: one.waiting_ns for one in job.exchanges} == {
        "recv": 100 * US,
        "send": 0,
    }
    # 100 in the receive; rank 0 idles from 110 to 210, until it sends again
    assert job.bubble_ns == 200 * US


def test_a_send_and_its_receive_are_a_pair_where_the_peers_are_recorded(tmp_path: Path) -> None:
    # 60 us is the transfer of this pair, however short that of another one is.
    pair = {"kernel": SENDRECV, "Src Rank": 0, "Dst Rank": 1}
    first = Rank(0).step(3).compute(0, 100).collective(100, 60, "send", **pair)
    second = Rank(1).step(3).collective(0, 160, "recv", **pair)
    back = {"kernel": SENDRECV, "Src Rank": 1, "Dst Rank": 0}
    first.collective(200, 10, "recv", **back)
    second.collective(200, 10, "send", **back)
    job = job_of(tmp_path, first, second)
    waits = {one.collective: one.waiting_ns for one in job.exchanges}
    assert waits == {"send": 0, "recv": 100 * US}
    assert job.culprit == 0


def test_a_send_of_another_size_than_its_receive_is_refused(tmp_path: Path) -> None:
    pair = {"kernel": SENDRECV, "Src Rank": 0, "Dst Rank": 1}
    with pytest.raises(NotOneJob, match="send_recv of 4,096 bytes in one and send_recv of 8"):
        job_of(
            tmp_path,
            Rank(0).step(3).collective(0, 9, "send", **pair),
            Rank(1).step(3).collective(0, 9, "recv", elements=2, **pair),
        )


def test_without_sends_there_is_no_bubble(tmp_path: Path) -> None:
    assert job_of(tmp_path, *late_and_early()).bubble_ns is None


# --- not of one job --------------------------------------------------------------------------


def test_a_rank_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOneJob, match=r"rank 1 is there twice \(rank1_.*and rank1_"):
        job_of(tmp_path, Rank(1).step(3).compute(0, 9), Rank(1).step(3).compute(0, 9))


def test_worlds_of_different_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOneJob, match=r"different size .*: 2, .*: 4"):
        job_of(tmp_path, Rank(0).step(3).compute(0, 9), Rank(1, world=4).step(3).compute(0, 9))


def test_a_trace_without_a_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOneJob, match="does not say which rank"):
        job_of(tmp_path, Rank(None).step(3).compute(0, 9), Rank(1).step(3).compute(0, 9))


def test_other_collectives_are_refused(tmp_path: Path) -> None:
    one = Rank(0).step(3).collective(0, 9).collective(20, 9, "_allgather_base")
    other = Rank(1).step(3).collective(0, 9, "_allgather_base").collective(20, 9)
    with pytest.raises(NotOneJob, match="is all_reduce of 4,096 bytes in one and all_gather"):
        job_of(tmp_path, one, other)


def test_an_all_reduce_of_another_size_is_refused(tmp_path: Path) -> None:
    one, other = Rank(0).step(3).collective(0, 9), Rank(1).step(3).collective(0, 9, elements=7)
    with pytest.raises(NotOneJob, match="all_reduce of 4,096 bytes in one and all_reduce of 28"):
        job_of(tmp_path, one, other)


def test_steps_at_different_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOneJob, match=r"no step in common \(ProfilerStep#3 and ProfilerStep#9"):
        job_of(tmp_path, Rank(0).step(3).compute(0, 9), Rank(1).step(9).compute(0, 9))


def test_steps_of_another_kind_are_refused(tmp_path: Path) -> None:
    one = Rank(0).step(3).compute(0, 9).analyse(tmp_path)
    other = Rank(1).step(3).compute(0, 9).analyse(tmp_path, edges="cpu")
    with pytest.raises(NotOneJob, match=r"'gpu', those of .* 'cpu'"):
        combine([rank_trace(one), rank_trace(other)])


# --- on paper --------------------------------------------------------------------------------


def test_the_text_says_whom_the_ranks_wait_for(tmp_path: Path) -> None:
    text = render(job_of(tmp_path, *late_and_early()))
    assert text.startswith("2 of 2 ranks (0, 1) | NVIDIA H100 80GB HBM3 | ")
    assert "42.9 % of exposed communication is waiting for other ranks" in text  # 30 of 70
    assert (
        "They wait for rank 1, which itself waits least (in the one step that is traced): it takes "
        "0.03 ms per step more than the others in other compute."
    ) in " ".join(text.split())  # 140 and 110 us
    assert max(map(len, text.splitlines())) <= 100
    (line,) = [line for line in text.splitlines() if line.endswith("<- late")]
    assert line.split()[0] == "1"


def test_the_other_forms_have_every_rank_and_group(tmp_path: Path) -> None:
    job = job_of(tmp_path, *late_and_early())
    assert "1,exposed_communication,20000,1,160000" in csv_text(job).splitlines()
    assert "| 0 | all\\_reduce | 0.035 | 0.02 | 0.015 | 0 |" in markdown(job)
    assert summary(job)["culprit"] == 1
    assert [one["rank"] for one in summary(job)["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (NCCL, "all_reduce"),
        (SENDRECV, "send_recv"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_allgather_base", "all_gather"),
        ("send", "send"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("aten::add_", None),
    ],
)
def test_collectives_are_known_by_many_names(text: str, name: str | None) -> None:
    assert collective_name(text) == name


# --- two real ranks --------------------------------------------------------------------------


def test_two_of_128_ranks_are_joined() -> None:
    paths = [trace_path(f"hta_sampled_recsys_128gpu_rank{n}") for n in (0, 1)]
    job = combine([rank_trace(analyse(path)) for path in paths])
    assert (job.world_size, [one.rank for one in job.ranks]) == (128, [0, 1])
    assert job.total.wall_ns == sum(one.wall_ns for one in job.ranks)
    assert sum(one.time_ns for one in job.total.buckets) == job.total.wall_ns
    exposed = sum(one.exposed_ns for one in job.exchanges)
    (bucket,) = [b for b in job.total.buckets if b.name == "exposed_communication"]
    assert exposed == bucket.time_ns
    for one in job.exchanges:
        assert one.exposed_ns == one.transfer_ns + one.waiting_ns + one.unsplit_ns
    assert "2 of 128 ranks are given" in " ".join(job.notes)
    assert bucket.hint.startswith("Rank ")
    assert "give the traces of all ranks" not in bucket.hint
    assert any("give the traces of all ranks" in b.hint for b in job.ranks[0].buckets)
