"""The rows of ``data/peaks.csv``, and whole name -> rows.

Vendors put different chips under names that contain one another (A10, A10G, A100; L4, L40,
L40S; H100 SXM, PCIe, NVL), so a name is compared whole, never in part. Case, white space,
hyphens, the vendor's prefix and a MIG suffix are all that may differ.
"""

from __future__ import annotations

import csv
import functools
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence

from mfu_torch.peak.names import (
    DTYPES,
    is_laptop,
    likest,
    mig_profile,
    slice_name,
    split_mig,
    split_vendor,
)
from mfu_torch.records import Device, Provenance, Record

_ABSENT = "-"
"""Cell of a dtype that the hardware has no units for; an empty cell is one nobody published."""

_MEMORY_TOLERANCE = 0.1
"""Drivers report a few percent less than the nominal size: 9.8 GiB of 10."""

_ROUNDING = 0.02
"""Of documented figures: 733 is twice 362.05 (L40S)."""

_SAME_CLOCK = 0.01
"""Figures are rounded: 312e12 / (108 x 2048) is 1410.6 MHz, and the A100's clock 1410."""


class Row(Record, frozen=True):
    """One device of the table.

    Attributes:
        driver_names: As the driver, torch or the runtime reports it.
        short_names: For people: ``h100-sxm``. Several rows may share one.
        unit: What the figures are for: a GPU, half a board (GCD), a chip.
        architectures: As torch reports them (``9.0``, ``gfx942``), one unless drivers changed its
            number; none where nothing reports one.
        sm_count: As torch counts multiprocessors; ``None`` where they mean nothing.
        flops_per_clock_per_sm: Dense, for the first of bf16, fp16, fp32 that the row has.
        clock_hz: At which the document states the peak; where it states none, the rated boost or
            the driver's highest, which need not be the clock of the figures (``peak_clock_hz``).
        memory_bytes: ``None`` also where one name has several.
        flops_per_s: What a matrix multiply can reach, by dtype.
        absent: Dtypes that the hardware has no units for.
        verified: How far the figure was checked. ``quoted``: the vendor's own line was read.
            ``peer+fp``: an independent table cites the same document; ``fp``: none does. In both
            SMs x FLOP per clock x ``peak_clock_hz`` gives it, where these are known.
            ``secondary``: no figure is trusted, for the reason that ``notes`` starts with, and
            the row gives no peak. ``user``: from a user table.
        file: The user table that the row is from; empty for the built-in one.
        devices_per_unit: Into how many devices frameworks divide the unit: 2 cores of a TPU v3.
        deviation: By how much another card that reports the same name differs, as a fraction, the
            largest that is documented; ``None`` where there is no other.
        shared_with: Which other card that is, as a phrase.
    """

    vendor: str
    name: str
    driver_names: tuple[str, ...]
    short_names: tuple[str, ...]
    unit: str
    architectures: tuple[str, ...]
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
    file: str = ""
    devices_per_unit: int = 1
    deviation: float | None = None
    shared_with: str = ""

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice, and not the GPU that it is a slice of."""
        return any(split_mig(name)[1] is not None for name in self.driver_names)

    def implied_clock_hz(self, dtype: str) -> float | None:
        """The clock at which SMs x FLOP per clock give the figure; ``None`` where not known.

        H100 NVL in bf16: 835.5e12 / (132 x 4096) = 1545 MHz, which NVIDIA states nowhere. Its
        fp64 figure (60e12) is at a higher clock: rates are powers of two, and 835.5 / 60 is none.
        Where the clock of the document fits but for the rounding of the figure, it is that:
        L40S in fp8, 733e12 / (142 x 2048) = 2520.5 MHz, is at 2520, its 362.05 in bf16 at 2490.
        """
        if self.verified == "user":
            return self.clock_hz
        base = self._base()
        if base is None or not self.sm_count or not self.flops_per_clock_per_sm:
            return None
        rate = self.flops_per_s.get(dtype, base)
        times = 2.0 ** round(math.log2(rate / base))
        if abs(rate / base / times - 1) > _ROUNDING:
            return None
        per_clock = self.sm_count * self.flops_per_clock_per_sm
        known = [clock for clock in (self.clock_hz, base / per_clock) if clock is not None]
        implied = rate / times / per_clock
        fits = max(_SAME_CLOCK, _half_digit(rate))
        return next((clock for clock in known if abs(implied / clock - 1) <= fits), None)

    @property
    def peak_clock_hz(self) -> float | None:
        """The clock of the first figure of bf16, fp16 and fp32: what the others are compared to."""
        return None if self._base() is None else self.implied_clock_hz(self.base_dtype)

    @property
    def excess(self) -> float | None:
        """By how much SMs x FLOP per clock x ``clock_hz`` exceed that figure, as a fraction."""
        base = self._base()
        if base is None or None in (self.sm_count, self.flops_per_clock_per_sm, self.clock_hz):
            return None
        assert self.sm_count and self.flops_per_clock_per_sm and self.clock_hz
        return self.sm_count * self.flops_per_clock_per_sm * self.clock_hz / base - 1

    @property
    def base_dtype(self) -> str:
        """The first of bf16, fp16 and fp32 that the row has; empty if it has none of them."""
        stated = (one for one in ("bf16", "fp16", "fp32") if one in self.flops_per_s)
        return next(stated, "")

    def _base(self) -> float | None:
        return self.flops_per_s.get(self.base_dtype)


def _half_digit(rate: float) -> float:
    """Half a unit of the last digit of a figure in TFLOP/s, as a fraction: 2.9 -> 0.017."""
    text = f"{rate / 1e12:.10g}"
    return float(0.5 * 10.0 ** -len(text.partition(".")[2]) / (rate / 1e12))


Index = Mapping[str, tuple[Row, ...]]
"""Compared name -> the rows that have it."""


def find_rows(device: Device, index: Index | None = None) -> tuple[Row, ...]:
    """The rows that a device may be: none, one, or editions that its facts cannot tell apart.

    Args:
        device: Its facts decide only between rows that the driver reports under one name.
            ("NVIDIA H100" is no such name of the H100 SXM, PCIe or NVL: it is a fourth part.)
        index: Of a user table, which may have a slice by its whole name; by default the built-in
            one.
    """
    index = _index() if index is None else index
    part = slice_name(device)
    if part is not None and (rows := _named(part, index)):
        return rows
    name = split_mig(device.name)[0]
    rows = _named(name, index)
    key = split_vendor(name)[1]
    if any(key not in map(_key, row.driver_names) for row in rows):
        return rows
    if len(rows) > 1 and device.sm_count is not None and mig_profile(device) is None:
        rows = _narrow(rows, [row.sm_count == device.sm_count for row in rows])
    if len(rows) > 1 and device.memory_bytes is not None:
        rows = _narrow(rows, [_same_memory(row, device.memory_bytes) for row in rows])
    return rows


def rows_named(text: str) -> tuple[Row, ...]:
    """The rows of the built-in table that have a name, in any of its spellings; no narrowing."""
    return _named(split_mig(text)[0], _index())


def similar_names(text: str, count: int = 5, own: Index | None = None) -> tuple[str, ...]:
    """Names that look like ``text``, the likest first: for "did you mean", never for a peak.

    Args:
        text: What was asked for.
        count: At most so many.
        own: Of user tables, whose names are offered, too.
    """
    spelled: dict[str, str] = {}
    for row in (*unique_rows(own or {}), *table()):
        names = row.driver_names if row.file else (*row.short_names, *row.driver_names, handle(row))
        for name in names:
            spelled.setdefault(_key(name), name)
    return likest(_key(text), spelled, count)


def unique_rows(index: Index) -> tuple[Row, ...]:
    """The rows of an index, each once, in their order."""
    found: list[Row] = []
    for row in (row for rows in index.values() for row in rows):
        if not any(row is other for other in found):
            found.append(row)
    return tuple(found)


def handle(row: Row) -> str:
    """The shortest way to say which row is meant: ``h100-sxm``."""
    for name in (*row.short_names, row.name, *row.driver_names):
        if len(_index().get(_key(name), ())) == 1:
            return _key(name).replace(" ", "-")
    return row.name


def index_of(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    """Rows by each of their names, as :func:`find_rows` compares them."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        for name in (row.name, *row.driver_names, *row.short_names):
            found.setdefault(_key(name), {})[row.name] = row
    return {key: tuple(rows.values()) for key, rows in found.items()}


