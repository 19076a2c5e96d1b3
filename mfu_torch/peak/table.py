"""A device's name and facts -> :class:`Peak`; a name that only resembles one is refused.

In this order: a user table, the rows of ``data/peaks.csv``, and, for a card that neither has,
arithmetic where architecture and product line are certain (:mod:`mfu_torch.peak.derive`). What
none of them settles, or a device's own facts contradict, is an :class:`UnknownPeak` that says
why. A device that has fewer
multiprocessors than the table's part (a MIG slice, a partition, a cut-down edition) gets its
share of the peak, marked ``derived``. Where other cards report the same name, or the device's
highest clock is below the document's, the peak carries its ``uncertainty``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mfu_torch.peak.contradiction import (
    can_be_part,
    clock_shortfall,
    contradiction,
    shortfall_text,
    why_not_by_name,
)
from mfu_torch.peak.derive import derived_peak
from mfu_torch.peak.mig import why_not_of
from mfu_torch.peak.names import (
    DTYPES,
    SUPPLY_PEAK,
    canonical_dtype,
    check_dtype,
    is_laptop,
    mig_profile,
    reason_of,
    unknown,
)
from mfu_torch.peak.rows import Row, find_rows, handle, rows_named, similar_names, table
from mfu_torch.peak.user_table import TablePaths, user_index
from mfu_torch.records import Device, Peak, UnknownPeak
from mfu_torch.units import scaled

if TYPE_CHECKING:
    import torch

__all__ = [
    "DTYPES",
    "SUPPLY_PEAK",
    "Row",
    "canonical_dtype",
    "check_dtype",
    "find_rows",
    "handle",
    "peak_for",
    "rows_named",
    "similar_names",
    "table",
    "user_peak",
]

_SM_WORDS = {"AMD": "CUs", "Apple": "cores", "Intel": "cores"}

_WHY_NOT_OF_A_CPU = (
    "no document states it for a CPU; it has to be measured: a Meter does that in the first run "
    "that needs it, mfu_torch.peak.resolve.resolve_peak(device, dtype) now"
)


def peak_for(device: str | Device, dtype: str | torch.dtype, *, table: TablePaths = None) -> Peak:
    """The dense peak of a device for one dtype, as its vendor documents it.

    ``peak_for("NVIDIA H100 80GB HBM3", "bf16").flops_per_s`` is 989.4e12. fp64 and fp32 are the
    rates of matrix multiplies (tensor or matrix cores where the device has them for that dtype).

    Args:
        device: What :func:`detect_device` returned, a driver's name, or a short name
            (``"h100-sxm"``). Only a :class:`Device` can tell MIG slices and editions apart, and
            only for one can a peak be derived.
        dtype: One of :data:`DTYPES`, or torch's name of it (``torch.bfloat16``, ``"bfloat16"``).
        table: User tables (TOML, see :mod:`mfu_torch.peak.user_table`), a path or several; by
            default those that the environment variable ``MFU_TORCH_PEAKS`` names. They win
            over the built-in one.

    Raises:
        ValueError: If the dtype is none of :data:`DTYPES`, or a user table is not valid
            (:class:`UserTableError`).
        TypeError: If the device is neither a name nor a :class:`Device`.
        UnknownPeak: If there is no trustworthy figure; the message says why.
    """
    dtype = canonical_dtype(dtype)
    if isinstance(device, str):
        device = Device(name=device, kind="")  # a name alone does not say what runs it
    if not isinstance(device, Device):
        raise TypeError(
            f"device is {device!r}; expected a Device, as detect_device() gives it, or a name, "
            'such as "NVIDIA H100 80GB HBM3"'
        )
    own = user_peak(device, dtype, table=table)
    if own is not None:
        return own
    try:
        return _documented(device, dtype)
    except UnknownPeak as error:
        mine = find_rows(device, user_index(table))
        if not mine:
            raise
        why = f"{_what_is_yours(mine[0])}; {reason_of(str(error))}"
        raise unknown(device, dtype, why) from None


def _what_is_yours(row: Row) -> str:
    return f"your {Path(row.file).name} has only {', '.join(row.flops_per_s)} of it"


def _documented(device: Device, dtype: str) -> Peak:
    """The peak by the built-in table, or by arithmetic."""
    if device.kind == "cpu":
        raise unknown(device, dtype, _WHY_NOT_OF_A_CPU)
    rows = find_rows(device)
    contradictions = [contradiction(device, row) for row in rows]
    if rows and all(contradictions):
        raise unknown(device, dtype, contradictions[0])
    rates = {_rate(row, dtype) for row in rows}
    if len(rates) != 1:
        # Two rows: "NVIDIA H100" is the name of a part that is none of the table's H100s.
        derived = derived_peak(device, dtype)
        if isinstance(derived, Peak):
            return derived
        if rows:
            why = _why_ambiguous(rows, dtype)
            if device.sm_count is not None:  # else there are no facts to derive it from
                why += f"; nor can it be derived: {derived}"
            raise unknown(device, dtype, why)
        why = f"{_why_not_found(device.name)}; nor can it be derived: {derived}"
        raise unknown(device, dtype, why)
    rate = rates.pop()
    if rate is None:
        raise unknown(device, dtype, _why_no_figure(rows[0], dtype))
    why = why_not_by_name(device, rows[0], dtype)
    if why:
        raise unknown(device, dtype, why)
    clocks = {row.implied_clock_hz(dtype) for row in rows}
    return _of_row(device, dtype, rows[0], rate, clocks.pop() if len(clocks) == 1 else None)


def user_peak(device: Device, dtype: str, *, table: TablePaths = None) -> Peak | None:
    """The peak that a user table gives; ``None`` where it does not have the device or dtype.

    Raises:
        UserTableError: If a table cannot be read or is not valid.
        UnknownPeak: If the device is a part of the table's, and how large a part is not known.
    """
    rows = find_rows(device, user_index(table))
    if not rows or dtype not in rows[0].flops_per_s:
        return None
    row = rows[0]
    return _of_row(device, dtype, row, row.flops_per_s[dtype], row.implied_clock_hz(dtype))


def _of_row(device: Device, dtype: str, row: Row, rate: float, clock_hz: float | None) -> Peak:
    peak = Peak(
        flops_per_s=rate,
        dtype=dtype,
        source=row.source if row.unit == "GPU" else f"{row.source}; per {row.unit}",
        provenance=row.provenance,
        device=device.name,
        clock_hz=clock_hz,
    )
    if _is_part(device, row):
        peak = msgspec.structs.replace(
            peak,
            flops_per_s=rate * _share(device, row, dtype),
            source=f"{peak.source}; scaled to {_part(device, row)}",
            provenance="derived",
        )
    return _with_uncertainty(peak, device, row)


def _with_uncertainty(peak: Peak, device: Device, row: Row) -> Peak:
    """The peak, with what is known of how far the device may be from the document's card."""
    source, deviations = peak.source, []
    if row.deviation is not None:
        source, deviations = f"{source}; {row.shared_with}", [row.deviation]
    if row.verified != "user":
        shortfall = clock_shortfall(device, peak.clock_hz)
        if shortfall is not None:
            deviations.append(shortfall)
        if clock_shortfall(device, peak.clock_hz or row.peak_clock_hz) is not None:
            source += f"; {shortfall_text(device, peak.clock_hz, row.peak_clock_hz)}"
    return msgspec.structs.replace(peak, source=source, uncertainty=max(deviations, default=None))


