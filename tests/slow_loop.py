"""A training loop whose parts take known times.

The model takes 1 s for its forward and 2 s for its backward, the loss 0.25 s and 0.5 s, the
optimizer 4 s: the code itself moves the clock, so that every time is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fake_clock import FakeClock
from fakes import ListSink
from torch import nn

from mfu_torch import Meter
from mfu_torch.records import Step, StepParts

Pass = Callable[[float], None]


class Takes(torch.autograd.Function):
    """The identity, which takes time forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, lasts: Pass, there_s: float, back_s: float) -> Any:
        ctx.lasts, ctx.back_s = lasts, back_s
        lasts(there_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.lasts(ctx.back_s)
        return (*gradients, None, None, None)


class Slow(nn.Module):
    """A linear layer that takes 1 s forward and 2 s backward."""

    def __init__(self, lasts: Pass) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.lasts = lasts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Takes.apply(self.linear(x), self.lasts, 1.0, 2.0)


class SlowSGD(torch.optim.SGD):
    """A step takes 4 s, its closure apart."""

    lasts: Pass

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.lasts(4.0)
        super().step()
        return loss


class Loop:
    """A training loop whose parts move the clock."""

    def __init__(self, folder: Path | str = "", **arguments: Any) -> None:
        self.clock = FakeClock()
        self.lasts: Pass = arguments.pop("lasts", self.clock.advance)
        self.model = Slow(self.lasts)
        self.optimizer = SlowSGD(self.model.parameters(), lr=0.0)
        self.optimizer.lasts = self.lasts
        arguments = {"clock": self.clock, "peak": 1e12, "sinks": [ListSink()]} | arguments
        self.meter = Meter(self.model, log_dir=folder, **arguments)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return Takes.apply(self.model(x).sum(), self.lasts, 0.25, 0.5)

    def train(self, x: torch.Tensor | None = None) -> None:
        self.loss(torch.ones(2, 4) if x is None else x).backward()
        self.optimizer.step()

    def run(self, step: Callable[[], object], times: int = 3) -> list[Step]:
        with self.meter:
            for _ in range(times):
                with self.meter.step():
                    step()
        return list(self.meter.run.steps)


def last_parts(steps: list[Step]) -> StepParts:
    parts = steps[-1].parts
    assert parts is not None
    return parts


def seconds(parts: StepParts) -> tuple[float | None, ...]:
    return (parts.forward_s, parts.loss_s, parts.backward_s, parts.optimizer_s, parts.tail_s)
