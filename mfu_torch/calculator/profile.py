"""A model by itself: its parameters, and what a token or a sample of it costs."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from mfu_torch.calculator.question import InputError, Question
from mfu_torch.calculator.work import described, of_positions, unit_flops
from mfu_torch.flops.formulas.conventions import CONVENTIONS, Architecture
from mfu_torch.flops.formulas.terms import Role
from mfu_torch.records import Record

_ALONE = {"model", "seq", "image_size", "convention", "mode"}
_MIXING: tuple[Role, ...] = ("attention", "scan", "interaction")


class Cost(Record, frozen=True, kw_only=True):
    """What training costs by a convention.

    Attributes:
        convention: Its name.
        counts: ``model`` or ``hardware`` FLOPs.
        formula: For a token or a sample.
        flops: Of one, in training.
    """

    convention: str
    counts: Literal["model", "hardware"]
    formula: str
    flops: float


class Profile(Record, frozen=True, kw_only=True):
    """What is known of a model without any run.

    Attributes:
        name: Of the model.
        kind: Of its architecture.
        parameters: All of them.
        active: Those that a token meets.
        weights: Those of a token that are in products.
        seq: Tokens of a sequence; ``None`` of a sample, and where it is not known.
        unit: What the FLOPs are for.
        forward_flops: Of one, every product; ``None`` where the length is not known, as the next
            two.
        training_flops: Forward and backward.
        mixing_share: Of the forward, as a fraction: products without weights (scores and values,
            scans, interactions).
        mixing: What these are; empty where there are none.
        costs: By each general convention that is for such a model, the lowest first.
        assumptions: What was not given and is presumed, as sentences.
        notes: What else has to be said.
        source: Where its sizes are from.
    """

    name: str
    kind: str
    parameters: int
    active: int
    weights: int
    seq: int | None
    unit: Literal["token", "sample"]
    forward_flops: float | None
    training_flops: float | None
    mixing_share: float | None
    mixing: tuple[str, ...]
    costs: tuple[Cost, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    source: str


def is_of_model_alone(question: Question) -> bool:
    """Whether nothing was asked but what the model costs."""
    given = {n for n in Question.__struct_fields__ if getattr(question, n) is not None}
    return "model" in given and given <= _ALONE


def profile(question: Question) -> Profile:
    """The costs of a model, by no run.

    ``llama-3-8b`` at 8192 tokens: 8.03B parameters, 19.3 GFLOP for a token forward, 22.25 % of
    them scores and values.

    Raises:
        InputError: If the model is not known, or its sizes make none.
    """
    name, model, known = described(question.model, question.image_size)
    if model.per == "sample" and question.seq is not None:
        raise InputError(f"{{seq}} says nothing of {name}, which is counted in samples")
    seq = question.seq
    assumptions: tuple[str, ...] = ()
    if model.per == "token" and seq is None:
        seq = getattr(known, "seq", None)
        assumptions = (_STATED.format(seq=seq) if seq is not None else _NO_LENGTH,)
    held, is_counted = model.parameters, seq is not None or model.per == "sample"
    try:
        found = _counted(model, seq) if is_counted else _Counted()
        costs = _costs(question, model, seq)
    except (ValueError, OverflowError) as problem:
        raise InputError(re.sub(r"\Aseq\b", "{seq}", str(problem))) from None
    return Profile(
        name=name,
        kind=type(model).__name__,
        parameters=held.total,
        active=held.active,
        weights=held.used,
        seq=seq,
        unit=model.per,
        **found._asdict(),
        costs=costs,
        assumptions=assumptions,
        notes=(*of_positions(name, model, seq, known), *getattr(known, "notes", ())),
        source=getattr(known, "source", ""),
    )


_STATED = "sequences of {seq:,} tokens, as its source states"
_NO_LENGTH = "no length of sequences is known, and scores depend on it: seq gives it"


class _Counted(NamedTuple):
    forward_flops: float | None = None
    training_flops: float | None = None
    mixing_share: float | None = None
    mixing: tuple[str, ...] = ()


def _counted(model: Architecture, seq: int | None) -> _Counted:
    form, tokens = model.flops(seq=seq), seq if model.per == "token" and seq else 1
    mixing = form.only(*_MIXING)
    return _Counted(
        forward_flops=form.forward / tokens,
        training_flops=form.training / tokens,
        mixing_share=mixing.forward / form.forward,
        mixing=tuple(dict.fromkeys(term.name for term in mixing.terms)),
    )


def _costs(question: Question, model: Architecture, seq: int | None) -> tuple[Cost, ...]:
    found = []
    if question.convention is not None:
        unit_flops(model, seq, question.convention)  # refused where it is not for such a model
    for one in CONVENTIONS.values():
        is_wanted = one.is_general or one.name == question.convention
        needs_length = model.per == "token" and seq is None and one.takes != "parameters"
        if not is_wanted or needs_length or one.why_not(model):
            continue
        flops = float(unit_flops(model, seq, one.name))
        formula = one.formula_of(model)
        found.append(Cost(convention=one.name, counts=one.counts, formula=formula, flops=flops))
    return tuple(sorted(found, key=lambda cost: cost.flops))