def _rate(row: Row, dtype: str) -> float | None:
    return None if row.verified == "secondary" else row.flops_per_s.get(dtype)


def _why_no_figure(row: Row, dtype: str) -> str:
    if row.verified == "secondary":
        return f"no figure of the {row.name} is trusted: {row.notes.partition('; ')[0]}"
    has = ", ".join(row.flops_per_s) or "none"
    if dtype in row.absent:
        return f"the {row.name} has no {dtype} units; the table has its {has}"
    return (
        f"no trustworthy {dtype} figure of the {row.name} (dense, wide accumulation) is "
        f"published; the table has its {has}"
    )


def _is_part(device: Device, row: Row) -> bool:
    if _mig(device, row) is not None:
        return True
    return None not in (device.sm_count, row.sm_count) and device.sm_count != row.sm_count


def _mig(device: Device, row: Row) -> str | None:
    return None if row.is_slice else mig_profile(device)


def _share(device: Device, row: Row, dtype: str) -> float:
    mig = _mig(device, row)
    if device.sm_count is None or row.sm_count is None:
        why = (
            "how many SMs that has is not known here; detect_device() on its machine tells"
            if device.sm_count is None
            else f"the table does not say how many SMs (sm_count) the whole {row.name} has"
        )
        raise unknown(device, dtype, f"it is the MIG slice {mig}, and {why}")
    share = device.sm_count / row.sm_count
    if not (0 < share <= 1 if mig is not None else can_be_part(device, row)):
        raise unknown(
            device,
            dtype,
            f"it reports {device.sm_count} multiprocessors and the {row.name} has "
            f"{row.sm_count}, so it is another device",
        )
    if mig is not None:
        whole = f"the {row.sm_count} SMs of the {row.name}"
        why = why_not_of(mig, device.sm_count, row.sm_count, row.memory_bytes, whole)
        if why:
            raise unknown(device, dtype, why)
    return share


def _part(device: Device, row: Row) -> str:
    word = _SM_WORDS.get(row.vendor, "SMs")
    mig = _mig(device, row)
    return f"{device.sm_count} of {row.sm_count} {word}" + (f" (MIG {mig})" if mig else "")


def _why_not_found(name: str) -> str:
    if is_laptop(name) or "max-q" in name.casefold():
        return "laptop parts share a desktop card's name, but not its SMs, clock or power"
    return (
        f"the table of {len(table())} devices does not have that name, and a similar name is "
        "often another device"
    )


def _why_ambiguous(rows: Sequence[Row], dtype: str) -> str:
    figures = []
    for row in rows:
        rate = _rate(row, dtype)
        figure = "no figure" if rate is None else scaled(rate, "FLOP/s", 4)
        figures.append(f"{handle(row)} ({row.name}, {figure})")
    return f"that name is shared by {', '.join(figures)}; say which"
