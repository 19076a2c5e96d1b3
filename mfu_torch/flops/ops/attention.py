"""FLOPs of attention kernels, under both conventions and apart from what a kernel repeats.

For every query and every key that it may look at, a *pair*, the forward does two dot products
and the backward four::

    forward    scores = q @ k^T     2 * d_qk        backward   dv = scores^T @ do     2 * d_v
               out = scores @ v     2 * d_v                    dscores = do @ v^T     2 * d_v
                                                               dq = dscores @ k       2 * d_qk
    kernel     scores = q @ k^T     2 * d_qk                   dk = dscores^T @ q     2 * d_qk

A fused backward computes the scores once more instead of keeping them: that fifth product is
hardware work, not part of the model. Pairs are counted per query head, so keys and values that
several heads share need no treatment of their own. The convention ``full`` takes all pairs,
``causal`` those that the mask keeps.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from mfu_torch.flops.ops.products import readable as readable
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor

MASK_NOT_READ = (
    "an attention mask on the device was not read: causal FLOPs count all of its scores, so they "
    "are an upper bound"
)
PLAIN_SCORES = (
    "attention was seen as plain products with a softmax in between, where no mask can be told: "
    "causal FLOPs count all of its scores, so they are an upper bound"
)
MASK_READ = (
    "causal FLOPs follow the attention masks of the batch that was counted: one of the same shape "
    "with other masks has others"
)
OFFSETS_NOT_READ = (
    "sequence offsets on the device were not read: attention FLOPs assume the longest sequence "
    "throughout, so they are an upper bound"
)


class Pairs(NamedTuple):
    """Query-key pairs of one call: all of them, and those that the mask keeps."""

    full: int
    kept: int
    note: str = ""


def kept_pairs(
    s_q: int, s_k: int, offset: int = 0, left: int | None = None, right: int | None = None
) -> int:
    """Pairs that a causal mask or a sliding window keeps of ``s_q`` x ``s_k``.

    Query ``i`` sees the keys ``i + offset - left`` to ``i + offset + right``. ``offset`` is 0 if
    the mask starts at the top left, ``s_k - s_q`` if it ends at the bottom right. A side that is
    ``None`` is not limited; causal is ``right=0``: 4 queries and 4 keys keep 1 + 2 + 3 + 4 = 10.
    """
    below_end = s_q * s_k if right is None else _clamped_sum(s_q, offset + right + 1, s_k)
    below_start = 0 if left is None else _clamped_sum(s_q, offset - left, s_k)
    return below_end - below_start


def _clamped_sum(count: int, start: int, cap: int) -> int:
    # sum of min(max(i, 0), cap) for i in range(start, start + count)
    def up_to(end: int) -> int:
        inside = min(max(end, 0), cap + 1)
        return inside * (inside - 1) // 2 + max(end - cap - 1, 0) * cap

    return up_to(start + count) - up_to(start)


def forward_flops(pairs: Pairs, d_qk: int, d_v: int) -> OpFlops:
    """FLOPs of an attention forward: two products per pair."""
    each = 2 * d_qk + 2 * d_v
    return OpFlops(pairs.full * each, pairs.kept * each, note=pairs.note)


def backward_flops(pairs: Pairs, d_qk: int, d_v: int) -> OpFlops:
    """FLOPs of a fused attention backward: four products per pair, and a fifth apart."""
    each = 2 * (2 * d_qk + 2 * d_v)
    again = 2 * d_qk
    return OpFlops(
        full=pairs.full * each,
        causal=pairs.kept * each,
        kernel_recompute=pairs.full * again,
        kernel_recompute_causal=pairs.kept * again,
        note=pairs.note,
    )


# --- (b, h, s, d): the ops behind scaled_dot_product_attention -------------------------------


def dense_pairs(q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None = None) -> Pairs:
    """Pairs of (b, h, s_q, d) @ (b, h, d, s_k), a causal mask aligned to the top left."""
    heads, s_q, s_k = prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    full = heads * s_q * s_k
    if mask is not None:
        return pairs_of_mask(mask, full)
    return Pairs(full, heads * kept_pairs(s_q, s_k, right=0) if is_causal else full)


def pairs_of_mask(mask: Tensor, full: int) -> Pairs:
    """Pairs of which a boolean or additive mask, broadcast to ``full`` scores, keeps some."""
    if not readable(mask):
        return Pairs(full, full, MASK_NOT_READ)
    with torch.no_grad():
        # Both -inf and the most negative finite number are in use for "not this one".
        kept = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
        pairs = int(torch.count_nonzero(kept)) * full // max(mask.numel(), 1)
        return Pairs(full, pairs, MASK_READ)


@formula("aten::_softmax", "aten::_safe_softmax")
def _softmax_of_scores(x: Tensor, dim: int, *_: Any, result: Any, **__: Any) -> OpFlops:
    # (.., s_q, s_k): no FLOPs, but it shows that the products around it are attention. A router's
    # (b, s, experts) is no square.
    if x.is_nested:
        return OpFlops(0, 0)
    s_q, s_k = (1, 1, *x.shape)[-2:]
    over_keys = dim % max(x.dim(), 1) == x.dim() - 1
    is_scores = x.dim() > 3 or (x.dim() == 3 and s_q == s_k)
    return OpFlops(0, 0, note=PLAIN_SCORES if is_scores and over_keys and s_q > 1 else "")


@formula("aten::_scaled_dot_product_flash_attention", kind="attention")
def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    return forward_flops(_square_causal(q, k, is_causal), q.shape[-1], v.shape[-1])


def _square_causal(q: Tensor, k: Tensor, is_causal: bool) -> Pairs:
    # The flash kernel aligns its causal mask to the bottom right. scaled_dot_product_attention
    # gives it only square ones, where both alignments are the same.
    heads, s_q, s_k = prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    kept = kept_pairs(s_q, s_k, s_k - s_q, right=0) if is_causal else s_q * s_k
    return Pairs(heads * s_q * s_k, heads * kept)


@formula("aten::_scaled_dot_product_flash_attention.quantized", kind="attention")
def _flash_quantized(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
    *args: Any,
    result: Any,
    **kwargs: Any,
) -> OpFlops:
    return _flash(q, k, v, *args, result=result, **kwargs)


@formula("aten::_scaled_dot_product_flash_attention_backward", kind="attention")
def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, result: Any, **_: Any
) -> OpFlops:
    # args: out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ..
    return backward_flops(_square_causal(q, k, args[7]), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_efficient_attention", kind="attention")
@formula("aten::_scaled_dot_product_cudnn_attention", kind="attention")
def _efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    return forward_flops(dense_pairs(q, k, is_causal, attn_bias), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_efficient_attention_backward", kind="attention")
def _efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    *args: Any,
    result: Any,
    is_causal: bool = False,
    **_: Any,
) -> OpFlops:
    # args: out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal=False
    causal = args[6] if len(args) > 6 else is_causal
    return backward_flops(dense_pairs(q, k, causal, attn_bias), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_cudnn_attention_backward", kind="attention")
def _cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, result: Any, **_: Any
) -> OpFlops:
    # args: out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k,
    # max_q, max_k, dropout_p, is_causal
    return backward_flops(dense_pairs(q, k, args[10], args[4]), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_flash_attention_for_cpu", kind="attention")
def _flash_for_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    result: Any,
    **_: Any,
) -> OpFlops:
    return forward_flops(dense_pairs(q, k, is_causal, attn_mask), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_flash_attention_for_cpu_backward", kind="attention")
def _flash_for_cpu_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    result: Any,
    **_: Any,
) -> OpFlops:
    return backward_flops(dense_pairs(q, k, is_causal, attn_mask), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_fused_attention_overrideable", kind="attention")
@formula("aten::_scaled_dot_product_attention_math_for_mps", kind="attention")
def _overrideable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    attn_mask: Tensor | None = None,
    result: Any,
    **__: Any,
) -> OpFlops:
    mask = attn_mask if attn_bias is None else attn_bias
    return forward_flops(dense_pairs(q, k, is_causal, mask), q.shape[-1], v.shape[-1])


@formula("aten::_scaled_dot_product_fused_attention_overrideable_backward", kind="attention")
def _overrideable_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    *args: Any,
    result: Any,
    **_: Any,
) -> OpFlops:
    # args: grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
    # is_causal, philox_seed, philox_offset
    return backward_flops(dense_pairs(q, k, args[8], attn_bias), q.shape[-1], v.shape[-1])
