"""Which phase each FLOP belongs to, in units of one linear layer's forward.

The model has three blocks of two linear layers, so its forward is 6 and, as its input needs a
gradient, its backward 12.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from mfu_torch.flops.counter import FlopCounter, count_flops
from mfu_torch.records import FlopCount

B, D = 8, 16
UNIT = 2 * B * D * D


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.gelu(self.first(x)))


class Net(nn.Module):
    def __init__(self, run: Callable[..., torch.Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return x


def phases(fn: Callable[[], Any]) -> dict[str, float]:
    return in_units(count_flops(fn))


def in_units(count: FlopCount) -> dict[str, float]:
    units: dict[str, float] = {}
    for term in count.terms:
        units[term.phase] = units.get(term.phase, 0) + term.flops / UNIT
    return units


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(B, D, requires_grad=True)


def test_a_plain_step_is_forward_and_backward(x: torch.Tensor) -> None:
    net = Net()
    assert phases(lambda: net(x).sum().backward()) == {"forward": 6, "backward": 12}


class CheckpointOfDeepSpeed(torch.autograd.Function):
    """A checkpoint that does not use torch's: its backward calls the module and the engine."""

    @staticmethod
    def forward(ctx: Any, fn: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.fn = fn
        ctx.save_for_backward(x)
        with torch.no_grad():
            return fn(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


def nested(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    return checkpoint(inner, x, use_reentrant=False)


def to_the_end(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return checkpoint(block, x, use_reentrant=False)


def selective(saved: Callable[[int], bool]) -> Callable[..., torch.Tensor]:
    """Save the addmm calls of a block for whose position ``saved`` holds."""

    def context() -> Any:
        seen = {False: 0, True: 0}

        def policy(ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            if op is not torch.ops.aten.addmm.default:
                return CheckpointPolicy.PREFER_RECOMPUTE
            position = seen[ctx.is_recompute]
            seen[ctx.is_recompute] += 1
            must_save = saved(position)
            return CheckpointPolicy.MUST_SAVE if must_save else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return functools.partial(checkpoint, use_reentrant=False, context_fn=context)


@pytest.mark.parametrize(
    ("run", "recomputed"),
    [
        (functools.partial(checkpoint, use_reentrant=True), 6),
        # Stops with the last tensor that is needed: the second layer of a block is not run again.
        (functools.partial(checkpoint, use_reentrant=False), 3),
        (to_the_end, 6),
        (nested, 3),
        (selective(lambda position: True), 0),
        (selective(lambda position: position == 0), 0),
        (selective(lambda position: position == 1), 3),
        (CheckpointOfDeepSpeed.apply, 6),
    ],
    ids=["reentrant", "early_stop", "no_early_stop", "nested", "save_all", "save_first",
         "save_second", "deepspeed"],
)  # fmt: skip
def test_what_a_checkpoint_repeats_is_recompute(
    x: torch.Tensor, run: Callable[..., torch.Tensor], recomputed: int
) -> None:
    net = Net(run)
    expected = {"forward": 6, "backward": 12} | ({"recompute": recomputed} if recomputed else {})
    assert phases(lambda: net(x).sum().backward()) == expected


@pytest.mark.parametrize("use_reentrant", [None, False])
def test_a_backward_whose_graph_is_kept_is_no_recompute(
    x: torch.Tensor, use_reentrant: bool | None
) -> None:
    net = Net()
    if use_reentrant is not None:
        net.run = functools.partial(checkpoint, use_reentrant=use_reentrant)

    def step() -> None:
        loss = net(x).pow(2).sum()
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        sum(g.pow(2).sum() for g in gradients).backward()

    expected = {"forward": 6, "backward": 45}
    # Early stop does not apply: the first backward needs the whole block's graph.
    assert phases(step) == expected | ({} if use_reentrant is None else {"recompute": 6})


def test_a_gradient_by_torch_func_is_backward(x: torch.Tensor) -> None:
    net = Net()
    parameters = dict(net.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(net, parameters, (x,)).sum()

    # No gradient of the first layer's input.
    assert phases(lambda: grad(loss)(parameters)) == {"forward": 6, "backward": 11}


def test_a_teacher_under_no_grad_stands_apart(x: torch.Tensor) -> None:
    teacher, student = Net(), Net()

    def step() -> None:
        with torch.no_grad():
            target = teacher(x)
        F.mse_loss(student(x), target).backward()

    expected = {"forward_no_grad": 6, "forward": 6, "backward": 12}
    assert phases(step) == expected
    assert count_flops(step).model == 24 * UNIT


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.T @ x


def test_the_forward_of_an_autograd_function_is_forward(x: torch.Tensor) -> None:
    w = torch.randn(D, D, requires_grad=True)
    step = phases(lambda: LinearFunction.apply(x, w).sum().backward())
    assert step == {"forward": 1, "backward": 2}


def test_the_forward_of_an_autograd_function_is_repeated_by_a_checkpoint(x: torch.Tensor) -> None:
    w = torch.randn(D, D, requires_grad=True)
    for use_reentrant in (True, False):
        options = {"use_reentrant": use_reentrant}

        def step(options: dict[str, bool] = options) -> None:
            y = checkpoint(
                lambda x: LinearFunction.apply(LinearFunction.apply(x, w), w), x, **options
            )
            y.sum().backward()

        assert phases(step) == {"forward": 2, "recompute": 2, "backward": 4}


def test_a_gradient_hook_is_part_of_the_backward(x: torch.Tensor) -> None:
    net, w = Net(), torch.randn(D, D)
    x.register_hook(lambda gradient: gradient @ w)
    assert phases(lambda: net(x).sum().backward()) == {"forward": 6, "backward": 13}


# --- optimizers ------------------------------------------------------------------------------

Muon = getattr(torch.optim, "Muon", None)
needs_muon = pytest.mark.skipif(Muon is None, reason="this torch has no Muon")
# 6 matrices of 16 x 16, 5 Newton-Schulz steps of 3 products: 6 * 5 * 3 * 2 * 16^3 FLOPs.
MUON = 6 * 5 * 3 * 2 * D**3 / UNIT


def matrices(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.ndim == 2]


def test_a_closure_is_not_the_optimizer(x: torch.Tensor) -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        return loss

    expected = {"forward": 6, "backward": 12}
    assert phases(lambda: optimizer.step(closure)) == expected


@needs_muon
def test_products_of_the_optimizer_are_its_own(x: torch.Tensor) -> None:
    net = Net()
    optimizer = Muon(matrices(net))

    def closure() -> torch.Tensor:
        loss = net(x).sum()
        loss.backward()
        return loss

    expected = {"forward": 6, "backward": 12, "optimizer": MUON}
    assert phases(lambda: optimizer.step(closure)) == expected
    assert phases(lambda: (closure(), optimizer.step())) == expected


@needs_muon
def test_an_optimizer_inside_the_backward_is_no_backward(x: torch.Tensor) -> None:
    net = Net()
    optimizers = {p: Muon([p]) for p in matrices(net)}
    for p in optimizers:
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    step = phases(lambda: net(x).sum().backward())
    assert step == {"forward": 6, "backward": 12, "optimizer": MUON}


@needs_muon
def test_an_optimizer_that_began_before_the_counter_is_recognised(x: torch.Tensor) -> None:
    net = Net()
    optimizer = Muon(matrices(net))
    counter = FlopCounter()
    hook = net.register_forward_pre_hook(lambda *_: counter.__enter__() and None)

    def closure() -> torch.Tensor:
        loss = net(x).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    hook.remove()
    with torch.no_grad():
        Net()(x)  # after the step: the optimizer's frame is gone
    counter.__exit__(None, None, None)
    expected = {"forward": 6, "backward": 12, "optimizer": MUON, "forward_no_grad": 6}
    assert in_units(counter.take()) == expected


# --- fused kernels ---------------------------------------------------------------------------


def test_the_fifth_product_of_attention_is_the_kernels_own() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    count = count_flops(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward())
    product = 2 * 2 * 8 * 8 * 4
    assert (count.forward, count.backward, count.kernel_recompute) == (
        2 * product, 4 * product, product,
    )  # fmt: skip
    assert count.hardware - count.model == product


def test_attention_inside_a_checkpoint_is_recomputed_and_repeated() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)

    def step() -> None:
        attention = functools.partial(F.scaled_dot_product_attention, q, q)
        checkpoint(attention, q, use_reentrant=False).sum().backward()

    count = count_flops(step)
    product = 2 * 2 * 8 * 8 * 4
    assert (count.recompute, count.kernel_recompute) == (2 * product, product)
    assert count.model == 6 * product
