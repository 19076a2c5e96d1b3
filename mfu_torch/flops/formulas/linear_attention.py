"""Linear attention, and the gated delta rule.

    tokens t, heads H of dk and dv, chunk C
    linear attention (Katharopoulos et al. 2020, arXiv:2006.16236, equations 9 to 12)
        states        2 t H dk dv            k v^T, added up
        read-out      2 t H dk dv            q S
        in chunks (Yang et al. 2023, arXiv:2312.06635, section 2), beside these two
        scores        2 t C H dk             q k^T within a chunk
        values        2 t C H dv
    gated delta rule in chunks (arXiv:2412.06464 section 3.3, by the transform of arXiv:2406.06484)
        scores        2 t C H (dk + dk)      k k^T and q k^T
        solved        t (C - 1) H (dk + dv)  a triangular system, ones on its diagonal
        states        2 t H (3 dk dv)        w S, q S and k^T v
        values        2 t C H dv
    Kimi Delta Attention (arXiv:2510.26692, section 3): the same products, a decay of each channel

What decays a state or a score is elementwise, and left out. As in
:mod:`~mfu_torch.flops.formulas.state_space` the chunks' products are counted whole.
"""

from __future__ import annotations

from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.state_space import (
    Form,
    check_form,
    contraction,
    convolution,
    in_chunks,
)
from mfu_torch.flops.formulas.terms import Linear, Term
from mfu_torch.records import Record