def _named(name: str, index: Index) -> tuple[Row, ...]:
    vendor, key = split_vendor(name)
    rows = index.get(key, ())
    # The laptops' "RTX 2080 Super" is spelled like the desktop card's name but for its case.
    return tuple(
        row
        for row in rows
        if any(map(is_laptop, row.driver_names)) == is_laptop(name)
        and (vendor is None or row.vendor.casefold() in ("", vendor))
    )


def _key(name: str) -> str:
    return split_vendor(name)[1]


def _narrow(rows: tuple[Row, ...], fits: Sequence[bool]) -> tuple[Row, ...]:
    return tuple(row for row, fit in zip(rows, fits, strict=True) if fit) or rows


def _same_memory(row: Row, memory_bytes: int) -> bool:
    if row.memory_bytes is None:
        return False
    return abs(memory_bytes / row.memory_bytes - 1) < _MEMORY_TOLERANCE


@functools.cache
def table() -> tuple[Row, ...]:
    """All rows, read once."""
    # importlib.resources would import zipfile and more at its first call, which takes milliseconds.
    text = pkgutil.get_data("mfu_torch", "data/peaks.csv")
    assert text is not None  # only a loader that cannot give data returns that
    return tuple(_row(cells) for cells in csv.DictReader(text.decode().splitlines()))


