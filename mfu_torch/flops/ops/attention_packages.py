"""FLOPs of attention packages that register torch ops: flash-attn 2 and 3, xFormers, torchao.

They put the sequence before the heads, (b, s, h, d), or pack sequences into (sum of s, h, d), and
align a causal mask to the bottom right. No package is imported; the argument lists are those of
the sources named beside them.
"""

from __future__ import annotations

from typing import Any

import torch

from mfu_torch.flops.ops.attention import (
    OFFSETS_NOT_READ,
    Pairs,
    backward_flops,
    dense_pairs,
    forward_flops,
)
from mfu_torch.flops.ops.attention_kernels import Packed, paged_flops, pairs_between, window_of
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor

CHUNKS_NOT_COUNTED = (
    "attention in chunks counts all keys of its window: causal FLOPs are an upper bound"
)


class Call:
    """The arguments of a call by name; those left out are ``None``."""

    def __init__(self, names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._values = {**dict(zip(names.split(), args, strict=False)), **kwargs}

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)

    def packed(self) -> Packed:
        """Offsets and longest sequences."""
        return Packed(self.cu_seqlens_q, self.cu_seqlens_k, self.max_seqlen_q, self.max_seqlen_k)

    def pairs(self) -> Pairs:
        """Query-key pairs of packed or equally long sequences."""
        window = window_of(bool(self.causal), self.window_size_left, self.window_size_right)
        pairs = pairs_between(self.q, self.k, self.packed(), window)
        if self.seqused_q is not None or self.seqused_k is not None or self.leftpad_k is not None:
            return Pairs(pairs.full, pairs.kept, OFFSETS_NOT_READ)
        if self.attention_chunk:
            return Pairs(pairs.full, pairs.kept, CHUNKS_NOT_COUNTED)
        return pairs

    def forward(self) -> OpFlops:
        """FLOPs of the forward."""
        d_qk, d_v = self.q.shape[-1], self.v.shape[-1]
        if self.block_table is not None:
            window = window_of(bool(self.causal), self.window_size_left, self.window_size_right)
            longest = self.max_seqlen_k or self.block_table.shape[-1] * self.k.shape[1]
            queries = self.max_seqlen_q or self.q.shape[-3]
            return paged_flops(self.q, self.v, Packed(None, None, queries, longest), window)
        if self.qv is not None:
            d_qk += d_v  # a second part of the scores, of width d_v
        return forward_flops(self.pairs(), d_qk, d_v)

    def backward(self) -> OpFlops:
        """FLOPs of the backward."""
        return backward_flops(self.pairs(), self.q.shape[-1], self.v.shape[-1])


# --- flash-attn 2: Dao-AILab/flash-attention 0251105 (2.8), flash_attn/flash_attn_interface.py ----

_FLASH = """q k v dropout_p softmax_scale causal window_size_left window_size_right softcap
    alibi_slopes return_softmax"""
_FLASH_VARLEN = """q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p
    softmax_scale causal window_size_left window_size_right softcap alibi_slopes return_softmax
    block_table leftpad_k seqused_k zero_tensors num_splits"""
_FLASH_BACKWARD = """dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal
    window_size_left window_size_right softcap alibi_slopes deterministic rng_state"""
_FLASH_VARLEN_BACKWARD = """dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k
    max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size_left window_size_right
    softcap alibi_slopes deterministic rng_state zero_tensors"""


@formula("flash_attn::_flash_attn_forward", kind="attention")
def _flash(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH, args, kwargs).forward()


@formula("flash_attn::_flash_attn_varlen_forward", kind="attention")
def _flash_varlen(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH_VARLEN, args, kwargs).forward()


@formula("flash_attn::_flash_attn_backward", kind="attention")
def _flash_backward(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH_BACKWARD, args, kwargs).backward()


@formula("flash_attn::_flash_attn_varlen_backward", kind="attention")
def _flash_varlen_backward(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH_VARLEN_BACKWARD, args, kwargs).backward()


# --- flash-attn 3: the same revision, hopper/flash_attn_interface.py and hopper/flash_api.cpp ----
# The Python op "_flash_attn_forward" and the kernel's "fwd" have the same arguments in the same
# order; only some names differ.

_FLASH3 = """q k v k_new v_new qv out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q
    seqused_k max_seqlen_q max_seqlen_k block_table kv_batch_idx leftpad_k rotary_cos rotary_sin
    seqlens_rotary q_descale k_descale v_descale softmax_scale causal window_size_left
    window_size_right attention_chunk"""
_FLASH3_BACKWARD = """dout q k v out softmax_lse cu_seqlens_q cu_seqlens_k seqused_q seqused_k
    max_seqlen_q max_seqlen_k dq dk dv softmax_scale causal window_size_left window_size_right"""
_FLASH3_BWD = """dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k seqused_q
    seqused_k max_seqlen_q max_seqlen_k softmax_scale causal window_size_left window_size_right"""


@formula("flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd", kind="attention")
def _flash3(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH3, args, kwargs).forward()


@formula("flash_attn_3::_flash_attn_backward", kind="attention")
def _flash3_backward(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH3_BACKWARD, args, kwargs).backward()


@formula("flash_attn_3::bwd", kind="attention")
def _flash3_bwd(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_FLASH3_BWD, args, kwargs).backward()


# --- xFormers: facebookresearch/xformers ce4f89d (0.0.35), xformers/ops/fmha/flash{,3}.py --------
# Its CUTLASS kernels are aten's since 0.0.29. Inputs with five dimensions are folded to four
# before these ops.

_XFORMERS = """q k v cu_seqlens_q cu_seqlens_k seqused_k max_seqlen_q max_seqlen_k p
    softmax_scale causal window_size_left window_size_right return_softmax block_table"""
_XFORMERS_BACKWARD = """grads_share_storage dout q k v out lse cu_seqlens_q cu_seqlens_k
    max_seqlen_q max_seqlen_k p softmax_scale causal window_size_left window_size_right"""
_XFORMERS3 = """q k v cu_seqlens_q cu_seqlens_k seqused_k leftpad_k max_seqlen_q max_seqlen_k p
    softmax_scale causal descale_q descale_k descale_v block_table use_kvsplit window_size_left
    window_size_right"""
_XFORMERS3_BACKWARD = """grads_share_storage dout q k v out lse cu_seqlens_q cu_seqlens_k
    max_seqlen_q max_seqlen_k softmax_scale causal window_size_left window_size_right"""


@formula("xformers_flash::flash_fwd", kind="attention")
def _xformers(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_XFORMERS, args, kwargs).forward()


@formula("xformers_flash::flash_bwd", operand=1, kind="attention")
def _xformers_backward(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_XFORMERS_BACKWARD, args, kwargs).backward()


@formula("xformers_flash3::flash_fwd", kind="attention")
def _xformers3(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_XFORMERS3, args, kwargs).forward()


@formula("xformers_flash3::flash_bwd", operand=1, kind="attention")
def _xformers3_backward(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    return Call(_XFORMERS3_BACKWARD, args, kwargs).backward()


# --- torchao: pytorch/ao 36027d8 (0.19), torchao/ops.py; (b, h, s, d), quantised to bytes --------


@formula("torchao::qscaled_dot_product", kind="attention")
def _quantized_attention(*args: Any, result: Any, **kwargs: Any) -> OpFlops:
    call = Call("q k v attn_mask dropout_p causal", args, kwargs)
    pairs = dense_pairs(call.q, call.k, bool(call.causal), call.attn_mask)
    return forward_flops(pairs, call.q.shape[-1], call.v.shape[-1])
