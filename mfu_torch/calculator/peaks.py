"""The peak of a question: looked up or given, and which documented figure a given one is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mfu_torch.calculator.question import InputError, Question
from mfu_torch.calculator.throughput import agree
from mfu_torch.records import Peak, UnknownPeak
from mfu_torch.units import percent_exact, scaled

if TYPE_CHECKING:
    from mfu_torch.peak.rows import Row

_AS_PRINTED = 0.002
"""Of a figure that somebody copied: documents print three or four digits."""

_AS_FOUND = 0.01
"""Of one that was solved for."""

_CLEARLY = 0.002
"""By how much nearer a figure of another kind has to be than a dense peak of the dtype."""

_SPARSE_SPEED_UP = 2
_TAKEN_FOR_A_PEAK = ("bf16", "fp16", "tf32", "fp8", "fp4")  # int8 is no FLOP/s
_SPARSE_AMD = ("gfx94", "gfx95")


def peak_of(question: Question) -> tuple[Peak | None, tuple[str, ...]]:
    """The peak of one device, with its provenance, and what was presumed.

    Raises:
        InputError: If none is known for the device, or the figure given is another.
    """
    from mfu_torch.peak.table import canonical_dtype, peak_for

    given, dtype = question.peak_flops_per_s, question.dtype
    try:
        dtype = canonical_dtype(dtype) if dtype is not None else None
    except ValueError as problem:
        raise InputError(f"{{dtype}}: {problem}") from None
    if question.device is None:
        if given is None:
            return None, ()
        return Peak(flops_per_s=given, dtype=dtype or "", source="given"), ()
    try:
        peak = peak_for(question.device, dtype or "bf16")
    except UnknownPeak as problem:
        raise InputError(
            f"{{device}}: {why_no_peak(question.device, str(problem))}; give another {{device}} or "
            "{dtype}, or {peak_flops_per_s}"
        ) from None
    if given is not None and not agree(given, peak.flops_per_s):
        raise InputError(
            f"{{peak_flops_per_s}} {scaled(given, 'FLOP/s', 4)} is not the {peak.dtype} peak of "
            f"{{device}} {question.device}, {scaled(peak.flops_per_s, 'FLOP/s', 4)}"
            f"{_of_that_device(question.device, given)}; give one"
        )
    return peak, () if dtype else ("the peak is that of bf16",)


def why_no_peak(device: str, problem: str) -> str:
    """What :class:`UnknownPeak` says, without what is to be done, and with names near it."""
    from mfu_torch.peak.names import NO_PEAK_HERE, SUPPLY_PEAK
    from mfu_torch.peak.table import rows_named, similar_names

    text = problem.removesuffix(f". {SUPPLY_PEAK}").removesuffix(f". {NO_PEAK_HERE}")
    similar = () if rows_named(device) else similar_names(device)
    meant = f"; did you mean {', '.join(similar)}" if similar else ""
    return f"{text}{meant}"


def has_sparsity(device: str) -> bool:
    """Whether documents print a second figure for it, twice as high, with 2:4 sparsity."""
    from mfu_torch.peak.table import rows_named

    return any(_has_sparsity(row) for row in rows_named(device))


def figure_note(peak: Peak, share: float | None) -> tuple[str, ...]:
    """What else a peak is that nobody named a device for: a sparse figure, that of another dtype.

    ``1979 TFLOP/s`` is the fp8 dense and bf16 sparse figure of the H100 SXM, whose bf16 dense peak
    is 989.4. Nothing where it is a dense peak of the dtype (bf16 or fp16, where none is given), or
    no documented figure.

    Args:
        peak: Of one device; only one that was given or solved for is looked at.
        share: By that peak; ``None`` where the peak was what was asked for.
    """
    if peak.provenance not in ("given", "derived") or peak.device:
        return ()
    within = _AS_PRINTED if peak.provenance == "given" else _AS_FOUND
    wanted = (peak.dtype,) if peak.dtype else ("bf16", "fp16")
    found = [one for one in _figures(peak.flops_per_s) if one.off <= within]
    dense = min((f.off for f in found if not f.is_sparse and f.dtype in wanted), default=1.0)
    others = [f for f in found if f.is_sparse or f.dtype not in wanted]
    others = [f for f in others if wanted[0] in f.row.flops_per_s and f.off + _CLEARLY < dense]
    if not others:
        return ()
    is_given = peak.provenance == "given"
    nearest = min(others, key=lambda figure: round(figure.off, 3) if is_given else 0)
    row, meant = nearest.row, nearest.row.flops_per_s[wanted[0]]
    names = _kinds(f for f in found if f.row is row)
    text = (
        f"{scaled(peak.flops_per_s, 'FLOP/s', 4)} is {'' if is_given else 'within 1 % of '}the "
        f"{names} figure of {_handle(row)}; its "
        f"{wanted[0]} dense peak is {scaled(meant, 'FLOP/s', 4)}"
    )
    if share is not None:
        by = percent_exact(share * peak.flops_per_s / meant)
        text += f", by which the share is {by}"
    return (text,)


class _Figure(NamedTuple):
    row: Row
    dtype: str
    is_sparse: bool
    off: float


def _figures(rate: float) -> Iterator[_Figure]:
    """Every documented figure, and how far the rate is off it."""
    from mfu_torch.peak.table import table

    for row in table():
        for dtype in _TAKEN_FOR_A_PEAK:
            dense = row.flops_per_s.get(dtype)
            if dense is None:
                continue
            yield _Figure(row, dtype, False, abs(rate / dense - 1))
            if _has_sparsity(row):
                yield _Figure(row, dtype, True, abs(rate / (_SPARSE_SPEED_UP * dense) - 1))


def _of_that_device(device: str, rate: float) -> str:
    """Which other of its figures it is."""
    from mfu_torch.peak.table import rows_named

    rows = rows_named(device)
    names = _kinds(f for f in _figures(rate) if f.row in rows and f.off <= _AS_FOUND)
    return f"; it is its {names} figure" if names else ""


def _kinds(figures: Iterator[_Figure]) -> str:
    """``fp8 and int8 dense, bf16 and fp16 sparse``."""
    words: dict[str, list[str]] = {}
    for figure in figures:
        listed = words.setdefault("sparse" if figure.is_sparse else "dense", [])
        if figure.dtype not in listed:
            listed.append(figure.dtype)
    return ", ".join(f"{' and '.join(words[k])} {k}" for k in ("dense", "sparse") if k in words)


def _has_sparsity(row: Row) -> bool:
    if row.vendor == "NVIDIA":
        return any(float(one) >= 8 for one in row.architectures)
    return row.vendor == "AMD" and any(one.startswith(_SPARSE_AMD) for one in row.architectures)


def _handle(row: Row) -> str:
    from mfu_torch.peak.table import handle

    return handle(row)
