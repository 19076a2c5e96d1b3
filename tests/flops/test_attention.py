"""Attention under both conventions, for kernels of every layout; the fifth product apart."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from formula_calls import flops_of, shape
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mfu_torch.flops.counter import FlopCounter, count_flops
from mfu_torch.flops.ops import OpFlops
from mfu_torch.flops.ops.attention import (
    MASK_NOT_READ,
    MASK_READ,
    OFFSETS_NOT_READ,
    PLAIN_SCORES,
    kept_pairs,
)

aten = torch.ops.aten

# b, h, s_q, s_k, d_qk, d_v
Q, K, W = shape(2, 4, 32, 16), shape(2, 4, 48, 16), shape(2, 4, 48, 8)
PAIRS = 2 * 4 * 32 * 48


@pytest.mark.parametrize("offset", [-2, 0, 1, 3])
@pytest.mark.parametrize(("left", "right"), [(None, 0), (None, None), (2, 0), (1, 2), (0, None)])
def test_kept_pairs_are_those_inside_the_window(
    offset: int, left: int | None, right: int | None
) -> None:
    def kept(i: int, j: int) -> bool:
        distance = j - (i + offset)
        return (left is None or distance >= -left) and (right is None or distance <= right)

    for s_q, s_k in itertools.product((1, 3, 5), (1, 4, 6)):
        expected = sum(kept(i, j) for i in range(s_q) for j in range(s_k))
        assert kept_pairs(s_q, s_k, offset, left, right) == expected


def test_attention_backward_is_four_products_and_a_fifth_inside_the_kernel() -> None:
    op = aten._scaled_dot_product_efficient_attention_backward.default
    flops = flops_of(op, W, Q, K, W, None, *[None] * 4, 0.0, [True] * 4)
    # dv, dp: 2 * 8 each; dq, dk: 2 * 16 each; the scores again: 2 * 16
    assert flops == OpFlops(PAIRS * 96, PAIRS * 96, PAIRS * 32, PAIRS * 32)


def test_every_fused_kernel_reads_its_own_causal_flag() -> None:
    kept = 2 * 4 * sum(min(i + 1, 48) for i in range(32))
    a = torch.ops.aten
    forward, backward = kept * 48, kept * 96
    n = None
    efficient = a._scaled_dot_product_efficient_attention.default
    cudnn = a._scaled_dot_product_cudnn_attention.default
    cpu = a._scaled_dot_product_flash_attention_for_cpu.default
    any_device = a._scaled_dot_product_fused_attention_overrideable.default
    assert flops_of(efficient, Q, K, W, n, True, 0.0, True).causal == forward
    assert flops_of(cudnn, Q, K, W, n, True, 0.0, True).causal == forward
    assert flops_of(cpu, Q, K, W, 0.0, True).causal == forward
    assert flops_of(any_device, Q, K, W, n, 0.0, True).causal == forward
    efficient = a._scaled_dot_product_efficient_attention_backward.default
    cudnn = a._scaled_dot_product_cudnn_attention_backward.default
    cpu = a._scaled_dot_product_flash_attention_for_cpu_backward.default
    any_device = a._scaled_dot_product_fused_attention_overrideable_backward.default
    qkv = (W, Q, K, W)
    assert flops_of(efficient, *qkv, n, n, n, n, n, 0.0, [True] * 4, True).causal == backward
    assert flops_of(cudnn, *qkv, n, n, n, n, n, n, n, 32, 48, 0.0, True).causal == backward
    assert flops_of(cpu, *qkv, n, n, 0.0, True).causal == backward
    args = (*qkv, n, [True] * 4, n, n, n, n, 32, 48, 0.0, True)
    assert flops_of(any_device, *args).causal == backward


def test_the_flash_kernel_keeps_the_triangle_of_equal_lengths() -> None:
    q = shape(2, 4, 32, 16)
    triangle = 2 * 4 * 32 * 33 // 2
    op = aten._scaled_dot_product_flash_attention.default
    assert flops_of(op, q, q, q, 0.0, True).causal == triangle * 64
    op = aten._scaled_dot_product_flash_attention_backward.default
    flops = flops_of(op, q, q, q, q, *[None] * 4, 32, 32, 0.0, True, None, None)
    assert (flops.causal, flops.kernel_recompute_causal) == (triangle * 128, triangle * 32)


def test_causal_attention_of_torch_starts_at_the_top_left() -> None:
    q, k, v = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(out[0, 0, 0], v[0, 0, 0])  # the first query sees one key
    count = count_flops(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    assert count.model == 2 * 4 * 32
    assert count.model_causal == (1 + 2) * 32


@pytest.mark.parametrize("floor", [float("-inf"), torch.finfo(torch.float32).min])
def test_a_mask_keeps_what_it_does_not_rule_out(floor: float) -> None:
    q = torch.randn(2, 4, 8, 16)
    keep = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
    keep[1, ..., :2] = False
    kept = 36 + (36 - 8 - 7)  # the second sequence is padded by two on the left
    bias = torch.zeros(2, 1, 8, 8).masked_fill(~keep, floor)
    for mask in (keep, bias):
        count = count_flops(F.scaled_dot_product_attention, q, q, q, attn_mask=mask)
        assert count.model == 2 * 4 * 8 * 8 * 64
        assert count.model_causal == 4 * kept * 64
        assert count.notes == (MASK_READ,)


def test_a_mask_without_values_is_full_and_says_so() -> None:
    with FakeTensorMode() as mode:
        q, mask = torch.empty(2, 4, 8, 16), torch.empty(2, 1, 8, 8, dtype=torch.bool)
        with FlopCounter(fake_mode=mode) as counter:
            F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    count = counter.take()
    assert count.model == count.model_causal == 2 * 4 * 8 * 8 * 64
    assert count.notes == (MASK_NOT_READ,)


def test_kernels_called_directly_have_the_sequence_before_the_heads() -> None:
    q, k, v = shape(2, 32, 4, 16), shape(2, 48, 2, 16), shape(2, 48, 2, 8)
    kept = 2 * 4 * sum(48 - 32 + i + 1 for i in range(32))  # bottom right
    top_left = 2 * 4 * sum(i + 1 for i in range(32))
    flash, efficient = aten._flash_attention_forward, aten._efficient_attention_forward
    lengths = (None, None, 32, 48)
    assert flops_of(flash.default, q, k, v, *lengths, 0.0, True, False)[:2] == (
        PAIRS * 48, kept * 48,
    )  # fmt: skip
    for mask_type, pairs in ((0, PAIRS), (1, top_left), (2, kept)):
        flops = flops_of(efficient.default, q, k, v, None, *lengths, 0.0, mask_type)
        assert flops[:2] == (PAIRS * 48, pairs * 48)
    grad = shape(2, 32, 4, 8)
    tail = (0.0, True, None, None)
    empty = shape(0)
    flops = flops_of(
        aten._flash_attention_backward.default,
        grad, q, k, v, grad, None, empty, empty, 32, 48, *tail,
    )  # fmt: skip
    assert flops[:2] == (PAIRS * 96, kept * 96)
    flops = flops_of(
        aten._efficient_attention_backward.default,
        grad, q, k, v, None, grad, None, None, 32, 48, None, 0.0, None, None, 2, False,
    )  # fmt: skip
    assert flops[:2] == (PAIRS * 96, kept * 96)


def test_a_sliding_window_keeps_its_width() -> None:
    q = shape(1, 32, 4, 16)
    flops = flops_of(
        aten._flash_attention_forward.default, q, q, q, None, None, 32, 32, 0.0, True, False,
        window_size_left=7, window_size_right=0,
    )  # fmt: skip
    assert flops.causal == 4 * (sum(range(1, 8)) + 25 * 8) * 64


def test_packed_sequences_count_each_length_if_the_offsets_can_be_read() -> None:
    q = shape(12, 4, 16)
    offsets = torch.tensor([0, 3, 12], dtype=torch.int32)
    op, tail = aten._flash_attention_forward.default, (9, 9, 0.0, True, False)
    flops = flops_of(op, q, q, q, offsets, offsets, *tail)
    assert flops == OpFlops(4 * (9 + 81) * 64, 4 * (6 + 45) * 64)
    unreadable = shape(3)
    flops = flops_of(op, q, q, q, unreadable, unreadable, *tail)
    # 12 queries x the longest sequence, 9
    assert flops == OpFlops(4 * 12 * 9 * 64, 4 * 12 * 5 * 64, note=OFFSETS_NOT_READ)


def test_flex_attention_counts_the_blocks_of_its_mask() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(
        lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu", BLOCK_SIZE=64
    )
    q = torch.randn(1, 2, 256, 16)
    count = count_flops(flex.flex_attention, q, q, q, block_mask=mask)
    assert count.forward == 2 * 256 * 256 * 64
    assert count.model_causal == 2 * (4 + 3 + 2 + 1) * 64 * 64 * 64
    assert count_flops(flex.flex_attention, q, q, q).model_causal == 2 * 256 * 256 * 64


def test_the_fast_path_of_an_encoder_layer_equals_the_slow_one() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0).eval()
    x = torch.randn(2, 32, 64)
    slow = count_flops(layer, x)
    with torch.no_grad():
        fast = count_flops(layer, x)
    assert "aten._transformer_encoder_layer_fwd" in fast.by_op
    assert fast.forward_no_grad == slow.forward == 2 * 64 * (4 + 8) * 64 * 64 + 4 * 2 * 32**2 * 64


def test_multi_head_attention_on_its_fast_path_is_projections_and_scores() -> None:
    layer, x = nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.randn(2, 32, 64)
    with torch.no_grad():
        count = count_flops(layer, x, x, x)
    assert list(count.by_op) == ["aten._native_multi_head_attention"]
    assert count.forward_no_grad == 2 * 2 * 32 * 4 * 64 * 64 + 4 * 2 * 32 * 32 * 64


def test_attention_over_packed_sequences_is_counted_by_its_own_name() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q, offsets = shape(12, 4, 16), torch.tensor([0, 3, 12], dtype=torch.int32)
    op = torch.ops.torch_attn._varlen_attn.default
    assert varlen.varlen_attn is not None
    flops = flops_of(op, q, q, q, offsets, offsets, 9, 9, True)
    assert flops == OpFlops(4 * (9 + 81) * 64, 4 * (6 + 45) * 64)
    op = torch.ops.torch_attn._varlen_attn_backward.default
    flops = flops_of(op, q, q, q, q, q, None, offsets, offsets, 9, 9, True, None)
    assert flops[:2] == (4 * (9 + 81) * 128, 4 * (6 + 45) * 128)


def test_compiled_flex_attention_is_counted() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q = torch.randn(1, 2, 128, 16)
    compiled = torch.compile(flex.flex_attention, backend="eager")
    assert count_flops(compiled, q, q, q).forward == 2 * 128 * 128 * 64


def test_attention_in_plain_products_says_that_its_mask_cannot_be_told() -> None:
    def attend(s_q: int) -> None:
        scores = torch.ones(2, 4, s_q, 16) @ torch.ones(2, 4, 16, 8)
        torch.softmax(scores, -1) @ torch.ones(2, 4, 8, 16)

    assert count_flops(attend, 8).notes == (PLAIN_SCORES,)
    assert count_flops(attend, 1).notes == ()  # one token attends to all before it


def test_a_router_is_no_attention() -> None:
    count = count_flops(lambda: torch.softmax(torch.ones(2, 5, 16) @ torch.ones(16, 8), -1))
    assert count.notes == ()
