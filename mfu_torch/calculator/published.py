"""Published MFU, HFU and TFLOP/s, recomputed from the inputs that stand beside them.

A published figure is right or wrong only by its convention: :func:`recompute` takes a
:class:`Claim` (sizes, throughput, devices, peak, convention, and what is claimed) and says whether
they belong together; :func:`fits` tries every convention. :func:`published` does so with each row
of ``data/published.csv``.

    >>> from mfu_torch.calculator.published import Claim, Figures, recompute
    >>> from mfu_torch.flops import formulas
    >>> gpt = formulas.dense_decoder(
    ...     layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200, is_gated=False
    ... )
    >>> found = recompute(
    ...     Claim(
    ...         model=gpt,
    ...         convention="korthikanti",
    ...         seq=2048,
    ...         batch=64,
    ...         step_s=13.75,
    ...         devices=64,
    ...         peak_flops_per_s=312e12,
    ...         stated=Figures(mfu=0.514),
    ...     )
    ... )
    >>> found.status, round(100 * found.found.mfu, 2)
    ('agrees', 51.39)
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mfu_torch.calculator.claims import Claim, Difference, Figures, Fit, Recomputed, Status
from mfu_torch.calculator.published_rows import claims
from mfu_torch.flops.formulas import Decoder
from mfu_torch.flops.formulas.conventions import CONVENTIONS, flops_per_token
from mfu_torch.utilization import rate_per_s, utilization

__all__ = [
    "OURS",
    "TOLERANCE",
    "Claim",
    "Difference",
    "Figures",
    "Fit",
    "Recomputed",
    "fits",
    "published",
    "recompute",
]

OURS = "matmul"
"""The convention of mfu_torch, which every row is shown under as well."""

TOLERANCE = 0.5
"""Points of MFU and HFU; percent of FLOPs, where there is no peak; days."""

_DAY_S = 86400.0

_NO_SIZES = Decoder(hidden=1, vocab=1, blocks=())
"""Stands for a model of which N alone is stated: with it, 6n and 8n take nothing from the sizes."""


def recompute(claim: Claim) -> Recomputed:
    """Recompute a claim from its inputs.

    Raises:
        ValueError: If a convention is not for such a model, or needs what is not given.
    """
    found = Figures(
        mfu=_share(claim, claim.convention),
        hfu=_share(claim, claim.hardware_convention) if claim.hardware_convention else None,
        flops_per_s=_flops_per_s(claim, claim.flops_convention or claim.convention),
        flops_per_token=_per_token(claim, claim.convention),
        hardware_flops_per_token=_per_token(claim, claim.hardware_convention),
        days=_days(claim),
    )
    compared = _differences(claim, found)
    status, reason = _status(claim, compared)
    return Recomputed(
        id=claim.id,
        source=claim.source,
        model=claim.name,
        device=claim.device,
        seq=claim.seq,
        devices=claim.devices,
        peak_flops_per_s=claim.peak_flops_per_s,
        convention=claim.convention,
        hardware_convention=claim.hardware_convention,
        flops_convention=claim.flops_convention or claim.convention,
        without=claim.without,
        assumed=claim.assumed,
        stated=claim.stated,
        found=found,
        ours=_ours(claim),
        differences=compared,
        mfu_range=_mfu_range(claim, found),
        status=status,
        reason=reason,
        note=claim.note,
    )


def fits(claim: Claim) -> tuple[Fit, ...]:
    """The claim under every convention that is for such a model, the best fit first.

    Formulas for GPTs are left out where the model is none: there they count other sizes.

    Raises:
        ValueError: If neither MFU nor HFU is claimed, or model, throughput or peak are missing.
    """
    stated = claim.stated.mfu if claim.stated.mfu is not None else claim.stated.hfu
    if stated is None:
        raise ValueError("no MFU and no HFU is claimed; expected one in stated=Figures(mfu=...)")
    if claim.model is None or claim.peak_flops_per_s is None:
        raise ValueError("model or peak_flops_per_s is missing; expected both, to try conventions")
    found = []
    for name, convention in CONVENTIONS.items():
        if convention.why_not(claim.model) or (convention.presumes_gpt and not _is_gpt(claim)):
            continue
        share = _share(claim if convention.takes == "products" else _whole(claim), name)
        if share is None:
            raise ValueError("no throughput is given; expected tokens_per_s, or step_s and batch")
        found.append(
            Fit(
                convention=name,
                counts=convention.counts,
                utilization=share,
                difference_points=100 * (share - stated),
            )
        )
    return tuple(sorted(found, key=lambda fit: abs(fit.difference_points)))


def _is_gpt(claim: Claim) -> bool:
    """Whether the model has the shape that GPT formulas presume: then they are ``matmul``."""
    whole = _whole(claim)
    return _per_token(whole, "korthikanti") == _per_token(whole, OURS)


def published(filter: str | None = None) -> tuple[Recomputed, ...]:
    """Each row of the table, recomputed.

    Args:
        filter: Rows with every one of these words in their id, model, source, device, convention or
            status, in any case; all by default.

    Raises:
        ValueError: If no row has them.
    """
    rows = tuple(recompute(claim) for claim in claims())
    words = (filter or "").lower().split()
    kept = tuple(row for row in rows if all(word in _searched(row) for word in words))
    if not kept:
        raise ValueError(
            f"no published row has {filter!r}; expected words as in palm, mpt 70b, h100"
        )
    return kept


def _searched(row: Recomputed) -> str:
    conventions = (row.convention, row.hardware_convention, row.flops_convention)
    return " ".join((row.id, row.model, row.source, row.device, *conventions, row.status)).lower()


def _ours(claim: Claim) -> Figures:
    """By ``matmul``; nothing where that is not what ran: FLOPs without a model, LoRA, packing."""
    if claim.model is None or claim.convention == "lora" or "attention" in claim.without:
        return Figures()
    whole = _whole(claim)
    return Figures(
        mfu=_share(whole, OURS),
        flops_per_s=_flops_per_s(whole, OURS),
        flops_per_token=_per_token(whole, OURS),
    )


def _whole(claim: Claim) -> Claim:
    """The claim with nothing left out."""
    return msgspec.structs.replace(claim, without=())


def _per_token(claim: Claim, convention: str) -> float | None:
    if not convention:
        return None
    model, takes = claim.model, CONVENTIONS[convention].takes
    if model is None:
        if takes != "parameters" or claim.parameters is None:
            return None
        model = _NO_SIZES
    without = claim.without if takes == "products" else ()
    return float(
        flops_per_token(convention, model, claim.seq, parameters=claim.parameters, without=without)
    )


def _units_per_s(claim: Claim) -> float | None:
    """Tokens/s of all devices, or samples/s."""
    if claim.tokens_per_s is not None:
        return claim.tokens_per_s
    if claim.step_s is None or claim.batch is None:
        return None
    if claim.model is not None and claim.model.per == "sample":
        return rate_per_s(claim.batch, claim.step_s)
    return None if claim.seq is None else rate_per_s(claim.batch * claim.seq, claim.step_s)


def _flops_per_s(claim: Claim, convention: str) -> float | None:
    """FLOP/s of one device, by a convention."""
    if claim.step_flops is not None and claim.step_s is not None:
        return rate_per_s(claim.step_flops, claim.step_s) / claim.devices
    per_token, units = _per_token(claim, convention), _units_per_s(claim)
    if units is not None and claim.given_flops_per_s is None:
        return None if per_token is None else units * per_token / claim.devices
    given, by = claim.given_flops_per_s, claim.flops_convention or claim.convention
    if given is None and claim.given_hfu is not None and claim.peak_flops_per_s is not None:
        given, by = claim.given_hfu * claim.peak_flops_per_s, claim.hardware_convention
    if given is None or by == convention:
        return given
    counted = _per_token(claim, by)
    return None if counted is None or per_token is None else given * per_token / counted


def _share(claim: Claim, convention: str) -> float | None:
    rate = _flops_per_s(claim, convention)
    if rate is None or claim.peak_flops_per_s is None:
        return None
    return utilization(rate / claim.peak_flops_per_s, 1.0)


def _days(claim: Claim) -> float | None:
    by = claim.flops_convention or claim.convention
    per_token, rate = _per_token(claim, by), _flops_per_s(claim, by)
    if claim.train_tokens is None or per_token is None or rate is None:
        return None
    return claim.train_tokens * per_token / (claim.devices * rate) / _DAY_S


def _rounding(claim: Claim) -> float:
    """By what share the given FLOP/s may be off, as it is rounded."""
    if claim.given_flops_per_s is None:
        return 0.0
    return claim.given_step / 2 / claim.given_flops_per_s


def _mfu_range(claim: Claim, found: Figures) -> tuple[float, float] | None:
    share = _rounding(claim)
    if not share or found.mfu is None:
        return None
    return found.mfu * (1 - share), found.mfu * (1 + share)


def _differences(claim: Claim, found: Figures) -> tuple[Difference, ...]:
    compared = []
    for figure in Figures.__struct_fields__:
        stated, value = getattr(claim.stated, figure), getattr(found, figure)
        if stated is not None and value is not None:
            compared.append(_difference(claim, figure, stated, value))
    return tuple(compared)


def _difference(claim: Claim, figure: str, stated: float, found: float) -> Difference:
    unit: Literal["points", "%", "days"]
    peak, tolerance = claim.peak_flops_per_s, TOLERANCE
    if figure == "days":
        unit, off = "days", found - stated
        tolerance += found * _rounding(claim)
    elif figure in ("mfu", "hfu"):
        unit, off = "points", 100 * (found - stated)
    elif figure == "flops_per_s" and peak is not None:
        unit, off = "points", 100 * (found - stated) / peak
    else:
        unit, off = "%", 100 * (found / stated - 1)
    return Difference(
        figure=figure, stated=stated, found=found, difference=off, unit=unit, tolerance=tolerance
    )


def _status(claim: Claim, compared: tuple[Difference, ...]) -> tuple[Status, str]:
    if not compared:
        return "not checkable", _why_not(claim)
    if all(one.agrees for one in compared):
        return "agrees", ""
    if claim.exception:
        return "explained", claim.exception
    return "disagrees", "the figures do not belong together by this convention; fits() tries others"


def _why_not(claim: Claim) -> str:
    names = [name for name in Figures.__struct_fields__ if getattr(claim.stated, name) is not None]
    if not names:
        return "nothing is published to compare with"
    missing = []
    if _units_per_s(claim) is None and claim.given_flops_per_s is None:
        missing.append("neither tokens/s nor a step time is stated")
    if not claim.convention and not claim.flops_convention:
        missing.append("no formula is stated")
    if claim.model is None:
        missing.append("no sizes are stated")
    if claim.peak_flops_per_s is None:
        missing.append("no peak is stated")
    return "; ".join(missing)
