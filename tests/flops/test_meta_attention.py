"""Attention on the meta device counts as the fused kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from mfu_torch import FlopCount, count_flops
from mfu_torch.flops.meta_attention import FusedAttention, mark_mask
from mfu_torch.flops.ops.attention import MASK_NOT_READ

B, H, S, D = 2, 4, 32, 16
PRODUCT = 2 * B * H * S * S * D


def meta(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, device="meta", requires_grad=grad)


def step(*args: Any, **kwargs: Any) -> FlopCount:
    def run() -> None:
        F.scaled_dot_product_attention(*args, **kwargs).sum().backward()

    with FusedAttention():
        return count_flops(run)


def test_two_products_forward_four_backward_and_one_again() -> None:
    count = step(meta(B, H, S, D), meta(B, H, S, D), meta(B, H, S, D))
    assert (count.forward, count.backward) == (2 * PRODUCT, 4 * PRODUCT)
    assert count.kernel_recompute == PRODUCT
    assert count.model_causal == count.model
    assert count.notes == ()


def test_a_causal_mask_keeps_a_triangle() -> None:
    count = step(meta(B, H, S, D), meta(B, H, S, D), meta(B, H, S, D), is_causal=True)
    assert count.model_causal == 6 * 2 * B * H * (S * (S + 1) // 2) * D


def test_it_counts_what_the_kernel_of_the_cpu_counts() -> None:
    qkv = [torch.randn(B, H, S, D, requires_grad=True) for _ in range(3)]
    real = count_flops(
        lambda: F.scaled_dot_product_attention(*qkv, is_causal=True).sum().backward()
    )
    count = step(*(meta(B, H, S, D) for _ in range(3)), is_causal=True)
    for figure in ("forward", "backward", "kernel_recompute", "model_causal", "hardware_causal"):
        assert getattr(count, figure) == getattr(real, figure)


def test_narrow_values_and_shared_heads() -> None:
    q, k, v = meta(B, H, S, D), meta(B, 2, S, D), meta(B, 2, S, D // 2)
    count = step(q, k, v, enable_gqa=True)
    assert count.forward == PRODUCT + PRODUCT // 2
    assert count.backward == 2 * count.forward
    assert count.kernel_recompute == PRODUCT
    assert k.grad is not None and k.grad.shape == k.shape
    assert v.grad is not None and v.grad.shape == v.shape


def test_one_query_for_all_sequences_is_computed_for_each() -> None:
    count = step(meta(1, H, S, D), meta(B, H, S, D), meta(B, H, S, D))
    assert count.forward == 2 * PRODUCT


def test_a_mask_without_data_is_an_upper_bound_unless_it_is_marked() -> None:
    qkv = [meta(B, H, S, D) for _ in range(3)]
    mask = torch.ones(B, 1, S, S, dtype=torch.bool, device="meta")
    unknown = step(*qkv, attn_mask=mask)
    assert (unknown.model_causal, unknown.notes) == (unknown.model, (MASK_NOT_READ,))
    mark_mask(mask, 100)
    known = step(*qkv, attn_mask=mask)
    assert (known.model_causal, known.notes) == (6 * 2 * B * H * 100 * D, ())
    shorter = step(meta(B, H, S, D), *(meta(B, H, 8, D) for _ in range(2)), attn_mask=mask[..., :8])
    assert shorter.notes == (MASK_NOT_READ,)


def test_a_bias_with_a_gradient_has_one() -> None:
    bias = meta(1, H, S, S)
    count = step(*(meta(B, H, S, D) for _ in range(3)), attn_mask=bias)
    assert count.backward == 4 * PRODUCT
    assert bias.grad is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_it_again(reentrant: bool) -> None:
    q = meta(B, H, S, D)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q).square()

    with FusedAttention():
        count = count_flops(lambda: checkpoint(attend, q, use_reentrant=reentrant).sum().backward())
    assert (count.model, count.recompute) == (6 * PRODUCT, 2 * PRODUCT)
    assert count.by_op.keys() == {"mfu_torch.attention", "mfu_torch.attention_backward"}


def ops(run: Callable[[], object]) -> set[str]:
    return set(count_flops(run).by_op)


def test_it_ends_with_the_context_and_leaves_other_devices_alone() -> None:
    q, real = meta(B, H, S, D), torch.randn(B, H, S, D, requires_grad=True)
    plain = ops(lambda: F.scaled_dot_product_attention(q, q, q))
    assert plain == {"aten.bmm"}
    with FusedAttention():
        assert ops(lambda: F.scaled_dot_product_attention(q, q, q)) == {"mfu_torch.attention"}
        (on_cpu,) = ops(lambda: F.scaled_dot_product_attention(real, real, real))
        assert "for_cpu" in on_cpu
    with pytest.raises(KeyError), FusedAttention():
        raise KeyError
    assert ops(lambda: F.scaled_dot_product_attention(q, q, q)) == plain


def test_sizes_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="their sizes do not fit"):
        step(meta(B, H, S, D), meta(B, H, S, D + 1), meta(B, H, S, D))