@functools.cache
def _index() -> Index:
    return index_of(table())


def _row(cells: dict[str, str]) -> Row:
    # A matrix multiply runs on the matrix cores where there are any for its dtype, so that rate
    # is the denominator: fp64 on A100 is 19.5 TFLOP/s, not the 9.7 of its vector units.
    best = {dtype: cells.get(f"{dtype}_matrix") or cells[dtype] for dtype in DTYPES}
    provenance: Provenance = "derived" if cells["provenance"] == "derived" else "datasheet"
    deviation, _, shared_with = cells["name_shared"].partition(": ")
    return Row(
        vendor=cells["vendor"],
        name=cells["name"],
        driver_names=_names(cells["driver_names"]),
        short_names=_names(cells["short_names"]),
        unit=cells["unit"],
        architectures=_names(cells["architecture"]),
        sm_count=int(cells["sm_count"]) if cells["sm_count"] else None,
        flops_per_clock_per_sm=number(cells["flops_per_clk_per_sm"], 0),
        clock_hz=number(cells["clock_mhz"], 6),
        # Capacities are powers of 1024 in all but name, rates are not.
        memory_bytes=float(cells["memory_gb"]) * 2**30 if cells["memory_gb"] else None,
        bytes_per_s=number(cells["mem_bw_gbs"], 9),
        flops_per_s={
            dtype: rate
            for dtype, cell in best.items()
            if cell != _ABSENT and (rate := number(cell, 12)) is not None
        },
        absent=tuple(dtype for dtype, cell in best.items() if cell == _ABSENT),
        provenance=provenance,
        verified=cells["verified"],
        source=cells["source"],
        notes=cells["notes"],
        devices_per_unit=int(cells["devices_per_unit"]),
        deviation=number(deviation, 0),
        shared_with=shared_with,
    )


def _names(cell: str) -> tuple[str, ...]:
    return tuple(cell.split("|")) if cell else ()


def number(cell: str, exponent: int) -> float | None:
    """A cell in units of ``10**exponent``; ``None`` if it is empty."""
    # Not a product: 66.9 * 1e12 is 66900000000000.01.
    return float(f"{cell}e{exponent}") if cell else None
