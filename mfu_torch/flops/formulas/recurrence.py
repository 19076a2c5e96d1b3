"""Recurrent networks: LSTM, GRU and the plain one, as ``torch.nn`` has them.

    tokens t, gates g (LSTM 4, GRU 3, RNN 1), a layer's input i, hidden n, output o, directions D
    layer         2 t D g n (i + o)      o = n, or the projection p of an LSTM
    projection    2 t D n p              Sak et al. 2014, arXiv:1402.1128
    i = inputs in the first layer, D o in the others

LSTM: Hochreiter and Schmidhuber 1997; GRU: Cho et al. 2014, arXiv:1406.1078. The first layer's
input needs a gradient where it is an embedding, and none where it is data.

An LSTM of 3 inputs, n = 5 and 2 layers, 14 tokens: 2 * 14 * 20 * (3 + 5 + 5 + 5) = 10080 forward.

A hidden state before the first token is a zero that needs no gradient. Kernels compute it anyway,
and so it is counted; a loop over single cells, or ``torch.nn.GRU`` on a CPU, leaves out
2 B D g n o of each layer's backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.layers import none_or_whole
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record

Cell = Literal["lstm", "gru", "rnn"]
"""What a recurrent layer consists of."""

MOST_LAYERS = 10_000

GATES: dict[str, int] = {"lstm": 4, "gru": 3, "rnn": 1}
"""Gates of each cell."""


class Recurrent(Record, frozen=True, kw_only=True):
    """A recurrent network, with an embedding in front of it and a head behind it where wanted.

    Attributes:
        cell: ``lstm``, ``gru`` or ``rnn``.
        inputs: i of the first layer.
        hidden: n.
        layers: L.
        is_bidirectional: Whether each layer runs in both directions.
        projection: p of an LSTM; 0: none.
        vocab: Rows of an embedding in front; 0: the input is data, which needs no gradient.
        outputs: Of a head at each token: classes, or the vocabulary; 0: none.
        has_bias: Whether the cells have biases (two for each gate).

    Raises:
        ValueError: If a size is no whole number above 0, there is no such cell, or another than an
            LSTM has a projection.
    """

    cell: Cell
    inputs: int
    hidden: int
    layers: int = 1
    is_bidirectional: bool = False
    projection: int = 0
    vocab: int = 0
    outputs: int = 0
    has_bias: bool = True

    def __post_init__(self) -> None:
        if self.cell not in GATES:
            raise ValueError(f"cell is {self.cell!r}; expected one of {', '.join(GATES)}")
        for name in ("inputs", "hidden", "layers"):
            whole(name, getattr(self, name))
        if self.layers > MOST_LAYERS:
            raise ValueError(f"layers is {self.layers}; expected at most {MOST_LAYERS}")
        none_or_whole(self, "projection", "vocab", "outputs")
        if self.projection and (self.cell != "lstm" or self.projection >= self.hidden):
            raise ValueError(
                f"projection is {self.projection} of a {self.cell}; expected 0, or less than "
                f"hidden {self.hidden} of an lstm"
            )

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in."""
        return "token"

    @property
    def _directions(self) -> int:
        return 2 if self.is_bidirectional else 1

    @property
    def _out(self) -> int:
        return self.projection or self.hidden

    def _layer(self, inputs: int) -> tuple[Linear, ...]:
        gates, both = GATES[self.cell] * self.hidden, self._directions
        shapes = [("input_gates", inputs, gates), ("hidden_gates", self._out, gates)]
        if self.projection:
            shapes.append(("projection", self.hidden, self.projection))
        return tuple(
            Linear(name=name, inputs=a, outputs=b, uses=both, stored=both) for name, a, b in shapes
        )

    def _stack(self) -> tuple[tuple[Linear, ...], ...]:
        later = self._layer(self._directions * self._out)
        return (self._layer(self.inputs), *[later] * (self.layers - 1))

    def _head(self) -> tuple[Linear, ...]:
        width = self._directions * self._out
        head = Linear(name="head", inputs=width, outputs=self.outputs, role="head")
        return (head,) if self.outputs else ()

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        lengths: Iterable[int] | None = None,
        attention: PairRule = "full",
    ) -> ClosedForm:
        """FLOPs of ``batch`` sequences of ``seq`` tokens, or of these ``lengths``, packed.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
        """
        tokens = Sequences.of(batch, seq, lengths).tokens
        first, *later = self._stack()
        terms: list[Term] = [
            w.term(tokens, input_gradient=bool(self.vocab) or w.name != "input_gates")
            for w in first
        ]
        terms += [linear.term(tokens) for layer in later for linear in layer]
        terms += [linear.term(tokens, in_layer=False) for linear in self._head()]
        return ClosedForm(terms=added(terms))

    @property
    def parameters(self) -> Parameters:
        """How many it has, as in ``torch.nn``; the head has a bias."""
        linears = (*[linear for layer in self._stack() for linear in layer], *self._head())
        weights = sum(linear.weights for linear in linears)
        biases = 2 * GATES[self.cell] * self.hidden * self._directions * self.layers
        return Parameters(
            weights=weights,
            used=weights,
            embedding=self.vocab * self.inputs,
            others=(biases if self.has_bias else 0) + self.outputs,
        )


