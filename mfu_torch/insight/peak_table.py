"""What devices could do, as text: a row of the table, or what is in this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mfu_torch.insight.text import field, wrap
from mfu_torch.peak.names import reason_of
from mfu_torch.peak.published import Published
from mfu_torch.peak.resolve import NOT_DETERMINED
from mfu_torch.peak.rows import Index, find_rows, unique_rows
from mfu_torch.peak.table import Row, handle, peak_for
from mfu_torch.records import Device, Peak, PeakEntry, Record, UnknownPeak
from mfu_torch.units import bytes_, margin, percent, scaled

VERIFIED = {
    "quoted": "the vendor's own line was read",
    "peer+fp": "an independent table cites the same document",
    "fp": "the document was not read again",
    "secondary": "no figure of it is trusted, so no peak is given; the notes say why",
    "user": "from a table of yours",
}
"""How far the figures of a row were checked, but for the arithmetic."""

_WIDTH = 17

_SUSTAINED = "sustained here, by mfu-torch bench:"

_NO_UNITS, _UNTRUSTED, _UNPUBLISHED = "no units", "unknown", "-"
_FOOTER = (
    "no units: the hardware has none for the dtype; unknown: no figure of the device is trusted; "
    "-: none is published of the dtype (dense, wide accumulation), or a name does not tell it; "
    "~: another card has the same name, or the figure is derived. The row says more"
)


class Line(Record, frozen=True, kw_only=True):
    """One dtype of a device.

    Attributes:
        entry: The peak that MFU divides by, or why there is none.
        published: What others measured a matmul to reach on this device.
    """

    entry: PeakEntry
    published: tuple[Published, ...] = ()


class RowView(Record, frozen=True, kw_only=True):
    """A device of the table with its peaks."""

    row: Row
    lines: tuple[Line, ...]


class DeviceView(Record, frozen=True, kw_only=True):
    """A device of this machine.

    Attributes:
        used: A Meter without ``device=`` and model would take it.
        problem: What keeps the driver from being asked; empty if nothing does.
        fp32_runs_as: What fp32 matmuls run in under the settings in force.
        rows: Names of the table's rows that it may be.
    """

    device: Device
    used: bool
    problem: str
    fp32_runs_as: str
    driver: str
    rows: tuple[str, ...]
    lines: tuple[Line, ...]


def render_rows(views: Sequence[RowView]) -> str:
    """Each row with its names, peaks and sources, at most 100 columns wide."""
    blocks = ["\n".join(_row_block(view)) for view in views]
    if len(views) > 1:
        known = ", ".join(handle(view.row) for view in views)
        head = f"{len(views)} devices share that name; say which: {known}"
        blocks.insert(0, "\n".join(wrap(head)))
    return "\n\n".join(blocks) + "\n"


def render_machine(views: Sequence[DeviceView]) -> str:
    """Each device of this machine: what it is, what will be divided by, what is missing."""
    return "\n\n".join("\n".join(_device_block(view)) for view in views) + "\n"


def render_list(rows: Sequence[Row], dtypes: Sequence[str] = (), own: Index | None = None) -> str:
    """A line for each device: how to say which, a column for each dtype, its full name.

    Args:
        rows: Of the built-in table.
        dtypes: By default bf16, or, where there are no such units, fp16, marked.
        own: Of user tables: their devices come first, and their figures win, marked.
    """
    own = own or {}
    columns = tuple(dtypes) or ("bf16",)
    head = "".join(f"{f'dense {dtype}':>20}" for dtype in columns)
    lines = [f"{'short name':<28}{head}  name"]
    listed = [(row, _own_row(row, own)) for row in rows]
    used = [mine for _, mine in listed if mine is not None]
    new = [row for row in unique_rows(own) if not any(row is one for one in used)]
    for row, mine in (*((one, one) for one in new), *listed):
        cells = "".join(f"{_cell(row, mine, dtype, not dtypes):>20}" for dtype in columns)
        lines.append(f"{handle(row):<28}{cells}  {_full_name(row)}")
    files = dict.fromkeys(row.file for row in unique_rows(own))
    lines += ["", *wrap(_FOOTER)]
    lines += wrap(f"*: of your table {', '.join(files)}") if files else []
    return "\n".join(lines) + "\n"


def _own_row(row: Row, own: Index) -> Row | None:
    """The entry of a user table that wins over a row, for one of its names at least."""
    found = (find_rows(Device(name=name, kind=""), own) for name in row.driver_names)
    return next((rows[0] for rows in found if rows), None)


def _cell(row: Row, mine: Row | None, dtype: str, or_fp16: bool) -> str:
    if mine is not None and dtype in mine.flops_per_s:
        return f"{scaled(mine.flops_per_s[dtype], 'FLOP/s', 4)} *"
    if row.verified == "secondary":
        return _UNTRUSTED
    if or_fp16 and dtype not in row.flops_per_s:
        fp16 = _cell(row, mine, "fp16", or_fp16=False)
        if fp16.lstrip("~")[0].isdigit():
            return f"fp16 {fp16}"
    if dtype in row.absent:
        return _NO_UNITS
    try:
        peak = peak_for(row.name, dtype)
    except UnknownPeak:  # no figure, or one that a name alone does not decide
        return _UNPUBLISHED
    text = scaled(peak.flops_per_s, "FLOP/s", 4)
    return text if peak.uncertainty is None else f"~{text}"


def row_summary(view: RowView) -> dict[str, Any]:
    """A row for programs."""
    return {"row": view.row, "name": view.row.name, "peaks": _summaries(view.lines)}


def device_summary(view: DeviceView) -> dict[str, Any]:
    """A device for programs."""
    return {
        "device": view.device,
        "used": view.used,
        "driver": view.driver or None,
        "driver_problem": view.problem or None,
        "fp32_runs_as": view.fp32_runs_as,
        "rows": view.rows,
        "peaks": _summaries(view.lines),
    }


def _summaries(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        line.entry.dtype: {
            "peak": line.entry.peak,
            "unknown": line.entry.unknown or None,
            "measured": line.entry.measured,
            "published": line.published,
        }
        for line in lines
    }


def _row_block(view: RowView) -> Iterator[str]:
    row = view.row
    yield _full_name(row)
    yield _field("reported as", ", ".join(row.driver_names))
    if row.short_names:
        yield _field("short names", ", ".join(row.short_names))
    yield _field("figures are per", row.unit)
    if row.sm_count:
        text = f"{row.sm_count} multiprocessors"
        if row.flops_per_clock_per_sm:
            text += f" x {row.flops_per_clock_per_sm:.0f} FLOP/clock"
        text += f", {_hz(row.clock_hz)}" if row.clock_hz else ""
        yield _field("size", text)
    memory = [bytes_(row.memory_bytes)] if row.memory_bytes else []
    memory += [f"{scaled(row.bytes_per_s, 'B/s')}"] if row.bytes_per_s else []
    if memory:
        yield _field("memory", ", ".join(memory))
    yield _field("source", row.source)
    yield _field("verified", f"{row.verified}: {VERIFIED[row.verified]}{_arithmetic(row)}")
    if row.notes:
        yield _field("notes", row.notes)
    yield from _peaks(view.lines, (row.source, f"{row.source}; per {row.unit}"))


def _arithmetic(row: Row) -> str:
    """Whether multiprocessors x rate x clock give the figure, and if not, which clock does."""
    if row.excess is None or row.clock_hz is None or row.verified == "secondary":
        return ""
    off = 100 * abs(row.excess)
    product = f"; SMs x FLOP/clock x {_hz(row.clock_hz)}"
    if row.peak_clock_hz == row.clock_hz:
        return f"{product} gives the {row.base_dtype} figure to {max(0.1, off):.1f} %"
    than = f"{off:.1f} % {'more' if row.excess > 0 else 'less'} than the {row.base_dtype} figure"
    clock = "" if row.peak_clock_hz is None else f", which is at {_hz(row.peak_clock_hz)}"
    return f"{product} gives {than}{clock}"


def _full_name(row: Row) -> str:
    if row.file:
        return f"{', '.join(row.driver_names)} (yours)"
    return row.name if row.vendor in row.name else f"{row.vendor} {row.name}"


def _device_block(view: DeviceView) -> Iterator[str]:
    one = view.device
    index = "" if one.index is None else f":{one.index}"
    used = "   <- a Meter takes this one" if view.used else ""
    yield f"{one.kind}{index}  {one.name}{used}"
    if one.kind != "cpu":  # for CPUs there is no table
        yield _field("in the table as", ", ".join(view.rows) or "not there")
    if one.sm_count is not None:
        word = "cores" if one.kind == "cpu" else "multiprocessors"
        text = f"{one.sm_count} {word}"
        text += f", torch uses {one.threads} threads" if one.threads else ""
        text += f", up to {_hz(one.max_clock_hz)}" if one.max_clock_hz else ""
        text += f", MIG {one.mig}" if one.mig else ""
        text += f", {one.compute_capability}" if one.compute_capability else ""
        yield _field("size", text)
    if one.memory_bytes is not None:
        yield _field("memory", bytes_(one.memory_bytes))
    if one.uuid:
        yield _field("UUID", one.uuid)
    if view.driver:
        yield _field("driver", view.driver)
    if view.problem:
        yield _field("NVML", f"not available: {view.problem}")
    yield _field("fp32 runs as", view.fp32_runs_as)
    yield from _peaks(view.lines, ())


def _peaks(lines: Sequence[Line], sources: Sequence[str]) -> Iterator[str]:
    """A line for each dtype; a source that stands above already is not repeated."""
    known = [line for line in lines if line.entry.peak is not None]
    pending = any(NOT_DETERMINED in line.entry.unknown for line in lines)
    none = "No peak is determined yet" if pending else "No peak is known"
    yield f"  {'Peaks, dense' if known else none}"
    for line in known:
        peak = line.entry.peak
        assert peak is not None
        text = f"{_rate(peak)}, {peak.provenance}"
        text += margin(peak.uncertainty)
        if peak.clock_hz is not None:
            text += f", at {_hz(peak.clock_hz)}"
        text += "" if peak.source in sources else f": {peak.source}"
        yield _peak_field(line.entry.dtype, text)
        if line.entry.measured is not None:
            one = line.entry.measured
            yield _peak_field("", f"{_SUSTAINED} {_of(one.flops_per_s, peak)}, {one.source}")
        for other in line.published:
            text = f"published {_of(other.flops_per_s, peak)}: {other.conditions}, {other.source}"
            yield _peak_field("", text)
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line.entry.peak is None:
            measured = line.entry.measured
            if measured is not None:
                text = f"{_SUSTAINED} {_rate(measured)}, {measured.source}"
                yield _peak_field(line.entry.dtype, text)
            reasons.setdefault(_reason(line.entry), []).append(line.entry.dtype)
    for reason, dtypes in reasons.items():
        yield from wrap(f"{', '.join(dtypes)}: {reason}", "    ", "      ")


def _reason(entry: PeakEntry) -> str:
    """Why there is none, without what the lines around it already say."""
    text = reason_of(entry.unknown)
    text = text.partition("; the table has its ")[0]
    return text.replace(f"no {entry.dtype} units", "no units for it")


def _of(rate: float, peak: Peak) -> str:
    return f"{scaled(rate, 'FLOP/s', 4)} ({percent(rate / peak.flops_per_s)})"


def _rate(peak: Peak) -> str:
    return scaled(peak.flops_per_s, "FLOP/s", 4)


def _hz(clock_hz: float) -> str:
    return f"{clock_hz / 1e6:.0f} MHz"


def _field(label: str, text: str) -> str:
    return field(f"  {label}", text, _WIDTH + 2)


def _peak_field(dtype: str, text: str) -> str:
    return field(f"    {dtype}", text, 10)
