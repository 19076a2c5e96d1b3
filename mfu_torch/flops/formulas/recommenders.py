"""Recommenders: DLRM and sequence recommenders of the HSTU kind.

DLRM (Naumov et al. 2019, arXiv:1906.00091, section 2), batch B, F = tables + 1 vectors of d:

    bottom MLP    2 B a b of each layer       dense features need no gradient
    tables        no contraction: B x (ids of all bags) x d adds, read from memory
    interaction   2 B F² d                    (F, d) @ (d, F), of which F (F - 1) / 2 are used
    top MLP       2 B a b of each layer, from d + F (F - 1) / 2

MLPerf's DLRM (13-512-256-128, 26 tables, 479-1024-1024-512-256-1): 4916992 a sample, forward.

HSTU (Zhai et al. 2024, arXiv:2402.17152, equations 1 to 3), hidden h, heads H of dqk and dv,
histories of s_i:

    u, v, q, k    2 sum(s_i) h H (2 dqk + 2 dv)
    attention     2 H (dqk + dv) sum(s_i²)    never batch x mean²; pointwise, no softmax
    out           2 sum(s_i) H dv h
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

from mfu_torch.flops.formulas.convnets import no_seq
from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.layers import block_terms, block_weights, none_or_whole
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import check_mask, scores_and_values
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record


class DLRM(Record, frozen=True, kw_only=True):
    """A deep learning recommendation model.

    Attributes:
        dense: Dense features.
        bottom: Outputs of the bottom MLP's layers; the last is d, the tables' width.
        rows: Of each table.
        top: Outputs of the top MLP's layers; the last is 1.
        pooling: Ids of a bag in each table; one number holds for all.
        interaction: ``dot``: each vector with each other; ``cat``: they are put side by side.
        with_itself: Whether a vector's product with itself is used, too.

    Raises:
        ValueError: If a size is no whole number above 0, or nothing is pooled for a table.
    """

    dense: int
    bottom: tuple[int, ...]
    rows: tuple[int, ...]
    top: tuple[int, ...]
    pooling: int | tuple[int, ...] = 1
    interaction: Literal["dot", "cat"] = "dot"
    with_itself: bool = False

    def __post_init__(self) -> None:
        whole("dense", self.dense)
        for name in ("bottom", "rows", "top"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; expected at least one number")
            for value in getattr(self, name):
                whole(name, value)
        for value in self.bags:
            whole("pooling", value)
        if len(self.bags) != len(self.rows):
            raise ValueError(
                f"pooling has {len(self.bags)} numbers; expected one for each of the "
                f"{len(self.rows)} tables"
            )
        if self.interaction not in ("dot", "cat"):
            raise ValueError(f"interaction is {self.interaction!r}; expected 'dot' or 'cat'")

    @property
    def per(self) -> Literal["sample"]:
        """What its throughput is counted in."""
        return "sample"

    @property
    def bags(self) -> tuple[int, ...]:
        """Ids of a bag, of each table."""
        if isinstance(self.pooling, int):
            return (self.pooling,) * len(self.rows)
        return self.pooling

    @property
    def width(self) -> int:
        """Of the embeddings: d."""
        return self.bottom[-1]

    @property
    def vectors(self) -> int:
        """Of a sample: F."""
        return len(self.rows) + 1

    @property
    def interactions(self) -> int:
        """Products of two vectors that are used."""
        f = self.vectors
        return f * (f + 1) // 2 if self.with_itself else f * (f - 1) // 2

    @property
    def joined(self) -> int:
        """Inputs of the top MLP."""
        if self.interaction == "cat":
            return self.vectors * self.width
        return self.width + self.interactions

    def _layers(self) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
        return (
            dense_layers("bottom", (self.dense, *self.bottom)),
            dense_layers("top", (self.joined, *self.top)),
        )

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """FLOPs of ``batch`` samples. No layer of it is one that is recomputed.

        Raises:
            ValueError: If ``batch`` is no whole number above 0, or a ``seq`` is given.
        """
        no_seq(seq)
        whole("batch", batch)
        bottom, top = self._layers()
        terms: list[Term] = [
            w.term(batch, in_layer=False, input_gradient=i > 0) for i, w in enumerate(bottom)
        ]
        if self.interaction == "dot":
            dot = 2 * batch * self.vectors**2 * self.width  # (F, d) @ (d, F)
            terms.append(
                Term(
                    name="interaction",
                    role="interaction",
                    forward=dot,
                    backward=2 * dot,
                    in_layer=False,
                )
            )
        terms += [linear.term(batch, in_layer=False) for linear in top]
        return ClosedForm(terms=added(terms))

    def embedding_adds(self, batch: int = 1) -> int:
        """Additions of the tables' rows into their bags, forward: no contraction, no FLOPs here."""
        return whole("batch", batch) * sum(self.bags) * self.width

    def embedding_bytes(self, batch: int = 1, *, number_bytes: int = 4) -> int:
        """Bytes that the look-ups read and write, forward: rows in, bags out; ids left out."""
        vectors = sum(self.bags) + len(self.rows)
        return whole("batch", batch) * vectors * self.width * whole("number_bytes", number_bytes)

    @property
    def parameters(self) -> Parameters:
        """How many it has: nearly all of them in the tables."""
        linears = [linear for layers in self._layers() for linear in layers]
        weights = sum(linear.weights for linear in linears)
        return Parameters(
            weights=weights,
            used=weights,
            embedding=sum(self.rows) * self.width,
            others=sum(linear.outputs for linear in linears),
        )


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


def dlrm(
    *,
    dense: int = 13,
    bottom: Iterable[int],
    rows: Iterable[int],
    top: Iterable[int],
    pooling: int | Iterable[int] = 1,
    interaction: Literal["dot", "cat"] = "dot",
    with_itself: bool = False,
) -> DLRM:
    """A DLRM; the 13 dense features are those of Criteo's data.

    Args:
        dense: As in :class:`DLRM`, as all others.
        bottom: Outputs of the bottom MLP's layers.
        rows: Of each table.
        top: Outputs of the top MLP's layers.
        pooling: Ids of a bag.
        interaction: ``dot`` or ``cat``.
        with_itself: Whether a vector's product with itself is used.

    Raises:
        ValueError: As :class:`DLRM` does.
    """
    return DLRM(
        dense=dense,
        bottom=tuple(bottom),
        rows=tuple(rows),
        top=tuple(top),
        pooling=pooling if isinstance(pooling, int) else tuple(pooling),
        interaction=interaction,
        with_itself=with_itself,
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


def dense_layers(name: str, sizes: tuple[int, ...]) -> tuple[Linear, ...]:
    """An MLP of these sizes: (B, a) @ (a, b) for each two in a row."""
    return tuple(Linear(name=name, inputs=a, outputs=b) for a, b in pairwise(sizes))