def lstm(
    *,
    inputs: int,
    hidden: int,
    layers: int = 1,
    is_bidirectional: bool = False,
    projection: int = 0,
    vocab: int = 0,
    outputs: int = 0,
    has_bias: bool = True,
) -> Recurrent:
    """An LSTM, as ``torch.nn.LSTM``.

    Args:
        inputs: i of the first layer.
        hidden: n.
        layers: L.
        is_bidirectional: Whether each layer runs in both directions.
        projection: p; 0: none.
        vocab: As in :class:`Recurrent`.
        outputs: As in :class:`Recurrent`.
        has_bias: As in :class:`Recurrent`.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    return Recurrent(
        cell="lstm",
        inputs=inputs,
        hidden=hidden,
        layers=layers,
        is_bidirectional=is_bidirectional,
        projection=projection,
        vocab=vocab,
        outputs=outputs,
        has_bias=has_bias,
    )


def gru(
    *,
    inputs: int,
    hidden: int,
    layers: int = 1,
    is_bidirectional: bool = False,
    vocab: int = 0,
    outputs: int = 0,
    has_bias: bool = True,
) -> Recurrent:
    """A GRU, as ``torch.nn.GRU``.

    Args:
        inputs: i of the first layer.
        hidden: n.
        layers: L.
        is_bidirectional: Whether each layer runs in both directions.
        vocab: As in :class:`Recurrent`.
        outputs: As in :class:`Recurrent`.
        has_bias: As in :class:`Recurrent`.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    return Recurrent(
        cell="gru",
        inputs=inputs,
        hidden=hidden,
        layers=layers,
        is_bidirectional=is_bidirectional,
        vocab=vocab,
        outputs=outputs,
        has_bias=has_bias,
    )


def rnn(
    *,
    inputs: int,
    hidden: int,
    layers: int = 1,
    is_bidirectional: bool = False,
    vocab: int = 0,
    outputs: int = 0,
    has_bias: bool = True,
) -> Recurrent:
    """A plain recurrent network, as ``torch.nn.RNN``.

    Args:
        inputs: i of the first layer.
        hidden: n.
        layers: L.
        is_bidirectional: Whether each layer runs in both directions.
        vocab: As in :class:`Recurrent`.
        outputs: As in :class:`Recurrent`.
        has_bias: As in :class:`Recurrent`.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    return Recurrent(
        cell="rnn",
        inputs=inputs,
        hidden=hidden,
        layers=layers,
        is_bidirectional=is_bidirectional,
        vocab=vocab,
        outputs=outputs,
        has_bias=has_bias,
    )
