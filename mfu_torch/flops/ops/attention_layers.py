"""FLOPs of attention in larger pieces: flex attention and the layers that are one op.

The mask of flex attention is made of blocks. The fast paths of ``nn.MultiheadAttention`` and
``nn.TransformerEncoderLayer`` in evaluation have their projections inside, and take padded
batches as nested tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.attention import (
    MASK_NOT_READ,
    Pairs,
    backward_flops,
    forward_flops,
)
from mfu_torch.flops.ops.products import readable
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor


def _block_pairs(q: Tensor, k: Tensor, block_mask: Sequence[Any]) -> Pairs:
    # block_mask: s_q, s_k, kv_num_blocks, kv_indices, full_kv_num_blocks, .., block_q, block_kv,
    # mask_mod; the block counts are (b or 1, h or 1, rows of blocks).
    heads = prod(q.shape[:-2])
    full = heads * q.shape[-2] * k.shape[-2]
    counts = [blocks for blocks in (block_mask[2], block_mask[4]) if blocks is not None]
    if not all(readable(blocks) for blocks in counts):
        return Pairs(full, full, MASK_NOT_READ)
    kept = sum(int(b.sum()) * heads // max(prod(b.shape[:-1]), 1) for b in counts)
    # Without a mask there is one block, larger than any sequence.
    return Pairs(full, min(full, kept * block_mask[-3] * block_mask[-2]))


@formula("higher_order::flex_attention", kind="attention")
def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Any,
    block_mask: Any,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    return forward_flops(_block_pairs(q, k, block_mask), q.shape[-1], v.shape[-1])


@formula("higher_order::flex_attention_backward", kind="attention")
def _flex_backward(q: Tensor, k: Tensor, v: Tensor, *args: Any, result: Any, **_: Any) -> OpFlops:
    # args: out, logsumexp, grad_out, grad_logsumexp, fw_graph, joint_graph, block_mask, ..
    return backward_flops(_block_pairs(q, k, args[6]), q.shape[-1], v.shape[-1])


def _lengths(x: Tensor) -> list[int]:
    # (b, s, d), or nested: a list of (s_i, d), whose sizes are kept on the host
    if x.is_nested:
        return [int(size) for size in x._nested_tensor_size()[:, 0]]
    return [x.shape[1]] * x.shape[0]


def _attention_layer(q: Tensor, k: Tensor, embed_dim: int) -> int:
    # Projections of q, k, v and the output, (s, d) @ (d, d) each; scores, and their product with v
    s_q, s_k = _lengths(q), _lengths(k)
    projections = 2 * (2 * sum(s_q) + 2 * sum(s_k)) * embed_dim**2
    return projections + 4 * embed_dim * sum(a * b for a, b in zip(s_q, s_k, strict=True))


@formula("aten::_native_multi_head_attention", "aten::_triton_multi_head_attention")
def _multi_head_attention(
    q: Tensor, k: Tensor, v: Tensor, embed_dim: int, *_: Any, result: Any, **__: Any
) -> int:
    return _attention_layer(q, k, embed_dim)


@formula("aten::_transformer_encoder_layer_fwd")
def _transformer_encoder_layer(x: Tensor, embed_dim: int, *args: Any, result: Any, **_: Any) -> int:
    # args: .., ffn_weight_1 (13th), ffn_bias_1, ffn_weight_2 (15th), ffn_bias_2, ..
    up, down = args[12].shape, args[14].shape
    ffn: int = 2 * sum(_lengths(x)) * (prod(up) + prod(down))
    return _attention_layer(x, x, embed_dim) + ffn


@formula("aten::_triton_scaled_dot_attention", kind="attention")
def _triton_attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    pairs = prod(q.shape[:-1]) * k.shape[-2]  # (b, h, s_q, d) and (b, h, s_k, d), no mask
    return forward_flops(Pairs(pairs, pairs), q.shape[-1], v.shape[-1])
