"""Sequence recommenders of the HSTU kind: layers over the items that a user met.

HSTU (Zhai et al. 2024, arXiv:2402.17152, equations 1 to 3), hidden h, heads H of dqk and dv,
histories of s_i:

    u, v, q, k    2 sum(s_i) h H (2 dqk + 2 dv)
    attention     2 H (dqk + dv) sum(s_i²)    never batch x mean²; pointwise, no softmax
    out           2 sum(s_i) H dv h
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.layers import block_terms, block_weights, none_or_whole
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import check_mask, scores_and_values
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record


class HSTU(Record, frozen=True, kw_only=True):
    """A hierarchical sequential transduction unit: attention and its gate; it has no MLP.

    Attributes:
        heads: H.
        qk_dim: dqk of a head.
        value_dim: dv of a head; the gate u is as wide.
        mask: Which items of a history one sees.

    Raises:
        ValueError: If a size is no whole number above 0.
    """

    heads: int
    qk_dim: int
    value_dim: int
    mask: Mask = Mask()

    def __post_init__(self) -> None:
        check_mask(self.mask)
        for name in ("heads", "qk_dim", "value_dim"):
            whole(name, getattr(self, name))

    @property
    def score_dim(self) -> int:
        """H (dqk + dv): what a pair costs in multiply-adds."""
        return self.heads * (self.qk_dim + self.value_dim)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """u, v, q and k at once, and o."""
        return (
            Linear(name="uvqk", inputs=hidden, outputs=2 * self.score_dim),
            Linear(name="o", inputs=self.heads * self.value_dim, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """Scores and values."""
        twice = sequences.twice_pairs(rule, self.mask)
        return scores_and_values(self.heads, self.qk_dim, self.value_dim, twice)


class SequenceRecommender(Record, frozen=True, kw_only=True):
    """A model of users' histories (HSTU, SASRec, BERT4Rec): layers, and a score for each item.

    Attributes:
        hidden: h, of an item's embedding.
        items: V.
        blocks: Its layers: :class:`HSTU`, or attention and an MLP.
        negatives: Items that each token is scored against beside its own, as sampled softmax does
            it; ``None``: all V.
        positions: Learned position embeddings.
        others: Parameters that multiply nothing: biases, norms, biases of distances.

    Raises:
        ValueError: If a size is no whole number above 0.
    """

    hidden: int
    items: int
    blocks: tuple[Block, ...]
    negatives: int | None = None
    positions: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        whole("hidden", self.hidden)
        whole("items", self.items)
        none_or_whole(self, "positions", "others")
        check_blocks(*self.blocks)
        if self.negatives is not None:
            whole("negatives", self.negatives)

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in: items of a history."""
        return "token"

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        lengths: Iterable[int] | None = None,
        attention: PairRule = "full",
    ) -> ClosedForm:
        """FLOPs of ``batch`` users with histories of ``seq`` items, or of these ``lengths``.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
        """
        sequences = Sequences.of(batch, seq, lengths)
        scored = self.items if self.negatives is None else 1 + self.negatives
        # (t, h) @ (h, V), or of each token (1, h) @ (h, 1 + negatives): both need a gradient.
        head = Linear(name="head", inputs=self.hidden, outputs=scored, role="head")
        layers = block_terms(self.blocks, self.hidden, sequences, attention)
        return ClosedForm(terms=added([*layers, head.term(sequences.tokens, in_layer=False)]))

    @property
    def parameters(self) -> Parameters:
        """How many it has. The items' embedding is the head."""
        held, used = block_weights(self.blocks, self.hidden)
        head = self.hidden * self.items
        scored = self.items if self.negatives is None else 1 + self.negatives
        return Parameters(
            weights=held + head,
            used=used + self.hidden * scored,
            embedding=0,
            positions=self.positions * self.hidden,
            others=self.others,
        )


def hstu(
    *,
    layers: int,
    hidden: int,
    heads: int,
    items: int,
    qk_dim: int | None = None,
    value_dim: int | None = None,
    negatives: int | None = None,
    positions: int = 0,
) -> SequenceRecommender:
    """A sequence recommender of equal HSTU layers.

    Args:
        layers: L.
        hidden: h.
        heads: H.
        items: V.
        qk_dim: dqk of a head; hidden / heads by default.
        value_dim: dv of a head; likewise.
        negatives: As in :class:`SequenceRecommender`.
        positions: As in :class:`SequenceRecommender`.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden where a
            size of a head is not given.
    """
    for name, value in (("layers", layers), ("hidden", hidden), ("heads", heads)):
        whole(name, value)
    if hidden % heads and None in (qk_dim, value_dim):
        raise ValueError(f"hidden {hidden} is no multiple of heads {heads}; give the head's sizes")
    each = hidden // heads
    unit = HSTU(
        heads=heads,
        qk_dim=each if qk_dim is None else qk_dim,
        value_dim=each if value_dim is None else value_dim,
    )
    return SequenceRecommender(
        hidden=hidden,
        items=items,
        blocks=(Block(parts=(unit,), count=layers),),
        negatives=negatives,
        positions=positions,
    )
