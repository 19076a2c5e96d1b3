"""Attention on the meta device as one fused op, as the kernels of a GPU are.

``scaled_dot_product_attention`` picks a kernel by the device, and for the meta device there is
none: it becomes two products whose mask can no longer be told, and no kernel repeats anything in
the backward. Inside :class:`FusedAttention` it is one op with the count of a fused kernel: four
products in the backward, the fifth apart, and only the kept scores under the causal convention.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.attention import (
    MASK_NOT_READ,
    Pairs,
    backward_flops,
    forward_flops,
    kept_pairs,
    pairs_of_mask,
    readable,
)
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor

_KEPT = "_mfu_torch_kept"


def mark_mask(mask: Tensor, kept: int) -> None:
    """Say how many elements of a mask without data are kept, where that is known otherwise.

    Args:
        mask: A mask on the meta device, (.., s_q, s_k), equal for all heads and sequences.
        kept: Elements kept of ``s_q`` x ``s_k``.
    """
    setattr(mask, _KEPT, kept)


class FusedAttention:
    """Makes ``scaled_dot_product_attention`` on the meta device one op while it is entered.

    It is a kernel in torch's dispatcher, so it also holds where the backward runs a forward again;
    it does not in ``inference_mode``, which skips the kernels of autograd.
    """

    def __init__(self) -> None:
        self._exit = ExitStack()

    def __enter__(self) -> FusedAttention:
        library = self._exit.enter_context(torch.library._scoped_library("aten", "IMPL"))
        library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # (.., h, s_q, d_qk), (.., h_kv, s_k, d_qk), (.., h_kv, s_k, d_v) -> (.., h, s_q, d_v)
    problem = _problem(query, key, value, attn_mask, dropout_p, enable_gqa)
    if problem:
        raise ValueError(
            f"attention of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)}: {problem}"
        )
    shared = 3 if enable_gqa else 2  # trailing dimensions that are not broadcast
    batch = _leading(query, key, value, shared)
    query, key, value = (t.expand(*batch, *t.shape[-shared:]) for t in (query, key, value))
    out: Tensor = _fused(query, key, value, _kept(query, key, attn_mask, is_causal))
    if attn_mask is not None and attn_mask.requires_grad:
        out = out + 0 * attn_mask.sum()  # the gradient of a bias takes no product of its own
    return out


def _problem(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, gqa: bool
) -> str:
    """What the kernels refuse; without them nothing would, and the count be one of nonsense."""
    tensors = [q, k, v] if mask is None else [q, k, v, mask]
    if len({t.device for t in tensors}) > 1:
        return f"on several devices, {', '.join(str(t.device) for t in tensors)}"
    if len({t.dtype for t in (q, k, v)}) > 1 or not q.is_floating_point():
        return f"of dtypes {q.dtype}, {k.dtype}, {v.dtype}; expected one and the same, of floats"
    if not 0 <= dropout_p <= 1:
        return f"dropout_p is {dropout_p}; expected 0 to 1"
    least = 3 if gqa else 2
    if min(t.dim() for t in (q, k, v)) < least:
        return f"expected at least {least} dimensions each"
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return "their sizes do not fit"
    if gqa and any(not t.shape[-3] or q.shape[-3] % t.shape[-3] for t in (k, v)):
        return (
            f"{q.shape[-3]} query heads are no multiple of {k.shape[-3]} key heads and "
            f"{v.shape[-3]} value heads"
        )
    try:
        batch = _leading(q, k, v, least)
    except RuntimeError:  # what broadcast_shapes raises
        return "their batches or heads do not fit"
    return "" if mask is None else _problem_of_mask(mask, q, k, (*batch, *q.shape[-least:-2]))


def _problem_of_mask(mask: Tensor, q: Tensor, k: Tensor, leading: tuple[int, ...]) -> str:
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        return f"a mask of {mask.dtype}; expected torch.bool, torch.float32 or {q.dtype}"
    scores = (*leading, q.shape[-2], k.shape[-2])
    sizes = zip(reversed(mask.shape), reversed(scores), strict=False)
    if not 2 <= mask.dim() <= len(scores) or any(m not in (1, s) for m, s in sizes):
        return f"a mask {tuple(mask.shape)} that does not broadcast to the scores {scores}"
    return ""


def _leading(q: Tensor, k: Tensor, v: Tensor, shared: int) -> tuple[int, ...]:
    shapes = (t.shape[:-shared] for t in (q, k, v))
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _kept(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> int:
    """Pairs that the mask keeps; -1 if it cannot be told."""
    heads, s_q, s_k = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    if mask is None:
        return heads * (kept_pairs(s_q, s_k, right=0) if is_causal else s_q * s_k)
    if is_causal:  # both at once, which some kernels take
        return -1
    kept = getattr(mask, _KEPT, None)
    if kept is not None and mask.shape[-2:] == (s_q, s_k):
        return heads * int(kept)
    return pairs_of_mask(mask, heads * s_q * s_k).kept if readable(mask) else -1


@torch.library.custom_op("mfu_torch::attention", mutates_args=())
def _fused(q: Tensor, k: Tensor, v: Tensor, kept: int) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@torch.library.custom_op("mfu_torch::attention_backward", mutates_args=())
def _fused_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3], output)  # the kernels need their output again, too
    ctx.kept = inputs[3]


def _run_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, _ = ctx.saved_tensors
    return (*_fused_backward(grad, q, k, v, ctx.kept), None)


_fused.register_fake(lambda q, k, v, kept: q.new_empty((*q.shape[:-1], v.shape[-1])))
_fused_backward.register_fake(
    lambda grad, q, k, v, kept: (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape))
)
_fused.register_autograd(_run_backward, setup_context=_save)


def _pairs(q: Tensor, k: Tensor, kept: int) -> Pairs:
    full = prod(q.shape[:-1]) * k.shape[-2]
    return Pairs(full, full, MASK_NOT_READ) if kept < 0 else Pairs(full, kept)


@formula("mfu_torch::attention", kind="attention")
def _forward(q: Tensor, k: Tensor, v: Tensor, kept: int, *, result: Any) -> OpFlops:
    return forward_flops(_pairs(q, k, kept), q.shape[-1], v.shape[-1])


@formula("mfu_torch::attention_backward", operand=1, kind="attention")
def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, kept: int, *, result: Any) -> OpFlops:
    return backward_flops(_pairs(q, k, kept), q.shape[-1], v.shape[-1])
