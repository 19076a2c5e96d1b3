"""FLOPs of attention kernels that are called directly, with layouts of their own.

The kernels below ``scaled_dot_product_attention`` put the sequence before the heads,
(b, s, h, d), or pack sequences of different lengths into (sum of s, h, d) with their offsets
beside them. Offsets on an accelerator are not read, because that would wait for the device: the
count is then an upper bound and says so. Also here: flex attention, whose mask is made of blocks,
and the fast path of ``nn.MultiheadAttention`` in evaluation, one op with its projections inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from mfu_torch.flops.attention import (
    MASK_NOT_READ,
    OFFSETS_NOT_READ,
    Pairs,
    backward_flops,
    forward_flops,
    kept_pairs,
    pairs_of_mask,
    readable,
)
from mfu_torch.flops.registry import OpFlops, formula

Tensor = torch.Tensor


class Window(NamedTuple):
    """Which keys a query sees: so many to its left and right (``None``: all of them).

    ``bottom_right``: the last query is aligned with the last key, not the first with the first.
    """

    left: int | None
    right: int | None
    bottom_right: bool = True

    def kept(self, s_q: int, s_k: int) -> int:
        """Pairs that it keeps of ``s_q`` queries and ``s_k`` keys."""
        offset = s_k - s_q if self.bottom_right else 0
        return kept_pairs(s_q, s_k, offset, self.left, self.right)


class Packed(NamedTuple):
    """Offsets of packed sequences, and the longest of them."""

    offsets_q: Tensor | None
    offsets_k: Tensor | None
    max_q: int | None
    max_k: int | None


def _window(is_causal: bool, left: int | None = None, right: int | None = None) -> Window:
    # The kernels write "not limited" as -1 or None.
    left = None if left is None or left < 0 else left
    right = None if right is None or right < 0 else right
    return Window(left, 0 if is_causal else right)


def _pairs(q: Tensor, k: Tensor, packed: Packed, window: Window) -> Pairs:
    # (b, s_q, h, d) and (b, s_k, h_kv, d); or packed (.., sum of s_q, h, d), (.., sum of s_k, ..)
    s_q, heads, s_k = q.shape[-3], q.shape[-2], k.shape[-3]
    if packed.offsets_q is None:
        sequences = heads * prod(q.shape[:-3])
        return Pairs(sequences * s_q * s_k, sequences * window.kept(s_q, s_k))
    offsets_k = packed.offsets_q if packed.offsets_k is None else packed.offsets_k
    if readable(packed.offsets_q) and readable(offsets_k):
        lengths = list(zip(_lengths(packed.offsets_q), _lengths(offsets_k), strict=True))
        full = heads * sum(q_i * k_i for q_i, k_i in lengths)
        return Pairs(full, heads * sum(window.kept(q_i, k_i) for q_i, k_i in lengths))
    max_q, max_k = packed.max_q or s_q, packed.max_k or s_k
    full = heads * min(s_q * max_k, s_k * max_q)
    # A shorter causal sequence keeps a larger share than the longest, of a smaller rectangle that
    # is bounded above: for q_i = k_i <= s, q_i (q_i + 1) / 2 <= q_i * s * (s + 1) / (2 s).
    kept = full * window.kept(max_q, max_k) // max(max_q * max_k, 1)
    return Pairs(full, kept, OFFSETS_NOT_READ)


def _lengths(offsets: Tensor) -> list[int]:
    return [int(length) for length in offsets.diff()]


@formula("aten::_flash_attention_forward", kind="attention")
def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets_q: Tensor | None,
    offsets_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    block_table: Tensor | None = None,
    result: Any,
    **__: Any,
) -> OpFlops:
    packed = Packed(offsets_q, offsets_k, max_q, max_k)
    window = _window(is_causal, window_size_left, window_size_right)
    if block_table is not None:
        return _paged(q, v, packed, window)
    return forward_flops(_pairs(q, k, packed, window), q.shape[-1], v.shape[-1])


def _paged(q: Tensor, v: Tensor, packed: Packed, window: Window) -> OpFlops:
    # k and v are pages, (pages, page, h_kv, d), shared between sequences: only the longest
    # sequence is known.
    max_q, max_k = packed.max_q or 1, packed.max_k or 1
    full = prod(q.shape[:-1]) * max_k
    kept = full * window.kept(max_q, max_k) // (max_q * max_k)
    return forward_flops(Pairs(full, kept, OFFSETS_NOT_READ), q.shape[-1], v.shape[-1])


@formula("aten::_flash_attention_forward_no_dropout_inplace", operand=1, kind="attention")
def _flash_into(out: Tensor, *args: Any, result: Any, **kwargs: Any) -> OpFlops:
    # args: q, k, v, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ..
    return _flash(*args, result=result, **kwargs)


@formula("aten::_flash_attention_backward", kind="attention")
def _flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *args: Any,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    result: Any,
    **_: Any,
) -> OpFlops:
    # args: out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ..
    # The fused op passes empty offsets for sequences that are not packed.
    offsets_q = args[2] if q.dim() == 3 else None
    packed = Packed(offsets_q, args[3], args[4], args[5])
    window = _window(args[7], window_size_left, window_size_right)
    return backward_flops(_pairs(q, k, packed, window), q.shape[-1], v.shape[-1])


def _efficient_window(mask_type: int, size: int | None) -> Window:
    # custom_mask_type: 0 none, 1 causal from the top left, 2 causal from the bottom right;
    # window_size counts a query's own key.
    left = size - 1 if size else None
    return Window(left, 0 if mask_type else None, bottom_right=mask_type == 2)


def _efficient_pairs(
    q: Tensor, k: Tensor, bias: Tensor | None, packed: Packed, window: Window
) -> Pairs:
    pairs = _pairs(q, k, packed, window)
    if bias is None or packed.offsets_q is not None:
        return pairs
    return pairs_of_mask(bias, pairs.full)


@formula("aten::_efficient_attention_forward", kind="attention")
def _efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    offsets_q: Tensor | None,
    offsets_k: Tensor | None,
    max_q: int | None,
    max_k: int | None,
    dropout_p: float,
    mask_type: int,
    *_: Any,
    window_size: int | None = None,
    result: Any,
    **__: Any,
) -> OpFlops:
    window = _efficient_window(mask_type, window_size)
    pairs = _efficient_pairs(q, k, bias, Packed(offsets_q, offsets_k, max_q, max_k), window)
    return forward_flops(pairs, q.shape[-1], v.shape[-1])


@formula("aten::_efficient_attention_backward", kind="attention")
def _efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *args: Any,
    window_size: int | None = None,
    result: Any,
    **_: Any,
) -> OpFlops:
    # args: out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp, dropout_p,
    # philox_seed, philox_offset, custom_mask_type, bias_requires_grad
    window = _efficient_window(args[9], window_size)
    pairs = _efficient_pairs(q, k, bias, Packed(args[1], args[2], args[3], args[4]), window)
    return backward_flops(pairs, q.shape[-1], v.shape[-1])


@formula("torch_attn::_varlen_attn", kind="attention")
def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets_q: Tensor,
    offsets_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] | None = None,
    *args: Any,
    result: Any,
    **kwargs: Any,
) -> OpFlops:
    # args: enable_gqa, seqused_k, block_table, num_splits
    block_table = args[2] if len(args) > 2 else kwargs.get("block_table")
    left, right = window_size or (None, None)
    packed, window = Packed(offsets_q, offsets_k, max_q, max_k), _window(is_causal, left, right)
    if block_table is not None:
        return _paged(q, v, packed, window)
    return forward_flops(_pairs(q, k, packed, window), q.shape[-1], v.shape[-1])


@formula("torch_attn::_varlen_attn_out", operand=1, kind="attention")
def _varlen_into(out: Tensor, *args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return _varlen(*args, result=result, **kwargs)


@formula("torch_attn::_varlen_attn_backward", kind="attention")
def _varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *args: Any,
    result: Any,
    window_size: Sequence[int] | None = None,
    **_: Any,
) -> OpFlops:
    # args: out, lse, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, rng_state, scale, window_size
    left, right = (args[9] if len(args) > 9 else window_size) or (None, None)
    pairs = _pairs(q, k, Packed(*args[2:6]), _window(args[6], left, right))
    return backward_flops(pairs, q.shape[-1], v.shape[-1])


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


def _self_attention(x: Tensor, embed_dim: int) -> int:
    # (b, s, d) @ (d, 3 d), scores and their product with v, (b, s, d) @ (d, d)
    batch, s, _ = x.shape
    return 2 * batch * s * 4 * embed_dim**2 + 4 * batch * s * s * embed_dim


@formula("aten::_native_multi_head_attention")
def _native_multi_head_attention(
    q: Tensor, k: Tensor, v: Tensor, embed_dim: int, *_: Any, result: Any, **__: Any
) -> int:
    return _self_attention(q, embed_dim)


@formula("aten::_transformer_encoder_layer_fwd")
def _transformer_encoder_layer(x: Tensor, embed_dim: int, *args: Any, result: Any, **_: Any) -> int:
    # args: .., ffn_weight_1 (13th), ffn_bias_1, ffn_weight_2 (15th), ffn_bias_2, ..
    up, down = args[12].shape, args[14].shape
    ffn: int = 2 * prod(x.shape[:-1]) * (prod(up) + prod(down))
    return _self_attention(x, embed_dim) + ffn
