"""Decoders of equal layers, by the sizes that papers print."""

from __future__ import annotations

import msgspec

from mfu_torch.flops.formulas.decoder import Block, Decoder
from mfu_torch.flops.formulas.layers import equal_layers
from mfu_torch.flops.formulas.pairs import whole
from mfu_torch.flops.formulas.parts import Experts


def dense_decoder(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    is_gated: bool = True,
    window: int | None = None,
    is_tied: bool = False,
    learned_positions: int = 0,
    others: int = 0,
) -> Decoder:
    """A decoder of equal layers: attention and an MLP.

    Args:
        layers: L.
        hidden: h.
        heads: H.
        ffn: f, the width of the MLP.
        vocab: V.
        kv_heads: K; as ``heads`` by default.
        head_dim: d; hidden / heads by default.
        is_gated: Whether the MLP has three products.
        window: Keys that a query sees, itself included; all by default.
        is_tied: Whether the head is the input embedding.
        learned_positions: Position embeddings.
        others: Biases and norms.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden where
            ``head_dim`` is not given.
    """
    block = equal_layers(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        kv_heads=kv_heads,
        head_dim=head_dim,
        is_gated=is_gated,
        window=window,
    )
    return Decoder(
        hidden=hidden,
        vocab=vocab,
        blocks=(block,),
        is_tied=is_tied,
        learned_positions=learned_positions,
        others=others,
    )


def moe_decoder(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    experts: int,
    chosen: int,
    shared_width: int = 0,
    dense_layers: int = 0,
    dense_ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    is_gated: bool = True,
    window: int | None = None,
    is_tied: bool = False,
) -> Decoder:
    """A decoder with a mixture of experts in its layers.

    Mixtral 8x7B: ``layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000,
    experts=8, chosen=2``: 46.7B weights, 12.9B of which a token meets.

    Args:
        layers: L, with the dense ones.
        hidden: h.
        heads: H.
        ffn: f of one expert.
        vocab: V.
        experts: How many each layer has.
        chosen: How many a token is sent to.
        shared_width: f of all shared experts together; 0: none.
        dense_layers: First layers, which have an MLP instead.
        dense_ffn: f of that; needed where there are such layers.
        kv_heads: K; as ``heads`` by default.
        head_dim: d; hidden / heads by default.
        is_gated: Whether MLPs and experts have three products.
        window: Keys that a query sees, itself included; all by default.
        is_tied: Whether the head is the input embedding.

    Raises:
        ValueError: If a size is no whole number above 0, more experts are chosen than there are,
            all layers are dense, or dense layers have no width.
    """
    for name, size in (("ffn", ffn), ("experts", experts), ("chosen", chosen)):
        whole(name, size)
    if dense_layers and dense_layers >= whole("layers", layers):
        raise ValueError(f"dense_layers is {dense_layers}; expected less than layers, {layers}")
    if dense_layers and dense_ffn is None:
        raise ValueError(f"{dense_layers} layers are dense; give dense_ffn, the width of their MLP")
    dense = dense_decoder(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn if dense_ffn is None else dense_ffn,
        vocab=vocab,
        kv_heads=kv_heads,
        head_dim=head_dim,
        is_gated=is_gated,
        window=window,
        is_tied=is_tied,
    )
    attention, mlp = dense.blocks[0].parts
    mixture = Experts(
        experts=experts,
        chosen=chosen,
        width=ffn,
        is_gated=is_gated,
        shared_width=shared_width and whole("shared_width", shared_width),
    )
    # A factor for each token follows what the experts return; a checkpoint repeats that product.
    blocks = [
        Block(
            parts=(attention, mixture),
            count=layers - dense_layers,
            repeats_last=not shared_width,
        )
    ]
    if dense_layers:
        first = Block(parts=(attention, mlp), count=whole("dense_layers", dense_layers))
        blocks.insert(0, first)
    return msgspec.structs.replace(dense, blocks=tuple(blocks))
