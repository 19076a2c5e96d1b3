"""Exact device name -> :class:`Peak`, from ``data/peaks.csv``; never the nearest name.

Vendors put different chips under names that contain one another (A10, A10G, A100; L4, L40,
L40S; H100 SXM, PCIe, NVL), so a name is compared whole. Case, white space, the vendor's prefix
and a MIG suffix are all that may differ. What the table does not settle is an
:class:`UnknownPeak` that says why; a device that has fewer multiprocessors than the table's part
(a MIG slice, a partition, a cut-down edition) gets its share of the peak, marked ``derived``.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources

from mfu_torch.records import Device, Peak, Provenance, Record, UnknownPeak
from mfu_torch.units import scaled

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""The dtypes that a peak can be of."""

SUPPLY_PEAK = 'Supply the dense figure yourself: peak="989 TFLOP/s"'
"""The line that ends every refusal."""

_ABSENT = "-"
"""Cell of a dtype that the hardware has no units for; an empty cell is one nobody published."""

_SM_WORDS = {"AMD": "CUs", "Apple": "cores", "Intel": "cores"}

_MEMORY_TOLERANCE = 0.1
"""Drivers report a few percent less than the nominal size: 9.8 GiB of 10."""

_SM_TOLERANCE = 1.1
"""Editions of one name differ by a few SMs; many more than the table's are another device."""


class Row(Record, frozen=True):
    """One device of the table.

    Attributes:
        driver_names: As the driver, torch or the runtime reports it.
        short_names: For people: ``h100-sxm``. Several rows may share one.
        unit: What the figures are for: a GPU, half a board (GCD), a chip.
        sm_count: As torch counts multiprocessors; ``None`` where they mean nothing.
        flops_per_clock_per_sm: Dense, for the first of bf16, fp16, fp32 that the row has.
        clock_hz: At which the document states the peak; the rated boost where it states none.
        flops_per_s: What a matrix multiply can reach, by dtype.
        absent: Dtypes that the hardware has no units for.
        verified: How far the figure was checked. ``quoted``: the vendor's own line was read.
            ``peer+fp``: an independent table cites the same document, and
            SMs x FLOP per clock x clock agrees. ``fp``: only the latter. ``secondary``: no
            vendor figure exists, and the row gives no peak.
    """

    vendor: str
    name: str
    driver_names: tuple[str, ...]
    short_names: tuple[str, ...]
    unit: str
    sm_count: int | None
    flops_per_clock_per_sm: float | None
    clock_hz: float | None
    memory_bytes: float | None
    bytes_per_s: float | None
    flops_per_s: dict[str, float]
    absent: tuple[str, ...]
    provenance: Provenance
    verified: str
    source: str
    notes: str


