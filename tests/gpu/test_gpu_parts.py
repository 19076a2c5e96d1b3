"""The parts of a step on a real GPU: against events of the test's own, and the host's lead."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from mfu_torch import Meter
from mfu_torch.records import Step, StepParts

pytestmark = pytest.mark.gpu

AGREE = 0.10
"""How far a part may be from what the test measures of it; clocks of a GPU move by some percent."""


class Tower(nn.Module):
    """Products of large matrices: some milliseconds of GPU, some microseconds of host."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4096, 4096, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Loop:
    """A training loop; each of its parts lies between two events, too."""

    def __init__(self) -> None:
        self.model = Tower().cuda().bfloat16()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
        self.events: list[list[torch.cuda.Event]] = []

    def step(self) -> None:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
        self.events.append(events)
        events[0].record()
        out = self.model(self.x)
        events[1].record()
        loss = out.float().square().mean()
        events[2].record()
        loss.backward()
        events[3].record()
        self.optimizer.step()
        events[4].record()
        self.optimizer.zero_grad()

    def times_s(self) -> list[float]:
        """Medians of forward, loss, backward and optimizer, without the first steps."""
        torch.cuda.synchronize()
        rows = [
            [first.elapsed_time(second) / 1e3 for first, second in pairwise(one)]
            for one in self.events[5:]
        ]
        return [statistics.median(column) for column in zip(*rows, strict=True)]


def run(step: Callable[[], None], model: nn.Module, steps: int = 60) -> list[Step]:
    with Meter(model, sinks=[], log_dir="", log_every=5, peak=1e15) as meter:
        for _ in range(steps):
            with meter.step():
                step()
    return [step for step in meter.run.steps if not step.excluded and step.index >= 5]


def parts_of(steps: list[Step]) -> list[StepParts]:
    found = [step.parts for step in steps if step.parts is not None]
    assert len(found) >= 3
    return found


def test_the_parts_are_those_between_events_of_ones_own() -> None:
    loop = Loop()
    parts = parts_of(run(loop.step, loop.model))
    names = ("forward_s", "loss_s", "backward_s", "optimizer_s")
    for name, expected_s in zip(names, loop.times_s(), strict=True):
        found_s = statistics.median(getattr(one, name) for one in parts)
        assert found_s == pytest.approx(expected_s, rel=AGREE, abs=5e-5), name


def test_no_part_is_longer_than_its_step() -> None:
    loop = Loop()
    for step in run(loop.step, loop.model):
        if step.parts is not None:
            parts = step.parts
            inside = [parts.forward_s, parts.loss_s, parts.backward_s, parts.optimizer_s]
            assert sum(part or 0.0 for part in inside) <= step.duration_s + 1e-5


def test_a_host_that_runs_ahead_has_a_lead_and_one_that_synchronises_has_none() -> None:
    loop = Loop()

    def waits() -> None:
        loop.step()
        torch.cuda.synchronize()

    ahead = parts_of(run(loop.step, loop.model))
    step_s = statistics.median(step.duration_s for step in run(loop.step, loop.model))
    synchronised = parts_of(run(waits, loop.model))
    assert statistics.median(one.lead_s or 0.0 for one in ahead) > step_s / 2
    assert statistics.median(one.lead_s or 0.0 for one in synchronised) < 0.1 * step_s
    assert statistics.median(one.lead_most_s or 0.0 for one in synchronised) > 0.3 * step_s


def test_a_loop_of_tiny_kernels_has_no_lead() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(50))).cuda()
    x = torch.ones(4, 16, device="cuda")

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    steps = run(step, model, steps=200)
    step_s = statistics.median(step.duration_s for step in steps)
    assert statistics.median(one.lead_most_s or 0.0 for one in parts_of(steps)) < 0.1 * step_s
