"""Which phase each FLOP belongs to, in units of one linear layer's forward.

What is computed twice is in test_checkpoints, what optimizers do in test_optimizer_phase, and
gradients of gradients in test_higher_order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from blocks import PLAIN, UNIT, B, D, Net, Product, inputs, phases, step_of
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from mfu_torch.flops.counter import count_flops


def test_a_plain_step_is_forward_and_backward() -> None:
    assert phases(step_of(Net())) == PLAIN


# --- without gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_teacher_stands_apart(context: Callable[[], Any]) -> None:
    teacher, student = Net(), Net()
    x = inputs()

    def step() -> None:
        with context():
            target = teacher(x)
        F.mse_loss(student(x), target.clone()).backward()

    assert phases(step) == {"forward_no_grad": 6, "forward": 6, "backward": 12}
    assert count_flops(step).model == 24 * UNIT


def test_a_frozen_model_in_the_step_sends_its_gradient_on() -> None:
    generator, judge = Net(), Net().requires_grad_(False)
    step = step_of(lambda x: judge(generator(x)))
    assert phases(step) == {"forward": 12, "backward": 12 + 6}


def test_a_model_that_is_trained_on_a_detached_input_has_no_gradient_of_it() -> None:
    net, judge = Net(), Net()

    def step() -> None:
        judge(net(inputs()).detach()).sum().backward()

    assert phases(step) == {"forward": 12, "backward": 11}


# --- autograd functions, hooks, parametrisations -----------------------------------------------


def test_the_forward_of_an_autograd_function_is_forward() -> None:
    w = torch.randn(D, D, requires_grad=True)
    assert phases(step_of(lambda x: Product.apply(x, w))) == {"forward": 1, "backward": 2}
    with torch.inference_mode():
        assert phases(lambda: Product.apply(inputs(), w)) == {"forward_no_grad": 1}


class LossWithItsGradient(torch.autograd.Function):
    """Computes the gradients in its forward, as fused losses do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w.T
        ctx.save_for_backward(2 * y @ w, 2 * y.T @ x)
        return y.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return tuple(gradient * saved for saved in ctx.saved_tensors)


def test_a_loss_that_has_its_gradient_in_the_forward_counts_all_of_it() -> None:
    w = torch.randn(D, D, requires_grad=True)
    step = phases(lambda: LossWithItsGradient.apply(inputs(), w).backward())
    assert step == {"forward": 3}


@pytest.mark.parametrize("place", ["tensor", "module"])
def test_a_gradient_hook_is_part_of_the_backward_and_is_said(place: str) -> None:
    net, w, x = Net(), torch.randn(D, D), inputs()
    if place == "tensor":
        x.register_hook(lambda gradient: gradient @ w)
    else:
        net.blocks[0].register_full_backward_hook(lambda module, grads, _: (grads[0] @ w,))
    counted = phases(lambda: net(x).sum().backward(), "a hook or a special function")
    assert counted == {"forward": 6, "backward": 13}


def test_a_weight_that_is_computed_counts_at_every_call() -> None:
    class LowRank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (nn.Parameter(torch.randn(D, B)) for _ in range(2))

        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w + self.up @ self.down.T

    layer = nn.Linear(D, D)
    parametrize.register_parametrization(layer, "weight", LowRank())
    # (16, 8) @ (8, 16) has as many FLOPs as (8, 16) @ (16, 16).
    assert phases(step_of(layer)) == {"forward": 2, "backward": 4}


def test_normalised_weights_count_no_more_than_their_products() -> None:
    plain = {"forward": 1, "backward": 2}
    assert phases(step_of(parametrizations.weight_norm(nn.Linear(D, D)))) == plain
    # Spectral norm: two products of the matrix with a vector under no_grad to estimate the
    # largest singular value, one more and one of two vectors with gradients; an outer product
    # sums nothing.
    matrix_by_vector, vectors = 2 * D * D / UNIT, 2 * D / UNIT
    counted = phases(step_of(parametrizations.spectral_norm(nn.Linear(D, D))))
    assert counted == {
        "forward_no_grad": 2 * matrix_by_vector,
        "forward": 1 + matrix_by_vector + vectors,
        "backward": 2,
    }


# --- where a part of the step is out of sight --------------------------------------------------


def test_a_forward_on_another_thread_is_missed_and_that_is_said() -> None:
    import threading

    net, head = Net(), nn.Linear(D, D)

    def on_a_thread(x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(net(x)))
        thread.start()
        thread.join()
        return found[0]

    notes = "gave work to another thread", "ran in another thread"
    counted = phases(step_of(lambda x: head(on_a_thread(x))), *notes)
    assert counted == {"forward": 1, "backward": 14}


def test_a_backward_alone_says_that_its_forward_is_missing() -> None:
    loss = Net()(inputs()).sum()
    assert phases(loss.backward, "before the count began") == {"backward": 12}


def test_two_backwards_through_one_forward_are_no_reason_to_doubt() -> None:
    net = Net()

    def step() -> None:
        y = net(inputs())
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()

    assert phases(step) == {"forward": 6, "backward": 24}


# --- fused kernels -----------------------------------------------------------------------------


def test_the_fifth_product_of_attention_is_the_kernels_own() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    count = count_flops(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward())
    product = 2 * 2 * 8 * 8 * 4
    assert (count.forward, count.backward, count.kernel_recompute) == (
        2 * product, 4 * product, product,
    )  # fmt: skip
    assert count.hardware - count.model == product
    assert count.notes == ()
