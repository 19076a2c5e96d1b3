"""Attention: one call of every kernel, with its masks, layouts and packed sequences.

Per query and key two products forward, 2 * d_qk + 2 * d_v; four backward; a fused kernel repeats
the first of them, 2 * d_qk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cases import Work, meta, op, weight, work
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

B, HEADS, S, D = 2, 4, 32, 16
LONG = 600
PAIRS = B * HEADS * S * S
FORWARD, BACKWARD, AGAIN = PAIRS * 4 * D, PAIRS * 8 * D, PAIRS * 2 * D

aten = torch.ops.aten


def _heads(s: int = S) -> torch.Tensor:
    return weight(B, HEADS, s, D)


def _fused(fn: Any, *inputs: torch.Tensor, share: int = 1) -> Work:
    """A kernel of the CPU: the backward computes the scores once more."""
    return op(
        fn, *inputs, forward=FORWARD * share, backward=BACKWARD * share,
        kernel_recompute=AGAIN * share,
    )  # fmt: skip


@work
def attention_to_another_sequence() -> Work:
    return _fused(F.scaled_dot_product_attention, _heads(), _heads(2 * S), _heads(2 * S), share=2)


@work
def attention_with_boolean_mask() -> Work:
    # Every score is computed and counted; the convention "causal" counts those that are kept.
    mask = torch.ones(S, S, dtype=torch.bool).tril()
    return _fused(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, attn_mask=mask),
        *(_heads() for _ in "qkv"),
    )


@work
def attention_with_additive_mask() -> Work:
    mask = torch.zeros(B, 1, S, S)
    return _fused(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, attn_mask=mask),
        *(_heads() for _ in "qkv"),
    )


@work
def attention_with_keywords() -> Work:
    return _fused(
        lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v),
        *(_heads() for _ in "qkv"),
    )


@work
def attention_made_of_products() -> Work:
    def fn(*qkv: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(*qkv)

    return op(fn, *(_heads() for _ in "qkv"), forward=FORWARD, backward=BACKWARD)


@work
def long_causal_attention() -> Work:
    # All scores are counted; the kernel skips whole blocks that the mask hides.
    s = LONG
    return op(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True),
        *(weight(1, 1, s, D) for _ in "qkv"),
        forward=s * s * 4 * D,
        backward=s * s * 8 * D,
        kernel_recompute=s * s * 2 * D,
    )


# --- kernels of other devices ----------------------------------------------------------------


@work
def flash_kernel() -> Work:
    q = meta(B, HEADS, S, D)
    return op(lambda q: aten._scaled_dot_product_flash_attention(q, q, q), q, forward=FORWARD)


@work
def efficient_kernel() -> Work:
    q = meta(B, HEADS, S, D)
    return op(
        lambda q: aten._scaled_dot_product_efficient_attention(q, q, q, None, True), q,
        forward=FORWARD,
    )  # fmt: skip


@work
def cudnn_kernel() -> Work:
    q = meta(B, HEADS, S, D)
    return op(
        lambda q: aten._scaled_dot_product_cudnn_attention(q, q, q, None, True), q,
        forward=FORWARD,
    )  # fmt: skip


@work
def flash_kernel_with_sequence_first() -> Work:
    q = meta(B, S, HEADS, D)
    return op(
        lambda q: aten._flash_attention_forward(q, q, q, None, None, S, S, 0.0, False, False), q,
        forward=FORWARD,
    )  # fmt: skip


@work
def efficient_kernel_with_sequence_first() -> Work:
    q = meta(B, S, HEADS, D)

    def run() -> None:
        out, logsumexp, seed, offset, *_ = aten._efficient_attention_forward(
            q, q, q, None, None, None, None, None, 0.0, 0, True
        )
        aten._efficient_attention_backward(
            out, q, q, q, None, out, None, None, S, S, logsumexp, 0.0, seed, offset, 0, False
        )

    # Called directly, not by autograd: all of it is in the forward.
    return Work(run, forward=FORWARD + BACKWARD, kernel_recompute=AGAIN)


LENGTHS = (5, 3, 12)
OFFSETS = torch.tensor([0, 5, 8, 20], dtype=torch.int32)


@work
def packed_sequences_with_offsets_on_the_host() -> Work:
    pairs = HEADS * sum(length**2 for length in LENGTHS)
    q = meta(sum(LENGTHS), HEADS, D)
    return op(
        lambda q: aten._flash_attention_forward(
            q, q, q, OFFSETS, OFFSETS, 12, 12, 0.0, False, False
        ), q, forward=pairs * 4 * D,
    )  # fmt: skip


@work
def packed_sequences_with_offsets_on_the_device() -> Work:
    # Reading them would wait for the device: the count is an upper bound, and says so.
    longest = HEADS * sum(LENGTHS) * max(LENGTHS)
    q, offsets = meta(sum(LENGTHS), HEADS, D), OFFSETS.to("meta")
    return op(
        lambda q: aten._flash_attention_forward(
            q, q, q, offsets, offsets, 12, 12, 0.0, False, False
        ), q, forward=longest * 4 * D, says="sequence offsets on the device were not read",
    )  # fmt: skip


@work
def flex_attention_with_block_mask() -> Work:
    s = 256
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, s, s, device="cpu")
    q = torch.ones(1, HEADS, s, D)
    return op(lambda q: flex_attention(q, q, q, block_mask=mask), q, forward=HEADS * s * s * 4 * D)


# --- layers ----------------------------------------------------------------------------------

WIDTH, FFN = HEADS * D, 128
PROJECTIONS = 2 * B * S * 4 * WIDTH**2


@work
def attention_layer_that_returns_its_weights() -> Work:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    # q, k and v are the same tensor, which wants no gradient.
    backward = 2 * PROJECTIONS - 2 * B * S * 3 * WIDTH**2 + BACKWARD
    return op(
        lambda x: layer(x, x, x)[0], torch.ones(B, S, WIDTH),
        forward=PROJECTIONS + FORWARD, backward=backward, layer=layer,
    )  # fmt: skip


@work
def attention_layer_in_evaluation() -> Work:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()

    @torch.no_grad()
    def fn(x: torch.Tensor) -> torch.Tensor:
        return layer(x, x, x, need_weights=False)[0]

    return op(
        fn, torch.ones(B, S, WIDTH), forward=0, forward_no_grad=PROJECTIONS + FORWARD, layer=layer,
    )  # fmt: skip


@work
def encoder_layer_in_evaluation() -> Work:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, batch_first=True).eval()
    flops = PROJECTIONS + FORWARD + 2 * B * S * 2 * WIDTH * FFN
    x = torch.ones(B, S, WIDTH)
    return op(torch.no_grad()(layer), x, forward=0, forward_no_grad=flops, layer=layer)


@work
def linear_layer_on_nested_tensors() -> Work:
    layer = nn.Linear(WIDTH, FFN)

    def run() -> None:
        nested = torch.nested.nested_tensor(
            [torch.ones(s, WIDTH) for s in LENGTHS], layout=torch.jagged
        )
        layer(nested)

    return Work(run, forward=2 * sum(LENGTHS) * WIDTH * FFN)


@work
def attention_on_nested_tensors() -> Work:
    def run() -> None:
        nested = torch.nested.nested_tensor(
            [torch.ones(s, WIDTH) for s in LENGTHS], layout=torch.jagged
        )
        q = nested.unflatten(-1, [HEADS, D]).transpose(1, 2)
        F.scaled_dot_product_attention(q, q, q)

    return Work(run, forward=HEADS * sum(s * s for s in LENGTHS) * 4 * D)
