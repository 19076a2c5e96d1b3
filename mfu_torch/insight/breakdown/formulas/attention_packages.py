"""Attention of packages that register torch ops: flash-attn 2 and 3, xFormers, aiter.

They put the sequence before the heads, (b, s, h, d), or pack sequences into (sum of s, h, d), and
align a causal mask to the bottom right. Positions are those of the sources that
:mod:`mfu_torch.flops.ops.attention_packages` names.
"""

from __future__ import annotations

from functools import partial

from mfu_torch.insight.breakdown.formulas.attention import Signature, attention
from mfu_torch.insight.breakdown.formulas.work import Formula

_package = partial(Signature, heads_first=False, bottom_right=True)
_backward = partial(_package, q=1, backward=True)

_FLASH3 = _package(
    causal=24, offsets=7, longest=12, window=25, used=(10, 11, 16), pages=14, chunk=27, second=5
)

_SIGNATURES: dict[str, Signature] = {
    "flash_attn::_flash_attn_forward": _package(causal=5, window=6),
    "flash_attn::_flash_attn_varlen_forward": _package(
        causal=9, offsets=3, longest=5, window=10, used=(16, 17), pages=15
    ),
    "flash_attn::_flash_attn_backward": _backward(causal=11, window=12),
    "flash_attn::_flash_attn_varlen_backward": _backward(
        causal=15, offsets=9, longest=11, window=16
    ),
    "flash_attn_3::_flash_attn_forward": _FLASH3,
    "flash_attn_3::fwd": _FLASH3,
    "flash_attn_3::_flash_attn_backward": _backward(
        causal=16, offsets=6, longest=10, window=17, used=(8, 9)
    ),
    "flash_attn_3::bwd": _backward(causal=16, offsets=9, longest=13, window=17, used=(11, 12)),
    "xformers_flash::flash_fwd": _package(
        causal=10, offsets=3, longest=6, window=11, used=(5,), pages=14
    ),
    "xformers_flash::flash_bwd": _backward(q=2, causal=13, offsets=7, longest=9, window=14),
    "xformers_flash3::flash_fwd": _package(
        causal=11, offsets=3, longest=7, window=17, used=(5, 6), pages=15
    ),
    "xformers_flash3::flash_bwd": _backward(q=2, causal=12, offsets=7, longest=9, window=13),
    # ROCm/aiter: q, k, v, dropout_p, softmax_scale, is_causal, window_left, window_right, ..
    "aiter::fmha_v3_fwd": _package(causal=5, window=6),
}

ATTENTION_PACKAGES: dict[str, Formula] = {
    name: partial(attention, signature=signature) for name, signature in _SIGNATURES.items()
}
"""Name of an op -> its formula."""