class LinearAttention(Record, frozen=True, kw_only=True):
    """Linear attention: recurrent or not causal (no chunk), or in chunks (GLA, RetNet, Lightning).

    Attributes:
        heads: H.
        key_dim: dk of a head.
        value_dim: dv of a head.
        chunk: C; ``None``: one token at a time, or all at once without a mask.
        is_gated: Whether the output is multiplied with a gate as wide as it: (h, H dv).

    Raises:
        ValueError: If a size is no whole number above 0.
    """

    heads: int
    key_dim: int
    value_dim: int
    chunk: int | None = None
    is_gated: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "key_dim", "value_dim"):
            whole(name, getattr(self, name))
        if self.chunk is not None:
            whole("chunk", self.chunk)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """q, k, v, the gate and o."""
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        gate = (Linear(name="g", inputs=hidden, outputs=values),) if self.is_gated else ()
        return (
            Linear(name="q", inputs=hidden, outputs=keys),
            Linear(name="k", inputs=hidden, outputs=keys),
            Linear(name="v", inputs=hidden, outputs=values),
            *gate,
            Linear(name="o", inputs=values, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """States and read-out, and with chunks the scores and values within one."""
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        states = 2 * sequences.tokens * keys * self.value_dim
        terms = (contraction("states", states), contraction("read_out", states))
        if self.chunk is None:
            return terms
        _, pairs, _ = in_chunks(sequences, self.chunk, is_filled=False)
        return (
            *terms,
            contraction("chunk_scores", 2 * pairs * keys),
            contraction("chunk_values", 2 * pairs * values),
        )


class GatedDeltaNet(Record, frozen=True, kw_only=True):
    """A gated DeltaNet layer's mixer, as in Qwen3-Next.

    In form ``torch`` (``transformers`` without kernels) the first state of a sequence is a zero
    that needs no gradient, and the last one is computed, and used by nothing: neither of its
    operands gets a gradient from it.

    Attributes:
        key_heads: Of queries and keys; each serves value_heads / key_heads value heads.
        value_heads: H, heads of the states.
        key_dim: dk of a head.
        value_dim: dv of a head.
        chunk: C.
        kernel: Of the convolution over q, k and v.
        form: Whose products are counted (:data:`~mfu_torch.flops.formulas.state_space.Form`).

    Raises:
        ValueError: If a size is no whole number above 0, key heads do not divide value heads, or
            there is no such form.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    chunk: int = 64
    kernel: int = 4
    form: Form = "kernel"

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim", "chunk", "kernel"):
            whole(name, getattr(self, name))
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"key_heads is {self.key_heads}; expected a divisor of value_heads "
                f"{self.value_heads}"
            )
        check_form(self.form)

    @property
    def filtered(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def others(self) -> int:
        """Filters, the time step's bias, A, and the norm of a head; not the layer's norm."""
        return self.filtered * self.kernel + 2 * self.value_heads + self.value_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """q, k, v and the gate; the rate and the decay of each head; o."""
        values = self.value_heads * self.value_dim
        return (
            Linear(name="qkvz", inputs=hidden, outputs=self.filtered + values),
            Linear(name="ba", inputs=hidden, outputs=2 * self.value_heads),
            Linear(name="o", inputs=values, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """The convolution and the products of a chunk.

        The gradient of the triangular system's right side is another such system, that of its
        matrix a product: 2 C² of each column.
        """
        tokens, pairs, _ = in_chunks(sequences, self.chunk, is_filled=self.form == "torch")
        heads, dk, dv = self.value_heads, self.key_dim, self.value_dim
        solved = heads * (pairs - tokens) * (dk + dv)
        system = Term(
            name="solved",
            role="scan",
            forward=solved,
            backward=solved + 2 * heads * pairs * (dk + dv),
        )
        return (
            convolution(sequences, self.filtered, self.kernel, self.form),
            contraction("chunk_scores", 4 * heads * pairs * dk),
            system,
            self.states(sequences, tokens),
            contraction("chunk_values", 2 * heads * pairs * dv),
        )

    def states(self, sequences: Sequences, tokens: int) -> Term:
        """W S and q S: (C, dk) @ (dk, dv); k^T v: (dk, C) @ (C, dv)."""
        product = 2 * self.value_heads * self.key_dim * self.value_dim
        forward = 3 * product * tokens
        # Of two products the zero state's gradient, of the last state's product both gradients.
        edges = 4 * product * sequences.batch * self.chunk if self.form == "torch" else 0
        return Term(name="states", role="scan", forward=forward, backward=2 * forward - edges)


class KimiDeltaAttention(Record, frozen=True, kw_only=True):
    """The mixer of Kimi Linear: a gated delta rule whose decay is one of each channel.

    Form ``torch`` (``transformers`` without kernels) multiplies and adds up the scores elementwise,
    which is no contraction, and inverts the system the same way; what it does with the inverse is
    two products, (C, C) @ (C, dk) and (C, C) @ (C, dv).

    Attributes:
        heads: H.
        head_dim: d of keys, values and the ranks of both gates.
        chunk: C.
        kernel: Of the convolution over q, k and v.
        form: Whose products are counted (:data:`~mfu_torch.flops.formulas.state_space.Form`).

    Raises:
        ValueError: If a size is no whole number above 0, or there is no such form.
    """

    heads: int
    head_dim: int
    chunk: int = 64
    kernel: int = 4
    form: Form = "kernel"

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "chunk", "kernel"):
            whole(name, getattr(self, name))
        check_form(self.form)

    @property
    def _rule(self) -> GatedDeltaNet:
        return GatedDeltaNet(
            key_heads=self.heads,
            value_heads=self.heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            chunk=self.chunk,
            kernel=self.kernel,
            form=self.form,
        )

    @property
    def others(self) -> int:
        """Filters, the time step's bias, A, and the norm of a head; not the layer's norm."""
        inner = self.heads * self.head_dim
        return 3 * inner * self.kernel + inner + self.heads + self.head_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """q, k, v; the decay and the gate, of rank d each; the rate; o."""
        d, inner = self.head_dim, self.heads * self.head_dim
        shapes = (
            *((name, hidden, inner) for name in "qkv"),
            ("decay_down", hidden, d),
            ("decay_up", d, inner),
            ("rate", hidden, self.heads),
            ("gate_down", hidden, d),
            ("gate_up", d, inner),
            ("o", inner, hidden),
        )
        return tuple(Linear(name=name, inputs=a, outputs=b) for name, a, b in shapes)

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """The convolution and the products of a chunk."""
        if self.form == "kernel":
            return self._rule.cores(sequences, rule)
        tokens, pairs, _ = in_chunks(sequences, self.chunk, is_filled=True)
        inner = self.heads * self.head_dim
        return (
            convolution(sequences, 3 * inner, self.kernel, self.form),
            contraction("solved", 4 * pairs * inner),
            self._rule.states(sequences, tokens),
            contraction("chunk_values", 2 * pairs * inner),
        )
