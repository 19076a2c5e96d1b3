"""Bytes that operations without a product move through memory: they take time and no FLOPs count.

Each operation reads its inputs and writes its output once, in 2 bytes a number, masks of dropout
in 1; h hidden, f width of the MLP, H heads, s keys; forward / backward, for a token and a part of
a layer:

    norm                       4h / 6h      reads x, writes y  /  reads x and dy, writes dx
    residual addition          6h / 6h      reads two, writes one
    activation, plain          4f / 6f      reads x, writes y  /  reads x and dy, writes dx
    activation, gated          6f / 10f     gate and up -> product
    softmax, dropout (scores)  9Hs / 11Hs   only where attention is not fused

Which operations a program fuses further, or has besides, is its own affair: rotary embeddings,
casts, biases and the loss are left out.
"""

from __future__ import annotations

from mfu_torch.flops.formulas.parts import MLP, Experts, Part
from mfu_torch.records import Record

_NORM = (4, 6)
_RESIDUAL = (6, 6)
_PLAIN = (4, 6)
_GATED = (6, 10)
_SCORES = (9, 11)


class Traffic(Record, frozen=True, kw_only=True):
    """Bytes for a token of one layer, on one rank.

    Attributes:
        forward: Moved by the forward.
        backward: Moved by the backward.
        scores: Of ``forward``, those of softmax and dropout.
    """

    forward: float = 0.0
    backward: float = 0.0
    scores: float = 0.0


def traffic_of(
    part: Part, hidden: int, seq: int, *, tp: int, is_split_by_tokens: bool, is_fused: bool
) -> Traffic:
    """Of one part of a layer with its norm and its residual addition.

    Args:
        part: Attention, an MLP, experts.
        hidden: h.
        seq: Keys that scores are computed for.
        tp: Ranks that share it.
        is_split_by_tokens: Whether norm and addition are shared, too (sequence parallelism).
        is_fused: Whether scores never reach memory.
    """
    shared = hidden / (tp if is_split_by_tokens else 1)
    forward = (_NORM[0] + _RESIDUAL[0]) * shared
    backward = (_NORM[1] + _RESIDUAL[1]) * shared
    width = _width(part) / tp
    rates = _GATED if getattr(part, "is_gated", False) else _PLAIN
    forward += rates[0] * width
    backward += rates[1] * width
    scores = 0.0
    if not is_fused and hasattr(part, "score_dim"):
        pairs = getattr(part, "heads", 0) * seq / tp
        scores = _SCORES[0] * pairs
        forward, backward = forward + scores, backward + _SCORES[1] * pairs
    return Traffic(forward=forward, backward=backward, scores=scores)


def _width(part: Part) -> float:
    if isinstance(part, MLP):
        return part.width
    if isinstance(part, Experts):
        return part.chosen * part.width + part.shared_width
    return 0.0
