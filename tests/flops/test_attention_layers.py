"""Attention in larger pieces: cuDNN's kernel, whole layers, block masks and packed batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formula_calls import flops_of, shape
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mfu_torch.flops.counter import FlopCounter, count_flops
from mfu_torch.flops.ops import OpFlops
from mfu_torch.flops.ops.attention import MASK_NOT_READ, OFFSETS_NOT_READ

aten = torch.ops.aten

# (b, h, s, d)
Q, K, V = shape(2, 4, 32, 16), shape(2, 4, 48, 16), shape(2, 4, 48, 8)
PAIRS, KEPT = 2 * 4 * 32 * 48, 2 * 4 * sum(i + 1 for i in range(32))  # from the top left

needs_cudnn_ops = pytest.mark.skipif(
    not hasattr(aten, "_cudnn_attention_backward"), reason="this torch lacks the ops"
)


@needs_cudnn_ops
def test_the_kernel_of_cudnn_reads_its_lengths_beside_the_tensors() -> None:
    n = None
    forward = aten._cudnn_attention_forward.default
    flops = flops_of(forward, Q, K, V, n, n, n, 32, 48, True, 0.0, True)
    assert flops == OpFlops(PAIRS * 48, KEPT * 48)
    backward = aten._cudnn_attention_backward.default
    flops = flops_of(backward, V, Q, K, V, *[n] * 7, 32, 48, 0.0, True)
    assert flops == OpFlops(PAIRS * 96, KEPT * 96, PAIRS * 32, KEPT * 32)


@needs_cudnn_ops
def test_the_kernel_of_cudnn_over_packed_sequences_counts_each_length() -> None:
    q, offsets = shape(12, 4, 16), torch.tensor([0, 3, 12], dtype=torch.int32)
    forward = aten._cudnn_attention_forward.default
    lengths = (offsets, offsets, 9, 9)
    flops = flops_of(forward, q, q, q, None, *lengths, True, 0.0, True)
    assert flops == OpFlops(4 * (9 + 81) * 64, 4 * (6 + 45) * 64)
    backward = aten._cudnn_attention_backward.default
    flops = flops_of(backward, q, q, q, q, q, *[None] * 4, *lengths, 0.0, False)
    assert flops[:3] == (4 * 90 * 128, 4 * 90 * 128, 4 * 90 * 32)
    unread = shape(3)
    flops = flops_of(forward, q, q, q, None, unread, unread, 9, 9, True, 0.0, False)
    assert (flops.full, flops.note) == (4 * 12 * 9 * 64, OFFSETS_NOT_READ)


def test_attention_of_mps_and_of_triton_read_the_same_layout() -> None:
    mps = aten._scaled_dot_product_attention_math_for_mps.default
    assert flops_of(mps, Q, K, V, None, 0.0, True) == OpFlops(PAIRS * 48, KEPT * 48)
    triton = aten._triton_scaled_dot_attention.default
    assert flops_of(triton, Q, K, V) == OpFlops(PAIRS * 48, PAIRS * 48)


@pytest.mark.parametrize(
    "op", [aten._native_multi_head_attention, aten._triton_multi_head_attention]
)
def test_queries_and_keys_of_different_lengths_are_projected_apart(op: Any) -> None:
    q, k = shape(2, 10, 64), shape(2, 15, 64)
    projections = 2 * (2 * 2 * 10 + 2 * 2 * 15) * 64 * 64
    assert flops_of(op.default, q, k, k, 64, 4).full == projections + 4 * 2 * 10 * 15 * 64


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_of_an_encoder_skips_padding_and_so_does_the_count() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 6:] = True  # sequences of 10 and 6
    with torch.no_grad():
        count = count_flops(lambda: encoder(torch.randn(2, 10, 64), src_key_padding_mask=padding))
    products = 2 * 16 * (4 * 64 * 64 + 2 * 64 * 256)
    assert count.forward_no_grad == products + 4 * (100 + 36) * 64
    assert count.uncounted == {}


@pytest.mark.parametrize("backward", [False, True])
def test_attention_over_jagged_tensors_counts_each_length(backward: bool) -> None:
    lengths = [3, 5]
    q = torch.nested.nested_tensor(
        [torch.randn(n, 2, 8) for n in lengths], layout=torch.jagged, requires_grad=backward
    )

    def step() -> None:
        heads = q.transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads)
        if backward:
            out.values().sum().backward()

    count = count_flops(step)
    assert count.model == (3 if backward else 1) * 2 * (9 + 25) * 4 * 8
    assert count.uncounted == {}


@pytest.fixture(scope="module")
def block_mask() -> Any:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    return flex.create_block_mask(
        lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu", BLOCK_SIZE=64
    )


def test_the_backward_of_flex_attention_counts_the_same_blocks(block_mask: Any) -> None:
    q = shape(1, 2, 256, 16)
    args = (q, q, q, q, None, q, None, None, None, block_mask.as_tuple(), 0.25, {}, (), ())
    flops = flops_of(torch.ops.higher_order.flex_attention_backward, *args)
    pairs, kept = 2 * 256 * 256, 2 * (4 + 3 + 2 + 1) * 64 * 64
    assert flops == OpFlops(pairs * 128, kept * 128, pairs * 32, kept * 32)


def test_a_block_mask_that_cannot_be_read_is_full_and_says_so(block_mask: Any) -> None:
    q = shape(1, 2, 256, 16)
    unread = [b.to("meta") if isinstance(b, torch.Tensor) else b for b in block_mask.as_tuple()]
    op = torch.ops.higher_order.flex_attention
    flops = flops_of(op, q, q, q, None, tuple(unread), 0.25, {}, (), ())
    assert flops == OpFlops(2 * 256 * 256 * 64, 2 * 256 * 256 * 64, note=MASK_NOT_READ)


def test_a_block_mask_for_each_sequence_and_head_is_averaged_over_none(block_mask: Any) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    # One sequence sees everything, the other only the diagonal blocks.
    mask = flex.create_block_mask(
        lambda b, h, i, j: (b == 0) | (i // 64 == j // 64), 2, None, 256, 256, device="cpu",
        BLOCK_SIZE=64,
    )  # fmt: skip
    q = torch.randn(2, 3, 256, 16)
    count = count_flops(flex.flex_attention, q, q, q, block_mask=mask)
    assert count.model == 2 * 3 * 256 * 256 * 64
    assert count.model_causal == 3 * (16 + 4) * 64 * 64 * 64


def test_attention_of_fewer_key_heads_counts_pairs_of_query_heads() -> None:
    q, k = torch.randn(2, 8, 16, 32), torch.randn(2, 2, 16, 32)
    count = count_flops(F.scaled_dot_product_attention, q, k, k, enable_gqa=True)
    assert count.model == 2 * 8 * 16 * 16 * 4 * 32


@pytest.mark.parametrize("d_v", [16, 24])
def test_keys_and_values_of_different_widths_count_both(d_v: int) -> None:
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    v = torch.randn(2, 4, 8, d_v, requires_grad=True)
    count = count_flops(lambda: F.scaled_dot_product_attention(q, q, v).sum().backward())
    pairs = 2 * 4 * 8 * 8
    assert count.forward == pairs * 2 * (16 + d_v)
    assert count.backward == 2 * count.forward  # four products, whether fused or not


def test_a_number_of_used_keys_makes_the_count_a_bound() -> None:
    q, used = shape(2, 32, 4, 16), shape(2, dtype=torch.int32)
    lengths = (None, None, 32, 32)
    flash = aten._flash_attention_forward.default
    flops = flops_of(flash, q, q, q, *lengths, 0.0, False, False, seqused_k=used)
    assert (flops.full, flops.note) == (2 * 4 * 32 * 32 * 64, OFFSETS_NOT_READ)
    efficient = aten._efficient_attention_forward.default
    flops = flops_of(efficient, q, q, q, None, *lengths, 0.0, 0, seqlen_k=used)
    assert (flops.full, flops.note) == (2 * 4 * 32 * 32 * 64, OFFSETS_NOT_READ)
    packed, offsets = shape(12, 4, 16), torch.tensor([0, 3, 12], dtype=torch.int32)
    pytest.importorskip("torch.nn.attention.varlen")
    varlen = torch.ops.torch_attn._varlen_attn.default
    args = (packed, packed, packed, offsets, offsets, 9, 9, False, None, None, False, used)
    flops = flops_of(varlen, *args)
    assert (flops.full, flops.note) == (4 * (9 + 81) * 64, OFFSETS_NOT_READ)


def test_offsets_without_values_are_never_waited_for() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    assert varlen.varlen_attn is not None
    with FakeTensorMode() as mode:
        q = torch.empty(12, 4, 16, dtype=torch.bfloat16)
        offsets = torch.empty(3, dtype=torch.int32)
        with FlopCounter(fake_mode=mode) as counter:
            torch.ops.torch_attn._varlen_attn(q, q, q, offsets, offsets, 9, 9, True)
    count = counter.take()
    assert (count.model, count.notes) == (4 * 12 * 9 * 64, (OFFSETS_NOT_READ,))
    assert count.model_causal == 4 * 12 * 5 * 64
