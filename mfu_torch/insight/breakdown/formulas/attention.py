"""Attention kernels: two products per pair of query and key forward, four backward.

A fused backward computes the scores once more: that fifth product is kept apart, as
``kernel_recompute``. All scores count; where the causal flag, window or mask type is recorded, the
pairs that it keeps give ``causal_flops``. A mask's values are never in a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, Shape
from mfu_torch.insight.breakdown.formulas.work import Context, Formula, Work, added, times

MASK_NOT_RECORDED = (
    "the values of attention masks are not in a trace: causal FLOPs count all scores of a masked "
    "attention, so they are an upper bound"
)
FLAG_NOT_RECORDED = (
    "whether attention is causal is not recorded (an old torch): causal FLOPs count all scores, so "
    "they are an upper bound"
)
OFFSETS_NOT_RECORDED = (
    "the lengths of packed sequences are not in a trace: attention FLOPs assume the longest "
    "sequence throughout, so they are an upper bound"
)

CHUNKS_NOT_COUNTED = (
    "attention in chunks counts all keys of its window: causal FLOPs are an upper bound"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Where an attention op has what; positions are those of its schema.

    Attributes:
        q: Position of the queries; keys and values follow.
        heads_first: (b, h, s, d), else (b, s, h, d).
        causal: Of the flag.
        mask: Of a mask or bias.
        offsets: Of the offsets of packed queries; those of the keys follow.
        longest: Of the longest query sequence; that of the keys follows.
        window: Of the left side of a sliding window; the right one follows.
        mask_type: Of ``custom_mask_type`` (1 causal from the top left, 2 from the bottom right).
        window_size: Of a window that counts a query's own key.
        used: Of tensors that say how many queries or keys are used.
        pages: Of the table of pages, where the keys lie in pages.
        chunk: Of the length of chunks that see no other.
        second: Of a second part of the queries, as wide as the values.
        bottom_right: The last query is aligned with the last key.
        backward: Four products and a fifth, instead of two.
    """

    q: int = 0
    heads_first: bool = True
    causal: int | None = None
    mask: int | None = None
    offsets: int | None = None
    longest: int | None = None
    window: int | None = None
    mask_type: int | None = None
    window_size: int | None = None
    used: tuple[int, ...] = ()
    pages: int | None = None
    chunk: int | None = None
    second: int | None = None
    bottom_right: bool = False
    backward: bool = False


