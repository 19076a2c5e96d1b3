"""The layers of architectures that are no decoders, all of them together."""

from __future__ import annotations

from collections.abc import Iterable

from mfu_torch.flops.formulas.decoder import Block
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import Term
from mfu_torch.records import Record


def none_or_whole(model: Record, *names: str) -> None:
    """Nothing, where each of these fields is 0 or a whole number above it.

    Raises:
        ValueError: If one is not.
    """
    for name in names:
        if getattr(model, name) != 0:
            whole(name, getattr(model, name))


def block_terms(
    blocks: Iterable[Block], hidden: int, sequences: Sequences, rule: PairRule
) -> list[Term]:
    """The terms of all layers, in the order in which they run."""
    return [term for block in blocks for term in block.terms(hidden, sequences, rule)]


def block_weights(blocks: Iterable[Block], hidden: int) -> tuple[int, int]:
    """Weights of all layers that multiply tokens: (held, met by one token)."""
    linears = [(block.count, linear) for block in blocks for linear in block.linears(hidden)]
    return (
        sum(count * linear.weights for count, linear in linears),
        sum(count * linear.weights_used for count, linear in linears),
    )
