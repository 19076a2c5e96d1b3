"""A split count where layers run again in the backward: every kind of checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from module_split import Block, D, H, Phases, split, step
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


class Checkpointed(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stem, self.block, self.options = nn.Linear(D, D), Block(), options
        self.weight = nn.Parameter(torch.randn(D, H))

    def function(self, h: torch.Tensor) -> torch.Tensor:
        # A module, and a product that belongs to the caller of the checkpoint.
        return F.linear((self.block(h) @ self.weight).relu(), self.weight).relu()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.function, h.requires_grad_(), **self.options)


ONE_BLOCK = {path: (1, 2, 1) for path in ("block.up", "block", "block.back", "block.down")}


@pytest.mark.parametrize("options", [{"use_reentrant": True}, {"use_reentrant": False}], ids=str)
def test_a_recomputed_module_and_a_recomputed_function(options: dict[str, Any]) -> None:
    # Everything in the function comes before the last tensor that is saved.
    model = Checkpointed(**options)
    assert split(model, step(model)) == ONE_BLOCK | {"": (2, 4, 2)}


def test_a_recomputation_that_stops_early_leaves_the_stack_of_modules_in_order() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                h = checkpoint(block, h, use_reentrant=False)
            return h

    model = Model()
    expected: Phases = {}
    for i in range(3):
        expected[f"blocks.{i}.up"] = (1, 2 if i else 1, 1)
        expected |= {f"blocks.{i}": (1, 2, 1), f"blocks.{i}.back": (1, 2, 1)}
        expected[f"blocks.{i}.down"] = (1, 2, 0)  # its input is the last tensor that is saved
    assert split(model, step(model)) == expected


def test_nested_checkpoints() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def inner(self, h: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, h, use_reentrant=False).relu()

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, h.requires_grad_(), use_reentrant=False)

    model = Model()
    # Once by the outer checkpoint, up to the relu, and once by the inner one, up to the last layer.
    assert split(model, step(model)) == {
        "block.up": (1, 2, 2),
        "block": (1, 2, 2),
        "block.back": (1, 2, 2),
        "block.down": (1, 2, 1),
    }


def test_a_selective_checkpoint_recomputes_only_what_it_does_not_save() -> None:
    def keep(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    model = Checkpointed(
        use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(keep)
    )
    units = split(model, step(model))
    assert units["block.up"] == (1, 2, 0)
    assert units["block"] == (1, 2, 1)
    assert units[""] == (2, 4, 2)


class OwnCheckpoint(torch.autograd.Function):
    """As DeepSpeed and Megatron write them."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, h: torch.Tensor) -> torch.Tensor:
        ctx.block = block
        ctx.save_for_backward(h)
        with torch.no_grad():
            return block(h)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        h = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.block(h)
        torch.autograd.backward(out, grad)
        return None, h.grad


def test_a_checkpoint_that_is_an_autograd_function() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Block(), nn.Linear(D, H)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self.head(OwnCheckpoint.apply(self.block, h.requires_grad_()))

    model = Model()
    assert split(model, step(model)) == ONE_BLOCK | {"head": (1, 2, 0)}
