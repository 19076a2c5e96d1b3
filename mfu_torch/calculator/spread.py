"""One run by every convention: why a bare MFU means nothing; and the conventions themselves."""

from __future__ import annotations

from typing import Literal

import msgspec

from mfu_torch.calculator.peaks import figure_note
from mfu_torch.calculator.question import InputError, Question
from mfu_torch.calculator.solve import terms_of
from mfu_torch.calculator.throughput import sizes_of
from mfu_torch.calculator.work import described, unit_flops, work_of
from mfu_torch.flops.formulas.conventions import CONVENTIONS, Architecture, Convention
from mfu_torch.records import Peak, Record


class SpreadRow(Record, frozen=True, kw_only=True):
    """The run by one convention.

    Attributes:
        convention: Its name.
        counts: ``model``: ``share`` is an MFU; ``hardware``: it is an HFU.
        formula: For a token.
        leaves_out: What it does not count, or presumes.
        flops: Of a token, or of a sample.
        share: As a fraction.
    """

    convention: str
    counts: Literal["model", "hardware"]
    formula: str
    leaves_out: str
    flops: float
    share: float


class Spread(Record, frozen=True, kw_only=True):
    """The run by each convention, the lowest share first.

    Attributes:
        of: Which model.
        unit: What ``flops`` are for: a token or a sample.
        units_per_s: Throughput of all devices.
        devices: How many.
        peak: Of one device.
        rows: One for each convention.
        absent: Convention -> why it has no row, where the model is none that it is for.
        assumptions: What was not given and is presumed, as sentences.
        notes: What else has to be said.
    """

    of: str
    unit: str
    units_per_s: float
    devices: int
    peak: Peak
    rows: tuple[SpreadRow, ...]
    absent: dict[str, str]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]


def spread(question: Question) -> Spread:
    """One run by every general convention, and by the one that the question names.

    Llama 3 70B at 8192, 866.77 tokens/s on each GPU of 989 TFLOP/s: from 36.55 % (``6w``) to
    56.26 % (``full-recompute``).

    Raises:
        InputError: If the question has no model, is about inference, or lacks a term.
    """
    _check(question)
    base = msgspec.structs.replace(question, convention="matmul")
    work = work_of(base)
    terms, assumptions = terms_of(base, work, sizes_of(base, work))
    per_flop = terms.share / work.flops
    _, model, _ = described(question.model, question.image_size)
    rows, absent = [], {}
    for convention in CONVENTIONS.values():
        if not convention.is_general and convention.name != question.convention:
            continue
        reason = convention.why_not(model)
        if reason:
            absent[convention.name] = reason
            continue
        rows.append(_row(convention, model, work.seq, per_flop))
    return Spread(
        of=work.of,
        unit=work.unit,
        units_per_s=terms.rate,
        devices=round(terms.devices),
        peak=terms.peak,
        rows=tuple(sorted(rows, key=lambda row: row.share)),
        absent=absent,
        assumptions=(*work.assumptions, *assumptions),
        notes=(*figure_note(terms.peak, None), *work.notes),
    )


def _row(
    convention: Convention, model: Architecture, seq: int | None, per_flop: float
) -> SpreadRow:
    flops = float(unit_flops(model, seq, convention.name))
    return SpreadRow(
        convention=convention.name,
        counts=convention.counts,
        formula=convention.formula_of(model),
        leaves_out=convention.leaves_out,
        flops=flops,
        share=flops * per_flop,
    )


def _check(question: Question) -> None:
    if question.recompute is not None:
        raise InputError(
            "{recompute} has no place among all conventions: those that count hardware FLOPs say "
            "themselves what runs again; leave it out, or give one {convention} in their place"
        )
    superfluous = question.given("mfu", "hfu", "price_per_device_hour", "achieved_flops_per_s")
    if question.within_s is None and question.device_hours is None:
        superfluous += question.given("token_budget")
    if superfluous:
        raise InputError(f"{superfluous[0]} has no place among all conventions; leave it out")
    if question.model is None:
        raise InputError("all conventions need the sizes of the model; give {model} llama-3-70b")
    if question.mode == "inference":
        raise InputError("the conventions are those of training; leave out {mode}")
