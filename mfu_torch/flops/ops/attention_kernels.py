"""FLOPs of attention kernels that are called directly, with layouts of their own.

The kernels below ``scaled_dot_product_attention`` put the sequence before the heads,
(b, s, h, d), or pack sequences of different lengths into (sum of s, h, d) with their offsets
beside them. Offsets on an accelerator are not read, because that would wait for the device: the
count is then an upper bound and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from mfu_torch.flops.ops.attention import (
    OFFSETS_NOT_READ,
    Pairs,
    backward_flops,
    forward_flops,
    kept_pairs,
    pairs_of_mask,
)
from mfu_torch.flops.ops.products import readable
from mfu_torch.flops.ops.registry import OpFlops, formula

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


def window_of(is_causal: bool, left: int | None = None, right: int | None = None) -> Window:
    """The window of a kernel's arguments, which write "not limited" as -1 or ``None``."""
    left = None if left is None or left < 0 else left
    right = None if right is None or right < 0 else right
    return Window(left, 0 if is_causal else right)


def pairs_between(q: Tensor, k: Tensor, packed: Packed, window: Window) -> Pairs:
    """Pairs of (b, s_q, h, d) and (b, s_k, h_kv, d), or packed (.., sum of s_q, h, d)."""
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
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    result: Any,
    **__: Any,
) -> OpFlops:
    packed = Packed(offsets_q, offsets_k, max_q, max_k)
    window = window_of(is_causal, window_size_left, window_size_right)
    if block_table is not None:
        return paged_flops(q, v, packed, window)
    pairs = used_pairs(pairs_between(q, k, packed, window), seqused_k)
    return forward_flops(pairs, q.shape[-1], v.shape[-1])


def used_pairs(pairs: Pairs, used: Tensor | None) -> Pairs:
    """The same pairs as a bound, if a tensor says how many keys of each sequence are used."""
    return pairs if used is None else pairs._replace(note=OFFSETS_NOT_READ)


def paged_flops(q: Tensor, v: Tensor, packed: Packed, window: Window) -> OpFlops:
    """FLOPs over keys in pages, (pages, page, h_kv, d): only the longest sequence is known."""
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
    window = window_of(args[7], window_size_left, window_size_right)
    return backward_flops(pairs_between(q, k, packed, window), q.shape[-1], v.shape[-1])


def _efficient_window(mask_type: int, size: int | None) -> Window:
    # custom_mask_type: 0 none, 1 causal from the top left, 2 causal from the bottom right;
    # window_size counts a query's own key.
    left = size - 1 if size else None
    return Window(left, 0 if mask_type else None, bottom_right=mask_type == 2)


def _efficient_pairs(
    q: Tensor, k: Tensor, bias: Tensor | None, packed: Packed, window: Window
) -> Pairs:
    pairs = pairs_between(q, k, packed, window)
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
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
    result: Any,
    **__: Any,
) -> OpFlops:
    window = _efficient_window(mask_type, window_size)
    pairs = _efficient_pairs(q, k, bias, Packed(offsets_q, offsets_k, max_q, max_k), window)
    return forward_flops(used_pairs(pairs, seqlen_k), q.shape[-1], v.shape[-1])


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
    used = args[1] if len(args) > 1 else kwargs.get("seqused_k")
    block_table = args[2] if len(args) > 2 else kwargs.get("block_table")
    left, right = window_size or (None, None)
    packed, window = Packed(offsets_q, offsets_k, max_q, max_k), window_of(is_causal, left, right)
    if block_table is not None:
        return paged_flops(q, v, packed, window)
    pairs = used_pairs(pairs_between(q, k, packed, window), used)
    return forward_flops(pairs, q.shape[-1], v.shape[-1])


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
    pairs = pairs_between(q, k, Packed(*args[2:6]), window_of(args[6], left, right))
    return backward_flops(pairs, q.shape[-1], v.shape[-1])


def _cudnn_pairs(
    q: Tensor, k: Tensor, bias: Tensor | None, packed: Packed, is_causal: bool
) -> Pairs:
    if q.dim() == 3:  # packed (sum of s, h, d); cuDNN's causal mask starts at the top left
        window = Window(None, 0 if is_causal else None, bottom_right=False)
        return pairs_between(q, k, packed, window)
    # (b, h, s, d), or the sequence first: the lengths stand beside it
    s_q, s_k = packed.max_q or q.shape[-2], packed.max_k or k.shape[-2]
    heads = prod(q.shape[:-1]) // s_q
    if bias is not None:
        return pairs_of_mask(bias, heads * s_q * s_k)
    kept = kept_pairs(s_q, s_k, right=0) if is_causal else s_q * s_k
    return Pairs(heads * s_q * s_k, heads * kept)


@formula("aten::_cudnn_attention_forward", kind="attention")
def _cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    offsets_q: Tensor | None,
    offsets_k: Tensor | None,
    max_q: int,
    max_k: int,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    packed = Packed(offsets_q, offsets_k, max_q, max_k)
    pairs = _cudnn_pairs(q, k, bias, packed, is_causal)
    return forward_flops(pairs, q.shape[-1], v.shape[-1])


@formula("aten::_cudnn_attention_backward", kind="attention")
def _cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, result: Any, **_: Any
) -> OpFlops:
    # args: out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q,
    # max_k, dropout_p, is_causal
    pairs = _cudnn_pairs(q, k, args[4], Packed(*args[5:9]), args[10])
    return backward_flops(pairs, q.shape[-1], v.shape[-1])
