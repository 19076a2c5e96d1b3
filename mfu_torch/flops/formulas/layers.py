"""Layers by their sizes, and all layers of an architecture that is no decoder together."""

from __future__ import annotations

from collections.abc import Iterable

from mfu_torch.flops.formulas.decoder import Block
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import MLP, Attention
from mfu_torch.flops.formulas.terms import Term
from mfu_torch.records import Record


def none_or_whole(model: Record, *names: str) -> None:
    """Nothing, where each of these fields is 0 or a whole number above it.

    Raises:
        ValueError: If one is not.
    """
    for name in names:
        if getattr(model, name) != 0:
            whole(name, getattr(model, name))


def block_terms(
    blocks: Iterable[Block], hidden: int, sequences: Sequences, rule: PairRule
) -> list[Term]:
    """The terms of all layers, in the order in which they run."""
    return [term for block in blocks for term in block.terms(hidden, sequences, rule)]


def block_weights(blocks: Iterable[Block], hidden: int) -> tuple[int, int]:
    """Weights of all layers that multiply tokens: (held, met by one token)."""
    linears = [(block.count, linear) for block in blocks for linear in block.linears(hidden)]
    return (
        sum(count * linear.weights for count, linear in linears),
        sum(count * linear.weights_used for count, linear in linears),
    )


def equal_layers(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    kv_heads: int | None,
    head_dim: int | None,
    is_gated: bool,
    window: int | None,
    causal: bool = True,
    repeats_last: bool = False,
) -> Block:
    """Layers of attention and an MLP, by the sizes that a model card states.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden where
            ``head_dim`` is not given.
    """
    for name, value in (("layers", layers), ("hidden", hidden), ("heads", heads), ("ffn", ffn)):
        whole(name, value)
    if head_dim is None:
        if hidden % heads:
            raise ValueError(f"hidden {hidden} is no multiple of heads {heads}; give head_dim")
        head_dim = hidden // heads
    attention = Attention(
        heads=heads,
        kv_heads=whole("kv_heads", heads if kv_heads is None else kv_heads),
        head_dim=whole("head_dim", head_dim),
        mask=Mask(causal=causal, window=None if window is None else whole("window", window)),
    )
    return Block(
        parts=(attention, MLP(width=ffn, is_gated=is_gated)),
        count=layers,
        repeats_last=repeats_last,
    )
