"""Parts of a layer: attention, MLPs, experts.

    hidden h, heads H, key and value heads K, size of a head d, of a value head dv, tokens t
    attention   q (t, h) @ (h, Hd)   k (t, h) @ (h, Kd)   v (t, h) @ (h, Kdv)
                o (t, Hdv) @ (Hdv, h)
                scores (H, s, d) @ (H, d, s)   values (H, s, s) @ (H, s, dv)
    MLP         gate, up (t, h) @ (h, f)   down (t, f) @ (f, h)

Grouped keys (K < H) save weights; the scores are those of all H heads.
"""

from __future__ import annotations

from typing import Protocol

from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole, whole_sizes
from mfu_torch.flops.formulas.terms import Linear, Term
from mfu_torch.records import Record


class Part(Protocol):
    """What a layer consists of: products with weights, and what needs none."""

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Its weights that multiply tokens, in the order in which they run."""
        ...

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """Its other contractions, for a batch."""
        ...


class Attention(Record, frozen=True, kw_only=True):
    """Multi-head, grouped-query (``kv_heads`` < ``heads``) or multi-query (1) attention.

    Attributes:
        heads: Of the queries.
        kv_heads: Of keys and values.
        head_dim: Of queries and keys. Not always hidden / heads: PaLM 540B has 48 of 256 in 18432.
        value_dim: Of values; ``None``: as ``head_dim``.
        mask: Which keys a query sees.
        is_gated: Whether the output is multiplied with a gate, as wide as the queries.

    Raises:
        ValueError: If a size is no whole number above 0, or the key heads do not serve equally
            many heads each.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    mask: Mask = Mask()
    is_gated: bool = False

    def __post_init__(self) -> None:
        check_mask(self.mask)
        whole("heads", self.heads)
        whole("kv_heads", self.kv_heads)
        whole("head_dim", self.head_dim)
        whole_sizes(self, "value_dim")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}")

    @property
    def score_dim(self) -> int:
        """H(d + dv): what a pair of query and key costs in multiply-adds."""
        return self.heads * (self.head_dim + (self.value_dim or self.head_dim))

    @property
    def cached(self) -> int:
        """Numbers that a KV cache keeps for a token."""
        return self.kv_heads * (self.head_dim + (self.value_dim or self.head_dim))

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """q, k, v, the gate and o."""
        q, value = self.heads * self.head_dim, self.value_dim or self.head_dim
        gate = (Linear(name="g", inputs=hidden, outputs=q),) if self.is_gated else ()
        return (
            Linear(name="q", inputs=hidden, outputs=q),
            *gate,
            Linear(name="k", inputs=hidden, outputs=self.kv_heads * self.head_dim),
            Linear(name="v", inputs=hidden, outputs=self.kv_heads * value),
            Linear(name="o", inputs=self.heads * value, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """Scores and values: 2H(d + dv) FLOPs for each pair of query and key."""
        value = self.value_dim or self.head_dim
        return scores_and_values(
            self.heads, self.head_dim, value, sequences.twice_pairs(rule, self.mask)
        )


class LatentAttention(Record, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), as in training and prefill.

    Attributes:
        heads: Of queries, keys and values.
        query_rank: Of the compressed query; ``None``: it is not compressed.
        kv_rank: Of the compressed key and value.
        nope_dim: Of a head's part without positions.
        rope_dim: Of a head's part with positions; the key's is shared by all heads.
        value_dim: Of a value head.
        mask: Which keys a query sees.

    Raises:
        ValueError: If a size is no whole number above 0.
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    mask: Mask = Mask()

    def __post_init__(self) -> None:
        check_mask(self.mask)
        whole_sizes(self, "query_rank")
        for name in ("heads", "kv_rank", "nope_dim", "rope_dim", "value_dim"):
            whole(name, getattr(self, name))

    @property
    def score_dim(self) -> int:
        """H(d + dv): what a pair of query and key costs in multiply-adds."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def cached(self) -> int:
        """Numbers that a KV cache keeps for a token: the latent and the shared key."""
        return self.kv_rank + self.rope_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Down to the ranks and up to the heads, and o."""
        q = self.heads * (self.nope_dim + self.rope_dim)
        query = (
            (Linear(name="q", inputs=hidden, outputs=q),)
            if self.query_rank is None
            else (
                Linear(name="q_down", inputs=hidden, outputs=self.query_rank),
                Linear(name="q_up", inputs=self.query_rank, outputs=q),
            )
        )
        kv = self.heads * (self.nope_dim + self.value_dim)
        return (
            *query,
            Linear(name="kv_down", inputs=hidden, outputs=self.kv_rank + self.rope_dim),
            Linear(name="kv_up", inputs=self.kv_rank, outputs=kv),
            Linear(name="o", inputs=self.heads * self.value_dim, outputs=hidden),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """Scores over d = nope + rope, values over dv."""
        return scores_and_values(
            self.heads,
            self.nope_dim + self.rope_dim,
            self.value_dim,
            sequences.twice_pairs(rule, self.mask),
        )


class MLP(Record, frozen=True, kw_only=True):
    """Two products, or three where it is gated (SwiGLU, GeGLU).

    Attributes:
        width: f, of the layer in between.
        is_gated: Whether it has a gate.

    Raises:
        ValueError: If the width is no whole number above 0.
    """

    width: int
    is_gated: bool = True

    def __post_init__(self) -> None:
        whole("width", self.width)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Gate, up and down."""
        return mlp_linears(hidden, self.width, is_gated=self.is_gated)

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """None."""
        return ()


class Experts(Record, frozen=True, kw_only=True):
    """Mixture of experts. Tokens that are dropped, and padding to a capacity, are not modelled.

    Attributes:
        experts: How many there are.
        chosen: How many a token is sent to.
        width: f of one.
        is_gated: Whether they are gated.
        shared_width: f of all shared experts together, which every token meets; 0: none.
        shared_gate: Whether a (h, 1) gate weighs the shared ones (Qwen2-MoE).

    Raises:
        ValueError: If a size is no whole number above 0, or more are chosen than there are.
    """

    experts: int
    chosen: int
    width: int
    is_gated: bool = True
    shared_width: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name in ("experts", "chosen", "width"):
            whole(name, getattr(self, name))
        if self.shared_width != 0:
            whole("shared_width", self.shared_width)
        if self.chosen > self.experts:
            raise ValueError(f"chosen is {self.chosen}; expected at most experts, {self.experts}")

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """The router, the experts chosen and the shared ones."""
        shared: tuple[Linear, ...] = ()
        if self.shared_width:
            shared = mlp_linears(
                hidden, self.shared_width, is_gated=self.is_gated, prefix="shared_"
            )
        gate = (Linear(name="shared_expert_gate", inputs=hidden, outputs=1, role="router"),)
        return (
            Linear(name="router", inputs=hidden, outputs=self.experts, role="router"),
            *mlp_linears(
                hidden,
                self.width,
                is_gated=self.is_gated,
                prefix="expert_",
                uses=self.chosen,
                stored=self.experts,
            ),
            *shared,
            *(gate if self.shared_gate else ()),
        )

    def cores(self, sequences: Sequences, rule: PairRule) -> tuple[Term, ...]:
        """None."""
        return ()


def check_mask(mask: Mask) -> None:
    """Nothing, where it is a mask.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is {mask!r}; expected a Mask")


def scores_and_values(
    heads: int, head_dim: int, value_dim: int, twice_pairs: int
) -> tuple[Term, ...]:
    """(H, s, d) @ (H, d, s) and (H, s, s) @ (H, s, dv); both operands need a gradient."""
    scores, values = heads * head_dim * twice_pairs, heads * value_dim * twice_pairs
    return (
        Term(name="scores", role="attention", forward=scores, backward=2 * scores),
        Term(name="values", role="attention", forward=values, backward=2 * values),
    )


def mlp_linears(
    hidden: int,
    width: int,
    *,
    is_gated: bool,
    prefix: str = "",
    uses: int = 1,
    stored: int = 1,
) -> tuple[Linear, ...]:
    """Gate (where there is one), up (h, f) and down (f, h)."""
    shapes = [("up", hidden, width), ("down", width, hidden)]
    if is_gated:
        shapes.insert(0, ("gate", hidden, width))
    return tuple(
        Linear(name=prefix + name, inputs=inputs, outputs=outputs, uses=uses, stored=stored)
        for name, inputs, outputs in shapes
    )
