"""A small model whose FLOPs are counted in units of one linear layer's forward.

It has three blocks of two linear layers, so its forward is 6 and, where its input needs a
gradient, its backward 12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mfu_torch import Meter
from mfu_torch.flops.counter import count_flops
from mfu_torch.records import FlopCount

B, D = 8, 16
UNIT = 2 * B * D * D
PLAIN = {"forward": 6, "backward": 12}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.gelu(self.first(x)))


class Net(nn.Module):
    """Three blocks, each of which is called as ``run(block, x)``."""

    def __init__(self, run: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.run is None else self.run(block, x)
        return x


class Product(torch.autograd.Function):
    """``x @ w.T`` with its gradients written by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.T @ x


def inputs() -> torch.Tensor:
    return torch.randn(B, D, requires_grad=True)


def matrices(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.ndim == 2]


def step_of(model: Callable[..., torch.Tensor]) -> Callable[[], None]:
    return lambda: model(inputs()).sum().backward()


def in_units(count: FlopCount) -> dict[str, float]:
    units: dict[str, float] = {}
    for term in count.terms:
        units[term.phase] = units.get(term.phase, 0) + term.flops / UNIT
    units.update({f"uncounted {op}": calls for op, calls in count.uncounted.items()})
    return units


def phases(fn: Callable[[], Any], *notes: str) -> dict[str, float]:
    """FLOPs by phase; the count must have exactly the notes that contain these words."""
    count = count_flops(fn)
    assert len(count.notes) == len(notes), count.notes
    assert all(words in note for words, note in zip(notes, count.notes, strict=True)), count.notes
    return in_units(count)


def metered(
    model: nn.Module | None, step: Callable[[], Any], *, steps: int = 3
) -> list[dict[str, float] | str]:
    """What a user of ``Meter`` sees of each step: its FLOPs by phase, or why they are unknown."""
    with Meter(model, peak=1e12, sinks=[], log_dir="", log_every=1) as meter:
        for _ in range(steps):
            with meter.step():
                step()
    seen = [meter.run.count_of(taken) for taken in meter.run.steps]
    return [count if isinstance(count, str) else in_units(count) for count in seen]
