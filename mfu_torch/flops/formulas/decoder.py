"""Decoders from parts: what mixes tokens, what follows it, how many such layers, the head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import Part
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
