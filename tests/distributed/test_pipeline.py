"""Pipeline parallelism on two ranks: each counts its own stages, whatever the schedule.

Stage i has i + 1 layers of 16 x 16 and gets 4 micro-batches of 2 rows; the unit is one layer's
forward on one of these. Every layer has two products in its backward, except for the first of
stage 0, whose input needs no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from counted import counted, metered
from ranks import case, run_cases
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

ROWS, D, MICRO, RANKS = 2, 16, 4, 2
UNIT = 2 * ROWS * D * D


class Rank:
    """The stages of this rank, and a step of the schedule that runs them."""

    def __init__(self, name: str, stages: list[int]) -> None:
        self.stages = stages
        self.modules = [nn.Sequential(*[nn.Linear(D, D) for _ in range(i + 1)]) for i in stages]
        schedule = getattr(schedules, name)
        single = issubclass(schedule, schedules.PipelineScheduleSingle)
        self.last = RANKS * len(stages) - 1
        cpu = torch.device("cpu")
        made = [
            pipelining.PipelineStage(module, i, self.last + 1, cpu)
            for i, module in zip(stages, self.modules, strict=True)
        ]
        self.schedule = schedule(made[0] if single else made, MICRO, loss_fn=F.mse_loss)

    def step(self) -> None:
        x, target = torch.randn(ROWS * MICRO, D), torch.randn(ROWS * MICRO, D)
        inputs = (x,) if 0 in self.stages else ()
        self.schedule.step(*inputs, **({"target": target} if self.last in self.stages else {}))


SCHEDULES: dict[str, Callable[[int], list[int]]] = {
    "ScheduleGPipe": lambda rank: [rank],
    "Schedule1F1B": lambda rank: [rank],
    "ScheduleInterleaved1F1B": lambda rank: [rank, rank + 2],
    "ScheduleLoopedBFS": lambda rank: [rank, rank + 2],
    "ScheduleInterleavedZeroBubble": lambda rank: [rank, rank + 2],
    "ScheduleZBVZeroBubble": lambda rank: [rank, 3 - rank],
}
AVAILABLE = [name for name in SCHEDULES if hasattr(schedules, name)]


@case
def of_schedules() -> Any:
    found = {}
    for name in AVAILABLE:
        rank = Rank(name, SCHEDULES[name](distributed.get_rank()))
        rank.step()  # runs a stage once more, to find out the shapes that it sends
        model = rank.modules[0] if len(rank.modules) == 1 else nn.ModuleList(rank.modules)
        found[name] = [
            counted(rank.step, UNIT),
            *metered(rank.modules[0], rank.step, UNIT),
            *metered(model, rank.step, UNIT),
            *metered(None, rank.step, UNIT),
        ]
    return found


@case
def metered_from_the_first_step() -> Any:
    rank = Rank("Schedule1F1B", [distributed.get_rank()])
    return metered(rank.modules[0], rank.step, UNIT)


def expected(stages: list[int]) -> dict[str, int]:
    forward = MICRO * sum(i + 1 for i in stages)
    return {"forward": forward, "backward": 2 * forward - (MICRO if 0 in stages else 0)}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_cases(__name__, RANKS, tmp_path_factory.mktemp("pipeline"))


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_rank_counts_its_own_stages(counts: dict[str, list[Any]], name: str) -> None:
    for rank, found in enumerate(counts["of_schedules"]):
        assert found[name] == [expected(SCHEDULES[name](rank))] * 10


def test_what_the_first_step_runs_in_addition_is_not_taken_for_that_of_every_step(
    counts: dict[str, list[Any]],
) -> None:
    for rank, found in enumerate(counts["metered_from_the_first_step"]):
        assert found[1:] == [expected([rank])] * 2
