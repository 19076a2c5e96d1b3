"""Counts of small models split over their modules, in units of one linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mfu_torch.flops.modules import count_by_module

B, D, H = 4, 8, 16
UNIT = 2 * B * D * H  # one product of a linear layer between D and H features

Phases = dict[str, tuple[int, int, int]]


def split(model: nn.Module, fn: Callable[[], Any]) -> Phases:
    """Units of forward, backward and recomputation per module, where there are any."""
    counts = count_by_module(model, fn)
    total = counts.total
    for phase in ("forward", "forward_no_grad", "backward", "recompute", "kernel_recompute"):
        assert sum(getattr(c, phase) for c in counts.modules.values()) == getattr(total, phase)
    assert sum(c.model_causal for c in counts.modules.values()) == total.model_causal
    units = {}
    for path, count in counts.modules.items():
        phases = (count.forward + count.forward_no_grad, count.backward, count.recompute)
        assert all(flops % UNIT == 0 for flops in phases)
        units[path] = tuple(flops // UNIT for flops in phases)
    return units


class Block(nn.Module):
    """Two linear layers as modules, and one product of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)
        self.mix = nn.Parameter(torch.randn(H, D))  # H -> D
        self.back = nn.Linear(D, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x).relu() @ self.mix
        return x + self.down(self.back(h).relu())


def x(grad: bool = False) -> torch.Tensor:
    return torch.randn(B, D, requires_grad=grad)


def step(model: nn.Module) -> Callable[[], None]:
    return lambda: model(x()).sum().backward()
