"""Steps whose phases are not simply a forward and a backward.

``UNIT`` is one linear layer of 20 x 20 with a batch of 8, forward; its gradients of the input and
of the weight are one unit each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from cases import Work, weight, work
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

D, B = 20, 8
UNIT = 2 * B * D * D


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(D, D) for _ in range(count)])


def x(requires_grad: bool = False) -> torch.Tensor:
    return torch.randn(B, D, requires_grad=requires_grad)


# --- what needs which gradient ---------------------------------------------------------------


@work
def first_layers_frozen() -> Work:
    model = layers(4)
    model[:2].requires_grad_(False)
    # Nothing flows into the frozen ones: dW of both others, dX of the last.
    return Work(lambda: model(x()).sum().backward(), forward=4 * UNIT, backward=3 * UNIT)


@work
def last_layers_frozen() -> Work:
    model = layers(4)
    model[2:].requires_grad_(False)
    # The gradient flows through them: 2 dX; then dX + dW, and dW of the first.
    return Work(lambda: model(x()).sum().backward(), forward=4 * UNIT, backward=5 * UNIT)


@work
def input_that_wants_a_gradient() -> Work:
    model = layers(2)
    return Work(lambda: model(x(True)).sum().backward(), forward=2 * UNIT, backward=4 * UNIT)


@work
def teacher_without_gradients() -> Work:
    teacher, student = layers(3), layers(2)

    def run() -> None:
        batch = x()
        with torch.no_grad():
            target = teacher(batch)
        (student(batch) - target).square().mean().backward()

    return Work(run, forward=2 * UNIT, forward_no_grad=3 * UNIT, backward=3 * UNIT)


@work
def teacher_inside_a_checkpoint() -> Work:
    teacher, student = layers(1), layers(2)

    def block(out: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = teacher(out)
        return student(out) + target

    # Both run again, but for the student's last layer.
    return Work(
        lambda: checkpoint(block, x(True), use_reentrant=False).sum().backward(),
        forward=2 * UNIT, forward_no_grad=UNIT, backward=4 * UNIT, recompute=2 * UNIT,
    )  # fmt: skip


@work
def hook_that_multiplies() -> Work:
    model, matrix = layers(2), torch.randn(D, D)
    model[0].register_forward_hook(lambda module, inputs, out: out @ matrix)
    return Work(lambda: model(x()).sum().backward(), forward=3 * UNIT, backward=4 * UNIT)


@work
def adversarial_pair() -> Work:
    generator, critic = layers(2), layers(2)

    def run() -> None:
        fake = generator(x())
        critic(fake.detach()).sum().backward()  # 2 forward, 3 backward
        critic(fake).sum().backward()  # 2 forward, 4 + 3 backward

    return Work(run, forward=6 * UNIT, backward=10 * UNIT)


@work
def two_backwards_through_one_graph() -> Work:
    model = layers(2)

    def run() -> None:
        out = model(x()).sum()
        out.backward(retain_graph=True)
        out.backward()

    return Work(run, forward=2 * UNIT, backward=2 * 3 * UNIT)


@work
def unused_branch() -> Work:
    used, unused = layers(2), layers(2)

    def run() -> None:
        batch = x()
        unused(batch)
        used(batch).sum().backward()

    return Work(run, forward=4 * UNIT, backward=3 * UNIT)


@work
def gradient_of_a_gradient() -> Work:
    model = layers(1)

    def run() -> None:
        batch = x(True)
        # dX = dY @ W is kept in a graph; its own backward gives dW, as dY is constant.
        (grad,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
        grad.square().sum().backward()

    return Work(run, forward=UNIT, backward=2 * UNIT)


@work
def gradient_of_the_gradient_of_a_convolution() -> Work:
    w = weight(16, 8, 3, 3)
    unit = 2 * 2 * 14 * 14 * (16 * 8 * 9)

    def run() -> None:
        batch = torch.randn(2, 8, 16, 16, requires_grad=True)
        out = torch.conv2d(batch, w)
        # dX is kept in a graph. Its backward takes dW from it, and the gradient with respect to
        # dY, which is the output's own gradient: then dX and dW of the first convolution.
        (grad,) = torch.autograd.grad(out.square().sum(), batch, create_graph=True)
        grad.square().sum().backward()

    return Work(run, forward=unit, backward=unit + 2 * unit + 2 * unit)


@work
def functional_gradient() -> Work:
    model = layers(2)
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (batch,)).sum()

    return Work(
        lambda: torch.func.grad(loss)(parameters, x()), forward=2 * UNIT, backward=3 * UNIT
    )  # fmt: skip


@work
def forward_mode_derivative() -> Work:
    # x @ w, dx @ w, and x @ dw, which torch multiplies out although dw is zero.
    w = torch.randn(D, D)
    return Work(
        lambda: torch.func.jvp(lambda x: x @ w, (x(),), (x(),)), forward=3 * UNIT
    )  # fmt: skip


@work
def autograd_function_of_ones_own() -> Work:
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad

    w = weight(D, D)
    return Work(lambda: Linear.apply(x(True), w).sum().backward(), forward=UNIT, backward=2 * UNIT)


# --- recomputation: 3 blocks of 2 layers; without it 6 forward and 11 or 12 backward ---------


def _checkpointed(block: Callable[..., Any], recompute: int, **options: Any) -> Work:
    blocks = [layers(2) for _ in range(3)]

    def run() -> None:
        out = x(True)
        for each in blocks:
            out = block(each, out, **options)
        out.sum().backward()

    return Work(run, forward=6 * UNIT, backward=12 * UNIT, recompute=recompute * UNIT)


@work
def checkpoint_reentrant() -> Work:
    return _checkpointed(checkpoint, 6, use_reentrant=True)


@work
def checkpoint_with_early_stop() -> Work:
    # The last layer's output is not needed: it is not computed again.
    return _checkpointed(checkpoint, 3, use_reentrant=False)


@work
def checkpoint_without_early_stop() -> Work:
    return _checkpointed(checkpoint, 6, use_reentrant=False, early_stop=False)


@work
def checkpoint_that_keeps_every_product() -> Work:
    keep = functools.partial(
        create_selective_checkpoint_contexts,
        lambda ctx, op, *_, **__: (
            CheckpointPolicy.MUST_SAVE
            if op == torch.ops.aten.addmm.default
            else CheckpointPolicy.PREFER_RECOMPUTE
        ),
    )
    return _checkpointed(checkpoint, 0, use_reentrant=False, context_fn=keep)


@work
def checkpoint_in_a_checkpoint() -> Work:
    def block(module: nn.Module, out: torch.Tensor) -> torch.Tensor:
        def inner(out: torch.Tensor) -> torch.Tensor:
            return checkpoint(module, out, use_reentrant=False)

        return checkpoint(inner, out, use_reentrant=False)

    # The outer one stops where its last saved tensor is there; what the inner one recomputes
    # stops likewise, and what it needs is there already.
    return _checkpointed(block, 3)


@work
def checkpoint_sequence() -> Work:
    model = layers(6)

    def run() -> None:
        checkpoint_sequential(model, 3, x(True), use_reentrant=True).sum().backward()

    # 3 segments of 2 layers; the last one is not checkpointed.
    return Work(run, forward=6 * UNIT, backward=12 * UNIT, recompute=4 * UNIT)


@work
def checkpoint_by_an_autograd_function() -> Work:
    class Checkpoint(torch.autograd.Function):  # as DeepSpeed and Megatron write it
        @staticmethod
        def forward(ctx: Any, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
            ctx.module = module
            ctx.save_for_backward(x)
            return module(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                out = ctx.module(x)
            out.backward(grad)
            assert x.grad is not None
            return None, x.grad

    return _checkpointed(lambda module, out: Checkpoint.apply(module, out), 6)
