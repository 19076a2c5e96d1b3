"""Encoders as BERT (Devlin et al. 2018, arXiv:1810.04805): every token sees every token.

    hidden h, layers L, heads H of d, MLP f, vocabulary V, tokens t = B s
    layers        2 t L (4 h² + 2 h f)           q, k, v, o; up and down
    attention     4 B L H d s²                   never halved: no mask
    MLM head      2 t (h² + h V)                 a dense layer and the embedding used again
    pooler        2 B h²                         the first token alone
    classifier    2 B h C, or of each token 2 t h C

BERT-base, one sequence of 128 tokens, without heads: 22.35 GFLOP forward.

A window (ModernBERT, arXiv:2412.13663: 64 tokens to each side in two of three layers) is a
:class:`Mask`; what it saves is seen by ``attention="causal"``, which counts the pairs a mask keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.layers import block_terms, block_weights, equal_layers, none_or_whole
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record


class Encoder(Record, frozen=True, kw_only=True):
    """An encoder and its heads.

    Attributes:
        hidden: h.
        vocab: V.
        blocks: Its layers, in order; their masks are not causal.
        embedding: Width of the embeddings, where a product brings them to h (ALBERT, ELECTRA);
            ``None``: h.
        has_mlm_head: Whether each token is predicted: (h, e) and (e, V), e the embedding's width.
        predictions: Tokens of a sequence that the MLM head sees; ``None``: all, as in
            ``transformers``. BERT's own code gathers 20 of 128.
        is_tied: Whether the MLM head's (e, V) is the embedding used again.
        has_pooler: Whether the first token runs through (h, h).
        labels: C, of a classifier; 0: none.
        labels_per: What is classified: each sequence, or each token.
        positions: Learned position embeddings.
        others: Parameters that multiply no token: biases, norms, token types.

    Raises:
        ValueError: If a size is no whole number above 0, or a mask is causal.
    """

    hidden: int
    vocab: int
    blocks: tuple[Block, ...]
    embedding: int | None = None
    has_mlm_head: bool = True
    predictions: int | None = None
    is_tied: bool = True
    has_pooler: bool = False
    labels: int = 0
    labels_per: Literal["sequence", "token"] = "sequence"
    positions: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        whole("hidden", self.hidden)
        whole("vocab", self.vocab)
        for name in ("embedding", "predictions"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        none_or_whole(self, "labels", "positions", "others")
        check_blocks(*self.blocks)
        masks = (getattr(part, "mask", None) for block in self.blocks for part in block.parts)
        if any(mask is not None and mask.causal for mask in masks):
            raise ValueError("a mask is causal; expected Mask(causal=False) in an encoder")

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in."""
        return "token"

    @property
    def _width(self) -> int:
        return self.embedding or self.hidden

    def _widening(self) -> tuple[Linear, ...]:
        if self._width == self.hidden:
            return ()
        return (Linear(name="embedding_projection", inputs=self._width, outputs=self.hidden),)

    def _mlm(self) -> tuple[Linear, ...]:
        if not self.has_mlm_head:
            return ()
        return (
            Linear(name="mlm_dense", inputs=self.hidden, outputs=self._width, role="head"),
            Linear(name="mlm_head", inputs=self._width, outputs=self.vocab, role="head"),
        )

    def _pooler(self) -> tuple[Linear, ...]:
        shape = Linear(name="pooler", inputs=self.hidden, outputs=self.hidden, role="head")
        return (shape,) if self.has_pooler else ()

    def _classifier(self) -> tuple[Linear, ...]:
        shape = Linear(name="classifier", inputs=self.hidden, outputs=self.labels, role="head")
        return (shape,) if self.labels else ()

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
        tokens, samples = sequences.tokens, sequences.batch
        predicted = tokens if self.predictions is None else samples * self.predictions
        if predicted > tokens:
            raise ValueError(
                f"predictions is {self.predictions}; expected at most the {tokens // samples} "
                "tokens of a sequence"
            )
        classified = samples if self.labels_per == "sequence" else tokens
        terms: list[Term] = [w.term(tokens, in_layer=False) for w in self._widening()]
        terms += block_terms(self.blocks, self.hidden, sequences, attention)
        terms += [head.term(predicted, in_layer=False) for head in self._mlm()]
        terms += [head.term(samples, in_layer=False) for head in self._pooler()]
        terms += [head.term(classified, in_layer=False) for head in self._classifier()]
        return ClosedForm(terms=added(terms))

    @property
    def parameters(self) -> Parameters:
        """How many it has; a pooler and a classifier count among those that a token meets."""
        held, used = block_weights(self.blocks, self.hidden)
        rest = sum(
            linear.weights
            for linear in (
                *self._widening(),
                *self._mlm(),
                *self._pooler(),
                *self._classifier(),
            )
        )
        return Parameters(
            weights=held + rest,
            used=used + rest,
            embedding=0 if self.has_mlm_head and self.is_tied else self.vocab * self._width,
            positions=self.positions * self._width,
            others=self.others,
        )


def bert(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    positions: int = 512,
    token_types: int = 2,
    has_mlm_head: bool = True,
    predictions: int | None = None,
    has_pooler: bool = False,
    labels: int = 0,
    labels_per: Literal["sequence", "token"] = "sequence",
) -> Encoder:
    """BERT with its biases and norms; BERT-base with a pooler alone has 109482240 parameters.

    Args:
        layers: L.
        hidden: h.
        heads: H.
        ffn: f.
        vocab: V.
        positions: Learned ones.
        token_types: Segment embeddings.
        has_mlm_head: As in :class:`Encoder`.
        predictions: As in :class:`Encoder`.
        has_pooler: As in :class:`Encoder`.
        labels: As in :class:`Encoder`; 2 for the next sentence.
        labels_per: As in :class:`Encoder`.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden.
    """
    block = encoder_block(layers=layers, hidden=hidden, heads=heads, ffn=ffn, repeats_last=True)
    # Biases of q, k, v, o and down, two norms with biases; the bias of up. Norm of the embeddings.
    others = layers * (9 * hidden + ffn) + (2 + token_types) * hidden
    others += 3 * hidden + vocab if has_mlm_head else 0  # bias, norm; bias of the decoder
    others += (hidden if has_pooler else 0) + labels
    return Encoder(
        hidden=hidden,
        vocab=vocab,
        blocks=(block,),
        has_mlm_head=has_mlm_head,
        predictions=predictions,
        has_pooler=has_pooler,
        labels=labels,
        labels_per=labels_per,
        positions=positions,
        others=others,
    )


def encoder_block(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    is_gated: bool = False,
    window: int | None = None,
    repeats_last: bool = False,
) -> Block:
    """Equal layers of attention without a mask and an MLP.

    Args:
        layers: How many.
        hidden: h.
        heads: H.
        ffn: f.
        kv_heads: K; as ``heads`` by default.
        head_dim: d; hidden / heads by default.
        is_gated: Whether the MLP has three products.
        window: Keys that a query sees around it, half of them on either side; all by default.
        repeats_last: Whether a norm or a factor follows the last product, whose backward needs its
            result: norms behind the sums, as in BERT and BART.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden where
            ``head_dim`` is not given.
    """
    return equal_layers(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        kv_heads=kv_heads,
        head_dim=head_dim,
        is_gated=is_gated,
        window=window,
        causal=False,
        repeats_last=repeats_last,
    )
