"""Which rank the others wait for, and what it does longer than they do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks, job_of

from mfu_torch.insight.breakdown.late import Group, late, late_in
from mfu_torch.insight.ranks_table import render

WALL = 1000.0


def found(folder: Path, *, given: tuple[int, ...] = (), **more: Any) -> tuple[Any, str]:
    paths = Ranks(**{"world": 4, **more}).write(folder)
    job = job_of([path for rank, path in enumerate(paths) if not given or rank in given])
    return job, " ".join(render(job).split())


# --- one rank is late ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "what"),
    [
        ({"norm_us": lambda r, s, g: 180 if r == 2 else 100}, "other compute"),
        ({"loader_us": lambda r, s: 90 if r == 2 else 10}, "idle: data wait"),
        ({"host_us": lambda r, s: 85 if r == 2 else 5}, "idle: launch-bound"),
    ],
    ids=["compute", "loader", "host"],
)
def test_a_slow_rank_is_named_with_what_it_does_longer(
    tmp_path: Path, slow: dict[str, Any], what: str
) -> None:
    job, text = found(tmp_path, **slow)
    assert job.culprit == 2
    (one,) = job.late
    assert (one.peers, one.groups) == ((0, 1, 3), ("0",))
    assert one.late_ns == 3 * 80_000
    # Of three steps, two waits for the loader are seen: 2 x 80 / 3.
    ms = "0.0533" if "data" in what else "0.08"
    assert (
        f"They wait for rank 2, which itself waits least: it takes {ms} ms per step more than the "
        f"others in {what}."
    ) in text
    assert text.count("<- late") == 1


def test_a_slow_link_makes_nobody_late(tmp_path: Path) -> None:
    job, text = found(tmp_path, transfer_us=5000)
    assert (job.culprit, job.late) == (None, ())
    assert (
        "0.0 % of exposed communication is waiting for other ranks. No rank is late: the transfers "
        "themselves take the time."
    ) in text


def test_two_things_that_a_rank_does_longer_are_both_named(tmp_path: Path) -> None:
    _, text = found(
        tmp_path,
        norm_us=lambda r, s, g: 180 if r == 2 else 100,
        host_us=lambda r, s: 45 if r == 2 else 5,
    )
    assert (
        "0.08 ms per step more than the others in other compute, and 0.04 ms in idle: launch-"
        in text
    )


def test_a_slow_node_is_all_its_ranks(tmp_path: Path) -> None:
    job, text = found(tmp_path, world=16, norm_us=lambda r, s, g: 180 if r >= 8 else 100)
    assert job.late[0].ranks == tuple(range(8, 16))
    assert job.culprit is None
    assert "They wait for 8 ranks (8, 9, 10, 11, 12, 13, ...), which themselves wait least" in text


def test_of_ranks_that_are_not_all_given_it_is_said(tmp_path: Path) -> None:
    _, text = found(tmp_path, given=(0, 2), norm_us=lambda r, s, g: 180 if r == 2 else 100)
    assert "Of the given ranks, they wait for rank 2, which itself waits least" in text


def test_waiting_for_a_late_rank_is_not_answered_with_less_communication(tmp_path: Path) -> None:
    _, text = found(tmp_path, norm_us=lambda r, s, g: 900 if r == 2 else 10)
    fix = text.partition("Where the time goes")[0]
    assert "Fix first: exposed communication" in fix
    assert "They wait for rank 2" in fix
    assert "bucket_cap_mb" not in fix


def test_a_late_rank_is_named_first_even_where_another_loss_is_larger(tmp_path: Path) -> None:
    _, text = found(tmp_path, norm_us=lambda r, s, g: 900 if r == 2 else 800)
    assert "Fix first: other compute" in text
    # Three of four ranks wait for 100 us of a step of 1150 us.
    assert "Besides, for 6.5 % of the time ranks wait for others, first for rank 2." in text


# --- nobody is late --------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3, 4, 8, 64, 256])
@pytest.mark.parametrize("steps", [3, 5, 10])
def test_ranks_that_differ_by_chance_are_not_named(world: int, steps: int) -> None:
    # The step of a rank takes 100 +- 20: of 300 such jobs, at most one in twenty names somebody.
    named, dice = 0, random.Random(world + 1000 * steps)
    for _ in range(300 if world < 64 else 60):
        times = [[dice.gauss(100, 20) for _ in range(world)] for _ in range(steps)]
        waits = {
            r: {str(s): round(max(t) - t[r]) for s, t in enumerate(times)} for r in range(world)
        }
        named += bool(late_in(waits, 100 * steps)[0])
    assert named <= (15 if world < 64 else 1)


def test_a_job_whose_ranks_differ_by_chance_says_that_nobody_is_late(tmp_path: Path) -> None:
    dice = random.Random(3)
    times = {(r, s): round(dice.gauss(100, 20)) for r in range(4) for s in range(3, 6)}
    job, text = found(tmp_path, norm_us=lambda r, s, g: times[r, s])
    assert job.late == ()
    assert "No single rank is late: they wait for each other in turn." in text
    assert "<- late" not in text


def test_one_late_rank_is_found_among_those_that_differ_by_chance(tmp_path: Path) -> None:
    dice = random.Random(1)
    times = {(r, s): round(dice.gauss(100, 5)) for r in range(8) for s in range(3, 6)}
    job, _ = found(tmp_path, world=8, norm_us=lambda r, s, g: times[r, s] + 60 * (r == 5))
    assert job.culprit == 5


def test_a_rank_that_is_late_in_one_step_of_many_is_chance() -> None:
    steady = {0: {f"{s}": 50 for s in range(4)}, 1: dict.fromkeys("0123", 0)}
    once = {0: {"0": 200, "1": 0, "2": 0, "3": 0}, 1: dict.fromkeys("0123", 0)}
    assert late_in(steady, WALL) == ((1,), 200.0)
    assert late_in(once, WALL) == ((), 0.0)


def test_a_single_early_rank_makes_no_late_ones() -> None:
    assert late_in({0: {"0": 100}, 1: {"0": 0}, 2: {"0": 0}}, WALL) == ((), 0.0)


# --- several groups --------------------------------------------------------------------------

TP = {"10": [0, 1], "11": [2, 3]}
DP = {"20": [0, 2], "21": [1, 3]}


def test_who_was_made_late_in_another_group_is_not_named(tmp_path: Path) -> None:
    # Rank 1 is slow before the all-reduce of TP: rank 0 waits there, 2 and 3 for both in DP.
    job, text = found(
        tmp_path,
        groups=(TP, DP),
        labels=("mesh_tp", "mesh_dp"),
        norm_us=lambda r, s, g: 180 if (r, g) == (1, 0) else 100,
    )
    assert job.culprit == 1
    assert job.late[0].groups == ("mesh_tp", "mesh_dp")
    assert "They wait in mesh_tp and mesh_dp for rank 1, which itself waits least" in text


def test_each_group_has_its_own_late_rank(tmp_path: Path) -> None:
    # Before TP, rank 1 is slow; after it, before DP, rank 2. Then all wait for all.
    slow = {(1, 0): 180, (2, 1): 400}
    job, text = found(
        tmp_path,
        groups=(TP, DP, {"0": [0, 1, 2, 3]}),
        labels=("mesh_tp", "mesh_dp", "default_pg"),
        norm_us=lambda r, s, g: slow.get((r, g), 100),
    )
    assert {one.ranks: one.groups for one in job.late} == {
        (1,): ("mesh_tp", "mesh_dp"),
        (2,): ("mesh_dp", "default_pg"),
    }
    assert "for rank 1, which itself waits least: it takes 0.08 ms" in text
    # 0.3 ms more than ranks 0 and 3, 0.22 ms more than rank 1.
    assert "for rank 2, which itself waits least: it takes 0.273 ms" in text
    assert text.count("<- late") == 2


def test_a_rank_whose_slowness_delays_nobody_is_not_named(tmp_path: Path) -> None:
    # Without a collective of all, rank 2 sets the pace; that rank 1 is slow, too, costs nothing.
    slow = {(1, 0): 180, (2, 1): 400}
    job, _ = found(tmp_path, groups=(TP, DP), norm_us=lambda r, s, g: slow.get((r, g), 100))
    assert job.culprit == 2


def test_groups_of_the_same_ranks_each_have_theirs() -> None:
    one = Group("data", {0: {"0": 0}, 1: {"0": 100}})
    other = Group("moe", {0: {"0": 90}, 1: {"0": 0}})
    assert [(x.groups, x.ranks, x.peers) for x in late([one, other], WALL)] == [
        (("data",), (0,), (1,)),
        (("moe",), (1,), (0,)),
    ]
