"""State spaces: Mamba (Gu and Dao 2023, arXiv:2312.00752) and Mamba-2 (arXiv:2405.21060).

Both are parts of a layer as attention is one, so that hybrids are composed of blocks (Jamba,
Zamba, Nemotron-H): ``Block(parts=(Mamba2(...), MLP(...)), count=4)``.

    tokens t, hidden h, inner e, state N, heads nh of p (e = nh p), groups G, chunk Q, kernel k
    Mamba    in (h, 2e), x (e, r + 2N), time step (r, e), out (e, h)
             convolution   2 t e k
             scan          2 t e N             the states' read-out C h; section 3.3
    Mamba-2  in (h, 2e + 2GN + nh), out (e, h)
             convolution   2 t (e + 2GN) k
             scores        2 t Q G N           C B^T within a chunk, of each group
             outputs       2 t Q e             (L o C B^T) X
             states        2 t e N             B^T X of a chunk
             read-out      2 t e N             C times the state before the chunk

Section 6 of the latter derives these four products. What is no contraction is left out as
everywhere: a state's decay, elementwise, of each token (Mamba) or chunk (Mamba-2). In Mamba that
is most of the scan: NeMo's 7 t e N counts the update's elementwise multiplications, too.

Mamba-2 2.7B (64 layers, h 2560), 2048 tokens: 11.76 TFLOP forward, 0.70 of them the four products.

The products within a chunk run whole and are counted so, whatever ``attention`` says, which is
about attention. A last chunk that is not full is as long as it is.
"""

from __future__ import annotations

from typing import Literal

from mfu_torch.flops.formulas.decoder import Block, Decoder
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import Linear, Role, Term
from mfu_torch.records import Record

Form = Literal["kernel", "torch"]
"""Whose products are counted.

kernel: the paper's, as the kernels of ``mamba_ssm`` and ``causal_conv1d`` compute it. torch: those
of the code without kernels in ``transformers``, as far as they are other ones: the convolution
runs over the k - 1 positions behind a sequence, too; a sequence is filled up to whole chunks; B
and C are repeated for each head, not shared by a group; and the states of c chunks are passed on
by a product with (c + 1)² decays, 2 (c + 1)² e N for a sequence (listing 1 of the paper), where a
kernel scans.
"""

FORMS: tuple[Form, ...] = ("kernel", "torch")