def peak_for(device: str | Device, dtype: str) -> Peak:
    """The dense peak of a device for one dtype, as its vendor documents it.

    ``peak_for("NVIDIA H100 80GB HBM3", "bf16").flops_per_s`` is 989.4e12. fp64 and fp32 are the
    rates of matrix multiplies (tensor or matrix cores where the device has them for that dtype).

    Args:
        device: What :func:`detect_device` returned, a driver's name, or a short name
            (``"h100-sxm"``). Only a :class:`Device` can tell MIG slices and editions apart.
        dtype: One of :data:`DTYPES`.

    Raises:
        ValueError: If the dtype is none of :data:`DTYPES`.
        UnknownPeak: If the table has no trustworthy figure; the message says why.
    """
    check_dtype(dtype)
    if isinstance(device, str):
        device = Device(name=device, kind="cuda")
    if device.kind == "cpu":
        raise _unknown(device, dtype, "no document states it for a CPU; it has to be measured")
    rows = find_rows(device)
    if not rows:
        raise _unknown(device, dtype, _why_not_found(device.name))
    rates = {_rate(row, dtype) for row in rows}
    if len(rates) > 1:
        raise _unknown(device, dtype, _why_ambiguous(rows, dtype))
    rate = rates.pop()
    if rate is None:
        raise _unknown(device, dtype, _why_no_figure(rows[0], dtype))
    row = rows[0]
    source = row.source if row.unit == "GPU" else f"{row.source}; per {row.unit}"
    if not _is_part(device, row):
        return Peak(
            flops_per_s=rate,
            dtype=dtype,
            source=source,
            provenance=row.provenance,
            device=device.name,
        )
    return Peak(
        flops_per_s=rate * _share(device, row, dtype),
        dtype=dtype,
        source=f"{source}; scaled to {_part(device, row)}",
        provenance="derived",
        device=device.name,
    )


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that no peak can be of.

    Raises:
        ValueError: If the dtype is none of :data:`DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")


def find_rows(device: Device) -> tuple[Row, ...]:
    """The rows that a device may be: none, one, or editions that its facts cannot tell apart."""
    rows = _index().get(_key(_split_mig(device.name)[0]), ())
    if len(rows) > 1 and device.sm_count is not None and _mig(device) is None:
        rows = _narrow(rows, [row.sm_count == device.sm_count for row in rows])
    if len(rows) > 1 and device.memory_bytes is not None:
        rows = _narrow(rows, [_same_memory(row, device.memory_bytes) for row in rows])
    return rows


def _narrow(rows: tuple[Row, ...], fits: Sequence[bool]) -> tuple[Row, ...]:
    return tuple(row for row, fit in zip(rows, fits, strict=True) if fit) or rows


def _same_memory(row: Row, memory_bytes: int) -> bool:
    if row.memory_bytes is None:
        return False
    return abs(memory_bytes / row.memory_bytes - 1) < _MEMORY_TOLERANCE


def _rate(row: Row, dtype: str) -> float | None:
    return None if row.verified == "secondary" else row.flops_per_s.get(dtype)


def _why_no_figure(row: Row, dtype: str) -> str:
    if row.verified == "secondary":
        return (
            f"{row.vendor} publishes no figure for the {row.name}; those in circulation are "
            "second-hand"
        )
    has = ", ".join(row.flops_per_s) or "none"
    if dtype in row.absent:
        return f"the {row.name} has no {dtype} units; the table has its {has}"
    return f"no trustworthy {dtype} figure of the {row.name} is published; the table has its {has}"


def _is_part(device: Device, row: Row) -> bool:
    if _mig(device) is not None:
        return True
    return None not in (device.sm_count, row.sm_count) and device.sm_count != row.sm_count


def _share(device: Device, row: Row, dtype: str) -> float:
    if device.sm_count is None or row.sm_count is None:
        raise _unknown(
            device,
            dtype,
            f"it is the MIG slice {_mig(device)}, and how many SMs that has is not known here; "
            "detect_device() on its machine tells",
        )
    share = device.sm_count / row.sm_count
    if share > _SM_TOLERANCE:
        raise _unknown(
            device,
            dtype,
            f"it reports {device.sm_count} multiprocessors and the {row.name} has "
            f"{row.sm_count}, so it is another device",
        )
    return share


def _part(device: Device, row: Row) -> str:
    word = _SM_WORDS.get(row.vendor, "SMs")
    mig = _mig(device)
    return f"{device.sm_count} of {row.sm_count} {word}" + (f" (MIG {mig})" if mig else "")


def _unknown(device: Device, dtype: str, reason: str) -> UnknownPeak:
    return UnknownPeak(f"no {dtype} peak for {device.name!r}: {reason}. {SUPPLY_PEAK}")


def _why_not_found(name: str) -> str:
    if "laptop" in name.casefold() or "max-q" in name.casefold():
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
        figures.append(f"{row.name!r} ({figure})")
    return f"that name is shared by {', '.join(figures)}; say which"


def _mig(device: Device) -> str | None:
    return device.mig or _split_mig(device.name)[1]


def _split_mig(name: str) -> tuple[str, str | None]:
    """``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"`` -> ``("NVIDIA A100-SXM4-40GB", "1g.5gb")``."""
    whole, *profile = re.split(r"\s+MIG\s+", name, maxsplit=1)
    return whole, profile[0].strip() if profile else None


def _key(name: str) -> str:
    words = re.split(r"[\s_-]+", name.strip().casefold())
    return " ".join(words[1:] if words[0] in ("nvidia", "amd") else words)


@functools.cache
def table() -> tuple[Row, ...]:
    """All rows, read once."""
    text = (resources.files("mfu_torch") / "data" / "peaks.csv").read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


@functools.cache
def _index() -> dict[str, tuple[Row, ...]]:
    found: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for row in table():
        for name in (row.name, *row.driver_names, *row.short_names):
            found[_key(name)][row.name] = row
    return {key: tuple(rows.values()) for key, rows in found.items()}


def _row(cells: dict[str, str]) -> Row:
    # A matrix multiply runs on the matrix cores where there are any for its dtype, so that rate
    # is the denominator: fp64 on A100 is 19.5 TFLOP/s, not the 9.7 of its vector units.
    best = {dtype: cells.get(f"{dtype}_matrix") or cells[dtype] for dtype in DTYPES}
    provenance: Provenance = "derived" if cells["provenance"] == "derived" else "datasheet"
    return Row(
        vendor=cells["vendor"],
        name=cells["name"],
        driver_names=_names(cells["driver_names"]),
        short_names=_names(cells["short_names"]),
        unit=cells["unit"],
        sm_count=int(cells["sm_count"]) if cells["sm_count"] else None,
        flops_per_clock_per_sm=_number(cells["flops_per_clk_per_sm"], 0),
        clock_hz=_number(cells["clock_mhz"], 6),
        # Capacities are powers of 1024 in all but name, rates are not.
        memory_bytes=float(cells["memory_gb"]) * 2**30 if cells["memory_gb"] else None,
        bytes_per_s=_number(cells["mem_bw_gbs"], 9),
        flops_per_s={
            dtype: rate
            for dtype, cell in best.items()
            if cell != _ABSENT and (rate := _number(cell, 12)) is not None
        },
        absent=tuple(dtype for dtype, cell in best.items() if cell == _ABSENT),
        provenance=provenance,
        verified=cells["verified"],
        source=cells["source"],
        notes=cells["notes"],
    )


def _names(cell: str) -> tuple[str, ...]:
    return tuple(cell.split("|")) if cell else ()


def _number(cell: str, exponent: int) -> float | None:
    # Not a product: 66.9 * 1e12 is 66900000000000.01.
    return float(f"{cell}e{exponent}") if cell else None
