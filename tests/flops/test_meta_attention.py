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


Q = (B, H, S, D)

# What torch's own kernel refuses on the CPU, and what it takes.
REFUSED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "3 heads for 4": ([Q, (B, 3, S, D), (B, 3, S, D)], {"enable_gqa": True}),
    "4 heads for 2": ([(B, 2, S, D), Q, Q], {"enable_gqa": True}),
    "2 heads for 4, not shared": ([Q, (B, 2, S, D), (B, 2, S, D)], {}),
    "other batch": ([(3, H, S, D), Q, Q], {}),
    "other width": ([Q, (B, H, S, D + 1), Q], {}),
    "no heads to share": ([(S, D)] * 3, {"enable_gqa": True}),
    "vectors": ([(D,)] * 3, {}),
    "mixed dtypes": ([(Q, torch.float16), Q, Q], {}),
    "values of another dtype": ([Q, Q, (Q, torch.float64)], {}),
    "integers": ([(Q, torch.long)] * 3, {}),
    "mask of other keys": ([Q, Q, Q], {"attn_mask": ((S, S + 1), torch.bool)}),
    "mask of other heads": ([Q, Q, Q], {"attn_mask": ((B, 3, S, S), torch.bool)}),
    "mask of batches only": ([Q, Q, Q], {"attn_mask": ((B, S, S), torch.bool)}),
    "mask of more batches": ([(1, H, S, D)] * 3, {"attn_mask": ((B, 1, S, S), torch.bool)}),
    "mask of integers": ([Q, Q, Q], {"attn_mask": ((S, S), torch.long)}),
    "mask of another dtype": ([Q, Q, Q], {"attn_mask": ((S, S), torch.float64)}),
    "dropout of 150 %": ([Q, Q, Q], {"dropout_p": 1.5}),
}
TAKEN: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "one key head": ([Q, (B, 1, S, D), (B, 1, S, D)], {}),
    "one batch of queries": ([(1, H, S, D), Q, Q], {}),
    "shared heads": ([Q, (B, 2, S, D), (B, 1, S, D)], {"enable_gqa": True}),
    "no batch": ([(H, S, D)] * 3, {}),
    "no heads": ([(S, D)] * 3, {}),
    "mask of keys": ([Q, Q, Q], {"attn_mask": ((B, 1, 1, S), torch.bool)}),
    "wide mask": ([(Q, torch.float16)] * 3, {"attn_mask": ((S, S), torch.float32)}),
}


def attend(sizes: list[Any], options: dict[str, Any], device: str) -> torch.Tensor:
    def made(size: Any) -> torch.Tensor:
        shape, dtype = size if isinstance(size[0], tuple) else (size, torch.float32)
        return torch.zeros(shape, dtype=dtype, device=device)

    mask = {"attn_mask": made(options["attn_mask"])} if "attn_mask" in options else {}
    with FusedAttention():
        return F.scaled_dot_product_attention(*map(made, sizes), **(options | mask))


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_real_op_refuses_is_refused(case: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        attend(*REFUSED[case], "cpu")
    with pytest.raises(ValueError, match="attention of query") as caught:
        attend(*REFUSED[case], "meta")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", TAKEN)
def test_what_the_real_op_takes_is_taken(case: str) -> None:
    assert attend(*TAKEN[case], "meta").shape == attend(*TAKEN[case], "cpu").shape


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_tensors_of_two_devices_are_refused(place: int) -> None:
    tensors = [meta(*Q), meta(*Q), meta(*Q), meta(S, S, grad=False)]
    tensors[place] = torch.zeros(tensors[place].shape)
    with FusedAttention(), pytest.raises(ValueError, match="on several devices"):
        F.scaled_dot_product_attention(*tensors)


def test_values_of_another_length_are_refused_although_a_kernel_of_the_cpu_takes_them() -> None:
    with pytest.raises(ValueError, match="their sizes do not fit"):
        step(meta(*Q), meta(*Q), meta(B, H, S + 1, D))


def test_a_mask_besides_a_causal_one_is_an_upper_bound() -> None:
    mask = torch.ones(S, S, dtype=torch.bool, device="meta")
    mark_mask(mask, 100)
    count = step(meta(*Q), meta(*Q), meta(*Q), attn_mask=mask, is_causal=True)
    assert (count.model_causal, count.notes) == (count.model, (MASK_NOT_READ,))