def kept_pairs(s_q: int, s_k: int, offset: int, left: int | None, right: int | None) -> int:
    """Pairs that a window keeps of ``s_q`` queries and ``s_k`` keys.

    Query ``i`` sees the keys ``i + offset - left`` to ``i + offset + right``; ``None``: no limit.
    Causal is ``right=0``: 4 queries and 4 keys keep 1 + 2 + 3 + 4 = 10.
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


@dataclass(frozen=True, slots=True)
class _Window:
    left: int | None
    right: int | None
    bottom_right: bool

    def kept(self, s_q: int, s_k: int) -> int:
        offset = s_k - s_q if self.bottom_right else 0
        return kept_pairs(s_q, s_k, offset, self.left, self.right)


def attention(call: OpCall, context: Context, signature: Signature) -> Work:
    """Work of a call by where its op has what.

    Raises:
        NotRecordedError: The record lacks shapes or arguments that decide.
    """
    q, k, v = (call.shape(signature.q + i) for i in range(3))
    if len(q) < 3 or len(k) < 3 or len(v) < 3:
        raise NotRecordedError(f"attention over the recorded shapes {list(q)}, {list(k)}")
    if signature.pages is not None and call.has(signature.pages):
        raise NotRecordedError("the lengths of keys that lie in pages are not in a trace")
    full, kept, note = _pairs(call, q, k, signature)
    d_qk, d_v = q[-1], v[-1]
    if signature.second is not None and call.has(signature.second):
        d_qk += d_v
    # forward: q @ k^T and scores @ v; backward: dv, dscores, dq, dk, and q @ k^T once more
    each = (2 * d_qk + 2 * d_v) * (2 if signature.backward else 1)
    again = 2 * d_qk if signature.backward else 0
    return Work(
        family="attention",
        flops=full * each,
        causal_flops=kept * each,
        kernel_recompute=full * again,
        kernel_recompute_causal=kept * again,
        bytes=_bytes(call, signature, q, k, v),
        dtype=call.dtype(signature.q),
        note=note,
    )


def _bytes(call: OpCall, signature: Signature, q: Shape, k: Shape, v: Shape) -> int | None:
    # Forward: q, k, v in and (.., s_q, d_v) out. Backward: these four and the output's gradient
    # in, the gradients of q, k and v out. Scores never leave the chip.
    item = call.item_bytes(signature.q)
    out = prod(q[:-1]) * v[-1]
    forward = added(call.bytes_of(*range(signature.q, signature.q + 3)), times(out, item))
    if not signature.backward:
        return forward
    return added(forward, times(out, item), times(prod(q) + prod(k) + prod(v), item))


def _pairs(call: OpCall, q: Shape, k: Shape, signature: Signature) -> tuple[int, int, str]:
    window, note = _window(call, signature)
    packed = signature.offsets is not None and call.has(signature.offsets)
    if packed and (len(q) == 3 or not signature.backward or signature.mask_type is not None):
        return _packed_pairs(call, q, k, signature, window)
    heads, s_q, s_k = _sizes(call, q, k, signature)
    full = heads * s_q * s_k
    if signature.mask is not None and call.has(signature.mask):
        return full, full, MASK_NOT_RECORDED
    if any(call.has(index) for index in signature.used):
        note = OFFSETS_NOT_RECORDED
    if signature.chunk is not None and call.concrete and call.value(signature.chunk):
        note = CHUNKS_NOT_COUNTED
    return full, heads * window.kept(s_q, s_k), note


def _sizes(call: OpCall, q: Shape, k: Shape, signature: Signature) -> tuple[int, int, int]:
    # heads of all sequences together, and the lengths of one
    if not signature.heads_first:
        return q[-2] * prod(q[:-3]), q[-3], k[-3]
    s_q, s_k = q[-2], k[-2]
    if signature.longest is not None and call.concrete:
        # cuDNN takes either layout: the lengths stand beside it
        s_q, s_k = _longest(call, signature.longest, s_q, s_k)
    return prod(q[:-1]) // max(s_q, 1), s_q, s_k


def _longest(call: OpCall, index: int, s_q: int, s_k: int) -> tuple[int, int]:
    found = [call.integers(index + side) for side in (0, 1)]
    max_q, max_k = (
        side[0] if side and side[0] > 0 else size
        for side, size in zip(found, (s_q, s_k), strict=True)
    )
    return max_q, max_k


def _packed_pairs(
    call: OpCall, q: Shape, k: Shape, signature: Signature, window: _Window
) -> tuple[int, int, str]:
    # (.., sum of s, h, d), or (sum of s, h, d) with offsets beside them
    heads, s_q, s_k = q[-2], q[-3], k[-3]
    max_q, max_k = s_q, s_k
    if signature.longest is not None and call.concrete:
        max_q, max_k = _longest(call, signature.longest, s_q, s_k)
    full = heads * min(s_q * max_k, s_k * max_q)
    kept = full * window.kept(max_q, max_k) // max(max_q * max_k, 1)
    return full, kept, OFFSETS_NOT_RECORDED


def _window(call: OpCall, signature: Signature) -> tuple[_Window, str]:
    if not call.concrete:
        return _Window(None, None, False), FLAG_NOT_RECORDED
    left = right = None
    bottom_right = signature.bottom_right
    if signature.window is not None:
        left, right = (_side(call, signature.window + side) for side in (0, 1))
    if signature.mask_type is not None:
        kind, size = _side(call, signature.mask_type), None
        if signature.window_size is not None:
            size = _side(call, signature.window_size)
        left = size - 1 if size else None
        right, bottom_right = (0 if kind else None), kind == 2
    if signature.causal is not None and call.flag(signature.causal):
        right = 0
    return _Window(left, right, bottom_right), ""


def _side(call: OpCall, index: int) -> int | None:
    # "not limited" is written as -1 or None
    value = call.value(index)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotRecordedError(f"argument {index} is no window")
    return None if value < 0 else value


def _flash(call: OpCall, context: Context) -> Work:
    # q, k, v, (three descales where quantised,) dropout_p, is_causal, ..
    causal = 7 if call.has(3) else 4
    return attention(call, context, Signature(causal=causal, bottom_right=True))


def _efficient(call: OpCall, context: Context) -> Work:
    # q, k, v, bias, offsets_q, offsets_k, max_q, (max_k,) dropout_p, custom_mask_type, ..
    old = len(call.concrete) > 9 and call.concrete[9] in ("True", "False")
    signature = Signature(
        heads_first=False,
        mask=3,
        offsets=4,
        longest=None if old else 6,
        mask_type=8 if old else 9,
        window_size=None if old else 13,
        used=() if old else (12,),
    )
    return attention(call, context, signature)


_FORWARD: dict[str, Signature] = {
    "aten::scaled_dot_product_attention": Signature(causal=5, mask=3),
    "aten::_scaled_dot_product_efficient_attention": Signature(causal=6, mask=3),
    "aten::_scaled_dot_product_cudnn_attention": Signature(causal=6, mask=3),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Signature(causal=4, mask=5),
    "aten::_scaled_dot_product_fused_attention_overrideable": Signature(causal=5, mask=3),
    "aten::_flash_attention_forward": Signature(
        heads_first=False, causal=8, offsets=3, longest=5, window=11, used=(13,), bottom_right=True
    ),
    "aten::_cudnn_attention_forward": Signature(causal=10, mask=3, offsets=4, longest=6),
    "torch_attn::_varlen_attn": Signature(
        heads_first=False, causal=7, offsets=3, longest=5, bottom_right=True
    ),
}

_BACKWARD: dict[str, Signature] = {
    "aten::_scaled_dot_product_flash_attention_backward": Signature(
        q=1, causal=11, bottom_right=True, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": Signature(
        q=1, causal=11, mask=4, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": Signature(
        q=1, causal=14, mask=8, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Signature(
        q=1, causal=7, mask=8, backward=True
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Signature(
        q=1, causal=13, mask=4, backward=True
    ),
    # It is given empty offsets where sequences are not packed: only three dimensions tell.
    "aten::_flash_attention_backward": Signature(
        q=1,
        heads_first=False,
        causal=11,
        offsets=6,
        longest=8,
        window=15,
        bottom_right=True,
        backward=True,
    ),
    "aten::_efficient_attention_backward": Signature(
        q=1,
        heads_first=False,
        mask=4,
        offsets=6,
        longest=8,
        mask_type=14,
        window_size=18,
        backward=True,
    ),
    "aten::_cudnn_attention_backward": Signature(
        q=1, causal=14, mask=8, offsets=9, longest=11, backward=True
    ),
}

ATTENTION: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_efficient_attention_forward": _efficient,
    **{
        name: partial(attention, signature=signature)
        for name, signature in (_FORWARD | _BACKWARD).items()
    },
}
"""Name of an op -> its formula."""
