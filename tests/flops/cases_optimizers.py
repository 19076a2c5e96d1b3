"""Optimizers: those that multiply, those that are given a closure, those that step early."""

from __future__ import annotations

from typing import Any

import torch
from cases import Work, work
from cases_phases import UNIT, D, layers, x
from torch import nn


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(x()).square().mean().backward()
    optimizer.step()


@work
def adam() -> Work:
    model = layers(2)
    optimizer = torch.optim.AdamW(model.parameters())
    return Work(lambda: _step(model, optimizer), forward=2 * UNIT, backward=3 * UNIT)


@work
def step_that_is_given_a_closure() -> Work:
    model = layers(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x()).square().mean()
        loss.backward()
        return loss

    return Work(lambda: optimizer.step(closure), forward=2 * UNIT, backward=3 * UNIT)


@work
def lbfgs() -> Work:
    model = layers(1)
    size = D * D + D
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, max_eval=9)
    batch = x()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    # Two evaluations. Dot products: g.d twice; y.s and y.y; s.q and y.r of the two loops.
    return Work(
        lambda: optimizer.step(closure), forward=2 * UNIT, backward=2 * UNIT,
        optimizer=6 * 2 * size,
    )  # fmt: skip


NEWTON_SCHULZ = 5 * (4 * D**3 + 2 * D**3)  # 5 times x x^T, a a, (b a + c a a) x of a square matrix


def _muon(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.01)


@work
def muon() -> Work:
    model = layers(2)
    optimizer = _muon(model)
    return Work(
        lambda: _step(model, optimizer), forward=2 * UNIT, backward=3 * UNIT,
        optimizer=2 * NEWTON_SCHULZ,
    )  # fmt: skip


@work
def muon_that_is_given_a_closure() -> Work:
    model = layers(2)
    optimizer = _muon(model)

    def closure() -> torch.Tensor:
        loss = model(x()).square().mean()
        loss.backward()
        return loss

    return Work(
        lambda: optimizer.step(closure), forward=2 * UNIT, backward=3 * UNIT,
        optimizer=2 * NEWTON_SCHULZ,
    )  # fmt: skip


@work
def muon_that_steps_in_the_backward() -> Work:
    model = nn.Sequential(*[nn.Linear(D, D, bias=False) for _ in range(2)])
    for p in model.parameters():
        optimizer = torch.optim.Muon([p], lr=0.01)
        p.register_post_accumulate_grad_hook(lambda _, step=optimizer.step: step())
    return Work(
        lambda: model(x()).sum().backward(), forward=2 * UNIT, backward=3 * UNIT,
        optimizer=2 * NEWTON_SCHULZ,
    )  # fmt: skip


@work
def optimizer_of_ones_own() -> Work:
    class Squared(torch.optim.Optimizer):
        """Steps along g g^T g, without the decorators that torch's own optimizers have."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.sub_(p.grad @ p.grad.t() @ p.grad, alpha=0.01)

    model = nn.Sequential(*[nn.Linear(D, D, bias=False) for _ in range(2)])
    optimizer = Squared(model.parameters())
    return Work(
        lambda: _step(model, optimizer), forward=2 * UNIT, backward=3 * UNIT,
        optimizer=2 * 2 * (2 * D**3),
    )  # fmt: skip
