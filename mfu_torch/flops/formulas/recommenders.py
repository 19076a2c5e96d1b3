"""Recommenders of tables and MLPs: DLRM.

DLRM (Naumov et al. 2019, arXiv:1906.00091, section 2), batch B, F = tables + 1 vectors of d:

    bottom MLP    2 B a b of each layer       dense features need no gradient
    tables        no contraction: B x (ids of all bags) x d adds, read from memory
    interaction   2 B F² d                    (F, d) @ (d, F), of which F (F - 1) / 2 are used
    top MLP       2 B a b of each layer, from d + F (F - 1) / 2

MLPerf's DLRM (13-512-256-128, 26 tables, 479-1024-1024-512-256-1): 4916992 a sample, forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

from mfu_torch.flops.formulas.convnets import no_seq
from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.pairs import PairRule, whole
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


def dense_layers(name: str, sizes: tuple[int, ...]) -> tuple[Linear, ...]:
    """An MLP of these sizes: (B, a) @ (a, b) for each two in a row."""
    return tuple(Linear(name=name, inputs=a, outputs=b) for a, b in pairwise(sizes))
