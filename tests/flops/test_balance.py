"""A backward whose forward was not seen is said to be one, and no other backward is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from mfu_torch.flops.balance import HOOKED, UNSEEN
from mfu_torch.flops.counter import FlopCounter, count_flops

N = 8
PRODUCT = 2 * N**3
Tensor = torch.Tensor


def leaf() -> Tensor:
    return (torch.randn(N, N) + N * torch.eye(N)).requires_grad_()


def doubts(fn: Callable[[], Any]) -> list[str]:
    """The notes, without those on work that was given to a thread."""
    return [note for note in count_flops(fn).notes if "gave work" not in note]


# --- more backward than twice the forward, and all of it seen ------------------------------------


def bilinear() -> None:
    nn.Bilinear(N, N, N)(leaf(), leaf()).sum().backward()


def triangular_solve() -> None:
    # n^2 per column forward; backward the same once more, and a product of twice that.
    torch.linalg.solve_triangular(leaf(), leaf(), upper=True).sum().backward()


def chunks_of_a_delta_rule() -> None:
    # As hybrid models write it: (1 - T)^-1 by a solve, then products.
    t = torch.tril(leaf() / N**2, -1) + torch.eye(N)
    inverse = torch.linalg.solve_triangular(t, torch.eye(N), upper=False, unitriangular=True)
    (inverse @ leaf()).sum().backward()


def inverse() -> None:
    torch.linalg.inv(leaf()).sum().backward()


def cholesky() -> None:
    x = leaf()
    torch.linalg.cholesky(x @ x.T).sum().backward()


def outer_product() -> None:
    # Forward it is elementwise; the gradients of its vectors are sums of products.
    v = torch.ones(N, requires_grad=True)
    torch.addr(torch.zeros(N, N), v, v).sum().backward()


def product_of_three() -> None:
    torch.einsum("ij,jk,kl->il", leaf(), leaf(), leaf()).sum().backward()


def written_in_place() -> None:
    y = leaf() * 1
    y[:4].addmm_(leaf()[:4], leaf())
    y.addmm_(leaf(), leaf())
    y.sum().backward()


def twice_through_one_graph() -> None:
    y = (leaf() @ leaf()).sum()
    for _ in range(3):
        y.backward(retain_graph=True)


def gradient_of_a_gradient() -> None:
    x = leaf()
    (dx,) = torch.autograd.grad((x @ x @ x).sum(), x, create_graph=True)
    dx.square().sum().backward()


def of_functions() -> None:
    w = leaf().detach()
    torch.func.grad(lambda x: torch.func.grad(lambda x: (x @ w @ x).sum())(x).sum())(w)


@pytest.mark.parametrize(
    "step",
    [
        bilinear, triangular_solve, chunks_of_a_delta_rule, inverse, cholesky, outer_product,
        product_of_three, written_in_place, twice_through_one_graph, gradient_of_a_gradient,
        of_functions,
    ],
    ids=lambda step: step.__name__,
)  # fmt: skip
def test_a_backward_whose_forward_was_seen_is_no_reason_to_doubt(step: Callable[[], None]) -> None:
    assert doubts(step) == []


def test_hybrid_models_whose_backward_solves_more_than_their_forward_are_not_doubted() -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Qwen3NextForCausalLM"):
        pytest.skip("no Qwen3-Next in this transformers")
    config = transformers.Qwen3NextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config)
    ids = torch.randint(64, (1, 9))
    count = count_flops(lambda: model(ids, labels=ids).loss.backward())
    assert count.by_op["aten.linalg_solve_triangular"] > 0
    assert count.notes == ()


# --- what is missing -----------------------------------------------------------------------------


def test_a_small_forward_in_a_thread_is_missed_beside_a_large_one_that_is_seen() -> None:
    # By size alone it would not show: 12 products are seen, and 2 of the backward are too many.
    def step() -> None:
        x = leaf()
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(torch.mm, x, leaf()).result()
        for _ in range(3):
            y = y @ leaf().detach()
        y.sum().backward()

    assert doubts(step) == [UNSEEN]


def test_a_forward_before_the_count_began_is_missed() -> None:
    loss = (leaf() @ leaf()).sum()
    assert doubts(lambda: (loss + (leaf() @ leaf() @ leaf()).sum()).backward()) == [UNSEEN]


def test_a_forward_that_was_taken_before_is_not_missed() -> None:
    with FlopCounter() as counter:
        loss = (leaf() @ leaf()).sum()
        assert counter.take().forward == PRODUCT
        loss.backward()
    assert counter.take().notes == ()


class Opaque(torch.autograd.Function):
    """A forward in a kernel that nobody sees, and a backward in torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.from_numpy(x.detach().numpy() @ w.detach().numpy())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


def test_a_function_that_multiplies_only_in_its_backward_is_named() -> None:
    (note,) = doubts(lambda: (Opaque.apply(leaf(), leaf()) @ leaf()).sum().backward())
    assert note.startswith("the autograd.Function Opaque multiplies in its backward")


@pytest.mark.parametrize("where", ["leaf", "product"])
def test_a_hook_that_multiplies_is_said_wherever_it_is(where: str) -> None:
    x, w = leaf(), leaf().detach()
    y = x @ w
    (x if where == "leaf" else y).register_hook(lambda grad: grad @ w)

    def step() -> None:
        z = x @ w if where == "leaf" else y * 1
        z.sum().backward()

    assert HOOKED in doubts(step)
