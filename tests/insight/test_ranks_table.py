"""What is printed of several ranks: rooflines, whose a hint is, process groups, many ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks, job_of
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.collectives import NotOneJob
from mfu_torch.insight.breakdown.explain import analyse
from mfu_torch.insight.breakdown.roofline import roofline
from mfu_torch.insight.ranks_table import markdown, render, summary

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def text_of(folder: Path, **more: Any) -> str:
    return " ".join(render(job_of(Ranks(**{"world": 2, **more}).write(folder))).split())


def lines_of(folder: Path, **more: Any) -> list[str]:
    return render(job_of(Ranks(**more).write(folder))).splitlines()


# --- roofline --------------------------------------------------------------------------------


def test_the_rooflines_of_ranks_are_sums(tmp_path: Path) -> None:
    paths = Ranks(2).write(tmp_path)
    one = analyse(paths[0])
    alone = roofline(one.trace, one.labels, one.matrix)
    both = job_of(paths).roofline
    assert (both.total.peak_flops_per_s, both.total.bytes_per_s) == (
        alone.peak_flops_per_s,
        alone.bytes_per_s,
    )
    (mine,) = [roof for roof in alone.roofs if roof.op == "aten::mm"]
    (ours,) = [roof for roof in both.total.roofs if roof.op == "aten::mm"]
    assert (ours.time_ns, ours.calls, ours.flops) == (2 * 3 * 200_000, 6, 12 * 10**9)
    assert ours.least_ns == 2 * (mine.least_ns or 0)
    assert (ours.intensity, ours.bound) == (mine.intensity, mine.bound)
    assert both.total.neither_ns == 2 * alone.neither_ns
    assert both.total.unknown_ns == 2 * alone.unknown_ns
    parts = (both.total.compute_ns, both.total.memory_ns)
    assert sum(parts) + both.total.neither_ns + both.total.unknown_ns == 2 * 3 * 300_000


def test_the_roofline_of_a_job_is_that_of_a_mean_rank(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    assert (
        "Roofline: 989.4 TFLOP/s and 3.35 TB/s: an op with less than 295 FLOP per byte is bound by "
        "memory"
    ) in text
    # 2e9 / 989.4e12 = 2.0 us of 200 us of a step of 350 us
    assert "mm 0.20000 0.00202 " in text


def test_each_rank_stands_against_the_roofs_of_its_own_device(tmp_path: Path) -> None:
    devices = {0: H100, 1: A100}
    job = job_of(Ranks(2, devices=lambda r: devices[r]).write(tmp_path))
    assert [(one.device, one.ranks) for one in job.roofline.devices] == [(H100, (0,)), (A100, (1,))]
    (roof,) = [roof for roof in job.roofline.total.roofs if roof.op == "aten::mm"]
    # Three steps of 2 GFLOP on each: at 989.4 and at 312 TFLOP/s; 6 MB need less.
    assert roof.least_ns == pytest.approx(3 * (2e9 / 989.4e12 + 2e9 / 312e12) * 1e9, rel=0.01)
    text = " ".join(render(job).split())
    assert "the roofs of the ranks differ, and each op stands against those of its own" in text
    assert f"{H100} (rank 0), 989.4 TFLOP/s bf16 and 3.35 TB/s" in text
    assert f"{A100} (rank 1), 312.0 TFLOP/s bf16 and " in text


def test_a_device_without_roofs_leaves_the_others_theirs(tmp_path: Path) -> None:
    devices = {0: H100, 1: None}
    job = job_of(Ranks(2, devices=lambda r: devices[r]).write(tmp_path))
    known = [roof for roof in job.roofline.total.roofs if roof.least_ns is not None]
    assert [(roof.op, roof.time_ns) for roof in known] == [("aten::mm", 600_000)]
    assert "no name (rank 1), no roof is known" in " ".join(render(job).split())


def test_json_has_the_roofline_of_all_ranks(tmp_path: Path) -> None:
    plain = summary(job_of(Ranks(2).write(tmp_path)))
    assert plain["total"]["roofline"]["peak_flops_per_s"] == 989.4e12
    assert plain["roofs"][0]["ranks"] == (0, 1)
    json.dumps(plain)


# --- whose hint it is ------------------------------------------------------------------------


def test_a_hint_says_whose_it_is_and_of_what_its_shares_are(tmp_path: Path) -> None:
    text = text_of(tmp_path, norm_us=lambda r, s, g: 300 if r == 1 else 100)
    # Of 550 us of a step, 300 are 54.5 %; in the table of the job it is 200, and 36.4 %.
    assert "- other compute 0.20000 36.36 %" in text
    assert "Rank 1 has most, 300 us of its step of 550 us: 54.5 % of its time, in 1 kernel" in text


def test_a_rank_that_is_like_the_others_is_not_held_to_have_most(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    assert "like the others: 28.6 % of its time, in 1 kernel" in text  # 100 of 350 us
    assert "has most" not in text


def test_idle_for_another_reason_is_not_like_the_others(tmp_path: Path) -> None:
    paths = []
    for rank, doing in ((0, "checkpoint"), (1, "logging")):
        trace = TraceBuilder(device_name=None, rank=rank, world_size=2)
        trace.step(3, 0, 1_000_000)
        trace.op("aten::mm", 0, 200_000)
        trace.annotation(doing, 250_000, 700_000)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    text = " ".join(render(job_of(paths)).split())
    assert "Rank 0 (others have about as much, and a hint of their own each): 80.0 %" in text
    assert "it is in checkpoint" in text
    assert "like the others: 80.0 %" not in text


def test_a_rank_with_more_steps_has_not_most_for_that(tmp_path: Path) -> None:
    steps = {0: range(3, 9), 1: range(3, 5)}
    text = text_of(
        tmp_path,
        steps=lambda r: steps[r],
        norm_us=lambda r, s, g: 300 if r == 1 else 100,
    )
    assert "Rank 1 has most, 300 us of its step of 550 us" in text


# --- process groups --------------------------------------------------------------------------


def test_groups_are_called_what_the_program_calls_them(tmp_path: Path) -> None:
    groups = ({"10": [0, 1], "11": [2, 3]}, {"20": [0, 2], "21": [1, 3]})
    labels = ("mesh_tp", "DATA_PARALLEL_GROUP_WITH_CP")
    job = job_of(Ranks(4, groups=groups, labels=labels).write(tmp_path))
    assert {one.group: one.groups for one in job.exchanges} == dict.fromkeys(labels, 2)
    text = render(job)
    assert "\n  mesh_tp (2x)                all_reduce " in text
    assert "\n  DATA_PARALLEL_WITH_CP (2x)  all_reduce " in text
    assert max(map(len, text.splitlines())) <= 100
    assert "| mesh\\_tp (2x) |" in markdown(job)


def test_a_group_that_the_program_does_not_name_keeps_its_number(tmp_path: Path) -> None:
    job = job_of(Ranks(2, labels=("undefined",)).write(tmp_path))
    assert [one.group for one in job.exchanges] == ["0"]


# --- many ranks ------------------------------------------------------------------------------


def test_of_many_ranks_the_slowest_and_the_fastest_are_shown(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, world=64, norm_us=lambda r, s, g: 100 + 2 * r + 200 * (r == 40))
    at = lines.index("Ranks (ms per step)")
    rows = lines[at + 2 : lines.index("", at)]
    assert len(rows) == 13
    assert rows[0].split()[0] == "40"
    assert rows[0].endswith("<- late")
    assert [row.split()[0] for row in rows[1:6]] == ["63", "62", "61", "60", "59"]
    assert rows[6] == "     ...  52 ranks between those that wait least and most: --json has all"
    assert [row.split()[0] for row in rows[7:]] == ["5", "4", "3", "2", "1", "0"]


def test_a_dozen_ranks_are_all_shown_by_their_number(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, world=12)
    at = lines.index("Ranks (ms per step)")
    assert [row.split()[0] for row in lines[at + 2 : at + 14]] == [str(rank) for rank in range(12)]


# --- what is missing -------------------------------------------------------------------------


def test_unequal_numbers_of_steps_are_said(tmp_path: Path) -> None:
    text = text_of(tmp_path, steps=lambda r: range(3, 8 - r))
    assert (
        "the ranks have from 4 to 5 steps (fewer than 5: rank 1); 4 of 5 are of all ranks. Each "
        "step counts once"
    ) in text


def test_steps_that_only_overlap_are_said(tmp_path: Path) -> None:
    text = text_of(tmp_path, steps=lambda r: range(3 + r, 6 + r))
    assert "the ranks have 3 steps each, but not the same ones; 2 of 4 are of all ranks" in text


def test_equal_steps_need_no_word(tmp_path: Path) -> None:
    assert "steps each" not in text_of(tmp_path)


def test_the_same_file_twice_is_said_to_be_that(tmp_path: Path) -> None:
    paths = Ranks(2).write(tmp_path)
    with pytest.raises(NotOneJob, match=r"rank 0 is there twice \(rank0.json, given twice, or in"):
        job_of([paths[0], paths[0]])


def test_steps_of_other_times_of_the_job_are_refused(tmp_path: Path) -> None:
    paths = Ranks(2, steps=lambda r: range(3 + 10 * r, 6 + 10 * r)).write(tmp_path)
    with pytest.raises(NotOneJob, match=r"no step in common \(ProfilerStep#3 and ProfilerStep#13"):
        job_of(paths)


def test_waiting_that_is_not_known_is_a_dash(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        trace.step(3, 0, 1000)
        trace.kernel("elementwise_kernel", 0, 1000, launch_ns=1)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    job = job_of(paths)
    assert "no collectives are in these traces" in " ".join(job.notes)
    (row,) = [line for line in render(job).splitlines() if line.startswith("       1 ")]
    assert row.split()[1:4] == ["0.001000", "0.000000", "-"]