class Mamba(Record, frozen=True, kw_only=True):
    """The mixer of a Mamba layer.

    Attributes:
        inner: e, d_inner; 2h in the paper.
        state: N, d_state.
        rank: r of the time step, dt_rank; h / 16 rounded up in the paper.
        kernel: k, d_conv.
        form: Whose products are counted.

    Raises:
        ValueError: If a size is no whole number above 0, or there is no such form.
    """

    inner: int
    state: int = 16
    rank: int
    kernel: int = 4
    form: Form = "kernel"

    def __post_init__(self) -> None:
        for name in ("inner", "state", "rank", "kernel"):
            whole(name, getattr(self, name))
        check_form(self.form)

    @property
    def others(self) -> int:
        """Filters with biases, the time step's bias, A and D; not the layer's norm."""
        return self.inner * (self.kernel + 1 + 1 + self.state + 1)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """In, x (to the time step, B and C), the time step and out."""
        e = self.inner
        return (
            Linear(name="in", inputs=hidden, outputs=2 * e),
            Linear(name="x", inputs=e, outputs=self.rank + 2 * self.state),
            Linear(name="time_step", inputs=self.rank, outputs=e),
            Linear(name="out", inputs=e, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """The convolution and the read-out of the states: (e, N) @ (N, 1) for each token."""
        return (
            convolution(sequences, self.inner, self.kernel, self.form),
            contraction("scan", 2 * sequences.tokens * self.inner * self.state),
        )


class Mamba2(Record, frozen=True, kw_only=True):
    """The mixer of a Mamba-2 layer.

    Attributes:
        heads: nh.
        head_dim: p.
        state: N, d_state.
        groups: G, heads that share B and C are in one.
        chunk: Q.
        kernel: k, d_conv.
        form: Whose products are counted.

    Raises:
        ValueError: If a size is no whole number above 0, groups do not divide heads, or there is
            no such form.
    """

    heads: int
    head_dim: int = 64
    state: int = 128
    groups: int = 1
    chunk: int = 256
    kernel: int = 4
    form: Form = "kernel"

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "state", "groups", "chunk", "kernel"):
            whole(name, getattr(self, name))
        if self.heads % self.groups:
            raise ValueError(f"groups is {self.groups}; expected a divisor of heads {self.heads}")
        check_form(self.form)

    @property
    def inner(self) -> int:
        """Width of the states' input: e."""
        return self.heads * self.head_dim

    @property
    def filtered(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def others(self) -> int:
        """Filters with biases; the time step's bias, A and D; the inner norm, not the layer's."""
        return self.filtered * (self.kernel + 1) + 3 * self.heads + self.inner

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """In (the gate, x, B, C and the time step) and out."""
        inside = self.inner + self.filtered + self.heads
        return (
            Linear(name="in", inputs=hidden, outputs=inside),
            Linear(name="out", inputs=self.inner, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """The convolution and the four products of a chunk."""
        is_torch, e, n = self.form == "torch", self.inner, self.state
        tokens, pairs, chunks = in_chunks(sequences, self.chunk, is_filled=is_torch)
        sharers = self.heads if is_torch else self.groups
        scan = (
            contraction("chunk_scores", 2 * pairs * sharers * n),  # (Q, N) @ (N, Q)
            contraction("chunk_outputs", 2 * pairs * e),  # (Q, Q) @ (Q, p) of each head
            contraction("chunk_states", 2 * tokens * e * n),  # (p, Q) @ (Q, N)
            contraction("read_out", 2 * tokens * e * n),  # (Q, N) @ (N, p)
        )
        passed = 2 * sum(count * (c + 1) ** 2 for count, c in chunks) * e * n
        passing = (contraction("passing", passed),) if is_torch else ()
        first = convolution(sequences, self.filtered, self.kernel, self.form)
        return (first, *scan[:3], *passing, *scan[3:])


def mamba(
    *,
    layers: int,
    hidden: int,
    vocab: int,
    expand: int = 2,
    state: int = 16,
    rank: int | None = None,
    kernel: int = 4,
    is_tied: bool = True,
    form: Form = "kernel",
) -> Decoder:
    """Mamba with its norms; Mamba-130M (V 50280) has 129135360 parameters.

    Args:
        layers: L.
        hidden: h.
        vocab: V.
        expand: e / h.
        state: N.
        rank: r; h / 16 rounded up by default.
        kernel: k.
        is_tied: Whether the head is the embedding.
        form: Whose products are counted.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    part = Mamba(
        inner=whole("expand", expand) * whole("hidden", hidden),
        state=state,
        rank=-(-hidden // 16) if rank is None else rank,
        kernel=kernel,
        form=form,
    )
    return _decoder(part, layers, hidden, vocab, is_tied)


def mamba2(
    *,
    layers: int,
    hidden: int,
    vocab: int,
    heads: int | None = None,
    head_dim: int = 64,
    state: int = 128,
    groups: int = 1,
    chunk: int = 256,
    kernel: int = 4,
    is_tied: bool = True,
    form: Form = "kernel",
) -> Decoder:
    """Mamba-2 with its norms; the one of 130M (V 50288) has 128989632 parameters.

    Args:
        layers: L.
        hidden: h.
        vocab: V.
        heads: nh; 2h / p by default.
        head_dim: p.
        state: N.
        groups: G.
        chunk: Q.
        kernel: k.
        is_tied: Whether the head is the embedding.
        form: Whose products are counted.

    Raises:
        ValueError: If a size is no whole number above 0, or groups do not divide heads.
    """
    if heads is None:
        heads = 2 * whole("hidden", hidden) // whole("head_dim", head_dim)
    part = Mamba2(
        heads=heads,
        head_dim=head_dim,
        state=state,
        groups=groups,
        chunk=chunk,
        kernel=kernel,
        form=form,
    )
    return _decoder(part, layers, hidden, vocab, is_tied)


def _decoder(part: Mamba | Mamba2, layers: int, hidden: int, vocab: int, is_tied: bool) -> Decoder:
    return Decoder(
        hidden=hidden,
        vocab=vocab,
        blocks=(Block(parts=(part,), count=whole("layers", layers)),),
        is_tied=is_tied,
        others=layers * (part.others + hidden) + hidden,
    )


def check_form(form: str) -> None:
    """Nothing.

    Raises:
        ValueError: If there is no such form.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")


def convolution(sequences: Sequences, channels: int, kernel: int, form: Form) -> Term:
    """A depthwise convolution over time: 2 t c k."""
    behind = sequences.batch * (kernel - 1) if form == "torch" else 0
    positions = sequences.tokens + behind
    return contraction("convolution", 2 * positions * channels * kernel, role="convolution")


def contraction(name: str, forward: int, *, role: Role = "scan") -> Term:
    """A product both of whose operands need a gradient."""
    return Term(name=name, role=role, forward=forward, backward=2 * forward)


def in_chunks(
    sequences: Sequences, chunk: int, *, is_filled: bool
) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Sequences cut into chunks: (tokens, pairs within a chunk, (sequences, chunks of each)).

    10 tokens in chunks of 4: pairs 16 + 16 + 4 = 36, or 3 * 16 where they are filled up.
    """
    tokens = pairs = 0
    chunks: list[tuple[int, int]] = []
    for count, length in sequences.lengths:
        number = -(-length // chunk)
        rest = chunk if is_filled else length - (number - 1) * chunk
        tokens += count * ((number - 1) * chunk + rest)
        pairs += count * ((number - 1) * chunk * chunk + rest * rest)
        chunks.append((count, number))
    return tokens, pairs, tuple(chunks)
