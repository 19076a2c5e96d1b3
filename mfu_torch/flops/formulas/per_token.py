"""The formulas of the conventions: FLOPs for a token of training, as their sources print them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fractions import Fraction
from typing import NamedTuple

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.pairs import PairRule, whole
from mfu_torch.flops.formulas.terms import Role

Formula = Callable[["Case"], Fraction | int]
"""A case -> FLOPs for a token, or a sample, of training."""


class Case(NamedTuple):
    """What a formula is asked about.

    Attributes:
        model: The model.
        seq: Tokens of a sequence; ``None`` where a sample has none.
        n: N, or the active ones: the model's own unless the source means others.
        without: Roles that the source leaves out.
    """

    model: Architecture
    seq: int | None
    n: Fraction | int
    without: Collection[Role]


def products(rule: PairRule, times: Fraction = Fraction(1), *, weights: bool = False) -> Formula:
    """Products of forward and backward; ``weights``: only those with weights."""

    def formula(case: Case) -> Fraction:
        terms = case.model.flops(seq=case.seq, attention=rule).without(*case.without)
        if weights:
            terms = terms.without("attention", "scan", "interaction")
        tokens = case.seq if case.model.per == "token" and case.seq is not None else 1
        return times * Fraction(terms.training, tokens)

    return formula


class _Sizes(NamedTuple):
    """What the formulas of decoders take: L, h, s, V, N, and the scores of a training step."""

    layers: int
    h: int
    s: int
    vocab: int
    n: Fraction | int
    scores: int


def _decoder(case: Case) -> _Sizes:
    model, s = case.model, case.seq
    assert isinstance(model, Decoder) and s is not None  # flops_per_token has seen to it
    # 12 L H Q T, where keys and values are equally wide; else 6 L H (d + dv) T.
    scores = 6 * whole("seq", s) * sum(block.count * block.score_dim for block in model.blocks)
    return _Sizes(model.layers, model.hidden, s, model.vocab, case.n, scores)


def palm(case: Case) -> Fraction | int:
    """6N + 12LHds."""
    return 6 * case.n + _decoder(case).scores


def palm_selective(case: Case) -> Fraction:
    """And one more forward of the scores."""
    return 6 * case.n + Fraction(4, 3) * _decoder(case).scores


def palm_hardware(case: Case) -> Fraction:
    """And 75 % of one more forward of the rest."""
    return palm_selective(case) + Fraction(3, 4) * 2 * case.n


def nanogpt(case: Case) -> Fraction | int:
    """Palm without the positions."""
    return palm(case) - 6 * case.model.parameters.positions


def torchtitan(case: Case) -> Fraction | int:
    """Palm without the embedding."""
    # A head that is the embedding used again is in `weights`, and `embedding` is 0.
    return palm(case) - 6 * case.model.parameters.embedding


def mosaic(case: Case) -> Fraction | int:
    """6N + 12Lhs."""
    x = _decoder(case)
    return 6 * x.n + 12 * x.layers * x.h * x.s


def mosaic_hardware(case: Case) -> Fraction:
    """8N + 16Lhs."""
    return Fraction(4, 3) * mosaic(case)


def korthikanti(case: Case) -> int:
    """72Lh² + 12Lsh + 6Vh."""
    x = _decoder(case)
    return 72 * x.layers * x.h * x.h + 12 * x.layers * x.s * x.h + 6 * x.vocab * x.h


def korthikanti_selective(case: Case) -> int:
    """72Lh² + 24Lsh + 6Vh."""
    x = _decoder(case)
    return korthikanti(case) + 12 * x.layers * x.s * x.h


def megatron(case: Case) -> int:
    """96Lh² + 16Lsh + 6Vh."""
    x = _decoder(case)
    return 96 * x.layers * x.h * x.h + 16 * x.layers * x.s * x.h + 6 * x.vocab * x.h


def megatron_model(case: Case) -> Fraction:
    """Three quarters of it."""
    return Fraction(3, 4) * megatron(case)


def six_n(case: Case) -> Fraction | int:
    """6N."""
    return 6 * case.n


def eight_n(case: Case) -> Fraction | int:
    """8N."""
    return 8 * case.n
