"""Decoders from parts: what mixes tokens, what follows it, how many such layers, the head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, Part
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added, times
from mfu_torch.records import Record
from mfu_torch.units import count_text


class Block(Record, frozen=True, kw_only=True):
    """``count`` equal layers.

    Attributes:
        parts: What one consists of, in the order in which it runs.
        count: How many there are.
        repeats_last: Whether a checkpoint repeats the last product, too: where a norm or a factor
            follows it, whose backward needs its result (OLMo 2, Gemma 2, weights of experts).

    Raises:
        ValueError: If the count is no whole number above 0.
        TypeError: If something is no part.
    """

    parts: tuple[Part, ...]
    count: int = 1
    repeats_last: bool = False

    def __post_init__(self) -> None:
        whole("count", self.count)
        for part in self.parts:
            if not hasattr(part, "linears") or not hasattr(part, "cores"):
                raise TypeError(f"parts has {part!r}; expected attention, MLPs and the like")

    @property
    def score_dim(self) -> int:
        """H(d + dv) of one layer: multiply-adds for a pair of query and key; 0 without any."""
        return sum(getattr(part, "score_dim", 0) for part in self.parts)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Of one layer."""
        return tuple(linear for part in self.parts for linear in part.linears(hidden))

    def terms(self, hidden: int, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """Of all its layers."""
        layer: list[Term] = []
        for part in self.parts:
            linears = [linear.term(sequences.tokens) for linear in part.linears(hidden)]
            # Scores, scans and the like run before the part's last projection.
            layer += [*linears[:-1], *part.cores(sequences, rule), *linears[-1:]]
        return times(self.count, layer if self.repeats_last else with_last(layer))


class Parameters(Record, frozen=True, kw_only=True):
    """Parameters of a model, by what they do.

    Attributes:
        weights: That multiply tokens: all layers with all experts, and the head, also where it is
            the input embedding used again.
        used: Of these, those that one token meets.
        embedding: The input embedding, 0 where the head is the same.
        positions: Learned position embeddings.
        others: Biases, norms and the like.
        idle: Of the others, those of experts that a token is not sent to.
    """

    weights: int
    used: int
    embedding: int
    positions: int = 0
    others: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        """All of them: N."""
        return self.weights + self.embedding + self.positions + self.others

    @property
    def active(self) -> int:
        """N without the experts that a token is not sent to."""
        return self.total - self.weights + self.used - self.idle

    def __str__(self) -> str:
        parts = {
            "weights that multiply": self.weights,
            "embedding": self.embedding,
            "positions": self.positions,
            "others": self.others,
        }
        lines = [f"{self.total:,} parameters ({count_text(self.total)})"]
        lines += [f"{name}: {number:,}" for name, number in parts.items() if number]
        if self.active != self.total:
            lines.append(f"active, of experts those chosen: {self.active:,}")
        if self.used != self.weights:
            lines.append(f"weights that one token meets: {self.used:,}")
        return "\n  ".join(lines)


class Decoder(Record, frozen=True, kw_only=True):
    """A language model: embedding, layers, head.

    Attributes:
        hidden: h.
        vocab: V, as the head is computed (padded).
        blocks: Its layers, in order.
        has_head: Whether it has one.
        is_tied: Whether the head is the input embedding used again.
        learned_positions: How many positions have an embedding of their own.
        others: Parameters that multiply no token: biases, norms.
        idle: Of the others, those of experts that a token is not sent to.
        mtp: Layers that predict further tokens (DeepSeek-V3, arXiv:2412.19437, section 2.2): each
            with a projection of 2h to h before it, and the head once more.
    """

    hidden: int
    vocab: int
    blocks: tuple[Block, ...]
    has_head: bool = True
    is_tied: bool = False
    learned_positions: int = 0
    others: int = 0
    idle: int = 0
    mtp: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        whole("hidden", self.hidden)
        whole("vocab", self.vocab)
        for name in ("learned_positions", "others", "idle"):
            if getattr(self, name) != 0:
                whole(name, getattr(self, name))
        check_blocks(*self.blocks, *self.mtp)

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in."""
        return "token"

    @property
    def layers(self) -> int:
        """L, without those that predict further tokens."""
        return sum(block.count for block in self.blocks)

    @property
    def head(self) -> Linear:
        """The product that gives the logits."""
        return Linear(name="head", inputs=self.hidden, outputs=self.vocab, role="head")

    def linears(self) -> tuple[tuple[int, Linear], ...]:
        """All weights that multiply tokens, each with how many layers have such ones."""
        found = [(b.count, w) for b in self.blocks for w in b.linears(self.hidden)]
        if self.has_head:
            found.append((1, self.head))
        for block in self.mtp:
            found += [(block.count, w) for w in (self._joint, *block.linears(self.hidden))]
        return tuple(found)

    @property
    def _joint(self) -> Linear:
        return Linear(name="mtp_projection", inputs=2 * self.hidden, outputs=self.hidden)

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        lengths: Iterable[int] | None = None,
        attention: PairRule = "full",
    ) -> ClosedForm:
        """FLOPs of a batch of ``batch`` sequences of ``seq`` tokens, or of these ``lengths``.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
        """
        sequences = Sequences.of(batch, seq, lengths)
        terms = [t for b in self.blocks for t in b.terms(self.hidden, sequences, attention)]
        head = (self.head.term(sequences.tokens, in_layer=False),) if self.has_head else ()
        terms += head
        for block in self.mtp:
            joint = self._joint.term(sequences.tokens, in_layer=False)
            terms += times(block.count, (joint, *head))
            terms += block.terms(self.hidden, sequences, attention)
        return ClosedForm(terms=added(terms))

    @property
    def parameters(self) -> Parameters:
        """How many it has, and how many of them a token meets.

        The embedding and the head of the layers for further tokens are the model's own.
        """
        linears = self.linears()
        embedding = self.vocab * self.hidden
        return Parameters(
            weights=sum(count * linear.weights for count, linear in linears),
            used=sum(count * linear.weights_used for count, linear in linears),
            embedding=0 if self.is_tied and self.has_head else embedding,
            positions=self.learned_positions * self.hidden,
            others=self.others,
            idle=self.idle,
        )


def check_blocks(*blocks: Block) -> None:
    """Nothing, where all are blocks.

    Raises:
        TypeError: If one is not.
    """
    for block in blocks:
        if not isinstance(block, Block):
            raise TypeError(f"blocks has {block!r}; expected blocks, each of equal layers")


def with_last(layer: list[Term]) -> list[Term]:
    """The terms of a layer, the last of which is marked as such."""
    if not layer:
        return layer
    return [*layer[:-1], msgspec.structs.replace(layer[-1], is_last=True)]


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
        mask=Mask(window=None if window is None else whole("window", window)),
    )
    block = Block(parts=(attention, MLP(width=ffn, is_gated=is_gated)), count=layers)
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
